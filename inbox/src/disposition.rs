//! The action that a verdict asks of a message's broker.

use std::time::Duration;

use oncebox_claims::backoff::Backoff;

use crate::{Error, Verdict};

/// Between looks at a message that another process works on, or at a PostgreSQL that is away: no
/// notification comes.
const WAITING: Backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };

/// The action after a run: a [`Verdict`] asks it of the code that delivered the message.
///
/// A [`Consumer`](https://docs.rs/oncebox-inbox/latest/oncebox_inbox/struct.Consumer.html) does
/// this for JetStream. For a broker of another kind:
///
/// ```
/// use oncebox_inbox::{Disposition, Error, Verdict};
///
/// /// Whether a log's position may move over the message; else after which pause it is run again.
/// fn next<R>(result: &Result<Verdict<R>, Error>, waits: u64) -> Result<(), std::time::Duration> {
///     match Disposition::of(result, waits) {
///         Disposition::Ack | Disposition::Term => Ok(()),
///         Disposition::Retry(after) | Disposition::Wait(after) => Err(after),
///         Disposition::Behind => Err(std::time::Duration::ZERO),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Settled, or kept in the database to be run from there: acknowledge it.
    Ack,
    /// Given up, and recorded as a dead letter: acknowledge it, or say that it must not come again.
    Term,
    /// It failed: deliver it again after this pause. The inbox has counted the attempt.
    Retry(Duration),
    /// It was not tried, because a copy is at work or PostgreSQL is away: run it again after this
    /// pause, or have it delivered again. This does not count as an attempt.
    Wait(Duration),
    /// It was not tried, because an earlier one of its ordering key failed: run it after that one.
    Behind,
}

impl Disposition {
    /// The action after a run. `waits` is the number of runs in a row before it that ended without
    /// an attempt: 0 at first, one more after each [`Disposition::Wait`]. An error other than
    /// [`Error::Unavailable`] needs an operator: report it. It asks for a pause all the same.
    #[must_use]
    pub fn of<R>(result: &Result<Verdict<R>, Error>, waits: u64) -> Self {
        match result {
            Ok(Verdict::Handled(_) | Verdict::Replayed(_) | Verdict::InLine) => Self::Ack,
            Ok(Verdict::Dead { .. } | Verdict::Mismatch) => Self::Term,
            Ok(Verdict::Retry { after, .. }) => Self::Retry(*after),
            Ok(Verdict::Behind) => Self::Behind,
            Ok(Verdict::InFlight) | Err(_) => Self::Wait(Self::pause(waits)),
        }
    }

    /// The pause after a number of runs without an attempt.
    pub(crate) fn pause(waits: u64) -> Duration {
        WAITING.after(waits + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;

    #[test]
    fn each_verdict_asks_for_one_thing() {
        let second = Duration::from_secs(1);
        let of = |verdict: Verdict<()>| Disposition::of(&Ok(verdict), 0);
        assert_eq!(of(Verdict::Handled(Answer::Rejected(()))), Disposition::Ack);
        assert_eq!(of(Verdict::InLine), Disposition::Ack);
        assert_eq!(of(Verdict::Mismatch), Disposition::Term);
        assert_eq!(of(Verdict::Dead { reason: String::new() }), Disposition::Term);
        assert_eq!(of(Verdict::Retry { after: second, reason: String::new() }), Disposition::Retry(second));
        assert_eq!(of(Verdict::Behind), Disposition::Behind);
        let away = Err::<Verdict<()>, _>(Error::Unavailable("x", "y".into()));
        for (waits, most) in [(0, WAITING.first), (100, WAITING.max)] {
            for result in [&away, &Ok(Verdict::InFlight)] {
                let Disposition::Wait(pause) = Disposition::of(result, waits) else { panic!("{result:?}") };
                assert!(pause >= most / 2 && pause <= most, "{waits}: {pause:?}");
            }
        }
    }
}
