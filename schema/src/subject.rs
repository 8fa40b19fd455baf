//! NATS subjects that a message may be published to.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

const LENGTH_MAX: usize = 255;

/// A NATS subject that a message may be published to, by the same rules as the SQL check.
///
/// 1 to 255 bytes of visible ASCII in non-empty tokens separated by dots; no wildcards, since
/// nats-server stores them as literals; nothing below `$` or `_INBOX.`, since `$JS.API` commands
/// the broker; no quote at the beginning.
///
/// ```
/// use oncebox_schema::Subject;
///
/// assert!("orders.placed".parse::<Subject>().is_ok());
/// assert!("orders..placed".parse::<Subject>().is_err());
/// assert!("orders.*".parse::<Subject>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subject(String);

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.0
    }
}

impl TryFrom<String> for Subject {
    type Error = InvalidSubject;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl Subject {
    /// The subject as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches a pattern as NATS has it: `*` is any one token, a last `>` one or more.
    ///
    /// ```
    /// let subject: oncebox_schema::Subject = "orders.placed.eu".parse()?;
    /// assert!(subject.matches("orders.*.eu") && subject.matches("orders.>"));
    /// assert!(!subject.matches("orders.*") && !subject.matches("orders.placed.eu.>"));
    /// # Ok::<(), oncebox_schema::InvalidSubject>(())
    /// ```
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        covers(pattern, &self.0)
    }
}

/// Whether a pattern takes all subjects of another, or a single one: `*` is any one token, a last
/// `>` one or more.
#[must_use]
pub fn covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return wide.next().is_none(),
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a subject that a message may be published to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("subject {0:?} {1}")]
pub struct InvalidSubject(String, &'static str);

impl FromStr for Subject {
    type Err = InvalidSubject;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = if text.is_empty() || text.len() > LENGTH_MAX {
            "is not 1 to 255 bytes long"
        } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            "has a blank or a character outside visible ASCII"
        } else if text.contains(['*', '>']) {
            "has a wildcard; a message goes to one subject"
        } else if text.split('.').any(str::is_empty) {
            "has an empty token"
        } else if text.starts_with('$') || text.starts_with("_INBOX.") {
            "belongs to NATS itself"
        } else if text.starts_with('"') {
            "begins with a quote"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(InvalidSubject(text.chars().take(LENGTH_MAX).collect(), problem))
    }
}
