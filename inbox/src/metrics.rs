//! Counts and times of inboxes, in the text format of Prometheus.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use crate::{Counts, Inbox, LeaseCounts, Received, counts::Counters, duplicate::Cause};

const MESSAGES: &str = "oncebox_inbox_messages_total";
const MESSAGES_HELP: &str =
    "How messages ended: done, rejected, replayed, in_flight, mismatched, retried, dead";
const DUPLICATES: &str = "oncebox_inbox_duplicates_total";
const DUPLICATES_HELP: &str =
    "Why copies of handled messages came: redelivery, republish, client_retry, other_message";
const EFFECT: &str = "oncebox_inbox_effect_seconds";
const EFFECT_HELP: &str =
    "Age of each message, since its enqueue, when its effect was committed; by the clocks of both hosts";
const LEASES: &str = "oncebox_inbox_leases_total";
const LEASES_HELP: &str = "What happened in leased mode: leases taken_over and lost, runs with an effect unknown, effects reconciled";
/// The upper bounds of the buckets, from a busy consumer to one that was away for a day.
const BOUNDS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 21600.0, 86400.0,
];

/// The metrics of these inboxes, in the text format of Prometheus (0.0.4): answer `GET /metrics` with it, under
/// `text/plain; version=0.0.4`, or append it to metrics of your own. Give it all inboxes of the process at once, since a
/// metric must not be described twice. It asks nothing of PostgreSQL.
///
/// `oncebox_inbox_messages_total{scope,outcome}` counts how messages ended: done, rejected, replayed, in_flight,
/// mismatched, retried or dead. `oncebox_inbox_duplicates_total{scope,cause}` counts why copies of handled messages came:
/// redelivery (JetStream delivered again), republish (a relay sent the same row again, or a replay was asked for),
/// client_retry (no outbox in between) or other_message (another row with the same key). `oncebox_inbox_effect_seconds{scope}` is a histogram of their age, since their enqueue, when
/// their effect was committed; by the clocks of both hosts, and 0 should these disagree.
/// `oncebox_inbox_leases_total{scope,event}` counts what happened in leased mode: taken_over, lost, unknown, reconciled; see
/// [`LeaseCounts`](crate::LeaseCounts).
///
/// ```
/// use oncebox_inbox::{Inbox, metrics_text};
///
/// fn answer(charges: &Inbox, refunds: &Inbox) -> String {
///     metrics_text([charges, refunds])
/// }
/// ```
pub fn metrics_text<'a>(inboxes: impl IntoIterator<Item = &'a Inbox>) -> String {
    let inboxes: Vec<(String, Counts, &Counters)> =
        inboxes.into_iter().map(|inbox| (escaped(inbox.scope()), inbox.counts(), inbox.counters())).collect();
    let mut text = format!("# HELP {MESSAGES} {MESSAGES_HELP}\n# TYPE {MESSAGES} counter\n");
    for (scope, counts, _) in &inboxes {
        for (outcome, count) in outcomes(counts) {
            line(&mut text, format_args!("{MESSAGES}{{scope=\"{scope}\",outcome=\"{outcome}\"}} {count}"));
        }
    }
    line(&mut text, format_args!("# HELP {LEASES} {LEASES_HELP}\n# TYPE {LEASES} counter"));
    for (scope, counts, _) in &inboxes {
        for (event, count) in events(&counts.leases) {
            line(&mut text, format_args!("{LEASES}{{scope=\"{scope}\",event=\"{event}\"}} {count}"));
        }
    }
    line(&mut text, format_args!("# HELP {DUPLICATES} {DUPLICATES_HELP}\n# TYPE {DUPLICATES} counter"));
    for (scope, _, counters) in &inboxes {
        for cause in Cause::ALL {
            let (label, count) = (cause.as_str(), counters.causes.get(cause));
            line(&mut text, format_args!("{DUPLICATES}{{scope=\"{scope}\",cause=\"{label}\"}} {count}"));
        }
    }
    line(&mut text, format_args!("# HELP {EFFECT} {EFFECT_HELP}\n# TYPE {EFFECT} histogram"));
    for (scope, _, counters) in &inboxes {
        counters.effect_time.write(&mut text, scope);
    }
    text
}

/// Each message in one of them.
fn outcomes(counts: &Counts) -> [(&'static str, u64); 7] {
    [
        ("done", counts.handled.saturating_sub(counts.rejected)),
        ("rejected", counts.rejected),
        ("replayed", counts.replayed),
        ("in_flight", counts.in_flight),
        ("mismatched", counts.mismatched),
        ("retried", counts.retried),
        ("dead", counts.dead),
    ]
}

fn events(leases: &LeaseCounts) -> [(&'static str, u64); 4] {
    [
        ("taken_over", leases.taken_over),
        ("lost", leases.lost),
        ("unknown", leases.unknown),
        ("reconciled", leases.reconciled),
    ]
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{line}");
}

/// A label's value; a scope has no control characters.
fn escaped(scope: &str) -> String {
    scope.replace('\\', "\\\\").replace('"', "\\\"")
}

/// How long messages took from their enqueue to their effect.
#[derive(Debug, Default)]
pub(crate) struct EffectTime {
    /// How many fell in each bucket; the last is for what lies above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_microseconds: AtomicU64,
}

impl EffectTime {
    /// An effect was committed just now. A message that does not say when it was enqueued is left out.
    pub(crate) fn observe(&self, received: &Received) {
        let enqueued = received.time().and_then(|text| humantime::parse_rfc3339(text).ok());
        if let Some(enqueued) = enqueued {
            // With a clock that is behind the producer's, the age would be negative.
            self.add(SystemTime::now().duration_since(enqueued).unwrap_or_default());
        }
    }

    fn add(&self, age: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < age.as_secs_f64());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        self.sum_microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    #[expect(clippy::cast_precision_loss, reason = "a sum of times")]
    fn write(&self, text: &mut String, scope: &str) {
        let mut count = 0;
        let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bucket, bound) in self.buckets.iter().zip(bounds) {
            count += bucket.load(Ordering::Relaxed);
            line(text, format_args!("{EFFECT}_bucket{{scope=\"{scope}\",le=\"{bound}\"}} {count}"));
        }
        let sum = self.sum_microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        line(
            text,
            format_args!(
                "{EFFECT}_sum{{scope=\"{scope}\"}} {sum}\n{EFFECT}_count{{scope=\"{scope}\"}} {count}"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_their_bounds_belong_to_them() {
        let time = EffectTime::default();
        for milliseconds in [0, 1, 2, 1_000, 100_000_000] {
            time.add(Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        time.write(&mut text, "a");
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "no {line} in:\n{text}");
        has(r#"oncebox_inbox_effect_seconds_bucket{scope="a",le="0.001"} 2"#);
        has(r#"oncebox_inbox_effect_seconds_bucket{scope="a",le="0.0025"} 3"#);
        has(r#"oncebox_inbox_effect_seconds_bucket{scope="a",le="1"} 4"#);
        has(r#"oncebox_inbox_effect_seconds_bucket{scope="a",le="86400"} 4"#);
        has(r#"oncebox_inbox_effect_seconds_bucket{scope="a",le="+Inf"} 5"#);
        has(r#"oncebox_inbox_effect_seconds_sum{scope="a"} 100001.003"#);
        has(r#"oncebox_inbox_effect_seconds_count{scope="a"} 5"#);
    }

    #[test]
    fn a_time_that_is_missing_unreadable_or_ahead_does_no_harm() {
        let time = EffectTime::default();
        time.observe(&Received::new("s", ""));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "yesterday"));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "2999-01-01T00:00:00Z"));
        assert_eq!(time.buckets[0].load(Ordering::Relaxed), 1);
        assert_eq!(time.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum::<u64>(), 1);
    }

    #[test]
    fn a_scope_cannot_end_its_label() {
        assert_eq!(escaped(r#"a"b\c"#), r#"a\"b\\c"#);
    }
}
