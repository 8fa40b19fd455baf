//! What operators have paused or throttled.
//!
//! Each claim reads the pauses in its own transaction, so a relay obeys a new one from its next
//! pass on, and so does a relay that has just started. A paused message is refused unsent, as by a
//! full stream: see `breaker`.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde::Deserialize;
use tokio::time::Instant;

use super::{decision::Paused, message::Message, subjects::covers};

/// A throttle that was not used lets the messages of so many seconds pass at once.
const BURST_SECONDS: f64 = 1.0;

/// A row of the table `pause`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Pause {
    kind: String,
    value: String,
    rate: Option<f64>,
    subjects: Option<Vec<String>>,
    ordering_key: Option<String>,
}

impl Pause {
    fn takes(&self, message: &Message) -> bool {
        let subjects = self.subjects.iter().flatten();
        let ordering_key = self.ordering_key.as_ref();
        subjects.into_iter().any(|pattern| covers(pattern, &message.subject))
            || ordering_key.is_some_and(|key| message.ordering_key.as_ref() == Some(key))
    }
}

/// The pauses that a claim has read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    all: Vec<Pause>,
    throttles: Throttles,
}

impl Pauses {
    /// From the JSON of a claim. While it cannot be read, as when somebody has written a rate that
    /// is no number, all messages wait: one of them may be paused.
    pub(crate) fn parse(json: Option<&str>, throttles: &Throttles) -> Self {
        let unreadable = || Pause {
            kind: "all".to_owned(),
            value: "messages: the table pause cannot be read".to_owned(),
            rate: None,
            subjects: Some(vec![">".to_owned()]),
            ordering_key: None,
        };
        let read = |json| serde_json::from_str(json).unwrap_or_else(|_| vec![unreadable()]);
        Self { all: json.map(read).unwrap_or_default(), throttles: throttles.clone() }
    }

    /// Marks the messages that are not to be sent now.
    pub(crate) fn mark(&self, messages: &mut [Message]) {
        if self.all.is_empty() {
            return;
        }
        // One moment for all: a later message of a lane is not admitted before an earlier one.
        let now = Instant::now();
        let due = |message: &&mut Message| !message.blocked && !message.is_passed;
        for message in messages.iter_mut().filter(due) {
            message.paused = self.of(message, now);
        }
    }

    fn of(&self, message: &Message, now: Instant) -> Option<Paused> {
        let of_it: Vec<&Pause> = self.all.iter().filter(|pause| pause.takes(message)).collect();
        let paused = of_it.iter().find(|pause| pause.rate.is_none());
        let throttled = || of_it.iter().find(|pause| !self.throttles.admit(pause, now));
        paused.or_else(throttled).map(|pause| Paused {
            what: format!("{} {}", pause.kind, pause.value).into(),
            is_throttled: pause.rate.is_some(),
            is_by_subject: pause.subjects.is_some(),
        })
    }
}

/// The token buckets of a relay, for all its workers. Of several relays only the leader sends
/// throttled messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttles(Arc<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    is_standby: AtomicBool,
    /// The tokens of each throttle, and when they were counted.
    tokens: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Throttles {
    pub(crate) fn stand_by(&self, is_standby: bool) {
        self.0.is_standby.store(is_standby, Relaxed);
    }

    fn admit(&self, pause: &Pause, now: Instant) -> bool {
        let Some(rate) = pause.rate else { return false };
        if self.0.is_standby.load(Relaxed) {
            return false;
        }
        let mut buckets = self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (rate * BURST_SECONDS).max(1.0);
        // Those of throttles that have ended are full, and say nothing.
        buckets.retain(|_, (_, counted)| now.saturating_duration_since(*counted).as_secs() < 60);
        let bucket = buckets.entry(format!("{} {}", pause.kind, pause.value)).or_insert((1.0, now));
        let tokens = (bucket.0 + rate * now.saturating_duration_since(bucket.1).as_secs_f64()).min(most);
        let admits = tokens >= 1.0;
        *bucket = (if admits { tokens - 1.0 } else { tokens }, now);
        admits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn pauses(json: &str, throttles: &Throttles) -> Pauses {
        Pauses::parse(Some(json), throttles)
    }

    fn message(subject: &str, ordering_key: Option<&str>) -> Message {
        Message {
            subject: subject.to_owned(),
            ordering_key: ordering_key.map(str::to_owned),
            ..Message::example()
        }
    }

    #[test]
    fn a_pause_takes_its_subjects_or_its_ordering_key() {
        let pauses = pauses(
            r#"[{"kind": "subject", "value": "a.>", "rate": null, "subjects": ["a.>"], "ordering_key": null},
                {"kind": "ordering key", "value": "k", "rate": null, "subjects": null, "ordering_key": "k"}]"#,
            &Throttles::default(),
        );
        let mut messages =
            [message("a.b", None), message("b", Some("k")), message("b", Some("l")), message("b", None)];
        pauses.mark(&mut messages);
        let what = messages.each_ref().map(|m| m.paused.as_ref().map(|paused| &*paused.what));
        assert_eq!(what, [Some("subject a.>"), Some("ordering key k"), None, None]);
    }

    #[test]
    fn while_the_pauses_cannot_be_read_all_messages_wait() {
        let json =
            r#"[{"kind": "subject", "value": "a", "rate": "NaN", "subjects": ["a"], "ordering_key": null}]"#;
        let mut messages = [message("b", None)];
        pauses(json, &Throttles::default()).mark(&mut messages);
        assert!(messages[0].paused.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttle_admits_its_rate_and_a_standby_nothing() {
        let throttles = Throttles::default();
        let pauses = pauses(
            r#"[{"kind": "all", "value": "messages", "rate": 10, "subjects": [">"], "ordering_key": null}]"#,
            &throttles,
        );
        let admitted = || {
            let mut messages: Vec<_> = (0..100).map(|_| message("a", None)).collect();
            pauses.mark(&mut messages);
            messages.iter().filter(|message| message.paused.is_none()).count()
        };
        assert_eq!(admitted(), 1, "a new relay does not begin with a burst");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(admitted(), 5);
        tokio::time::advance(Duration::from_secs(50)).await;
        throttles.stand_by(true);
        assert_eq!(admitted(), 0);
        throttles.stand_by(false);
        assert_eq!(admitted(), 10, "a second's messages at most");
    }

    proptest! {
        /// While the table cannot be read, all messages wait.
        #[test]
        fn pauses_of_any_text_are_read(text in any::<String>()) {
            prop_assert_eq!(pauses(&text, &Throttles::default()).all.len(), 1, "{}", text);
        }
    }
}
