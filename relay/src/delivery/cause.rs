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
    /// It waits behind another message of its ordering key.
    Behind,
}

impl Cause {
    const ALL: [Self; 12] = [
        Self::NoStream,
        Self::NoAck,
        Self::NoLeader,
        Self::Denied,
        Self::OtherStream,
        Self::Refused,
        Self::NotJetStream,
        Self::NotSendable,
        Self::Contract,
        Self::Unanswered,
        Self::Paused,
        Self::Behind,
    ];

    /// The word that stands in the column `cause` of the table `parked`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoStream => "no-stream",
            Self::NoAck => "no-ack",
            Self::NoLeader => "no-leader",
            Self::Denied => "denied",
            Self::OtherStream => "other-stream",
            Self::Refused => "refused",
            Self::NotJetStream => "not-jetstream",
            Self::NotSendable => "not-sendable",
            Self::Contract => "contract",
            Self::Unanswered => "unanswered",
            Self::Paused => "paused",
            Self::Behind => "behind",
        }
    }

    /// `None` for a name that a relay of another version wrote.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// The operator's remedy.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::NoStream => "create a stream with this subject",
            Self::NoAck => "update the stream without no_ack",
            Self::NoLeader => "start the servers that hold the stream",
            Self::Denied => "let the relay's NATS user publish to this subject",
            Self::OtherStream => {
                "move the subject to the stream that the option expected-stream names, or start the relays with another name or without \
                 that option"
            }
            Self::Refused => "mend or widen the stream's limits",
            Self::NotJetStream => {
                "end the subscriber that answers on this subject, or create a stream with it"
            }
            Self::NotSendable => {
                "name a bucket by the option object-store, raise the server's limits, or have the producer send less"
            }
            Self::Contract => {
                "mend the producer, discard the message and enqueue it anew; or mend the contract, restart the relays and retry it"
            }
            Self::Unanswered => "see whether the servers of the stream run",
            Self::Paused => "see `oncebox outbox pauses`",
            Self::Behind => "see to the first message of the ordering key",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_known_by_its_name() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_name(cause.name()), Some(cause));
        }
        assert_eq!(Cause::from_name("of a later version"), None);
    }
}
