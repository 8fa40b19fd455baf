//! Which messages an operator means.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use oncebox_relay::facts::expression;
use serde::de::IgnoredAny;

use crate::action::Kind;

/// The states of sagas, those that have finished last.
pub const SAGA_STATES: [&str; 7] =
    ["running", "compensating", "stuck", "quarantined", "completed", "compensated", "abandoned"];

/// Which rows of a kind are meant: those that match all that is given. Nothing given means every
/// one. Each kind takes some of these: [`Kind::selectors`].
///
/// ```
/// use oncebox_operator::{Kind, Selection};
///
/// let mut selection = Selection::of(Kind::Dead);
/// selection.set("subject", "orders.*.placed")?;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Selection {
    /// The kind of the rows.
    pub kind: Kind,
    /// The row with this id.
    pub id: Option<i64>,
    /// The failing message with this id.
    pub failing_id: Option<FailingId>,
    /// Rows with this key: in inboxes of each scope and tenant one.
    pub key: Option<String>,
    /// Letters without a key: no other part but the id tells them apart.
    pub no_key: bool,
    /// Rows of this scope.
    pub scope: Option<String>,
    /// Rows whose subject matches.
    pub subject: Option<SubjectPattern>,
    /// Rows whose reason contains this, upper or lower case.
    pub reason: Option<String>,
    /// Rows whose reason has this first line, which may be empty: a group of a list.
    pub reason_is: Option<String>,
    /// Rows with exactly this subject: no pattern.
    pub subject_is: Option<String>,
    /// Rows with this ordering key.
    pub ordering_key: Option<String>,
    /// Replays that were asked for under this name; of messages to replay, the name to ask under.
    pub request: Option<String>,
    /// Sagas of this definition.
    pub saga_type: Option<String>,
    /// Sagas in this state, one of [`SAGA_STATES`].
    pub state: Option<String>,
    /// The step that an action on sagas is about.
    pub step: Option<String>,
    /// The reply that the participant of a skipped step would have sent, as JSON.
    pub reply: Option<String>,
    /// Messages enqueued then or later; of losses, messages settled then or later.
    pub since: Option<Moment>,
    /// Messages enqueued earlier.
    pub until: Option<Moment>,
    /// Messages with this id or a higher one.
    pub from_id: Option<i64>,
    /// Messages with this id or a lower one.
    pub to_id: Option<i64>,
    /// The stream that a pause, or a loss, is of.
    pub stream: Option<String>,
    /// How long a pause takes; without it until it is resumed.
    pub pause: Option<Duration>,
    /// A pause of a subject that no recent message has.
    pub is_unseen: bool,
    /// The place after which a page begins.
    pub after: Option<Place>,
    /// Sagas from the newest to the oldest.
    pub newest_first: bool,
}

/// The place of a row in the list of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Most kinds stand in the order of their ids.
    Id(i64),
    /// Delayed messages stand in the order of their times.
    Due(SystemTime, i64),
    /// Failing messages stand in the order of scope, tenant and key.
    Key([String; 3]),
}

/// As [`Selection::set`] reads it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Due(at, id) => {
                let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                write!(f, "{}-{id}", since.as_micros())
            }
            Self::Key(key) => serde_json::json!(key).fmt(f),
        }
    }
}

impl Place {
    fn of(kind: Kind, text: &str) -> Option<Self> {
        match kind {
            Kind::Failing => serde_json::from_str(text).ok().map(Self::Key),
            Kind::Delayed => {
                let (micros, id) = text.split_once('-')?;
                let since = Duration::from_micros(micros.parse().ok()?);
                Some(Self::Due(SystemTime::UNIX_EPOCH.checked_add(since)?, id.parse().ok()?))
            }
            _ => text.parse().ok().map(Self::Id),
        }
    }

    pub(crate) fn id(&self) -> i64 {
        if let Self::Id(id) | Self::Due(_, id) = self { *id } else { 0 }
    }
}

impl Selection {
    /// All of a kind.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Whether everything is meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::of(self.kind)
    }

    /// The same with times instead of spans before `now`.
    pub(crate) fn at(&self, now: SystemTime) -> Self {
        let [since, until] = [self.since, self.until].map(|part| part.map(|part| Moment::At(part.at(now))));
        Self { since, until, ..self.clone() }
    }

    /// Takes the value of an option, or of a field, by its name.
    ///
    /// # Errors
    /// The value is none of the option.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let id = || text.parse().ok().filter(|id| *id > 0).ok_or(format!("{text:?} is no number in 1.."));
        let value = Some(text.to_owned());
        match name {
            // As from a variable that is not set.
            "key" | "scope" | "reason" | "type" | "step" if text.is_empty() => {
                return Err("an empty text selects nothing: leave it out, or name one".to_owned());
            }
            "id" if self.kind == Kind::Failing => self.failing_id = Some(text.parse()?),
            "id" => self.id = Some(id()?),
            "from-id" => self.from_id = Some(id()?),
            "to-id" => self.to_id = Some(id()?),
            "key" => self.key = value,
            "no-key" if is_yes(text)? => self.no_key = true,
            "no-key" => return Err("it is given, or left out".to_owned()),
            "scope" => self.scope = value,
            "subject" => self.subject = Some(text.parse()?),
            "reason" => self.reason = value,
            "reason-is" => self.reason_is = value,
            "subject-is" => self.subject_is = value,
            "ordering-key" if self.kind == Kind::Pauses => self.ordering_key = bounded(text, 1000)?,
            "ordering-key" => self.ordering_key = value,
            "request" => self.request = bounded(text, 255)?,
            "type" => self.saga_type = value,
            "state" if !SAGA_STATES.contains(&text) => {
                return Err(format!("none of {}", SAGA_STATES.join(", ")));
            }
            "state" => self.state = value,
            "step" => self.step = value,
            "reply" => {
                let read = serde_json::from_str::<IgnoredAny>(text);
                self.reply = read.map(|_| value).map_err(|error| format!("it is not JSON: {error}"))?;
            }
            "since" => self.since = Some(text.parse()?),
            "until" => self.until = Some(text.parse()?),
            "stream" => self.stream = bounded(text, 255)?,
            "for" => self.pause = Some(pause_time(text)?),
            "unseen" => self.is_unseen = is_yes(text)?,
            "after" => {
                let place = Place::of(self.kind, text);
                self.after = Some(place.ok_or_else(|| "that is no place in the list".to_owned())?);
            }
            // Those of an edit are not of its row.
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn expression(&self) -> Option<&str> {
        self.subject.as_ref().map(SubjectPattern::expression)
    }

    pub(crate) fn part_of_reason(&self) -> Option<String> {
        self.reason.as_ref().map(|reason| reason.to_lowercase())
    }
}

fn is_yes(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A text of this number of bytes at most.
fn bounded(text: &str, most: usize) -> Result<Option<String>, String> {
    match text.len() {
        length if (1..=most).contains(&length) => Ok(Some(text.to_owned())),
        length => Err(format!("{length} bytes; the limit is 1 to {most} bytes")),
    }
}

/// How long a pause may take.
///
/// # Errors
/// It is no time, or too short or long a one.
pub fn pause_time(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(366 * 24 * 60 * 60);
    let parsed = humantime::parse_duration(text).ok();
    let parsed = parsed.filter(|time| *time >= Duration::from_secs(1) && *time <= most);
    parsed.ok_or_else(|| "it is not a time of a second to a year, such as 90s, 15m or 2h".to_owned())
}

/// Scope, tenant and key of a failing message: a JSON array as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingId(pub(crate) [String; 3]);

impl FromStr for FailingId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text)
            .map(Self)
            .map_err(|_| format!("{text:?} is no id of a failing message; see the list with --json"))
    }
}

impl fmt::Display for FailingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        serde_json::json!(self.0).fmt(f)
    }
}

/// A time as an operator writes it: in UTC, or how long ago.
///
/// ```
/// use oncebox_operator::Moment;
///
/// let moment: Moment = "24h".parse()?;
/// assert_eq!("2030-01-31".parse::<Moment>()?, "2030-01-31 00:00".parse()?);
/// # let _ = moment;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the two forms are the interface")]
pub enum Moment {
    /// A time.
    At(SystemTime),
    /// This time before now.
    Ago(Duration),
}

impl Moment {
    /// The time, if it is `now`.
    #[must_use]
    pub fn at(self, now: SystemTime) -> SystemTime {
        match self {
            Self::At(time) => time,
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }

    /// The time, of one that is fixed.
    pub(crate) fn time(self) -> Option<SystemTime> {
        if let Self::At(time) = self { Some(time) } else { None }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ago) = humantime::parse_duration(text) {
            return Ok(Self::Ago(ago));
        }
        // A date alone is its first second, a time without seconds its first one.
        let ends = ["", ":00", "T00:00:00"];
        let whole = ends.iter().find_map(|end| humantime::parse_rfc3339_weak(&format!("{text}{end}")).ok());
        let time = whole.ok_or(
            "it is neither a time in UTC, such as 2030-01-31, \"2030-01-31 08:00\" or 2030-01-31T08:00:00Z, nor how long ago, \
             such as 24h"
        )?;
        Ok(Self::At(time))
    }
}

/// A subject, or a pattern of subjects in the notation of NATS: `*` is one token, a last `>` one or
/// more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPattern {
    text: String,
    expression: String,
}

impl SubjectPattern {
    /// The pattern as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The pattern as a regular expression of PostgreSQL.
    pub(crate) fn expression(&self) -> &str {
        &self.expression
    }
}

impl FromStr for SubjectPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |problem: &str| format!("{text:?} is not a pattern of subjects: {problem}");
        if text.len() > 255 {
            return Err(refused("longer than 255 bytes"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused("not visible ASCII"));
        }
        let mut tokens = text.split('.').peekable();
        while let Some(token) = tokens.next() {
            match token {
                "" => return Err(refused("an empty token")),
                ">" if tokens.peek().is_some() => return Err(refused("\">\" stands only at the end")),
                "*" | ">" => {}
                token if token.contains(['*', '>']) => {
                    return Err(refused("\"*\" and \">\" stand for whole tokens"));
                }
                _ => {}
            }
        }
        Ok(Self { text: text.to_owned(), expression: expression(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, expected: Result<&str, &str>) {
        let parsed = pattern.parse::<SubjectPattern>();
        match (&parsed, expected) {
            (Ok(found), Ok(expression)) => assert_eq!(found.expression(), expression),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
            _ => panic!("{pattern}: {parsed:?}, not {expected:?}"),
        }
    }

    #[test]
    fn patterns_are_those_of_nats() {
        check("orders.placed", Ok(r"^orders\.placed$"));
        check("orders.*.placed", Ok(r"^orders\.[^.]+\.placed$"));
        check("orders.>", Ok(r"^orders\..+$"));
        check(">", Ok("^.+$"));
        check(r"a-b.c+(d)|$\", Ok(r"^a\-b\.c\+\(d\)\|\$\\$"));
        check("orders.>.placed", Err("only at the end"));
        check("orders.pl*", Err("whole tokens"));
        check("orders..placed", Err("empty token"));
        check("", Err("empty token"));
        check("orders placed", Err("visible ASCII"));
        check(&"a".repeat(256), Err("255"));
    }
}
