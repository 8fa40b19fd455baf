//! The servers of a stage, and the database of its outbox.

use anyhow::Result;
use oncebox_tests::{Leaf, Nats, NatsCluster, Postgres, adversity, pool};

use crate::{
    broker::Broker,
    stage::{POOL_WAIT, Setup},
};

/// As of nats-server 2.12.
const BUSY: &str = "max_buffered_msgs: 8\nsync_interval: always";

/// Starts both.
pub(crate) async fn servers(setup: Setup) -> Result<(Postgres, Broker)> {
    let broker = async {
        anyhow::Ok(if setup.is_cluster {
            Broker::Three(NatsCluster::start().await?)
        } else if setup.is_leaf {
            Broker::Leaf(Box::new(Leaf::start().await?))
        } else if setup.is_busy {
            Broker::One(Box::new(Nats::start_with_jetstream(BUSY, "").await?))
        } else {
            Broker::One(Box::new(Nats::start().await?))
        })
    };
    tokio::try_join!(Postgres::start_with(setup.postgres), broker)
}

/// The name of the outbox's database, which is created if it has an encoding of its own.
pub(crate) async fn database(postgres: &Postgres, encoding: Option<&str>) -> Result<&'static str> {
    const ENCODED: &str = "encoded";
    let Some(encoding) = encoding else { return Ok("postgres") };
    let admin = pool(&postgres.url("postgres"), 1, POOL_WAIT)?.get().await?;
    adversity::create_database_in(&admin, ENCODED, encoding).await?;
    Ok(ENCODED)
}
