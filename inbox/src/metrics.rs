//! The metrics of an inbox.

use std::{sync::Arc, time::SystemTime};

use oncebox_claims::metrics::{Family, Histogram, Times};
pub(crate) use oncebox_claims::metrics::{Measure, Sample};
use oncebox_schema::Driver;

use crate::{Counts, Inbox, Leased, Received, duplicate::Cause, inbox::Shared};

/// The buckets reach from a busy consumer to one that was away for a day.
const EFFECT_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 21600.0, 86400.0,
];
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
/// How long messages took from their enqueue to their effect.
#[derive(Debug)]
pub(crate) struct EffectTime(Histogram);

impl Default for EffectTime {
    fn default() -> Self {
        Self(Histogram::new(EFFECT_BOUNDS))
    }
}

impl EffectTime {
    /// An effect was committed just now. A message that does not say when it was enqueued is left
    /// out.
    pub(crate) fn observe(&self, received: &Received) {
        let enqueued = received.time().and_then(|text| humantime::parse_rfc3339(text).ok());
        if let Some(enqueued) = enqueued {
            // With a clock that is behind the producer's, the age would be negative.
            self.0.add(SystemTime::now().duration_since(enqueued).unwrap_or_default(), 1);
        }
    }

    pub(crate) fn times(&self) -> Times {
        self.0.times()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_missing_unreadable_or_ahead_does_no_harm() {
        let time = EffectTime::default();
        time.observe(&Received::new("s", ""));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "yesterday"));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "2999-01-01T00:00:00Z"));
        let times = time.times();
        assert_eq!((times.buckets[0], times.buckets.iter().sum::<u64>()), (1, 1));
    }
}
