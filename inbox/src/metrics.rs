//! The metrics of an inbox.

use std::sync::Arc;

use oncebox_claims::metrics::Family;
pub(crate) use oncebox_claims::metrics::{Measure, Sample};
use oncebox_schema::Driver;

use crate::{Counts, Inbox, Leased, duplicate::Cause, inbox::Shared};

const MESSAGES: Family = Family {
    name: "oncebox_inbox_messages_total",
    help: "How messages ended: done, rejected, replayed, in_flight, mismatched, retried, snoozed, dead",
};
const LEASES: Family = Family {
    name: "oncebox_inbox_leases_total",
    help: "What happened in leased mode: leases taken_over and lost, runs with an effect unknown, effects reconciled",
};
const DUPLICATES: Family = Family {
    name: "oncebox_inbox_duplicates_total",
    help: "Why copies of handled messages came: redelivery, republish, client_retry, other_message",
};
const LETTERS: Family = Family {
    name: "oncebox_inbox_dead_letters_total",
    help: "Dead letters for the subject that the consumer has for them: published, and failed attempts at that",
};
const LATE: Family = Family {
    name: "oncebox_inbox_late_total",
    help: "Messages handled that were enqueued longer ago than keys are kept: a copy of theirs would not have been recognised",
};
const EFFECT: Family = Family {
    name: "oncebox_inbox_effect_seconds",
    help: "Age of each message, since its enqueue, when its effect was committed; by the clocks of both hosts",
};
const CLAIM: Family = Family {
    name: "oncebox_inbox_claim_seconds",
    help: "From asking for a key until it was claimed or known not to be free, the wait for a connection included",
};
const OLDEST: Family = Family {
    name: "oncebox_inbox_oldest_run_seconds",
    help: "For how long the oldest run of a handler in this process has been under way; 0 without one",
};
const CONSUMING: Family = Family {
    name: "oncebox_inbox_consuming",
    help: "1 while a consumer of this process pulls; 0 while it is interrupted, or stands by for another in strict order",
};

impl<D: Driver> Measure for Inbox<D> {
    fn scope(&self) -> &str {
        self.scope()
    }

    fn counters(&self) -> *const () {
        self.shared.counters()
    }

    fn samples(&self) -> Vec<Sample> {
        self.shared.samples()
    }
}

impl Shared {
    pub(crate) fn counters(&self) -> *const () {
        Arc::as_ptr(&self.counters).cast()
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        let counters = &*self.counters;
        let counts = counters.snapshot();
        let mut samples = MESSAGES.counters("outcome", outcomes(&counts)).to_vec();
        samples.extend(counts.leases.samples(LEASES));
        let causes = Cause::ALL.map(|cause| (cause.as_str(), counters.causes.get(cause)));
        samples.extend(DUPLICATES.counters("cause", causes));
        samples.extend(LETTERS.counters("event", letters(&counts)));
        samples.push(LATE.counter(counts.late));
        samples.push(EFFECT.histogram(counters.effect_time.times()));
        samples.push(CLAIM.histogram(counters.claims.claim_time.times()));
        samples.push(OLDEST.gauge(counters.claims.running.oldest().as_secs_f64()));
        samples.push(CONSUMING.gauge(f64::from(u8::from(counters.consuming.is_any()))));
        samples
    }
}

impl Measure for Leased {
    fn scope(&self) -> &str {
        self.inbox().scope()
    }

    fn counters(&self) -> *const () {
        Measure::counters(self.inbox())
    }

    fn samples(&self) -> Vec<Sample> {
        self.inbox().samples()
    }
}

/// Each message in one of them.
fn outcomes(counts: &Counts) -> [(&'static str, u64); 8] {
    [
        ("done", counts.handled.saturating_sub(counts.rejected)),
        ("rejected", counts.rejected),
        ("replayed", counts.replayed),
        ("in_flight", counts.in_flight),
        ("mismatched", counts.mismatched),
        ("retried", counts.retried),
        ("snoozed", counts.snoozed),
        ("dead", counts.dead),
    ]
}

fn letters(counts: &Counts) -> [(&'static str, u64); 2] {
    [("published", counts.dead_letters_published), ("failed", counts.dead_letters_failed)]
}
