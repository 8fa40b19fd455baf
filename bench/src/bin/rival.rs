//! The relay that a team writes by hand, as the honest rival of Oncebox in the measurement
//! `trickle`.
//!
//! It is complete for the fair-weather case, and tuned: statements are prepared once, a batch is
//! published pipelined with `Nats-Msg-Id`, acknowledgements are waited for together, and it goes on
//! at once while there is something to do. Its faults: two copies of it reorder messages; a
//! transaction that is open for long keeps its deleted rows, and each claim walks them; a message
//! that the broker refuses stops all that come after it; a key is unique only until its message is
//! delivered, and nothing can be sent again later; a server that goes away ends the program.
//!
//! `rival` reads DATABASE_URL and NATS_URL.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::{HeaderMap, jetstream};
use tokio_postgres::{NoTls, Transaction};

const BATCH: i64 = 1_000;
/// The pause when nothing was found, doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this program has no other configuration")]
    let variable = |name: &str| std::env::var(name).with_context(|| format!("read {name}"));
    let mut config: tokio_postgres::Config = variable("DATABASE_URL")?.parse()?;
    config.application_name("rival");
    let (mut client, connection) = config.connect(NoTls).await?;
    let jetstream = jetstream::new(async_nats::connect(variable("NATS_URL")?).await?);
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ended = carry(&mut client, &jetstream) => ended,
        ended = connection => ended.context("connection to PostgreSQL"),
        _ = terminated.recv() => Ok(()),
    }
}

async fn carry(client: &mut tokio_postgres::Client, jetstream: &jetstream::Context) -> Result<()> {
    let claim = client.prepare(include_str!("../sql/rival_claim.sql")).await?;
    let delete = client.prepare(include_str!("../sql/rival_delete.sql")).await?;
    let mut pause = PAUSE;
    loop {
        let transaction = client.transaction().await?;
        let rows = transaction.query(&claim, &[&BATCH]).await?;
        if rows.is_empty() {
            transaction.rollback().await?;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        }
        pause = PAUSE;
        publish(jetstream, &rows).await?;
        settle(transaction, &delete, &rows).await?;
    }
}

async fn publish(jetstream: &jetstream::Context, rows: &[tokio_postgres::Row]) -> Result<()> {
    let mut acknowledgements = Vec::with_capacity(rows.len());
    for row in rows {
        let (key, subject, payload): (&str, String, Vec<u8>) = (row.get(1), row.get(2), row.get(3));
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", key);
        acknowledgements.push(jetstream.publish_with_headers(subject, headers, payload.into()).await?);
    }
    for acknowledgement in acknowledgements {
        acknowledgement.await?;
    }
    Ok(())
}

async fn settle(
    transaction: Transaction<'_>,
    delete: &tokio_postgres::Statement,
    rows: &[tokio_postgres::Row],
) -> Result<()> {
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    transaction.execute(delete, &[&ids]).await?;
    transaction.commit().await?;
    Ok(())
}
