//! Counts and times, and how they are shown to Prometheus.

mod histogram;
mod running;
mod text;

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering},
};

pub use histogram::{ClaimTime, Histogram, Times};
pub use running::{Running, Started};

/// The counters of claims, of messages as of requests.
#[derive(Debug, Default)]
pub struct ClaimCounters {
    /// The counters of leases.
    pub leases: LeaseCounters,
    /// How long claims took to be answered.
    pub claim_time: ClaimTime,
    /// The runs of handlers under way.
    pub running: Running,
}

/// The live counters of leases, and of the effects under them.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    /// See [`LeaseCounts::taken_over`].
    pub taken_over: AtomicU64,
    /// See [`LeaseCounts::lost`].
    pub lost: AtomicU64,
    /// See [`LeaseCounts::unknown`].
    pub unknown: AtomicU64,
    /// See [`LeaseCounts::reconciled`].
    pub reconciled: AtomicU64,
}

/// The counts of leases, and of the effects under them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseCounts {
    /// Claims taken over from an owner whose lease had ended: its process died, or hung.
    pub taken_over: u64,
    /// Leases of this process that were lost, or given up since they could not be renewed.
    pub lost: u64,
    /// Runs that ended with an effect that may have happened.
    pub unknown: u64,
    /// Effects of unknown outcome that were cleared up with their provider.
    pub reconciled: u64,
}

/// Counts one more.
pub fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl LeaseCounters {
    /// The counts of now.
    #[must_use]
    pub fn snapshot(&self) -> LeaseCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeaseCounts {
            taken_over: read(&self.taken_over),
            lost: read(&self.lost),
            unknown: read(&self.unknown),
            reconciled: read(&self.reconciled),
        }
    }
}

impl LeaseCounts {
    /// The counts as samples of this family, one for each value of the label `event`.
    #[must_use]
    pub fn samples(&self, family: Family) -> [Sample; 4] {
        family.counters(
            "event",
            [
                ("taken_over", self.taken_over),
                ("lost", self.lost),
                ("unknown", self.unknown),
                ("reconciled", self.reconciled),
            ],
        )
    }
}

/// A metric, with its name and meaning as docs/metrics.md has them.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// The explanation that Prometheus shows.
    pub help: &'static str,
}

/// A value of a metric.
#[derive(Clone, Debug)]
pub struct Sample {
    family: Family,
    /// Besides the scope.
    label: Option<(&'static str, &'static str)>,
    value: Value,
}

/// The value of a metric. If several have the same scope, counters and histograms are added up, and
/// the largest gauge is shown.
#[derive(Clone, Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram(Times),
}

impl Family {
    /// Counters with one more label than the scope.
    #[must_use]
    pub fn counters<const N: usize>(
        self,
        label: &'static str,
        values: [(&'static str, u64); N],
    ) -> [Sample; N] {
        values.map(|(name, count)| Sample {
            family: self,
            label: Some((label, name)),
            value: Value::Counter(count),
        })
    }

    /// A counter with no label but the scope.
    #[must_use]
    pub fn counter(self, count: u64) -> Sample {
        Sample { family: self, label: None, value: Value::Counter(count) }
    }

    /// A gauge.
    #[must_use]
    pub fn gauge(self, value: f64) -> Sample {
        Sample { family: self, label: None, value: Value::Gauge(value) }
    }

    /// A histogram.
    #[must_use]
    pub fn histogram(self, times: Times) -> Sample {
        Sample { family: self, label: None, value: Value::Histogram(times) }
    }
}

/// Something whose metrics [`metrics_text`] can show: an inbox, or a layer before HTTP handlers.
pub trait Measure: Debug {
    /// The scope that it counts for.
    fn scope(&self) -> &str;

    /// Where it counts: clones count in one place, which is shown once.
    fn counters(&self) -> *const ();

    /// The samples of now.
    fn samples(&self) -> Vec<Sample>;
}

/// A source of metrics for [`metrics_text`], made from a reference to it.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a>(&'a dyn Measure);

impl<'a, M: Measure> From<&'a M> for Measured<'a> {
    fn from(measure: &'a M) -> Self {
        Self(measure)
    }
}

/// The metrics of these inboxes and layers, in the text format of Prometheus (0.0.4): answer `GET
/// /metrics` with it, under `text/plain; version=0.0.4`, or append it to metrics of your own. Give
/// it everything of the process at once, since a metric must not be described twice; inboxes and
/// layers with one scope are added up. It asks nothing of PostgreSQL.
///
/// Of inboxes: `oncebox_inbox_messages_total{scope,outcome}` counts how messages ended: done,
/// rejected, replayed, in_flight, mismatched, retried, snoozed or dead.
/// `oncebox_inbox_duplicates_total{scope,cause}` counts why copies of handled messages came:
/// redelivery (JetStream delivered again), republish (a relay sent the same row again, or a replay
/// was asked for), client_retry (no outbox in between) or other_message (another row with the same
/// key). `oncebox_inbox_effect_seconds{scope}` is a histogram of their age, since their enqueue,
/// when their effect was committed; by the clocks of both hosts, and 0 should these disagree.
/// `oncebox_inbox_claim_seconds{scope}` is one of the time from asking for a key until it was
/// claimed or known not to be free; a claim that goes out after the commit of the message before
/// waits for that too. `oncebox_inbox_oldest_run_seconds{scope}` tells since when the handler's
/// oldest run hangs, if it does; `oncebox_inbox_consuming{scope}` is 1 while a consumer pulls; with
/// strict order one process has it, and where none has it for long, no process consumes.
/// `Leased::in_flight` asks the database about the claims of all processes.
/// `oncebox_inbox_leases_total{scope,event}` counts events of leased mode: taken_over, lost,
/// unknown, reconciled; see [`LeaseCounts`]. `oncebox_inbox_dead_letters_total{scope,event}` counts
/// attempts to publish to `Consumer::dead_letter_subject`: published, failed.
/// `oncebox_inbox_late_total{scope}` counts messages that were older than their retention.
///
/// Of layers: `oncebox_http_requests_total{scope,outcome}`, as in the layer's `Counts`, and
/// `oncebox_http_claim_seconds`, `oncebox_http_oldest_run_seconds` and `oncebox_http_leases_total`
/// like those of inboxes. The scope is the builder's.
///
/// ```
/// use oncebox_claims::metrics::{Measure, Measured, metrics_text};
///
/// fn answer(charges: &impl Measure, orders: &impl Measure) -> String {
///     metrics_text([Measured::from(charges), orders.into()])
/// }
/// ```
pub fn metrics_text<'a, M: Into<Measured<'a>>>(measured: impl IntoIterator<Item = M>) -> String {
    let mut known = Vec::new();
    let mut text = text::Text::default();
    for Measured(measure) in measured.into_iter().map(Into::into) {
        if !known.contains(&measure.counters()) {
            known.push(measure.counters());
            text.add(measure.scope(), measure.samples());
        }
    }
    text.into_string()
}
