//! Counts and times of inboxes and of layers before HTTP handlers, in the text format of Prometheus.

use std::{collections::BTreeMap, sync::Arc};

mod text;

#[cfg(feature = "http")]
use crate::http::{self, IdempotencyLayer};
use crate::{Counts, Inbox, LeaseCounts, Leased, counts::Counters, duplicate::Cause};
use text::{Family, Group, Text, escaped};

const MESSAGES: Family = Family {
    name: "oncebox_inbox_messages_total",
    help: "How messages ended: done, rejected, replayed, in_flight, mismatched, retried, parked, dead",
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
#[cfg(feature = "http")]
const REQUESTS: Family = Family {
    name: "oncebox_http_requests_total",
    help: "How requests ended: done, rejected, replayed, released, in_flight, mismatched, key_missing, refused, unavailable, failed",
};
#[cfg(feature = "http")]
const HTTP_LEASES: Family = Family {
    name: "oncebox_http_leases_total",
    help: "The same as of inboxes, for layers in the leased form",
};
#[cfg(feature = "http")]
const HTTP_CLAIM: Family = Family {
    name: "oncebox_http_claim_seconds",
    help: "Each look at the key of a request until it was claimed or known not to be free, the wait for a connection included",
};
#[cfg(feature = "http")]
const HTTP_OLDEST: Family = Family {
    name: "oncebox_http_oldest_run_seconds",
    help: "For how long the oldest request in this process that has claimed its key has been under way; 0 without one",
};

/// What [`metrics_text`] shows: an [`Inbox`], a [`Leased`], or the layer before HTTP handlers (feature `http`).
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a>(Kind<'a>);

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    Inbox(&'a Inbox),
    #[cfg(feature = "http")]
    Layer(&'a IdempotencyLayer),
}

impl<'a> From<&'a Inbox> for Measured<'a> {
    fn from(inbox: &'a Inbox) -> Self {
        Self(Kind::Inbox(inbox))
    }
}

impl<'a> From<&'a Leased> for Measured<'a> {
    fn from(leased: &'a Leased) -> Self {
        leased.inbox().into()
    }
}

#[cfg(feature = "http")]
impl<'a> From<&'a IdempotencyLayer> for Measured<'a> {
    fn from(layer: &'a IdempotencyLayer) -> Self {
        Self(Kind::Layer(layer))
    }
}

/// The metrics of these inboxes and layers, in the text format of Prometheus (0.0.4): answer `GET /metrics` with it, under
/// `text/plain; version=0.0.4`, or append it to metrics of your own. Give it everything of the process at once, since a
/// metric must not be described twice; what shares a scope is added up. It asks nothing of PostgreSQL.
///
/// Of inboxes: `oncebox_inbox_messages_total{scope,outcome}` counts how messages ended: done,
/// rejected, replayed, in_flight, mismatched, retried, parked or dead.
/// `oncebox_inbox_duplicates_total{scope,cause}` counts why copies of handled messages came:
/// redelivery (JetStream delivered again), republish (a relay sent the same row again, or a replay
/// was asked for), client_retry (no outbox in between) or other_message (another row with the same
/// key). `oncebox_inbox_effect_seconds{scope}` is a histogram of their age, since their enqueue,
/// when their effect was committed; by the clocks of both hosts, and 0 should these disagree.
/// `oncebox_inbox_claim_seconds{scope}` is one of the time from asking for a key until it was
/// claimed or known not to be free; a claim that goes out behind the commit of the message before
/// waits for that too. `oncebox_inbox_oldest_run_seconds{scope}` tells since when the handler's
/// oldest run hangs, if it does; `oncebox_inbox_consuming{scope}` is 1 while a consumer pulls; with
/// strict order one process has it, and where none has it for long, nobody consumes.
/// [`Leased::in_flight`] asks the database about the claims of all processes.
/// `oncebox_inbox_leases_total{scope,event}` counts what happened in leased mode: taken_over, lost,
/// unknown, reconciled; see [`LeaseCounts`]. `oncebox_inbox_dead_letters_total{scope,event}` counts
/// what became of those for
/// [`Consumer::dead_letter_subject`](crate::Consumer::dead_letter_subject): published, failed.
/// `oncebox_inbox_late_total{scope}` counts messages that were older than their retention, see
/// [`Counts::late`].
///
/// Of layers: `oncebox_http_requests_total{scope,outcome}`, as in the layer's `Counts`, and `oncebox_http_claim_seconds`,
/// `oncebox_http_oldest_run_seconds` and `oncebox_http_leases_total` like those of inboxes. The scope is the builder's.
///
/// ```
/// use oncebox_inbox::{Inbox, metrics_text};
///
/// fn answer(charges: &Inbox, refunds: &Inbox) -> String {
///     metrics_text([charges, refunds])
/// }
///
/// # #[cfg(feature = "http")]
/// fn answer_with_requests(charges: &Inbox, orders: &oncebox_inbox::http::IdempotencyLayer) -> String {
///     metrics_text([oncebox_inbox::Measured::from(charges), orders.into()])
/// }
/// ```
pub fn metrics_text<'a, M: Into<Measured<'a>>>(measured: impl IntoIterator<Item = M>) -> String {
    let mut inboxes: BTreeMap<&str, Vec<&Arc<Counters>>> = BTreeMap::new();
    #[cfg(feature = "http")]
    let mut layers: BTreeMap<&str, Vec<&http::Counters>> = BTreeMap::new();
    for Measured(kind) in measured.into_iter().map(Into::into) {
        match kind {
            Kind::Inbox(inbox) => {
                let (known, counters) = (inboxes.entry(inbox.scope()).or_default(), inbox.shared_counters());
                // A clone has the same.
                if !known.iter().any(|known| Arc::ptr_eq(known, counters)) {
                    known.push(counters);
                }
            }
            #[cfg(feature = "http")]
            Kind::Layer(layer) => {
                let (known, counters) = (layers.entry(layer.scope()).or_default(), layer.counters());
                if !known.iter().any(|known| std::ptr::eq(*known, counters)) {
                    known.push(counters);
                }
            }
        }
    }
    let mut text = Text::default();
    write_inboxes(&mut text, &groups(inboxes));
    #[cfg(feature = "http")]
    write_layers(&mut text, &groups(layers));
    text.into_string()
}

fn groups<T>(by_scope: BTreeMap<&str, Vec<T>>) -> Vec<Group<T>> {
    by_scope.into_iter().map(|(scope, members)| (escaped(scope), members)).collect()
}

fn write_inboxes(text: &mut Text, groups: &[Group<&Arc<Counters>>]) {
    if groups.is_empty() {
        return;
    }
    text.counters(MESSAGES, "outcome", groups, |counters| outcomes(&counters.snapshot()));
    text.counters(LEASES, "event", groups, |counters| events(&counters.snapshot().leases));
    text.counters(DUPLICATES, "cause", groups, |counters| {
        Cause::ALL.map(|cause| (cause.as_str(), counters.causes.get(cause)))
    });
    text.counters(LETTERS, "event", groups, |counters| letters(&counters.snapshot()));
    text.counter(LATE, groups, |counters| counters.snapshot().late);
    text.histogram(EFFECT, groups, |counters| counters.effect_time.times());
    text.histogram(CLAIM, groups, |counters| counters.claim_time.times());
    text.gauge(OLDEST, groups, |counters| counters.running.oldest().as_secs_f64());
    text.gauge(CONSUMING, groups, |counters| f64::from(u8::from(counters.consuming.is_any())));
}

#[cfg(feature = "http")]
fn write_layers(text: &mut Text, groups: &[Group<&http::Counters>]) {
    if groups.is_empty() {
        return;
    }
    text.counters(REQUESTS, "outcome", groups, |counters| ended(&counters.snapshot()));
    text.counters(HTTP_LEASES, "event", groups, |counters| events(&counters.snapshot().leases));
    text.histogram(HTTP_CLAIM, groups, |counters| counters.inbox.claim_time.times());
    text.gauge(HTTP_OLDEST, groups, |counters| counters.inbox.running.oldest().as_secs_f64());
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
        ("parked", counts.parked),
        ("dead", counts.dead),
    ]
}

/// Each request in one of them.
#[cfg(feature = "http")]
fn ended(counts: &http::Counts) -> [(&'static str, u64); 10] {
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

fn letters(counts: &Counts) -> [(&'static str, u64); 2] {
    [("published", counts.letters_published), ("failed", counts.letters_failed)]
}

fn events(leases: &LeaseCounts) -> [(&'static str, u64); 4] {
    [
        ("taken_over", leases.taken_over),
        ("lost", leases.lost),
        ("unknown", leases.unknown),
        ("reconciled", leases.reconciled),
    ]
}
