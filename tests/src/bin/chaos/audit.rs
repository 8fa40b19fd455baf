//! The orders against their effects, in every mode.

use std::collections::{BTreeMap, HashMap, HashSet};

use oncebox_tests::{Counts, Placed};

use crate::{
    books::{Books, Line},
    consume::{BATCH, EACH},
    copies::COPIES,
    order::{Order, RECEIPT_STEP},
    sagas::STEPS,
};

/// The scope of the example `cashier`.
pub(crate) const CASHIER: &str = "cashier-service:settle";

/// Everything there is to judge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Keys of the orders that were committed.
    pub(crate) placed: Vec<String>,
    /// Keys of the messages that the relays delivered.
    pub(crate) written: Vec<String>,
    /// Keys of the copies in the stream, if copies were made.
    pub(crate) copied: Option<Vec<String>>,
    /// Keys of the messages that a handler enqueued.
    pub(crate) receipts: Vec<String>,
    /// Scope and key.
    pub(crate) effects: Vec<(String, String)>,
    /// Scope and key.
    pub(crate) letters: Vec<(String, String)>,
    /// Scope; status and key.
    pub(crate) outcomes: Vec<(String, String)>,
    /// State and key.
    pub(crate) sagas: Vec<(String, String)>,
    /// Key and step, as often as its effects are left over its compensations, or the other way
    /// round.
    pub(crate) steps: Vec<(String, String)>,
    /// Order, charge, payout.
    pub(crate) settlements: Vec<(i64, i64, i64)>,
    pub(crate) books: Books,
    /// A table that should be empty, and how much is there.
    pub(crate) leftovers: Vec<(String, i64)>,
    /// How many deliveries each durable consumer had.
    pub(crate) deliveries: Vec<u64>,
}

/// One thing that was to happen once.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) what: &'static str,
    pub(crate) counts: Counts,
}

impl Facts {
    /// The orders that a scope gets, and whether they are to end like this.
    fn expected(&self, is_expected: impl Fn(&Order) -> bool) -> Vec<String> {
        let is_expected = |key: &&String| Order::of(key).is_ok_and(|order| is_expected(&order));
        self.placed.iter().filter(is_expected).cloned().collect()
    }

    /// Those whose customers are charged, and whose merchants are paid out.
    fn paid(&self) -> Vec<String> {
        self.expected(|order| order.is_card() && !order.is_dead() && !order.is_declined())
    }

    /// The keys by the orders' numbers.
    pub(crate) fn orders(&self) -> HashMap<i64, &String> {
        self.placed.iter().filter_map(|key| Some((Order::of(key).ok()?.order, key))).collect()
    }

    /// Each thing that was to happen once, counted.
    pub(crate) fn audit(&self) -> Vec<Judged> {
        let Self { books, placed, .. } = self;
        let alive = self.expected(|order| !order.is_dead());
        let paid = self.paid();
        let of_scope = |found: &[(String, String)], scope: &str| -> Vec<String> {
            found.iter().filter(|(of, _)| of == scope).map(|(_, key)| key.clone()).collect()
        };
        let orders = self.orders();
        let settled = self.settlements.iter().map(|(order, ..)| {
            orders.get(order).map_or_else(|| format!("order {order}"), ToString::to_string)
        });
        let mut lines = vec![
            line("messages relayed", placed, &distinct(&self.written)),
            line("effects, a transaction each", &alive, &of_scope(&self.effects, EACH)),
            line("effects, in batches", &alive, &of_scope(&self.effects, BATCH)),
            line(
                "receipts, by handlers' outbox",
                &with_step(&alive, RECEIPT_STEP),
                &distinct(&self.receipts),
            ),
            line("charges at the gateway", &with_step(&paid, "charge"), &made(&books.charges)),
            line("payouts at the gateway", &with_step(&paid, "pay-out"), &made(&books.payouts)),
            line("settlements booked", &paid, &settled.collect::<Vec<_>>()),
        ];
        lines.extend(self.sagas());
        for (scope, what, outcomes) in [
            (EACH, "dead letters, a transaction each", "outcomes, a transaction each"),
            (BATCH, "dead letters, in batches", "outcomes, in batches"),
            (CASHIER, "dead letters, under leases", "outcomes, under leases"),
        ] {
            let gets = |order: &Order| scope != CASHIER || order.is_card();
            let dead = self.expected(|order| gets(order) && order.is_dead());
            lines.push(line(what, &dead, &of_scope(&self.letters, scope)));
            let ended = self.expected(gets).into_iter().filter_map(|key| {
                let order = Order::of(&key).ok()?;
                let is_rejected = scope == CASHIER && order.is_declined();
                let status = if order.is_dead() {
                    "dead"
                } else if is_rejected {
                    "rejected"
                } else {
                    "completed"
                };
                Some(format!("{status} {key}"))
            });
            lines.push(line(outcomes, &ended.collect::<Vec<_>>(), &of_scope(&self.outcomes, scope)));
        }
        lines
    }

    /// Orders by card are led by sagas, and shipped or undone.
    fn sagas(&self) -> [Judged; 2] {
        let (shipped, cards) = (self.paid(), self.expected(|order| order.is_card() && !order.is_dead()));
        let ended = cards.iter().map(|key| {
            let state = if shipped.contains(key) { "completed" } else { "compensated" };
            format!("{state} {key}")
        });
        let found: Vec<String> = self.sagas.iter().map(|(state, key)| format!("{state} {key}")).collect();
        let done: Vec<String> = STEPS.iter().flat_map(|step| with_step(&shipped, step)).collect();
        let left: Vec<String> = self.steps.iter().map(|(key, step)| format!("{key}:{step}")).collect();
        [
            line("sagas, completed or compensated", &ended.collect::<Vec<_>>(), &found),
            line("effects of sagas' steps", &done, &left),
        ]
    }

    /// The faults, a line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for Judged { what, counts } in self.audit() {
            let Counts { lost, doubled, invented, messages, .. } = counts;
            if lost + doubled + invented > 0 {
                problems.push(format!(
                    "{what}: {lost} lost, {doubled} doubled, {invented} invented, of {messages}"
                ));
            }
        }
        let wanted = self.written.len() * COPIES;
        if let Some(copied) = self.copied.as_ref().map(Vec::len).filter(|copied| *copied != wanted) {
            problems.push(format!("{copied} copies in the stream, not {wanted}"));
        }
        for (what, count) in &self.leftovers {
            if *count != 0 {
                problems.push(format!("{count} {what} in the end"));
            }
        }
        // The receipt that was booked is the one that the gateway gave.
        let number = |lines: &BTreeMap<String, Line>, key: String| {
            lines.get(&key).and_then(|line| line.made.first().copied())
        };
        let orders = self.orders();
        let strange = self.settlements.iter().filter(|(order, charge, payout)| {
            let Some(key) = orders.get(order) else { return false };
            number(&self.books.charges, format!("{key}:charge")) != Some(*charge)
                || number(&self.books.payouts, format!("{key}:pay-out")) != Some(*payout)
        });
        let strange = strange.count();
        if strange > 0 {
            problems.push(format!("{strange} settlements with numbers that the gateway did not give"));
        }
        // It was asked, and did nothing: for an unknown key, or for one that was given up.
        let paid: HashSet<String> = with_step(&self.paid(), "charge").into_iter().collect();
        let foreign = self.books.charges.keys().filter(|key| !paid.contains(*key)).count();
        if foreign > 0 {
            problems.push(format!("{foreign} keys at the gateway that it should not have been asked about"));
        }
        problems
    }
}

/// Whether this many happened once each.
fn line(what: &'static str, expected: &[String], found: &[String]) -> Judged {
    let placed: Vec<Placed> = expected.iter().map(|key| Placed { key: key.clone(), place: None }).collect();
    // As if all of them had come: messages that came through the stream are judged by themselves.
    Judged { what, counts: Counts::new(&placed, expected, found) }
}

/// A message may come more than once, by a relay that died before it knew; the inbox is there for
/// that.
fn distinct(keys: &[String]) -> Vec<String> {
    keys.iter().collect::<HashSet<_>>().into_iter().cloned().collect()
}

fn with_step(keys: &[String], step: &str) -> Vec<String> {
    keys.iter().map(|key| format!("{key}:{step}")).collect()
}

/// The key of each charge or payout that was made, as often as it was.
fn made(lines: &BTreeMap<String, Line>) -> Vec<String> {
    lines.iter().flat_map(|(key, line)| line.made.iter().map(|_| key.clone())).collect()
}

#[cfg(test)]
mod tests;
