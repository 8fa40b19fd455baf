//! How far the delivery lags, how much is set aside, how much waits for its time, and how sagas and
//! inboxes stand.

/// How far a lane lags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneLag {
    pub(crate) lane: i16,
    /// Age of the oldest message due, 0 when nothing is.
    pub(crate) lag_seconds: f64,
    /// Messages due; exact up to 10,000 in all lanes together, estimated above.
    pub(crate) backlog_messages: i64,
}

/// Messages set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ParkedCount {
    pub(crate) parked: i64,
    pub(crate) dead: i64,
    /// Replays still to be sent.
    pub(crate) replays: i64,
    /// Losses of streams whose messages were not sent again, one for each lane.
    pub(crate) losses: i64,
    /// Pauses and throttles of operators.
    pub(crate) pauses: i64,
    /// For how long the turn of the log should have ended.
    pub(crate) turn_late_seconds: f64,
}

/// How many delayed messages there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct DelayedCount {
    /// Messages that wait for their time, or are due and not yet in the log; counted to 10,000.
    pub messages: i64,
    /// How late the oldest due message is; 0 when none is late.
    pub late_seconds: f64,
}

/// The sagas of one type in one state, of those that have not finished.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SagaCount {
    pub(crate) saga_type: String,
    pub(crate) state: String,
    /// Of each version of the definition counted to 10,000.
    pub(crate) sagas: i64,
    /// Age of the oldest of them.
    pub(crate) oldest_seconds: f64,
}

/// The sagas of one type that finished in one state in the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FinishedSagas {
    pub(crate) saga_type: String,
    pub(crate) state: String,
    /// All types and states together counted to 10,000.
    pub(crate) sagas: i64,
}

/// Messages of an inbox of this database that have not ended well.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct InboxStatus {
    /// Who consumes: `service:handler`; `None` for all inboxes together that have no place in a
    /// list.
    pub scope: Option<String>,
    /// Messages of which an attempt has failed, and that have not ended. This number and the next
    /// two are counted to 1,000 where there is one inbox, else to an equal share of that.
    pub failing: i64,
    /// For how long the oldest of them has been in its stream; since its attempt, where it has come
    /// from none.
    pub failing_oldest_seconds: f64,
    /// Dead letters.
    pub dead: i64,
    /// Messages that wait because the handler has snoozed them.
    pub snoozed: i64,
    /// Whether one of these numbers was counted to its limit, and may be higher.
    pub is_capped: bool,
    /// Why the last attempt failed of those that are failing.
    pub reason: Option<String>,
}

/// Messages with a subject must be in an inbox within this time after their commit.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Expectation {
    /// A pattern of subjects.
    pub subject: String,
    /// The inbox: `service:handler`.
    pub handled_by: String,
    /// The time from the commit on.
    pub within_seconds: f64,
    /// The database of the inbox, by its name in the relay's file; `None` for this one.
    pub inbox_database: Option<String>,
    /// How long ago a relay last looked; `None` when none has.
    pub looked_seconds: Option<f64>,
    /// Messages that were not there in time, and are not now; counted to 10,000.
    pub unhandled: i64,
    /// How long ago the oldest of them was enqueued; 0 without one.
    pub oldest_seconds: f64,
    /// Its key.
    pub oldest_key: Option<String>,
}

/// All of it, as read at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Standing {
    pub(crate) lanes: Vec<LaneLag>,
    pub(crate) parked: ParkedCount,
    pub(crate) delayed: DelayedCount,
    pub(crate) sagas: Vec<SagaCount>,
    pub(crate) finished_sagas: Vec<FinishedSagas>,
    pub(crate) inboxes: Vec<InboxStatus>,
    pub(crate) expectations: Vec<Expectation>,
}
