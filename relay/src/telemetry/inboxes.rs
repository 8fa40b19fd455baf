//! The gauges of the database's inboxes: services in any language are watched by them, without
//! metrics of their own.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::delivery::lag::{Expectation, InboxStatus};

/// The scope of the inboxes that have no series of their own. No label is unbounded.
const OTHERS: &str = "(others)";

type Scope = [(&'static str, String); 1];
type Expected = [(&'static str, String); 3];

/// By scope. The names differ from those of the crate `oncebox-inbox`, whose metrics are those of
/// one process.
#[derive(Clone, Debug, Default)]
pub(super) struct InboxGauges {
    failing: Family<Scope, Gauge>,
    failing_oldest: Family<Scope, Gauge<f64, AtomicU64>>,
    dead: Family<Scope, Gauge>,
    snoozed: Family<Scope, Gauge>,
    capped: Family<Scope, Gauge>,
    unhandled: Family<Expected, Gauge>,
}

impl InboxGauges {
    pub(super) fn register(&self, all: &mut Registry) {
        all.register(
            "inbox_failing_messages",
            "Messages of an inbox of this database of which an attempt has failed, and that have not ended, counted to its share of 1000",
            self.failing.clone(),
        );
        all.register_with_unit(
            "inbox_failing_oldest",
            "For how long the oldest of those has been in its stream",
            Unit::Seconds,
            self.failing_oldest.clone(),
        );
        all.register(
            "inbox_dead_messages",
            "Dead letters of an inbox of this database now, counted to its share of 1000",
            self.dead.clone(),
        );
        all.register(
            "inbox_snoozed_messages",
            "Messages that an inbox of this database has snoozed, counted to its share of 1000",
            self.snoozed.clone(),
        );
        all.register(
            "inbox_counts_capped",
            "1 while one of the three numbers of an inbox is only a minimum: all inboxes together share 1000",
            self.capped.clone(),
        );
        all.register(
            "unhandled_messages",
            "Messages that an expectation misses: not in their inbox in time, nor now, counted to 10000",
            self.unhandled.clone(),
        );
    }

    /// At most a hundred, by the subject and the inbox that operators have named.
    pub(super) fn observe_expectations(&self, expectations: &[Expectation]) {
        self.unhandled.clear();
        for expected in expectations {
            let labels = [
                ("subject", expected.subject.clone()),
                ("scope", expected.handled_by.clone()),
                ("inbox_database", expected.inbox_database.clone().unwrap_or_default()),
            ];
            self.unhandled.get_or_create(&labels).set(expected.unhandled);
        }
    }

    /// An inbox that is gone has no series any more.
    pub(super) fn observe(&self, inboxes: &[InboxStatus]) {
        self.failing.clear();
        self.failing_oldest.clear();
        self.dead.clear();
        self.snoozed.clear();
        self.capped.clear();
        for inbox in inboxes {
            let scope = [("scope", inbox.scope.clone().unwrap_or_else(|| OTHERS.to_owned()))];
            self.failing.get_or_create(&scope).set(inbox.failing);
            self.failing_oldest.get_or_create(&scope).set(inbox.failing_oldest_seconds);
            self.dead.get_or_create(&scope).set(inbox.dead);
            self.snoozed.get_or_create(&scope).set(inbox.snoozed);
            self.capped.get_or_create(&scope).set(inbox.is_capped.into());
        }
    }
}
