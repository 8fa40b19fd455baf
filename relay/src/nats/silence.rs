//! Who is silent: what all workers of a connection know of messages that nobody answers.
//!
//! Silence of one message is not silence of the broker. A subject may have a subscriber and no
//! stream, so that the server does not say that nobody is there; a stream may be set to acknowledge
//! nothing; one stream of several may be stalled. Whoever has waited in vain for one such message
//! notes it here, so that the next ones of its kind hold nobody up: they are set aside without
//! being sent, until it is time to look again.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::delivery::{decision::Failure, subjects::covers};

/// How long a subject that was silent counts as silent.
const UNANSWERED_FOR: Duration = Duration::from_secs(10);
/// How many subjects are remembered at most; the oldest is forgotten first.
const ENTRIES_MAX: usize = 256;

/// Shared by the workers of one connection, and gone with it.
#[derive(Debug)]
pub(crate) struct Silence {
    started: Instant,
    /// When any worker was last answered, in milliseconds after `started`.
    heard: AtomicU64,
    /// Almost always every message is answered, and then no lock is taken for each.
    is_any: AtomicBool,
    unanswered: Mutex<Vec<Unanswered>>,
}

#[derive(Debug)]
struct Unanswered {
    patterns: Vec<String>,
    failure: Failure,
    since: Instant,
}

/// The knowledge of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was silent just now, for this reason.
    Unanswered(Failure),
    /// It was silent a while ago, for a reason that JetStream can be asked about before anything is
    /// sent.
    ToBeAsked,
    /// Nothing speaks against it.
    Nothing,
}

impl Silence {
    pub(crate) fn new() -> Self {
        let (heard, is_any) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { started: Instant::now(), heard, is_any, unanswered: Mutex::default() }
    }

    /// An answer of any kind came.
    pub(super) fn heard(&self, now: Instant) {
        let milliseconds = now.saturating_duration_since(self.started).as_millis();
        self.heard.store(u64::try_from(milliseconds).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether any worker was answered within this time.
    pub(super) fn was_heard_within(&self, time: Duration) -> bool {
        let heard = Duration::from_millis(self.heard.load(Relaxed));
        !heard.is_zero() && self.started.elapsed().saturating_sub(heard) <= time
    }

    /// What goes to these subjects is not answered.
    pub(super) fn note(&self, patterns: Vec<String>, failure: Failure) {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        // A question that was not answered this time does not make good what an earlier answer
        // said.
        let keeps = |known: &Unanswered| can_be_asked_about(&known.failure) && !can_be_asked_about(&failure);
        unanswered.retain(|known| known.patterns != patterns || keeps(known));
        if unanswered.len() >= ENTRIES_MAX {
            unanswered.remove(0);
        }
        unanswered.push(Unanswered { patterns, failure, since: Instant::now() });
        self.is_any.store(true, Relaxed);
    }

    /// What is known of a subject. What cannot be asked about is forgotten after a while: only
    /// sending it tells.
    pub(super) fn of(&self, subject: &str) -> Known {
        if !self.is_any.load(Relaxed) {
            return Known::Nothing;
        }
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered
            .retain(|known| known.since.elapsed() < UNANSWERED_FOR || can_be_asked_about(&known.failure));
        self.is_any.store(!unanswered.is_empty(), Relaxed);
        match unanswered.iter().rev().find(|known| takes(known, subject)) {
            Some(known) if known.since.elapsed() < UNANSWERED_FOR => Known::Unanswered(known.failure.clone()),
            Some(_) => Known::ToBeAsked,
            None => Known::Nothing,
        }
    }

    /// JetStream says that nothing stands in the way any more.
    pub(super) fn forget(&self, subject: &str) {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.retain(|known| !takes(known, subject));
        self.is_any.store(!unanswered.is_empty(), Relaxed);
    }
}

fn takes(known: &Unanswered, subject: &str) -> bool {
    known.patterns.iter().any(|pattern| covers(pattern, subject))
}

/// Whether the configuration of streams is to blame, which a question shows without a copy being
/// stored.
pub(super) fn can_be_asked_about(failure: &Failure) -> bool {
    matches!(failure, Failure::OnlySubscribers | Failure::NeverAcknowledges { .. })
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_asked_about_is_sent_again_after_a_while_the_rest_is_asked_about() {
        let silence = Silence::new();
        assert_eq!(silence.of("a.b"), Known::Nothing);
        let stalled = Failure::Silent { stream: Some("S".into()) };
        silence.note(vec!["a.b".into()], stalled.clone());
        silence.note(vec!["c.>".into(), "d".into()], Failure::NeverAcknowledges { stream: "T".into() });
        assert_eq!(silence.of("a.b"), Known::Unanswered(stalled));
        assert_eq!(silence.of("c.x"), Known::Unanswered(Failure::NeverAcknowledges { stream: "T".into() }));
        assert_eq!(silence.of("a.c"), Known::Nothing);
        advance(UNANSWERED_FOR).await;
        assert_eq!(silence.of("a.b"), Known::Nothing);
        assert_eq!(silence.of("d"), Known::ToBeAsked);
        silence.note(vec!["c.>".into(), "d".into()], Failure::Silent { stream: None });
        assert_eq!(silence.of("d"), Known::Unanswered(Failure::Silent { stream: None }));
        advance(UNANSWERED_FOR).await;
        assert_eq!(silence.of("d"), Known::ToBeAsked);
        silence.forget("c.y");
        assert_eq!(silence.of("d"), Known::Nothing);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_answered_lately_is_known_and_entries_are_bounded() {
        let silence = Silence::new();
        assert!(!silence.was_heard_within(Duration::from_secs(5)));
        advance(Duration::from_secs(1)).await;
        silence.heard(Instant::now());
        advance(Duration::from_secs(5)).await;
        assert!(silence.was_heard_within(Duration::from_secs(5)));
        assert!(!silence.was_heard_within(Duration::from_secs(4)));
        for number in 0..=ENTRIES_MAX {
            silence.note(vec![format!("s.{number}")], Failure::OnlySubscribers);
        }
        assert_eq!(silence.of("s.0"), Known::Nothing);
        assert_ne!(silence.of("s.1"), Known::Nothing);
    }
}
