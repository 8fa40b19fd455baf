//! The orders: the result of an order follows from its key, so that the count at the end needs no
//! other record for it.

use anyhow::{Context, Result};
use fastrand::Rng;
use oncebox_outbox::Message;
use serde::{Deserialize, Serialize};

pub(crate) const STREAM: &str = "CHAOS";
/// The subjects that the relays deliver to; the copies are made from these messages.
pub(crate) const WRITTEN: &str = "chaos.written.";
/// The token after [`WRITTEN`] and [`COPIED`]: paid through the gateway, or not.
const CARD: &str = "placed";
const ACCOUNT: &str = "account";
/// The subjects of the copies, which the consumers read.
pub(crate) const COPIED: &str = "chaos.orders.";
/// The message that the handler of each order enqueues itself.
pub(crate) const RECEIPT: &str = "chaos.receipt";
pub(crate) const RECEIPT_STEP: &str = "booked";

/// One of this many orders goes to the cashiers, who are slow because their gateway is.
const CARDS: u64 = 16;
/// Of this many orders of each kind, one is worth nothing and one is worth too much.
const ODD: u64 = 20;

/// The payload of an order, as the example `cashier` reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) order: i64,
    pub(crate) customer: i32,
    pub(crate) number: i32,
    pub(crate) cents: i64,
}

impl Order {
    /// The order of a key `pPRODUCER-TRANSACTION-N`.
    pub(crate) fn of(key: &str) -> Result<Self> {
        let read = || {
            let mut numbers = key.strip_prefix('p')?.split('-').map(|number| number.parse::<i64>().ok());
            let (producer, transaction, n) = (numbers.next()??, numbers.next()??, numbers.next()??);
            // No transaction has a thousand messages, no producer a million transactions.
            Some((producer * 1_000_000 + transaction) * 1_000 + n)
        };
        let order = read().with_context(|| format!("\"{key}\" is no order's key"))?;
        let cents = match scattered(order) / CARDS % ODD {
            0 => -1,
            1 => 2_000_000,
            _ => 995,
        };
        Ok(Self { order, customer: 1, number: 1, cents })
    }

    /// Whether the cashiers handle it too.
    pub(crate) fn is_card(&self) -> bool {
        scattered(self.order).is_multiple_of(CARDS)
    }

    /// Every handler gives it up.
    pub(crate) fn is_dead(&self) -> bool {
        self.cents <= 0
    }

    /// The gateway says no.
    pub(crate) fn is_declined(&self) -> bool {
        self.cents > 1_000_000
    }
}

/// The message of an order, of which copies are made.
pub(crate) fn written(key: &str, _: &mut Rng) -> Result<Message> {
    message(key, WRITTEN)
}

/// The message of an order as the consumers read it, without copies.
pub(crate) fn direct(key: &str, _: &mut Rng) -> Result<Message> {
    message(key, COPIED)
}

fn message(key: &str, prefix: &str) -> Result<Message> {
    let order = Order::of(key)?;
    let subject = format!("{prefix}{}", if order.is_card() { CARD } else { ACCOUNT });
    Ok(Message::json(key.parse()?, subject.parse()?, &order)?)
}

/// A number that looks random, the same in every run.
fn scattered(order: i64) -> u64 {
    order.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_order_comes() {
        let keys = (0..4).flat_map(|producer| (1..500).map(move |n| format!("p{producer}-{n}-{}", n % 11)));
        let orders: Vec<Order> = keys.map(|key| Order::of(&key).unwrap()).collect();
        let distinct: std::collections::HashSet<i64> = orders.iter().map(|order| order.order).collect();
        assert_eq!(distinct.len(), orders.len());
        for is_card in [false, true] {
            let count = |fate: fn(&Order) -> bool| {
                orders.iter().filter(|order| order.is_card() == is_card && fate(order)).count()
            };
            let (all, dead, declined) = (count(|_| true), count(Order::is_dead), count(Order::is_declined));
            assert!(dead > 2 && declined > 2 && dead + declined < all / 5, "{all}: {dead}, {declined}");
        }
        let cards = orders.iter().filter(|order| order.is_card()).count();
        assert!((60..240).contains(&cards), "{cards} of {}", orders.len());
        assert!(Order::of("p1-2").is_err());
    }
}
