//! The same without an orchestrator: each service reacts to the others' events.
//!
//! | service | hears | does | says |
//! |---|---|---|---|
//! | inventory | `orders.placed` | reserves | `stock.reserved` or `stock.refused` |
//! | | `payments.declined`, `payments.refunded` | releases | `stock.released` |
//! | billing | `stock.reserved` | charges | `payments.charged` or `payments.declined` |
//! | | `parcels.refused` | refunds | `payments.refunded` |
//! | shipping | `payments.charged` | sends | `parcels.sent` or `parcels.refused` |
//! | | `orders.cancelled` | recalls | `parcels.refused` |
//!
//! An event has one key for each order, `order-17:stock.reserved`, from any service and for any
//! reason: published again it is a copy. An action and its compensation share a key of their own at
//! the barrier, since the events that ask for the two have different ones.

use oncebox_inbox::{
    Answer, Context, Handler, HandlerError, LeasedContext, LeasedHandler, Outcome, Received,
};
use oncebox_outbox::{Message, Outbox};

use super::{
    Order,
    billing::{Billing, Payment},
    inventory::{Inventory, Stock},
    shipping::{Parcel, Shipping},
};

const RESERVED: &str = "stock.reserved";
const CHARGED: &str = "payments.charged";
const CANCELLED: &str = "orders.cancelled";

/// The events for the inventory: the first asks it to reserve, the others to release.
pub const TO_INVENTORY: &[&str] = &["orders.placed", "payments.declined", "payments.refunded"];
/// The events for billing: the first asks it to charge, the other to refund.
pub const TO_BILLING: &[&str] = &[RESERVED, "parcels.refused"];
/// The events for shipping: the first asks it to send, the other to recall.
pub const TO_SHIPPING: &[&str] = &[CHARGED, CANCELLED];

/// A service that reacts to events, and publishes its own.
#[derive(Clone, Debug)]
pub struct Reacting<S> {
    /// Its action and compensation.
    pub service: S,
    /// Where its own events go.
    pub outbox: Outbox,
    /// The beginning of all events' subjects.
    pub prefix: String,
}

impl<S> Reacting<S> {
    fn heard(&self, received: &Received, event: &str) -> bool {
        received.subject().strip_prefix(&self.prefix) == Some(event)
    }

    async fn say(&self, cx: &Context<'_>, order: &Order, event: &str) -> Result<(), HandlerError> {
        let subject = format!("{}{event}", self.prefix).parse()?;
        let message = Message::json(order.key()?.step(event)?, subject, order)?.ordering_key(&order.id);
        self.outbox.enqueue(cx.transaction(), &message).await?;
        Ok(())
    }
}

impl Handler for Reacting<Inventory> {
    type Message = Order;
    type Reply = Stock;

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<Stock>, HandlerError> {
        let inventory = self.service.of(&order)?;
        let outcome = match self.heard(cx.message(), "orders.placed") {
            true => inventory.reserve(&cx, &order).await?,
            false => inventory.release(&cx, &order).await?,
        };
        let (Outcome::Done(stock) | Outcome::Reject(stock)) = outcome else { return Ok(outcome) };
        let event = match stock {
            Stock::Reserved => RESERVED,
            Stock::SoldOut | Stock::TooLate => "stock.refused",
            Stock::Released => "stock.released",
        };
        self.say(&cx, &order, event).await?;
        Ok(outcome)
    }
}

impl LeasedHandler for Reacting<Billing> {
    type Message = Order;
    type Reply = Payment;

    async fn handle(&self, cx: &LeasedContext<'_>, order: Order) -> Result<Outcome<Payment>, HandlerError> {
        let billing = self.service.of(&order)?;
        match self.heard(cx.message(), RESERVED) {
            true => billing.charge(cx, &order).await,
            false => billing.refund(cx, &order).await,
        }
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<Payment>) -> Result<(), HandlerError> {
        let (Answer::Done(payment) | Answer::Rejected(payment)) = *answer else { return Ok(()) };
        let order: Order = serde_json::from_slice(cx.message().payload())?;
        self.service.of(&order)?.book(&cx, &order, payment).await?;
        let event = match payment {
            Payment::Charged | Payment::ChargedBefore => CHARGED,
            Payment::Declined | Payment::TooLate => "payments.declined",
            Payment::Refunded | Payment::NothingToRefund => "payments.refunded",
        };
        self.say(&cx, &order, event).await
    }
}

impl Handler for Reacting<Shipping> {
    type Message = Order;
    type Reply = Parcel;

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<Parcel>, HandlerError> {
        let shipping = self.service.of(&order)?;
        let outcome = match self.heard(cx.message(), CHARGED) {
            true => shipping.send(&cx, &order).await?,
            false => shipping.recall(&cx, &order).await?,
        };
        let (Outcome::Done(parcel) | Outcome::Reject(parcel)) = outcome else { return Ok(outcome) };
        let event = match parcel {
            Parcel::Sent => "parcels.sent",
            Parcel::Unreachable | Parcel::TooLate | Parcel::Recalled => "parcels.refused",
        };
        self.say(&cx, &order, event).await?;
        Ok(outcome)
    }
}
