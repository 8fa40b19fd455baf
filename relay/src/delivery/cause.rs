//! Why a message is set aside, in the word that is stored with it, and the remedy.

/// Why a message is set aside; its remedy depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    NoStream,
    NoAck,
    NoLeader,
    Denied,
    OtherStream,
    Refused,
    NotJetStream,
    NotSendable,
    Contract,
    Unanswered,
    Paused,
    /// It waits for another message of its ordering key.
    Behind,
}

/// All causes, for words that come from the database.
const ALL: [Cause; 12] = [
    Cause::NoStream,
    Cause::NoAck,
    Cause::NoLeader,
    Cause::Denied,
    Cause::OtherStream,
    Cause::Refused,
    Cause::NotJetStream,
    Cause::NotSendable,
    Cause::Contract,
    Cause::Unanswered,
    Cause::Paused,
    Cause::Behind,
];

impl Cause {
    /// The word that stands in the column `cause` of the table `parked`, and the operator's remedy.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NoStream => ("no-stream", "create a stream with this subject"),
            Self::NoAck => ("no-ack", "update the stream without no_ack"),
            Self::NoLeader => ("no-leader", "start the servers that hold the stream"),
            Self::Denied => ("denied", "let the relay's NATS user publish to this subject"),
            Self::OtherStream => (
                "other-stream",
                "move the subject to the stream that the option expected-stream names, or start the relays with another name or \
                 without that option",
            ),
            Self::Refused => ("refused", "mend or widen the stream's limits"),
            Self::NotJetStream => (
                "not-jetstream",
                "end the subscriber that answers on this subject, or create a stream with it",
            ),
            Self::NotSendable => (
                "not-sendable",
                "name a bucket by the option object-store, raise the server's limits, or have the producer send less",
            ),
            Self::Contract => (
                "contract",
                "mend the producer, discard the message and enqueue it anew; or mend the contract, restart the relays and retry it",
            ),
            Self::Unanswered => ("unanswered", "see whether the servers of the stream run"),
            Self::Paused => ("paused", "see `oncebox outbox pauses`"),
            Self::Behind => ("behind", "see to the first message of the ordering key"),
        }
    }

    /// The word that is stored.
    pub(crate) fn name(self) -> &'static str {
        self.words().0
    }
}

/// The operator's remedy for a cause; `None` for a word that a relay of another version wrote.
#[must_use]
pub fn remedy(cause: &str) -> Option<&'static str> {
    ALL.into_iter().map(Cause::words).find(|(name, _)| *name == cause).map(|(_, remedy)| remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_known_by_its_name() {
        for (number, cause) in ALL.into_iter().enumerate() {
            assert_eq!((cause as usize, remedy(cause.name())), (number, Some(cause.words().1)));
        }
        assert_eq!(ALL.len(), Cause::Behind as usize + 1, "the last one");
        assert_eq!(remedy("of a later version"), None);
    }
}
