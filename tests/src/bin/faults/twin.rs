//! A second outbox, whose producers use the same keys for other messages on the same stream.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::stream::Config;
use deadpool_postgres::Pool;
use oncebox_outbox::Message;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{
    pool,
    traffic::{self, Producing},
};
use tokio::time::{Instant, sleep};

use crate::stage::{CONNECTIONS, POOL_WAIT, Stage, stream_config};

const SUBJECTS: &str = "twin.>";
const WAIT_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// The duplicate window of the stream.
const WINDOW: Duration = Duration::from_secs(120);

pub(crate) struct Twin {
    pool: Pool,
    producing: Producing,
}

impl Twin {
    /// Starts producers and a relay on a second database of the same server.
    pub(crate) async fn start(stage: &mut Stage<'_>, rate: u32) -> Result<Self> {
        let mut config = stream_config(0);
        config.subjects.push(SUBJECTS.to_owned());
        let config = Config { duplicate_window: WINDOW, ..config };
        stage.broker.jetstream().await?.update_stream(config).await?;
        stage.pool.get().await?.batch_execute("CREATE DATABASE twin").await?;
        let url = stage.postgres.url("twin");
        let pool = pool(&url, CONNECTIONS, POOL_WAIT)?;
        let mut client = pool.get().await?;
        migrate(&mut client, &SchemaName::default(), Lanes::default()).await?;
        client.batch_execute(traffic::TABLES).await?;
        stage.add_relay_of(url, false).await?;
        Ok(Self { producing: Producing::start(&pool, rate, message, fastrand::u64(..)), pool })
    }

    /// Stops the producers and waits until all messages that they committed are in the stream.
    /// Returns how many messages there are, and how many of their keys the first outbox has used
    /// too.
    pub(crate) async fn finish(mut self, stage: &Stage<'_>) -> Result<(usize, usize)> {
        self.producing.stop().await?;
        let committed: HashSet<String> =
            traffic::placed(&self.pool).await?.into_iter().map(|message| message.key).collect();
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let keys = traffic::stream_keys(&stage.stream, SUBJECTS).await?;
            let stored: HashSet<String> = keys.into_iter().collect();
            let missing = committed.difference(&stored).count();
            if missing == 0 {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{missing} of the second outbox's messages are not in the stream"
            );
            sleep(PAUSE).await;
        }
        let first = traffic::placed(&stage.pool).await?;
        let shared = first.iter().filter(|message| committed.contains(&message.key)).count();
        Ok((committed.len(), shared))
    }
}

fn message(key: &str, _: &mut fastrand::Rng) -> Result<Message> {
    Message::json(key.parse()?, "twin.message".parse()?, &key).context("make a message")
}
