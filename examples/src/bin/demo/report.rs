//! The table in the end, and the faults.

use std::{sync::atomic::Ordering, time::Duration};

use oncebox_examples::audit::{Audit, Sabotage};

use crate::{
    Options,
    clients::{CLIENTS, Progress},
    copies::Stored,
};

/// Everything that a run has counted.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) options: Options,
    pub(crate) took: Duration,
    pub(crate) committed: usize,
    pub(crate) relay_kills: u32,
    pub(crate) payment_kills: u32,
    /// Messages that nats-server had acknowledged, at least.
    pub(crate) lost_by_nats: u64,
    /// Messages that were published a second time on purpose.
    pub(crate) copies: usize,
    /// Duplicates that the payment processes answered from the inbox, as they wrote them down every
    /// 20 ms. The last ones of a killed process are missing, so this is a lower bound.
    pub(crate) absorbed: usize,
    /// The stream's messages that ask for a payment.
    pub(crate) placed: Stored,
    /// The stream's messages that say that an order is paid.
    pub(crate) receipts: Stored,
    pub(crate) audit: Audit,
    /// How many kinds of errors the audit found when they were planted.
    pub(crate) planted_found: usize,
    rolled_back: usize,
    long: usize,
    retried: usize,
    servers_are_ours: bool,
}

impl Report {
    pub(crate) fn new(options: Options, servers_are_ours: bool) -> Self {
        Self {
            options,
            took: Duration::ZERO,
            committed: 0,
            relay_kills: 0,
            payment_kills: 0,
            lost_by_nats: 0,
            copies: 0,
            absorbed: 0,
            placed: Stored::default(),
            receipts: Stored::default(),
            audit: Audit::default(),
            planted_found: 0,
            rolled_back: 0,
            long: 0,
            retried: 0,
            servers_are_ours,
        }
    }

    pub(crate) fn note_progress(&mut self, progress: &Progress) {
        self.committed = progress.committed.load(Ordering::Relaxed);
        self.rolled_back = progress.rolled_back.load(Ordering::Relaxed);
        self.long = progress.long.load(Ordering::Relaxed);
        self.retried = progress.retried.load(Ordering::Relaxed);
    }

    /// The table, the faults, and the one line.
    pub(crate) fn print(&self) {
        println!();
        for (what, count, remark) in self.rows() {
            println!("  {what:<38}{count:>6}  {remark}");
        }
        println!();
        for problem in self.problems() {
            println!("WRONG: {problem}");
        }
        let verdict = if self.problems().is_empty() { "exactly once" } else { "NOT exactly once" };
        let Audit { orders, charges, lost, doubled, out_of_order, .. } = &self.audit;
        println!(
            "{verdict}: {orders} orders, {charges} charges, {} duplicate deliveries absorbed, {} lost, {} doubled, {} out of order",
            self.absorbed,
            lost.len(),
            doubled.len(),
            out_of_order.len(),
        );
    }

    /// The faults, a line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.audit.findings();
        let mut check = |is_right: bool, problem: String| {
            if !is_right {
                problems.push(problem);
            }
        };
        let Self { committed, copies, absorbed, .. } = self;
        let (orders, charges) = (self.audit.orders, self.audit.charges);
        check(
            orders == *committed,
            format!("{committed} orders were committed, {orders} are in the database"),
        );
        check(
            self.placed.keys == orders,
            format!("{orders} orders, but {} keys among the messages about them", self.placed.keys),
        );
        check(
            self.receipts.keys == charges || self.options.sabotage.is_some(),
            format!("{charges} charges, but {} keys among their receipts", self.receipts.keys),
        );
        check(
            self.planted_found == Sabotage::ALL.len() || !self.audit.findings().is_empty(),
            format!("of {} planted errors only {} were found", Sabotage::ALL.len(), self.planted_found),
        );
        // Too little trouble proves too little.
        let tenth = self.options.orders / 10;
        check(self.rolled_back >= tenth, format!("only {} orders were rolled back", self.rolled_back));
        check(*copies >= committed / 10, format!("only {copies} messages were republished"));
        // Some may have gone unrecorded each time a consumer was killed, see `absorbed`.
        let unrecorded = 5 * self.payment_kills as usize;
        check(
            absorbed + unrecorded >= *copies,
            format!("{copies} messages were republished, but only {absorbed} duplicates were absorbed"),
        );
        check(self.relay_kills >= 3, format!("a relay was killed {} times only", self.relay_kills));
        check(self.payment_kills >= 2, format!("a consumer was killed {} times only", self.payment_kills));
        let has_lost = self.lost_by_nats >= 1 || !self.servers_are_ours;
        check(has_lost, "nats-server has lost nothing".to_owned());
        problems
    }

    fn rows(&self) -> Vec<(&'static str, usize, String)> {
        let audit = &self.audit;
        let nats = if self.servers_are_ours { "its store replaced by an older copy" } else { "not ours" };
        let row = |what, count, remark: &str| (what, count, remark.to_owned());
        vec![
            ("orders placed", self.options.orders, format!("{CLIENTS} clients, {:.0?}", self.took)),
            row("  committed", self.committed, ""),
            row("  rolled back", self.rolled_back, "on purpose"),
            row("  in long transactions", self.long, "2 to 4 s, message first, snapshot held"),
            row("  sent again by the client", self.retried, "same key: same order, no second message"),
            row("relays killed (SIGKILL)", self.relay_kills as usize, "two share the orders' lanes"),
            row(
                "consumers killed (SIGKILL)",
                self.payment_kills as usize,
                "one works, one stands by: Order::Strict",
            ),
            row("messages that nats-server lost", usize::try_from(self.lost_by_nats).unwrap_or(0), nats),
            row("messages republished", self.copies, "new Nats-Msg-Id, same Idempotency-Key"),
            ("messages in the stream", self.placed.messages, format!("{} keys", self.placed.keys)),
            row("charges", audit.charges, "in the payment service's database"),
            ("receipts in the stream", self.receipts.messages, format!("{} keys", self.receipts.keys)),
            row(
                "duplicate deliveries absorbed",
                self.absorbed,
                "recorded by the consumers; at least so many",
            ),
            row("planted errors found by the audit", self.planted_found, "of 3: lost, doubled, out of order"),
        ]
    }
}
