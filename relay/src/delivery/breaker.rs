//! The circuit breaker: few messages are tried where one cause refuses many.
//!
//! A full stream, a subject without a stream or a silent one refuses every message alike. To send,
//! write and try each of a million such messages again would keep all others waiting. So each cause
//! has a circuit. While it is closed, messages pass. Once it is open, they wait. When its deadline
//! comes it is half open: a few messages are the probes, and their fate closes or opens it.
//!
//! Messages wait in three places, and each place has circuits of its own:
//!
//! | | a subject, before it is sent | the front of a lane, in the log | a stream or subject, parked in a lane |
//! |---|---|---|---|
//! | opens | NATS answers other subjects and not this one | a full stream or a pause refused it, and no other message waits for it | it refused a message that others had to get past |
//! | open | the publisher refuses it unsent, for 10 s | no pass claims the lane, for 0.25 to 2 s, and nothing is written | one row is written, due in six hours, and no attempt spent |
//! | half open | JetStream is asked, or the next message is sent | 16 messages are read | the oldest four messages are due in seconds |
//! | closes | JetStream sees no obstacle | a message is answered otherwise, or others wait for it | a stored probe frees two more, and each of these two more |
//!
//! A lane is held in the log only while every message from the first refused one on is refused as
//! well, or waits for a refused one. The relay parks the first one, so that `status` and `doctor`
//! tell the reason. A stream too full for a large message may still take a smaller one: after some
//! seconds in vain the relay parks the messages that wait for bytes, a few at a time, as long as a
//! smaller one follows.
//!
//! | danger | why it does not happen |
//! |---|---|
//! | a message is stored twice, or overtakes another of its ordering key | after a held front nothing was stored; parked messages go in the order of their ids, not of their due times |
//! | the relay dies, or another one works beside it | circuits are only in memory: another relay finds out by itself, and every parked row has its due time |
//! | another relay has delivered a held lane, or tried a probe | the relay forgets a circuit that it has not tried half a minute after its deadline |
//! | a held lane keeps messages for other streams waiting | the relay looks for them at each try |
//! | the probes are larger than others for which there is room | for each pass that refuses one for its size, one that waits is tried as well, in turn |
//! | the probes die, are discarded, or wait for another cause | each that leaves has the next one tried; maintenance looks once a minute for groups without one (`unprobed.sql`) |
//! | a stream that never acknowledges gets copy after copy | JetStream is asked before anything is sent, as long as the relay remembers |

mod front;
mod group;
mod subjects;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use self::{front::Held, subjects::Silent};
pub(crate) use self::{
    front::{Front, LANE_PROBES, THROTTLED, is_answered},
    group::{Place, SELDOM, Tried, WAITS},
    subjects::Sending,
};
use super::decision::Failure;

/// The relay forgets a circuit that was not tried for this time after its deadline.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// A cause that refuses one message, and most likely others with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Circuit<'a> {
    /// It is full, sealed, without a leader or out of reach.
    Stream(&'a str),
    /// No stream takes it, it is denied, or it has its maximum of messages.
    Subject(&'a str),
    /// An operator has paused or throttled it.
    Pause(&'a str),
}

impl<'a> Circuit<'a> {
    /// `None` when the refusal says nothing about other messages.
    pub(crate) fn of(failure: &'a Failure, subject: &'a str) -> Option<Self> {
        match failure {
            Failure::Refused { description, .. }
                if failure.is_full_stream() && description.contains("per subject") =>
            {
                Some(Self::Subject(subject))
            }
            Failure::Refused { err_code: 10077 | 10023 | 10002 | 10109, stream: Some(stream), .. }
            | Failure::NoLeader { stream }
            | Failure::Unreachable { stream } => Some(Self::Stream(stream)),
            Failure::Refused { err_code: 10077 | 10023 | 10002 | 10109 | 10060, .. }
            | Failure::OtherStream { .. }
            | Failure::NoResponders
            | Failure::OnlySubscribers
            | Failure::Denied { .. } => Some(Self::Subject(subject)),
            Failure::Paused(paused) => Some(Self::Pause(&paused.what)),
            _ => None,
        }
    }
}

/// As parked messages have it in the column `waits_for`.
impl fmt::Display for Circuit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(stream) => write!(f, "stream {stream}"),
            Self::Subject(subject) => write!(f, "subject {subject}"),
            Self::Pause(what) => write!(f, "pause {what}"),
        }
    }
}

/// The circuits of a relay, for all its workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker(Arc<Mutex<Circuits>>);

#[derive(Debug, Default)]
struct Circuits {
    /// When NATS last answered any worker.
    heard: Option<Instant>,
    silent: Vec<Silent>,
    lanes: HashMap<i16, Lane>,
    /// When messages that a throttle refused are tried again.
    throttled: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    front: Option<Held>,
    /// The ids of the probes, and when each is forgotten, for each stream or subject.
    groups: HashMap<String, BTreeMap<i64, Instant>>,
}

impl Breaker {
    fn circuits(&self) -> MutexGuard<'_, Circuits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NATS has answered.
    pub(crate) fn heard(&self, now: Instant) {
        self.circuits().heard = Some(now);
    }

    /// A throttle has refused messages.
    pub(crate) fn throttled(&self) {
        self.circuits().throttled = Some(Instant::now() + THROTTLED);
    }

    /// The time until messages that a throttle refused are tried again, if there are any.
    pub(crate) fn throttle_pause(&self) -> Option<Duration> {
        self.circuits().throttled.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// A claim begins, which finds the throttled messages whose time has come.
    pub(crate) fn claims(&self) {
        self.circuits().throttled.take_if(|next| *next <= Instant::now());
    }

    /// Whether NATS has answered any worker within this time: then it is there, and silent only to
    /// some messages.
    pub(crate) fn was_heard_within(&self, time: Duration) -> bool {
        self.circuits().heard.is_some_and(|heard| heard.elapsed() <= time)
    }
}

#[cfg(test)]
mod tests;
