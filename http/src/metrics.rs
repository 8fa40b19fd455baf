//! The metrics of a layer, for Prometheus.

use oncebox_claims::metrics::{Family, Measure, Sample};
use oncebox_schema::Driver;

use crate::{Counts, IdempotencyLayer};

const REQUESTS: Family = Family {
    name: "oncebox_http_requests_total",
    help: "How requests ended: done, rejected, replayed, released, in_flight, mismatched, key_missing, refused, unavailable, failed",
};
const LEASES: Family = Family {
    name: "oncebox_http_leases_total",
    help: "The same as of inboxes, for layers in the leased form",
};
const CLAIM: Family = Family {
    name: "oncebox_http_claim_seconds",
    help: "Each look at the key of a request until it was claimed or known not to be free, the wait for a connection included",
};
const OLDEST: Family = Family {
    name: "oncebox_http_oldest_run_seconds",
    help: "For how long the oldest request in this process that has claimed its key has been under way; 0 without one",
};

impl<D: Driver> Measure for IdempotencyLayer<D> {
    fn scope(&self) -> &str {
        &self.shared.settings.scope
    }

    fn counters(&self) -> *const () {
        std::ptr::from_ref(&self.shared.counters).cast()
    }

    fn samples(&self) -> Vec<Sample> {
        let counters = &self.shared.counters;
        let counts = counters.snapshot();
        let mut samples = REQUESTS.counters("outcome", outcomes(&counts)).to_vec();
        samples.extend(counts.leases.samples(LEASES));
        samples.push(CLAIM.histogram(counters.claims.claim_time.times()));
        samples.push(OLDEST.gauge(counters.claims.running.oldest().as_secs_f64()));
        samples
    }
}

/// The outcomes; each request counts in exactly one.
fn outcomes(counts: &Counts) -> [(&'static str, u64); 10] {
    [
        ("done", counts.handled.saturating_sub(counts.rejected)),
        ("rejected", counts.rejected),
        ("replayed", counts.replayed),
        ("released", counts.released),
        ("in_flight", counts.in_flight),
        ("mismatched", counts.mismatched),
        ("key_missing", counts.key_missing),
        ("refused", counts.refused.saturating_sub(counts.key_missing)),
        ("unavailable", counts.unavailable),
        ("failed", counts.failed),
    ]
}
