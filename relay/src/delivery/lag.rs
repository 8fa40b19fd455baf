//! How far behind the delivery is, how much is set aside, and how much waits for its time.

/// How far a lane is behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneLag {
    pub(crate) lane: i16,
    /// Age of the oldest message due, 0 when nothing is.
    pub(crate) lag_seconds: f64,
    /// Messages due; exact up to 10,000 in all lanes together, estimated above.
    pub(crate) backlog_messages: i64,
}

/// Messages set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParkedCount {
    pub(crate) parked: i64,
    pub(crate) dead: i64,
    /// Replays still to be sent.
    pub(crate) replays: i64,
}

/// How many delayed messages there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct DelayedCount {
    /// Messages that wait for their time, or are due and not yet in the log; counted to 10,000.
    pub messages: i64,
    /// How late the one is that should have been moved first; 0 when none is late.
    pub late_seconds: f64,
}
