//! Holds the books of the two services against each other: the proof of the demo, and of its own
//! ability to fail.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use tokio_postgres::GenericClient;

/// An order as the order service knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Its id.
    pub id: i64,
    /// Whose order it is.
    pub customer: i32,
    /// Counts the customer's orders, in the order of their commits.
    pub number: i32,
    /// The price.
    pub cents: i64,
}

/// The state of the books. Every list names orders by id, so that a finding can be looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// How many orders were placed.
    pub orders: usize,
    /// How many charges were made.
    pub charges: usize,
    /// Orders that were never charged.
    pub lost: Vec<i64>,
    /// Orders that were charged more than once, listed once for each charge too many.
    pub doubled: Vec<i64>,
    /// Orders that were charged after a later order of the same customer.
    pub out_of_order: Vec<i64>,
    /// Charges for orders that do not exist, or with another customer, number or price.
    pub wrong: Vec<i64>,
}

impl Audit {
    /// Compares all orders with all charges; the charges in the order in which they were committed.
    #[must_use]
    pub fn new(orders: &[Order], charges: &[Order]) -> Self {
        let by_id: HashMap<i64, &Order> = orders.iter().map(|order| (order.id, order)).collect();
        let mut audit = Self { orders: orders.len(), charges: charges.len(), ..Self::default() };
        let mut charged = HashSet::new();
        let mut latest: HashMap<i32, i32> = HashMap::new();
        for charge in charges {
            if by_id.get(&charge.id) != Some(&charge) {
                audit.wrong.push(charge.id);
            }
            if !charged.insert(charge.id) {
                audit.doubled.push(charge.id);
                continue;
            }
            let latest = latest.entry(charge.customer).or_insert(charge.number);
            if charge.number < *latest {
                audit.out_of_order.push(charge.id);
            }
            *latest = charge.number.max(*latest);
        }
        audit.lost = orders.iter().map(|order| order.id).filter(|id| !charged.contains(id)).collect();
        audit
    }

    /// Reads both databases. A client may as well be a transaction.
    ///
    /// # Errors
    /// PostgreSQL refused.
    pub async fn read(orders: &impl GenericClient, payments: &impl GenericClient) -> Result<Self> {
        let rows = |rows: Vec<tokio_postgres::Row>| -> Vec<Order> {
            rows.iter()
                .map(|row| Order {
                    id: row.get(0),
                    customer: row.get("customer"),
                    number: row.get("number"),
                    cents: row.get("cents"),
                })
                .collect()
        };
        let orders = rows(orders.query(include_str!("audit/orders.sql"), &[]).await?);
        let charges = rows(payments.query(include_str!("audit/charges.sql"), &[]).await?);
        Ok(Self::new(&orders, &charges))
    }

    /// The faults, a line each; empty when every order was charged once and in order.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let findings = [
            ("never charged", &self.lost),
            ("charged more than once", &self.doubled),
            ("charged after a later order of the same customer", &self.out_of_order),
            ("charged with a customer, number or price that the order service does not know", &self.wrong),
        ];
        let line = |(what, ids): (&str, &Vec<i64>)| {
            let shown: Vec<String> = ids.iter().take(5).map(i64::to_string).collect();
            let more = if ids.len() > shown.len() { ", ..." } else { "" };
            format!("{} {what}: order {}{more}", ids.len(), shown.join(", "))
        };
        findings.into_iter().filter(|(_, ids)| !ids.is_empty()).map(line).collect()
    }
}

/// A way to falsify the payment service's books, to see whether the audit notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Delete a charge.
    Lose,
    /// Charge an order again.
    Double,
    /// Let two charges of a customer change places.
    Reorder,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lose, Self::Double, Self::Reorder];

    /// By its name on the command line: `lose`, `double`, `reorder`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sabotage| sabotage.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Lose => "lose",
            Self::Double => "double",
            Self::Reorder => "reorder",
        }
    }

    /// Falsifies the books of the payment service.
    ///
    /// # Errors
    /// There is nothing to falsify, or PostgreSQL refused.
    pub async fn commit(self, payments: &impl GenericClient) -> Result<()> {
        let (sql, rows) = match self {
            Self::Lose => (include_str!("audit/lose.sql"), 1),
            Self::Double => (include_str!("audit/double.sql"), 1),
            Self::Reorder => (include_str!("audit/reorder.sql"), 2),
        };
        let changed = payments.execute(sql, &[]).await?;
        ensure!(changed == rows, "sabotage {} changed {changed} charges, not {rows}", self.name());
        Ok(())
    }

    /// Whether an audit of falsified books, which were right before, shows just this.
    #[must_use]
    pub fn is_found_by(self, audit: &Audit) -> bool {
        let (lost, doubled) = (audit.lost.len(), audit.doubled.len());
        match self {
            Self::Lose => (lost, doubled, audit.out_of_order.len()) == (1, 0, 0),
            Self::Double => (lost, doubled, audit.out_of_order.len()) == (0, 1, 0),
            Self::Reorder => (lost, doubled) == (0, 0) && !audit.out_of_order.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Orders 1 to 6 of two customers in turn.
    fn books() -> Vec<Order> {
        (1..=6)
            .map(|id| Order {
                id,
                customer: i32::try_from(id % 2).unwrap(),
                number: i32::try_from((id + 1) / 2).unwrap(),
                cents: 100 * id,
            })
            .collect()
    }

    #[test]
    fn right_books() {
        let audit = Audit::new(&books(), &books());
        assert_eq!((audit.orders, audit.charges), (6, 6));
        assert!(audit.findings().is_empty(), "{audit:?}");
        // Customers do not wait for each other.
        let mut charges = books();
        charges.swap(0, 1);
        assert!(Audit::new(&books(), &charges).findings().is_empty());
    }

    #[test]
    fn every_kind_of_error_is_found_and_named() {
        let check = |tamper: fn(&mut Vec<Order>), expected: &[&str]| {
            let mut charges = books();
            tamper(&mut charges);
            assert_eq!(Audit::new(&books(), &charges).findings(), expected);
        };
        check(|charges| charges.retain(|charge| charge.id != 3), &["1 never charged: order 3"]);
        check(|charges| charges.push(charges[0].clone()), &["1 charged more than once: order 1"]);
        check(
            |charges| charges.swap(0, 4),
            &["2 charged after a later order of the same customer: order 3, 1"],
        );
        check(
            |charges| charges[5].cents += 1,
            &["1 charged with a customer, number or price that the order service does not know: order 6"],
        );
        check(|charges| charges.clear(), &["6 never charged: order 1, 2, 3, 4, 5, ..."]);
    }

    #[test]
    fn a_rolled_back_order_that_was_charged_is_wrong() {
        let orders = &books()[..5];
        assert_eq!(Audit::new(orders, &books()).wrong, [6]);
    }
}
