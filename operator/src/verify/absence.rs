//! Which messages a stream may let go, and the meaning of a message's absence then.

use std::time::{Duration, SystemTime};

/// As far as the clocks of PostgreSQL and NATS may differ.
const SKEW_MAX: Duration = Duration::from_secs(10);

/// The messages that a stream lets go by its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LettingGo {
    /// Consumed messages (a work queue, retention by interest), or messages that a publisher rolls
    /// up.
    pub(crate) consumed: bool,
    /// The oldest of a subject, when that has too many.
    pub(crate) of_subjects: bool,
    /// Messages that were stored before this time, by age or by size of the stream; `None` when no
    /// such message has gone, or none may.
    pub(crate) before: Option<SystemTime>,
}

/// The verdict on a message that a stream does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The stream must hold the message.
    Missing,
    /// The stream may have let it go.
    Unproven,
    /// The stream must hold the message, unless it holds newer ones of its subject.
    AskSubject,
}

impl LettingGo {
    /// The verdict on an absent message that was enqueued at this time, and so stored then or
    /// later.
    pub(crate) fn judge(&self, enqueued_at: SystemTime) -> Absence {
        let may_be_too_old = self.before.is_some_and(|before| enqueued_at < before + SKEW_MAX);
        if self.consumed || may_be_too_old {
            Absence::Unproven
        } else if self.of_subjects {
            Absence::AskSubject
        } else {
            Absence::Missing
        }
    }
}

impl Absence {
    /// The verdict by the time when the stream stored its last message of the subject: a message
    /// makes place only for newer ones.
    pub(crate) fn with_last_of_subject(enqueued_at: SystemTime, last_at: Option<SystemTime>) -> Self {
        match last_at {
            Some(last_at) if last_at + SKEW_MAX >= enqueued_at => Self::Unproven,
            _ => Self::Missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_lets_go_is_not_missing() {
        use Absence::{AskSubject, Missing, Unproven};
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let keeps = LettingGo { consumed: false, of_subjects: false, before: None };
        assert_eq!(keeps.judge(at(1_000)), Missing);
        assert_eq!(LettingGo { consumed: true, ..keeps }.judge(at(1_000)), Unproven);
        let expires = LettingGo { before: Some(at(1_000)), ..keeps };
        for (enqueued, expected) in [(999, Unproven), (1_009, Unproven), (1_010, Missing)] {
            assert_eq!(expires.judge(at(enqueued)), expected, "{enqueued}");
        }
        assert_eq!(LettingGo { of_subjects: true, ..keeps }.judge(at(1_000)), AskSubject);
        assert_eq!(LettingGo { of_subjects: true, ..expires }.judge(at(999)), Unproven);
        for (last, expected) in [
            (None, Missing),
            (Some(at(980)), Missing),
            (Some(at(995)), Unproven),
            (Some(at(2_000)), Unproven),
        ] {
            assert_eq!(Absence::with_last_of_subject(at(1_000), last), expected, "{last:?}");
        }
    }
}
