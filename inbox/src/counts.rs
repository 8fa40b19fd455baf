//! How messages ended, counted since the inbox was built.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use oncebox_claims::metrics::{ClaimCounters, LeaseCounts, Running, add};

use crate::{Answer, Received, Verdict, duplicate::Causes, effect_time::EffectTime};

/// How messages ended, counted since the inbox was built; see
/// [`Inbox::counts`](crate::Inbox::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The handler's effects were committed; rejections included.
    pub handled: u64,
    /// How many of `handled` the handler rejected.
    pub rejected: u64,
    /// Duplicates answered from the stored outcome.
    pub replayed: u64,
    /// Duplicates that arrived while another copy was worked on.
    pub in_flight: u64,
    /// The key was used before with another payload.
    pub mismatched: u64,
    /// Runs that left no effect and are to be repeated.
    pub retried: u64,
    /// Runs that ended with [`Outcome::Snooze`](crate::Outcome::Snooze): no effect, and no attempt.
    pub snoozed: u64,
    /// Messages given up and recorded as dead letters, without mismatches.
    pub dead: u64,
    /// Of `handled`: the message was enqueued longer ago than keys are kept. An earlier copy may
    /// have been handled, and its key be gone.
    pub late: u64,
    /// Duplicates that were not suppressed, since the inbox is a [shadow](crate::Builder::shadow);
    /// those that were handled are among `handled` too.
    pub shadowed: u64,
    /// Dead letters that were published to the [subject](crate::Consumer::dead_letter_subject) for
    /// them.
    pub dead_letters_published: u64,
    /// Attempts at that which failed, to be repeated.
    pub dead_letters_failed: u64,
    /// The counts of leases, and of the effects under them.
    pub leases: LeaseCounts,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Shared with the leases.
    pub(crate) claims: Arc<ClaimCounters>,
    pub(crate) handled: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) mismatched: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) snoozed: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) dead_letters_published: AtomicU64,
    pub(crate) dead_letters_failed: AtomicU64,
    pub(crate) shadowed: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) effect_time: EffectTime,
    /// Consumers of this process that pull now.
    pub(crate) consuming: Running,
    pub(crate) causes: Causes,
}

impl Counters {
    /// Counts a message that was dealt with in a transaction of its handler, or of none.
    pub(crate) fn count<R>(&self, verdict: &Verdict<R>, received: &Received) {
        match verdict {
            Verdict::Handled(answer) => {
                self.effect_time.observe(received);
                add(&self.handled);
                if matches!(answer, Answer::Rejected(_)) {
                    add(&self.rejected);
                }
            }
            // A dead key that was found, not one that was given up just now.
            Verdict::Replayed(_) | Verdict::Dead { .. } => add(&self.replayed),
            Verdict::InFlight => add(&self.in_flight),
            Verdict::Mismatch => add(&self.mismatched),
            Verdict::Retry { .. } => add(&self.retried),
            Verdict::Behind | Verdict::InLine => {}
        }
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            handled: read(&self.handled),
            rejected: read(&self.rejected),
            replayed: read(&self.replayed),
            in_flight: read(&self.in_flight),
            mismatched: read(&self.mismatched),
            retried: read(&self.retried),
            snoozed: read(&self.snoozed),
            dead: read(&self.dead),
            dead_letters_published: read(&self.dead_letters_published),
            dead_letters_failed: read(&self.dead_letters_failed),
            leases: self.claims.leases.snapshot(),
            shadowed: read(&self.shadowed),
            late: read(&self.late),
        }
    }
}
