//! The payment service: charges each order once, however often its message is delivered.

use anyhow::{Context as _, Result};
use deadpool_postgres::Pool;
use oncebox_inbox::{Context, Counts, Handler, HandlerError, Outcome};
use oncebox_outbox::{Message, Outbox, Subject};
use serde::{Deserialize, Serialize};

use crate::order::OrderPlaced;

/// The service's own tables.
pub const SCHEMA: &str = include_str!("payment/schema.sql");

/// The scope under which keys are stored. Never rename it, see `oncebox_inbox::Builder::scope`.
pub const SCOPE: &str = "payment-service:charge";

/// The event that the payment service publishes: the order is paid.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct OrderCharged {
    /// The order's id in the order service.
    pub order: i64,
    /// The charge's id in the payment service.
    pub charge: i64,
}

/// Charges an order. Nothing here knows of duplicates, redeliveries or crashes: that is the inbox's
/// work.
#[derive(Debug)]
pub struct Charge {
    /// The outbox that the answer is enqueued in.
    pub outbox: Outbox,
    /// The subject of the answer.
    pub charged: Subject,
}

impl Handler for Charge {
    type Message = OrderPlaced;
    type Reply = OrderCharged;

    async fn handle(
        &self,
        cx: Context<'_>,
        order: OrderPlaced,
    ) -> Result<Outcome<OrderCharged>, HandlerError> {
        if order.cents <= 0 {
            return Ok(Outcome::dead("the order's price is not positive"));
        }
        // Everything goes through this transaction: the charge, the answer, and the key that says
        // it was done.
        let transaction = cx.transaction();
        let OrderPlaced { order, customer, number, cents } = order;
        transaction.execute(include_str!("payment/book.sql"), &[&customer, &cents]).await?;
        let row = transaction
            .query_one(include_str!("payment/charge.sql"), &[&order, &customer, &number, &cents])
            .await?;
        let charged = OrderCharged { order, charge: row.get("id") };
        if !row.get::<_, bool>("in_order") {
            tracing::warn!(order, customer, number, "charged after a later order of this customer");
        }

        // The chain of keys goes on: request -> request:process-payment ->
        // request:process-payment:charged.
        let message = Message::json(cx.key().step("charged")?, self.charged.clone(), &charged)?
            .ordering_key(format!("customer:{customer}"));
        self.outbox.enqueue(transaction, &message).await?;
        Ok(Outcome::done(charged))
    }
}

/// Writes down how many messages this process has handled and how many duplicates it has answered.
///
/// The inbox counts in memory. If the process dies, counts since the last call are lost.
///
/// # Errors
/// PostgreSQL refused or went away.
pub async fn record_counts(pool: &Pool, process: &str, counts: Counts) -> Result<()> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let (handled, replayed) = (number(counts.handled), number(counts.replayed));
    let client = pool.get().await.context("record counts")?;
    client.execute(include_str!("payment/record_counts.sql"), &[&process, &handled, &replayed]).await?;
    Ok(())
}
