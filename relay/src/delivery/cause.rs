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

/// Each with the word that stands in the column `cause` of the table `parked`, and the operator's
/// remedy.
const CAUSES: [(Cause, &str, &str); 12] = [
    (Cause::NoStream, "no-stream", "create a stream with this subject"),
    (Cause::NoAck, "no-ack", "update the stream without no_ack"),
    (Cause::NoLeader, "no-leader", "start the servers that hold the stream"),
    (Cause::Denied, "denied", "let the relay's NATS user publish to this subject"),
    (
        Cause::OtherStream,
        "other-stream",
        "move the subject to the stream that the option expected-stream names, or start the relays with another name or \
         without that option",
    ),
    (Cause::Refused, "refused", "mend or widen the stream's limits"),
    (
        Cause::NotJetStream,
        "not-jetstream",
        "end the subscriber that answers on this subject, or create a stream with it",
    ),
    (
        Cause::NotSendable,
        "not-sendable",
        "name a bucket by the option object-store, raise the server's limits, or have the producer send less",
    ),
    (
        Cause::Contract,
        "contract",
        "mend the producer, discard the message and enqueue it anew; or mend the contract, restart the relays and retry it",
    ),
    (Cause::Unanswered, "unanswered", "see whether the servers of the stream run"),
    (Cause::Paused, "paused", "see `oncebox outbox pauses`"),
    (Cause::Behind, "behind", "see to the first message of the ordering key"),
];

impl Cause {
    /// The word that is stored.
    pub(crate) fn name(self) -> &'static str {
        CAUSES.iter().find(|(cause, ..)| *cause == self).map_or("", |(_, name, _)| name)
    }
}

/// The operator's remedy for a cause; `None` for a word that a relay of another version wrote.
#[must_use]
pub fn remedy(cause: &str) -> Option<&'static str> {
    CAUSES.iter().find(|(_, name, _)| *name == cause).map(|(.., remedy)| *remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_known_by_its_name() {
        for (cause, name, _) in CAUSES {
            assert!(cause.name() == name && remedy(name).is_some(), "{name}");
        }
        assert_eq!(remedy("of a later version"), None);
    }
}
