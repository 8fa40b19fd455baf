//! The life of a process of cashiers.

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context, Result};
use oncebox_inbox::{Consumer, Inbox, LeasedHandler};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{SCOPE, Settled};
use crate::{config, order::OrderPlaced};

/// Settles orders until SIGTERM or Ctrl-C. `connections` is how many the inbox may have.
///
/// # Errors
/// A variable is missing, or a server went away for good.
pub async fn serve<H>(handler: H, connections: usize) -> Result<()>
where
    H: LeasedHandler<Message = OrderPlaced, Reply = Settled> + 'static,
{
    let filter = EnvFilter::new(config::variable("LOG").as_deref().unwrap_or("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let lease = config::variable("LEASE_SECONDS").map_or(Ok(30), |seconds| seconds.parse::<u64>());
    let lease = Duration::from_secs(lease.context("read LEASE_SECONDS")?);
    let leased = Inbox::builder(config::pool(&config::required("DATABASE_URL")?, connections)?)
        .scope(SCOPE)
        .single_tenant()
        .backoff(Duration::from_millis(200), Duration::from_secs(5))
        // Each process that dies, and each answer that is lost, costs an attempt.
        .attempts_max(100)
        .leased(lease)
        .build()?;
    let (shutdown, nats) = (CancellationToken::new(), config::nats().await?);
    let consuming = Consumer::new(async_nats::jetstream::new(nats), config::required("STREAM")?, "cashier")
        .filter_subject(config::subject("orders.placed"))
        .ack_wait(lease)
        .concurrency(8)
        .run(leased, handler, shutdown.clone());
    let stopping = async {
        let name = config::stop_signal().await?;
        tracing::info!("stopping because of {name}");
        shutdown.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(async { consuming.await.context("consume orders") }, stopping)?;
    Ok(())
}
