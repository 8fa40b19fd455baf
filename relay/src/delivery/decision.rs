//! The outcome of a message that was to be published, and the reaction to one that was not
//! acknowledged: one pure function from failure to decision.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use super::cause::Cause;

/// Why a message was not stored, as far as the relay can know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is gone; whether the message was stored is unknown.
    Disconnected,
    /// No acknowledgement within the time allowed, nor any other answer; whether the message was
    /// stored is unknown.
    TimedOut,
    /// The subject has no subscriber, and as far as JetStream says no stream has it.
    NoResponders,
    /// The subject has no subscriber, but this stream has it: too few of its servers run.
    NoLeader { stream: String },
    /// The subject has no subscriber. This stream of another domain or account has acknowledged
    /// before: the way to it is cut.
    Unreachable { stream: String },
    /// The subject has no subscriber, and JetStream does not say whether a stream has it.
    NoAnswer,
    /// NATS took it, and no acknowledgement comes: subscribers have the subject, and no stream has.
    OnlySubscribers,
    /// The stream is set to acknowledge nothing.
    NeverAcknowledges { stream: String },
    /// Not acknowledged in time, while JetStream answers others; this stream has the subject, if it
    /// was named.
    Silent { stream: Option<String> },
    /// Not acknowledged in time, while NATS works but does not let the relay ask why.
    Unexplained { stream: Option<String> },
    /// The relay's NATS user may not publish to this subject.
    Denied { subject: String },
    /// The expected stream does not have the subject, and another one does.
    OtherStream { expected: String },
    /// JetStream refused.
    Refused { err_code: u64, description: String, stream: Option<String> },
    /// The answer is no JetStream acknowledgement.
    NotJetStream,
    /// More bytes, headers included, than the server takes, which would cut the connection, or than
    /// the relay holds.
    TooLarge { bytes: usize, limit: usize },
    /// The server takes more by now than it said on this connection; a new one will know.
    Raised { before: String },
    /// An operator has paused or throttled it.
    Paused(Paused),
    /// A header that NATS cannot carry.
    BadHeader(String),
    /// The payload breaks the contract of its subject; the text has nothing of the payload.
    Breach(String),
    /// The database is not in UTF-8, and a header has a byte that has no form in it.
    UnreadableHeaders,
}

/// Why a message waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paused {
    /// `subject orders.>`, for instance.
    pub(crate) what: Arc<str>,
    /// Some of these messages pass.
    pub(crate) is_throttled: bool,
    /// Other messages of its subject are paused as well.
    pub(crate) is_by_subject: bool,
}

impl Failure {
    /// JetStream has more waiting than it takes: sent again at once, it would be refused again.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::Refused { err_code: 10167, .. })
    }

    /// A stream, account or server has no room: it refuses the next message as well, unless
    /// [`Failure::spares_smaller`].
    pub(crate) fn is_full_stream(&self) -> bool {
        matches!(self, Self::Refused { err_code: 10077 | 10023 | 10002, .. })
    }

    /// It refuses all that follows in a lane as well, but for other subjects.
    pub(crate) fn holds_lane(&self) -> bool {
        self.is_full_stream() || matches!(self, Self::Paused(paused) if paused.is_by_subject)
    }

    /// A stream too full for this message may still accept a smaller one.
    pub(crate) fn spares_smaller(&self) -> bool {
        let is_counted =
            matches!(self, Self::Refused { description, .. } if description.contains("messages"));
        self.is_full_stream() && !is_counted
    }

    /// The same failure with the stream that the relay expects, which JetStream does not name.
    pub(crate) fn knowing(self, expected_stream: Option<&str>) -> Self {
        match (self, expected_stream) {
            (Self::Refused { err_code: 10060, .. }, Some(name)) => {
                Self::OtherStream { expected: name.to_owned() }
            }
            (failure, _) => failure,
        }
    }

    /// The stream has refused a payload of `bytes`: returns the size from which on it has no room.
    pub(crate) fn refused_bytes(&self, bytes: usize) -> usize {
        if self.spares_smaller() { bytes } else { 0 }
    }

    /// The stream, or the way to it, is away; it may come back with less.
    pub(crate) fn is_absence(&self) -> bool {
        let is_off = matches!(self, Self::Refused { err_code: 10039 | 10076, .. });
        is_off || matches!(self, Self::NoLeader { .. } | Self::Unreachable { .. } | Self::NoAnswer)
    }

    /// Whether the configuration of streams is to blame, which JetStream tells without storing a
    /// copy.
    pub(crate) fn shows_in_streams(&self) -> bool {
        matches!(self, Self::OnlySubscribers | Self::NeverAcknowledges { .. })
    }

    /// The cause as it is stored with a message that is set aside.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::NoResponders | Self::OnlySubscribers => Cause::NoStream,
            Self::NeverAcknowledges { .. } => Cause::NoAck,
            Self::NoLeader { .. } | Self::Unreachable { .. } => Cause::NoLeader,
            Self::Paused(_) => Cause::Paused,
            Self::Denied { .. } => Cause::Denied,
            Self::OtherStream { .. } => Cause::OtherStream,
            Self::Refused { .. } => Cause::Refused,
            Self::NotJetStream => Cause::NotJetStream,
            Self::TooLarge { .. } | Self::BadHeader(_) | Self::UnreadableHeaders => Cause::NotSendable,
            Self::Breach(_) => Cause::Contract,
            Self::Disconnected
            | Self::TimedOut
            | Self::Raised { .. }
            | Self::NoAnswer
            | Self::Silent { .. }
            | Self::Unexplained { .. } => Cause::Unanswered,
        }
    }
}

/// The relay's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The broker is away: stop claiming, back off, resume. Costs no attempt.
    Away,
    /// The stream refuses for now: set the message aside for a short time. Costs no attempt.
    Wait,
    /// Set the message aside and count the attempt; dead when too many failed.
    Park,
    /// It can never be published: dead at once.
    Dead,
}

/// The codes are those of nats-server's `server/errors.json`.
pub(crate) fn decide(failure: &Failure) -> Decision {
    match failure {
        Failure::Disconnected | Failure::TimedOut | Failure::Raised { .. } => Decision::Away,
        Failure::NoLeader { .. }
        | Failure::Unreachable { .. }
        | Failure::NoAnswer
        | Failure::Paused(_)
        | Failure::Silent { .. } => Decision::Wait,
        Failure::NoResponders
        | Failure::OnlySubscribers
        | Failure::NeverAcknowledges { .. }
        | Failure::Unexplained { .. }
        | Failure::NotJetStream
        | Failure::OtherStream { .. }
        | Failure::Denied { .. } => Decision::Park,
        Failure::TooLarge { .. }
        | Failure::BadHeader(_)
        | Failure::Breach(_)
        | Failure::UnreadableHeaders => Decision::Dead,
        Failure::Refused { err_code, .. } => match err_code {
            // Cluster not available, not leader, no JetStream leader or peers, stream offline.
            10008 | 10009 | 10118 | 10194 => Decision::Away,
            // Full stream, no resources, storage exceeded, too many requests, the same id still in
            // process; JetStream is switched off, while streams of other accounts go on.
            10077 | 10023 | 10002 | 10047 | 10167 | 10158 | 10039 | 10076 => Decision::Wait,
            // Message larger, or headers larger, than the stream takes.
            10054 | 10097 => Decision::Dead,
            // Others: an operator may mend the cause, so the relay tries again for a while.
            _ => Decision::Park,
        },
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the connection to NATS was lost"),
            Self::TimedOut => f.write_str("NATS did not acknowledge in time"),
            Self::NoResponders => f.write_str("no stream takes the subject"),
            Self::NoLeader { stream } => {
                write!(f, "stream {stream} has no leader: too few of its servers run")
            }
            Self::Unreachable { stream } => write!(
                f,
                "stream {stream} of another domain or account, which had acknowledged this subject, cannot be reached"
            ),
            Self::NoAnswer => f.write_str("no stream took the message, and JetStream does not say why"),
            Self::OnlySubscribers => f.write_str(
                "NATS has a subscriber for the subject, but no stream stores it; create a stream with this subject",
            ),
            Self::NeverAcknowledges { stream } => write!(
                f,
                "stream {stream} is set to acknowledge nothing (no_ack), so nothing is known to be stored; update \
                 the stream without it"
            ),
            Self::Silent { stream } => write_silent(f, stream.as_deref()),
            Self::Unexplained { stream } => write_unexplained(f, stream.as_deref()),
            Self::Denied { subject } => {
                write!(f, "NATS does not let the relay's user publish to {subject:?}; grant it the right")
            }
            Self::OtherStream { expected } => write!(
                f,
                "JetStream refused: expected stream does not match (10060): another stream than {expected}, the \
                 option expected-stream, takes the subject"
            ),
            Self::Refused { err_code, description, .. } => {
                write!(f, "JetStream refused: {description} ({err_code})")
            }
            Self::NotJetStream => f.write_str(
                "the answer is no JetStream acknowledgement: another subscriber answers on the subject",
            ),
            Self::TooLarge { bytes, limit } => {
                write!(
                    f,
                    "{bytes} bytes with headers, where {limit} can be sent: name a bucket by the option object-store, or \
                     raise the max_payload of the server and of the account, of which 8 MiB are used"
                )
            }
            Self::Raised { before } => {
                write!(f, "the max_payload was raised since this connection was made: {before}")
            }
            Self::UnreadableHeaders => f.write_str(
                "a header has a byte that cannot be converted from the database's encoding to UTF-8; discard the message, \
                 and enqueue it anew with that header in ASCII",
            ),
            Self::Paused(Paused { what, is_throttled, .. }) => {
                write!(f, "an operator has {} {what}", if *is_throttled { "throttled" } else { "paused" })
            }
            Self::Breach(why) => write!(f, "the payload breaks the contract of its subject: {why}"),
            Self::BadHeader(name) => write!(f, "NATS cannot carry the header {name:?}"),
        }
    }
}

fn write_silent(f: &mut fmt::Formatter<'_>, stream: Option<&str>) -> fmt::Result {
    match stream {
        Some(stream) => write!(f, "stream {stream} did not acknowledge in time, though JetStream answers"),
        None => f.write_str("NATS did not acknowledge this message in time, though it answers others"),
    }
}

fn write_unexplained(f: &mut fmt::Formatter<'_>, stream: Option<&str>) -> fmt::Result {
    let stream = stream.unwrap_or("its stream");
    write!(
        f,
        "{stream} did not acknowledge, and NATS does not let the relay ask why: perhaps no stream has the subject, or \
         it has no_ack; let the relay's user publish to $JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.*"
    )
}

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message was not sent, or not answered: the next pass sends it again.
    Unknown,
    Stored {
        duplicate: bool,
        /// By this stream, at this sequence; a duplicate has the sequence of the first copy.
        stream: Arc<str>,
        sequence: u64,
        sent_at: Instant,
        acknowledged_at: Instant,
    },
    /// The message is set aside; the decision is not [`Decision::Away`].
    Failed(Decision, Failure),
    /// The message was not sent, because an earlier one of its ordering key is set aside.
    Behind,
    /// The message was not sent: it was settled before, and its lane is sent again for other
    /// messages.
    Passed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(err_code: u64, expected: Decision) {
        let failure = Failure::Refused { err_code, description: "why".into(), stream: None };
        assert_eq!(decide(&failure), expected, "{err_code}");
    }

    #[test]
    fn each_class_has_its_decision() {
        for code in [10008, 10009, 10118, 10194] {
            check(code, Decision::Away);
        }
        for code in [10077, 10023, 10167, 10158, 10039, 10076] {
            check(code, Decision::Wait);
        }
        for code in [10054, 10097] {
            check(code, Decision::Dead);
        }
        for code in [10060, 0, 99999] {
            check(code, Decision::Park);
        }
        assert_eq!(decide(&Failure::NoResponders), Decision::Park);
        assert_eq!(decide(&Failure::NoLeader { stream: "S".into() }), Decision::Wait);
        assert_eq!(decide(&Failure::NoAnswer), Decision::Wait);
        assert_eq!(decide(&Failure::Silent { stream: None }), Decision::Wait);
        assert_eq!(decide(&Failure::OnlySubscribers), Decision::Park);
        assert_eq!(decide(&Failure::NeverAcknowledges { stream: "S".into() }), Decision::Park);
        assert_eq!(decide(&Failure::Unexplained { stream: None }), Decision::Park);
        assert_eq!(decide(&Failure::Denied { subject: "orders.placed".into() }), Decision::Park);
        assert_eq!(decide(&Failure::OtherStream { expected: "S".into() }), Decision::Park);
        assert_eq!(decide(&Failure::TimedOut), Decision::Away);
        assert_eq!(decide(&Failure::TooLarge { bytes: 2, limit: 1 }), Decision::Dead);
        assert_eq!(decide(&Failure::Breach("at /cents".into())), Decision::Dead);
    }

    #[test]
    fn bytes_without_room_spare_smaller_messages() {
        let spares = |err_code, description: &str| {
            let description = description.into();
            Failure::Refused { err_code, description, stream: None }.refused_bytes(9) == 9
        };
        assert!(spares(10077, "maximum bytes exceeded") && spares(10023, "insufficient resources"));
        assert!(!spares(10077, "maximum messages exceeded"));
        assert!(!spares(10077, "maximum messages per subject exceeded"));
        assert!(!spares(10054, "message size exceeds maximum allowed"));
    }

    #[test]
    fn a_refusal_by_another_stream_names_the_expected_one() {
        let refused =
            |err_code| Failure::Refused { err_code, description: "does not match".into(), stream: None };
        let failure = refused(10060).knowing(Some("ORDERS"));
        assert!(failure.to_string().contains("another stream than ORDERS"), "{failure}");
        assert_eq!(refused(10060).knowing(None), refused(10060));
        assert_eq!(refused(10077).knowing(Some("ORDERS")), refused(10077));
    }
}
