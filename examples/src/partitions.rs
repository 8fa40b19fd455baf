//! A consumer of a partitioned log, such as Kafka's, without NATS: each record has its effect once,
//! though some records read after a crash were handled before.
//!
//! A partition is read one record after another, and its position moves over a record only when
//! that is settled. The offset is where the message is stored; how often it was delivered is
//! counted here, since such a log does not.

pub mod file;

use std::time::SystemTime;

use anyhow::Result;
use oncebox_inbox::{Context, Disposition, Handler, HandlerError, Inbox, Origin, Outcome, Received};
use tokio::time::sleep;

/// A record of a partition.
#[derive(Debug)]
pub struct Record {
    /// Its place in the partition.
    pub offset: u64,
    /// When it was written.
    pub time: SystemTime,
    /// Its id, the same when its producer has written it twice.
    pub key: String,
    /// Its content.
    pub value: String,
}

/// A partition, as the log's own client library knows it.
pub trait Partition: Send {
    /// Its name, with its topic's.
    fn name(&self) -> &str;

    /// The next record, from the stored position on; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Stores the position: the offset of the first record that is not settled.
    fn commit(&mut self, position: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Consumes a partition to its end. Dropping the future is safe at any point.
///
/// # Errors
/// The partition cannot be read, or its position not be stored.
pub async fn consume(inbox: &Inbox, handler: &impl Handler, mut partition: impl Partition) -> Result<()> {
    // The first record may have been run before a crash. As one that is delivered again it is noted
    // before it runs, and given up if it ends its process again and again.
    let mut deliveries = 2;
    while let Some(Record { offset, time, key, value }) = partition.next().await? {
        let origin = Origin { stream: partition.name().to_owned(), sequence: offset, stored_at: time };
        let message = Received::new("postings", value).header("Idempotency-Key", key).with_origin(origin);
        settle(inbox, handler, message.deliveries(deliveries)).await;
        partition.commit(offset + 1).await?;
        deliveries = 1;
    }
    Ok(())
}

/// Runs a message until it is handled, or given up: the later ones wait.
async fn settle(inbox: &Inbox, handler: &impl Handler, mut message: Received) {
    let mut waits = 0;
    loop {
        let result = inbox.run(handler, &message).await;
        if let Err(error) = &result {
            tracing::warn!(%error, "a record waits, and its partition with it");
        }
        let after = match Disposition::of(&result, waits) {
            Disposition::Ack | Disposition::Term => return,
            Disposition::Retry(after) => {
                waits = 0;
                let deliveries = message.delivery_count() + 1;
                message = message.deliveries(deliveries);
                after
            }
            Disposition::Wait(after) => {
                waits += 1;
                after
            }
            Disposition::Behind => unreachable!("a partition is run one record after another"),
        };
        sleep(after).await;
    }
}

/// The request in a record.
#[derive(Debug, serde::Deserialize)]
pub struct Posting {
    cents: i64,
}

/// Books postings.
#[derive(Debug)]
pub struct Book;

impl Handler for Book {
    type Message = Posting;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, posting: Posting) -> Result<Outcome<()>, HandlerError> {
        let sql = include_str!("partitions/book.sql");
        cx.transaction().execute(sql, &[&cx.key().as_str(), &posting.cents]).await?;
        Ok(Outcome::done(()))
    }
}
