//! A run lost its connection, or PostgreSQL refused with an error that it reports in trouble: is it
//! an outage, or does the message cause it?
//!
//! ```text
//! first time, or none for an hour ────────────────────────────▶ nobody's fault: run again soon
//! again ─┬─ others were handled since ────────────────────────▶ the message's fault: an attempt
//!        ├─ PostgreSQL does not answer, or takes no writes ───▶ nobody's fault: an outage
//!        ├─ it does, but runs of other messages broke as well ▶ unclear: snoozed, within `snooze_max`
//!        └─ it does, and no other run broke ──────────────────▶ the message's fault: an attempt
//! ```
//!
//! So a message that breaks each connection that it gets, or needs a second database that is away,
//! ends as a dead letter like any other that fails. In an outage no message spends an attempt: each
//! message in flight breaks once, and is not run again before its key can be claimed. This memory
//! is the process's own; a restart forgives every message one more break. Attempts and snoozes are
//! counted in the database.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use oncebox_claims::identity::Identity;
use oncebox_schema::Driver;
use tokio::time::Instant;

use super::Inbox;

/// How many messages are remembered; at more all are forgotten, which forgives each of them one
/// more break.
const MESSAGES_MAX: usize = 10_000;
/// After this time a break counts as the first one again.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Whose fault it is that a run broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// It may be an outage: run again soon, and count nothing.
    Nobody,
    /// Something that several messages need is away, and it is not PostgreSQL: not an attempt, but
    /// bounded in time.
    Unclear,
    /// It counts as an attempt.
    Message,
}

/// The messages of this process whose runs broke.
#[derive(Debug, Default)]
pub(super) struct BrokenRuns(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The runs of all messages.
    breaks: u64,
    /// The runs of each key, by the key's hash.
    messages: HashMap<i64, Break>,
}

/// A message's last break.
#[derive(Clone, Copy, Debug)]
struct Break {
    at: Instant,
    /// The counts of that time: breaks of all messages, this one's included, and messages that were
    /// handled.
    breaks: u64,
    handled: u64,
}

/// The events since a message's last break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meanwhile {
    were_handled: bool,
    broke: bool,
}

impl BrokenRuns {
    /// Notes a break, and returns the events of other messages since this message's last one, if
    /// there was one.
    fn note(&self, lock: i64, handled: u64, now: Instant) -> Option<Meanwhile> {
        // No change of it can be left half done.
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.breaks += 1;
        let current = Break { at: now, breaks: seen.breaks, handled };
        if seen.messages.len() >= MESSAGES_MAX && !seen.messages.contains_key(&lock) {
            seen.messages.clear();
        }
        let last = seen.messages.insert(lock, current)?;
        (now.duration_since(last.at) < FORGOTTEN).then_some(Meanwhile {
            were_handled: handled > last.handled,
            broke: current.breaks > last.breaks + 1,
        })
    }
}

impl<D: Driver> Inbox<D> {
    /// Whose fault it is that a run of this message broke just now.
    pub(crate) async fn blame(&self, identity: &Identity) -> Blame {
        let handled = self.shared.counters.handled.load(Relaxed);
        match self.broken_runs.note(identity.lock, handled, Instant::now()) {
            None => Blame::Nobody,
            Some(Meanwhile { were_handled: true, .. }) => Blame::Message,
            Some(_) if !self.database.answers().await => Blame::Nobody,
            Some(Meanwhile { broke: true, .. }) => Blame::Unclear,
            Some(Meanwhile { broke: false, .. }) => Blame::Message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_break_is_judged_by_what_others_did_meanwhile() {
        let (breaks, now) = (BrokenRuns::default(), Instant::now());
        let meanwhile = |were_handled, broke| Some(Meanwhile { were_handled, broke });
        assert_eq!(breaks.note(1, 0, now), None, "the first time");
        assert_eq!(breaks.note(1, 0, now), meanwhile(false, false), "its own breaks are not another's");
        assert_eq!(breaks.note(2, 0, now), None);
        assert_eq!(breaks.note(1, 0, now), meanwhile(false, true));
        assert_eq!(breaks.note(1, 3, now), meanwhile(true, false));
        assert_eq!(breaks.note(2, 3, now), meanwhile(true, true));
        assert_eq!(breaks.note(1, 9, now + FORGOTTEN), None, "long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let (breaks, now) = (BrokenRuns::default(), Instant::now());
        for lock in 0..25_000 {
            breaks.note(lock, 0, now);
        }
        assert!(breaks.0.lock().unwrap().messages.len() <= MESSAGES_MAX);
    }
}
