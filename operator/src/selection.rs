//! Which messages an operator means.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use oncebox_relay::facts::expression;

/// A class of messages, or replays of messages, that are set aside; each is in one class at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedKind {
    /// Messages that the relays gave up.
    Dead,
    /// Messages that are tried again, or that wait behind another one of their ordering key.
    Parked,
    /// Replays that are still to be sent.
    Replay,
}

impl ParkedKind {
    /// The name of this kind in the statements.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Replay => "replay",
        }
    }
}

/// Messages of a class of [`ParkedKind`] that match all that is given; nothing given means every
/// one.
///
/// ```
/// use oncebox_operator::ParkedSelection;
///
/// let selection = ParkedSelection { subject: Some("orders.*.placed".parse()?), ..ParkedSelection::default() };
/// # let _ = selection;
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedSelection {
    /// The message with this id.
    pub id: Option<i64>,
    /// The message with this key.
    pub key: Option<String>,
    /// Messages whose subject matches.
    pub subject: Option<SubjectPattern>,
    /// Messages whose reason contains this, upper or lower case.
    pub reason: Option<String>,
    /// Messages whose reason has this first line, which may be empty: a group of a list.
    pub reason_is: Option<String>,
    /// Messages with exactly this subject: no pattern.
    pub subject_is: Option<String>,
    /// Messages with this ordering key.
    pub ordering_key: Option<String>,
    /// Replays that were asked for under this name.
    pub request: Option<String>,
    /// Messages behind this id, where a page begins; 0 is the first page.
    pub after: i64,
}

/// Dead letters of inboxes that match all that is given; nothing given means every one.
///
/// ```
/// use oncebox_operator::DeadLetterSelection;
///
/// let selection = DeadLetterSelection { scope: Some("payment-service:charge".into()), ..DeadLetterSelection::default() };
/// # let _ = selection;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterSelection {
    /// The letter with this id.
    pub id: Option<i64>,
    /// Letters with this key: of each scope and tenant one.
    pub key: Option<String>,
    /// Letters without a key: no other part but the id tells them apart.
    pub no_key: bool,
    /// Letters of this scope.
    pub scope: Option<String>,
    /// Letters whose subject matches.
    pub subject: Option<SubjectPattern>,
    /// Letters whose reason contains this, upper or lower case.
    pub reason: Option<String>,
    /// Letters whose reason has this first line, which may be empty: a group of a list.
    pub reason_is: Option<String>,
    /// Letters with exactly this subject: no pattern.
    pub subject_is: Option<String>,
    /// Letters behind this id, where a page begins; 0 is the first page.
    pub after: i64,
}

/// Messages that fail in an inbox and match all that is given; nothing given means every one.
///
/// ```
/// use oncebox_operator::FailingSelection;
///
/// let selection = FailingSelection { reason: Some("does not exist".into()), ..FailingSelection::default() };
/// # let _ = selection;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingSelection {
    /// The one message with this id: [`FailingMessage::id`].
    ///
    /// [`FailingMessage::id`]: crate::FailingMessage::id
    pub id: Option<FailingId>,
    /// Messages with this key: of each scope and tenant one.
    pub key: Option<String>,
    /// Messages of this scope.
    pub scope: Option<String>,
    /// Messages whose subject matches.
    pub subject: Option<SubjectPattern>,
    /// Messages whose last attempt failed for a reason that contains this, upper or lower case.
    pub reason: Option<String>,
    /// Messages whose reason has this first line, which may be empty: a group of a list.
    pub reason_is: Option<String>,
    /// Messages with exactly this subject: no pattern.
    pub subject_is: Option<String>,
    /// Messages behind this place, where a page begins: [`FailingMessage::place`].
    ///
    /// [`FailingMessage::place`]: crate::FailingMessage::place
    pub after: [String; 3],
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

impl FailingSelection {
    pub(crate) fn expression(&self) -> Option<&str> {
        self.subject.as_ref().map(SubjectPattern::expression)
    }

    pub(crate) fn part_of_reason(&self) -> Option<String> {
        self.reason.as_ref().map(|reason| reason.to_lowercase())
    }
}

/// Settled messages that match all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySelection {
    /// The message with this key.
    pub key: Option<String>,
    /// Messages whose subject matches.
    pub subject: Option<SubjectPattern>,
    /// Messages enqueued at this time or later.
    pub since: Option<SystemTime>,
    /// Messages enqueued before this time.
    pub until: Option<SystemTime>,
    /// Messages with this id or a higher one.
    pub from_id: Option<i64>,
    /// Messages with this id or a lower one.
    pub to_id: Option<i64>,
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
    /// So long before now.
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
