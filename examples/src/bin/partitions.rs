//! The consumer of a partitioned log: `partitions DIRECTORY NAME...` reads the named partitions to
//! their ends.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the table of
//! `src/partitions/schema.sql`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use oncebox_examples::{
    config,
    partitions::{Book, consume, file::FilePartition},
};
use oncebox_inbox::Inbox;
use tokio::task::JoinSet;

const CONNECTIONS: usize = 8;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().context("usage: partitions DIRECTORY NAME...")?);
    let pool = config::pool(&config::required("DATABASE_URL")?, CONNECTIONS)?;
    let inbox = Inbox::builder(pool).scope("ledger:book").single_tenant().build()?;
    let mut partitions = JoinSet::new();
    for name in arguments {
        let partition = FilePartition::open(&directory, &name).await?;
        let inbox = inbox.clone();
        partitions.spawn(async move { consume(&inbox, &Book, partition).await });
    }
    tokio::select! {
        ended = async {
            while let Some(ended) = partitions.join_next().await {
                ended??;
            }
            Ok(())
        } => ended,
        // The open transaction is rolled back, or the copy of its record is answered the next time.
        stopped = config::stop_signal() => stopped.map(drop).context("wait for a signal"),
    }
}
