//! The order service: places an order and asks for its payment, both or neither.

use anyhow::{Context, Result};
use oncebox_outbox::{InTransaction, Key, Message, Outbox};
use serde::{Deserialize, Serialize};

/// The service's own tables.
pub const SCHEMA: &str = include_str!("order/schema.sql");

/// The message that asks for the payment of an order, as it travels.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct OrderPlaced {
    /// The order's id in the order service.
    pub order: i64,
    /// Whose order it is.
    pub customer: i32,
    /// Counts this customer's orders, in the order of their commits.
    pub number: i32,
    /// The price.
    pub cents: i64,
}

/// A client's request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Made by the client before its first attempt and sent again with every retry, as in an
    /// `Idempotency-Key` header.
    pub key: String,
    /// Who orders.
    pub customer: i32,
    /// The price.
    pub cents: i64,
}

/// Places the order and enqueues the message to the payment service, in the caller's transaction.
///
/// A retried request finds the order of its first attempt and enqueues nothing new. A client that
/// uses its key for another request gets an error, because the outbox knows the key with another
/// payload.
///
/// # Errors
/// The client's key is not valid, was used for another request, or PostgreSQL refused. Roll
/// back.
pub async fn place_order(
    transaction: &impl InTransaction,
    outbox: &Outbox,
    subject: &str,
    request: &Request,
) -> Result<OrderPlaced> {
    let root = Key::root(&request.key)?;
    place_order_as(transaction, outbox, subject, &root, request).await
}

/// Places an order whose root key is known already, for example inside of the HTTP layer.
///
/// # Errors
/// The errors of [`place_order`].
pub async fn place_order_as(
    transaction: &impl InTransaction,
    outbox: &Outbox,
    subject: &str,
    root: &Key,
    request: &Request,
) -> Result<OrderPlaced> {
    let Request { key, customer, cents } = request;
    // First the lock: orders of one customer are numbered and enqueued one transaction after the
    // other.
    let client = transaction.client();
    client
        .execute(include_str!("order/lock_customer.sql"), &[customer])
        .await
        .context("lock the customer")?;
    let inserted = client
        .query_opt(include_str!("order/insert.sql"), &[key, customer, cents])
        .await
        .context("insert the order")?;
    let row = match inserted {
        Some(row) => row,
        None => client.query_one(include_str!("order/find.sql"), &[key]).await.context("find the order")?,
    };
    let placed =
        OrderPlaced { order: row.get("id"), customer: *customer, number: row.get("number"), cents: *cents };

    // The key is derived from the client's: however often the request is tried, the payment has
    // this one key.
    let payment_key = root.step("process-payment")?;
    let message =
        Message::json(payment_key, subject.parse()?, &placed)?.ordering_key(format!("customer:{customer}"));
    outbox.enqueue(transaction, &message).await?;
    Ok(placed)
}
