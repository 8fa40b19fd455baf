//! Holds the books of the shop, of the three services and of the gateway against each other: each
//! order is fulfilled, or nothing is left of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use tokio_postgres::GenericClient;

use crate::gateway;

/// The effect for an order, and how much of it was undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Put aside, sent, or charged.
    pub done: i64,
    /// Released, called back, or refunded.
    pub undone: i64,
}

/// The accounts of one order, of all parties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The state of its saga; empty where there is none.
    pub state: String,
    /// Why it was undone.
    pub reason: String,
    /// How many are ordered.
    pub count: i64,
    /// The price of all.
    pub cents: i64,
    /// Of the inventory.
    pub stock: Account,
    /// Of billing.
    pub money: Account,
    /// Of shipping.
    pub parcels: Account,
}

/// Which account of an entry is meant.
type AccountOf = fn(&mut Entry) -> &mut Account;

/// The books of all, by order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The accounts of each order.
    pub orders: BTreeMap<String, Entry>,
    /// How much was in stock in the beginning.
    pub stocked: i64,
    /// How much is free in the end.
    pub free: i64,
    /// The gateway's movements, in cents.
    pub gateway: Account,
}

/// Where the books are.
#[derive(Debug)]
pub struct Clients<'a, C> {
    /// The shop's database, with the sagas.
    pub shop: &'a C,
    /// The inventory's database.
    pub inventory: &'a C,
    /// Billing's database.
    pub billing: &'a C,
    /// Shipping's database.
    pub shipping: &'a C,
}

impl Ledger {
    /// Reads the books of all; `stocked` is how much was in stock in the beginning.
    ///
    /// # Errors
    /// PostgreSQL refused.
    pub async fn read<C: GenericClient>(
        clients: &Clients<'_, C>,
        gateway: &gateway::Books,
        stocked: i64,
    ) -> Result<Self> {
        let mut ledger = Self { stocked, ..Self::default() };
        for row in clients.shop.query(include_str!("ledger/sagas.sql"), &[]).await? {
            let entry = ledger.orders.entry(row.get("order_id")).or_default();
            entry.state = row.get("state");
            entry.reason = row.get::<_, Option<String>>("reason").unwrap_or_default();
            (entry.count, entry.cents) = (row.get("count"), row.get("cents"));
        }
        let books: [(&C, &str, AccountOf); 3] = [
            (clients.inventory, include_str!("ledger/movements.sql"), |entry| &mut entry.stock),
            (clients.billing, include_str!("ledger/payments.sql"), |entry| &mut entry.money),
            (clients.shipping, include_str!("ledger/parcels.sql"), |entry| &mut entry.parcels),
        ];
        for (client, sql, account) in books {
            for row in client.query(sql, &[]).await? {
                let entry = ledger.orders.entry(row.get("order_id")).or_default();
                *account(entry) = Account { done: row.get("done"), undone: row.get("undone") };
            }
        }
        ledger.free = clients.inventory.query_one(include_str!("ledger/free.sql"), &[]).await?.get("free");
        let moved = |page: &BTreeMap<String, gateway::Line>| -> Result<i64> {
            let cents = page.values().map(|line| Ok(i64::try_from(line.made.len())? * line.cents));
            cents.sum::<Result<i64>>().context("add the gateway's books up")
        };
        ledger.gateway = Account { done: moved(&gateway.charges)?, undone: moved(&gateway.refunds)? };
        Ok(ledger)
    }

    /// How many orders ended like this.
    #[must_use]
    pub fn ended(&self, state: &str) -> usize {
        self.orders.values().filter(|entry| entry.state == state).count()
    }

    /// How many orders were undone because this step failed.
    #[must_use]
    pub fn undone_by(&self, step: &str) -> usize {
        let because = format!("step \"{step}\": ");
        let is_so = |entry: &&Entry| entry.state == "compensated" && entry.reason.starts_with(&because);
        self.orders.values().filter(is_so).count()
    }

    /// How many orders were charged and refunded.
    #[must_use]
    pub fn refunded(&self) -> usize {
        self.orders.values().filter(|entry| entry.money.undone > 0).count()
    }

    /// All orders together.
    #[must_use]
    pub fn sum(&self, account: fn(&Entry) -> Account) -> Account {
        self.orders.values().map(account).fold(Account::default(), |sum, one| Account {
            done: sum.done + one.done,
            undone: sum.undone + one.undone,
        })
    }

    /// The faults, a line each; empty when the books balance.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let mut findings: Vec<String> = [
            ("not at an end", Entry::is_open as fn(&Entry) -> bool),
            ("shipped, but not reserved, charged and sent once", Entry::is_half_done),
            ("undone, but not all of it", Entry::is_half_undone),
        ]
        .into_iter()
        .filter_map(|(what, is_so)| self.finding(what, is_so))
        .collect();
        let (stock, money) = (self.sum(|entry| entry.stock), self.sum(|entry| entry.money));
        if self.free + stock.done - stock.undone != self.stocked {
            let Self { free, stocked, .. } = self;
            let taken = stock.done - stock.undone;
            findings.push(format!("{stocked} were in stock; {free} are free and {taken} put aside"));
        }
        for (what, billing, gateway) in
            [("charged", money.done, self.gateway.done), ("refunded", money.undone, self.gateway.undone)]
        {
            if billing != gateway {
                findings.push(format!("billing {what} {billing} cents, the gateway {gateway}"));
            }
        }
        findings
    }

    fn finding(&self, what: &str, is_so: fn(&Entry) -> bool) -> Option<String> {
        let found: Vec<&str> =
            self.orders.iter().filter(|(_, entry)| is_so(entry)).map(|(id, _)| id.as_str()).collect();
        let shown = found.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        let more = if found.len() > 5 { ", ..." } else { "" };
        (!found.is_empty()).then(|| format!("{} {what}: {shown}{more}", found.len()))
    }
}

impl Entry {
    fn is_open(&self) -> bool {
        !matches!(self.state.as_str(), "completed" | "compensated")
    }

    fn is_half_done(&self) -> bool {
        let once = |done| Account { done, undone: 0 };
        let is_whole = self.stock == once(self.count)
            && self.money == once(self.cents)
            && self.parcels == once(self.count);
        self.state == "completed" && !is_whole
    }

    fn is_half_undone(&self) -> bool {
        let accounts = [self.stock, self.money, self.parcels];
        self.state == "compensated" && accounts.iter().any(|account| account.done != account.undone)
    }
}

/// A way to falsify the books, to see whether they show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraud {
    /// A parcel was never sent.
    LoseParcel,
    /// An order is charged twice.
    ChargeTwice,
    /// The reservation of an order that is undone is not released.
    KeepStock,
}

impl Fraud {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LoseParcel, Self::ChargeTwice, Self::KeepStock];

    /// By its name on the command line: `lose`, `double`, `keep`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ["lose", "double", "keep"].iter().position(|known| *known == name).map(|at| Self::ALL[at])
    }

    /// Falsifies the books of one of the services.
    ///
    /// # Errors
    /// There is nothing to falsify, or PostgreSQL refused.
    pub async fn commit<C: GenericClient>(self, clients: &Clients<'_, C>) -> Result<()> {
        let (client, sql) = match self {
            Self::LoseParcel => (clients.shipping, include_str!("ledger/lose_parcel.sql")),
            Self::ChargeTwice => (clients.billing, include_str!("ledger/charge_twice.sql")),
            Self::KeepStock => (clients.inventory, include_str!("ledger/keep_stock.sql")),
        };
        let changed = client.execute(sql, &[]).await?;
        ensure!(changed == 1, "{self:?} changed {changed} rows, not 1");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One order that was shipped, one that was declined, one to an address without a carrier.
    fn books() -> Ledger {
        let entry = |state: &str, stock, money, parcels| Entry {
            state: state.to_owned(),
            reason: String::new(),
            count: 2,
            cents: 100,
            stock,
            money,
            parcels,
        };
        let account = |done, undone| Account { done, undone };
        let none = Account::default();
        let orders = [
            ("a", entry("completed", account(2, 0), account(100, 0), account(2, 0))),
            ("b", entry("compensated", account(2, 2), none, none)),
            ("c", entry("compensated", account(2, 2), account(100, 100), none)),
        ];
        let orders = orders.into_iter().map(|(id, entry)| (id.to_owned(), entry)).collect();
        Ledger { orders, stocked: 10, free: 8, gateway: account(200, 100) }
    }

    #[test]
    fn every_kind_of_error_is_found_and_named() {
        let check = |tamper: fn(&mut Ledger), expected: &[&str]| {
            let mut ledger = books();
            tamper(&mut ledger);
            assert_eq!(ledger.findings(), expected);
        };
        check(|_| {}, &[]);
        check(
            |ledger| ledger.orders.get_mut("a").unwrap().state = "stuck".to_owned(),
            &["1 not at an end: a"],
        );
        check(
            |ledger| ledger.orders.get_mut("a").unwrap().parcels.done = 0,
            &["1 shipped, but not reserved, charged and sent once: a"],
        );
        check(
            |ledger| ledger.orders.get_mut("c").unwrap().stock.undone = 0,
            &["1 undone, but not all of it: c", "10 were in stock; 8 are free and 4 put aside"],
        );
        check(|ledger| ledger.gateway.done += 1, &["billing charged 200 cents, the gateway 201"]);
        check(|ledger| ledger.gateway.undone -= 1, &["billing refunded 100 cents, the gateway 99"]);
        let invented = |ledger: &mut Ledger| {
            let parcels = Account { done: 1, undone: 0 };
            ledger.orders.insert("x".to_owned(), Entry { parcels, ..Entry::default() });
        };
        check(invented, &["1 not at an end: x"]);
    }
}
