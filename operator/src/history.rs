//! The minutes of the last eight days, as relays noted them: `0024_history.sql`.

use std::time::{Duration, SystemTime};

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Operator, Result, rows::from_row, time::Time};

/// The limit on subjects of a stretch of time.
const SUBJECTS_MAX: i64 = 21;
/// The limit on its marks.
const MARKS_MAX: i64 = 200;

/// A stretch of time, in points of equal length.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct History {
    /// When it begins, by the database's clock.
    pub since: Time,
    /// When it ends.
    pub until: Time,
    /// The length of a point.
    pub point_seconds: f64,
    /// The oldest first; none where no relay was at work.
    pub points: Vec<HistoryPoint>,
    /// The subjects with the most messages stored, those first.
    pub subjects: Vec<SubjectCount>,
    /// Events that may explain the points, the newest first: the last 200.
    pub marks: Vec<Mark>,
}

/// One point. Only leaders measure the fields that are options: `None` where none did.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct HistoryPoint {
    /// Its beginning.
    pub at: Time,
    /// Messages that streams stored.
    pub stored: i64,
    /// Seconds from the enqueuing until a stream stored the message: half of them took no longer.
    pub stored_median: Option<f64>,
    /// 99 of 100 took no longer, in the slowest minute.
    pub stored_p99: Option<f64>,
    /// Messages of the minutes before that were looked for in the inboxes of this database.
    pub sampled: i64,
    /// How many of them had been handled.
    pub handled: i64,
    /// Seconds from the enqueuing until those were handled: half of them took no longer.
    pub handled_median: Option<f64>,
    /// 99 of 100 took no longer, in the slowest minute.
    pub handled_p99: Option<f64>,
    /// The age of the oldest message that was due; the highest, as all that follow.
    pub lag_seconds: Option<f64>,
    /// Messages due.
    pub backlog: Option<i64>,
    /// Messages set aside that are tried again.
    pub parked: Option<i64>,
    /// Messages that were given up.
    pub dead: Option<i64>,
    /// Messages that waited for their time.
    pub delayed: Option<i64>,
    /// Messages that failed in inboxes.
    pub failing: Option<i64>,
    /// Dead letters of inboxes.
    pub dead_letters: Option<i64>,
}

/// How many messages of a subject streams stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SubjectCount {
    /// `None` for messages that were not counted by their subject: a relay counts 20 in a minute.
    pub subject: Option<String>,
    /// Messages.
    pub messages: i64,
}

/// An event that may explain a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Mark {
    /// When it happened.
    pub at: Time,
    /// `leader`: a relay took the lead, or one of another version; `action`: of an operator;
    /// `loss`: of messages that a stream had stored.
    pub kind: String,
    /// The event in words.
    pub what: String,
}

impl Operator {
    /// Reads the time up to `until`.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn history(&mut self, until: SystemTime, span: Duration, point: Duration) -> Result<History> {
        let since = until.checked_sub(span).unwrap_or(SystemTime::UNIX_EPOCH);
        let point_seconds = point.as_secs_f64();
        let what = "read the history";
        let all: [&dyn Parameter; 3] = [&since, &until, &point_seconds];
        let some = |most: &'static i64| -> [&dyn Parameter; 3] { [&since, &until, most] };
        Ok(History {
            since: Time(since),
            until: Time(until),
            point_seconds,
            points: self.all(what, &self.sql.history, &all).await?,
            subjects: self.all(what, &self.sql.history_subjects, &some(&SUBJECTS_MAX)).await?,
            marks: self.all(what, &self.sql.history_marks, &some(&MARKS_MAX)).await?,
        })
    }
}

from_row!(HistoryPoint:
    at, stored, stored_median, stored_p99, sampled, handled, handled_median, handled_p99, lag_seconds, backlog,
    parked, dead, delayed, failing, dead_letters);
from_row!(SubjectCount: subject, messages);
from_row!(Mark: at, kind, what);
