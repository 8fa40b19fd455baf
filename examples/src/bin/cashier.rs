//! The cashier as a process: settles orders until SIGTERM or Ctrl-C.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the table of
//! `src/cashier/schema.sql`; `NATS_URL`, `STREAM` and `SUBJECT_PREFIX` say where the orders are,
//! `GATEWAY` where the gateway is. Run as many as you like. `LEASE_SECONDS` is how long a key rests
//! after its process died, 30 by default.

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context, Result};
use oncebox_examples::{
    cashier::{self, Cashier, Client},
    config,
};
use oncebox_inbox::{Consumer, Inbox};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::new(config::variable("LOG").as_deref().unwrap_or("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let lease = config::variable("LEASE_SECONDS").map_or(Ok(30), |seconds| seconds.parse::<u64>());
    let lease = Duration::from_secs(lease.context("read LEASE_SECONDS")?);
    let pool = config::pool(&config::required("DATABASE_URL")?, 8)?;
    let nats = config::nats().await?;

    let leased = Inbox::builder(pool)
        .scope(cashier::SCOPE)
        .single_tenant()
        .backoff(Duration::from_millis(200), Duration::from_secs(5))
        // Each process that dies, and each answer that is lost, costs an attempt.
        .attempts_max(100)
        .leased(lease)
        .build()?;
    let cashier = Cashier { gateway: Client::new(config::required("GATEWAY")?) };
    let shutdown = CancellationToken::new();
    let consuming = Consumer::new(async_nats::jetstream::new(nats), config::required("STREAM")?, "cashier")
        .filter_subject(config::subject("orders.placed"))
        .ack_wait(lease)
        .concurrency(8)
        .run(leased, cashier, shutdown.clone());
    let stopping = async {
        let name = config::stop_signal().await?;
        tracing::info!("stopping because of {name}");
        shutdown.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(async { consuming.await.context("consume orders") }, stopping)?;
    Ok(())
}
