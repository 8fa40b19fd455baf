//! The set of rows that a dry run showed. Its token lets an operator confirm that set: rows that
//! came later stay, and a set that has changed is refused.

use std::{
    collections::HashSet,
    error::Error,
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};

use super::{Operator, Result};

/// The set that a dry run found, as a text such as `1-63f2a9c3b8a40-c-9b1f...`: the time, the
/// number of rows, and a digest of the action and the rows. A later call needs no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    until: u64,
    count: u64,
    digest: u128,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1-{:x}-{:x}-{:032x}", self.until, self.count, self.digest)
    }
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let parsed = match parts[..] {
            ["1", until, count, digest] => u64::from_str_radix(until, 16)
                .ok()
                .zip(u64::from_str_radix(count, 16).ok())
                .zip(u128::from_str_radix(digest, 16).ok()),
            _ => None,
        };
        let ((until, count), digest) =
            parsed.ok_or_else(|| "it is not the text that a dry run prints to confirm it".to_owned())?;
        Ok(Self { until, count, digest })
    }
}

impl Shown {
    /// The set of a statement that has counted and digested it by itself, in hexadecimal digits.
    /// `action` tells the actions on one set apart.
    pub(crate) fn of(count: u64, digest: &str, action: u128) -> Self {
        Self { until: 0, count, digest: u128::from_str_radix(digest, 16).unwrap_or(0) ^ action }
    }

    /// The error when another set was found than this one.
    pub(crate) fn changed(&self, found: &Self) -> Changed {
        Changed { shown: self.count, found: found.count }
    }
}

/// The set is not the one that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// The number of rows that were shown.
    pub shown: u64,
    /// The number of rows of that time that match now.
    pub found: u64,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shown, found } = self;
        let now = match shown == found {
            true => "as many now, but not the same, or not as they were".to_owned(),
            false => format!("{found} of them now"),
        };
        write!(
            f,
            "the set has changed since it was shown: {shown} then, {now}, or the token is of another selection or command, \
             or was used; nothing was done; look again, and confirm what you see then"
        )
    }
}

impl Error for Changed {}

/// Rows that match a selection: those until a time, which an action may change, and later ones.
#[derive(Clone, Debug)]
pub struct RowSet {
    action: &'static str,
    until: SystemTime,
    rows: HashSet<u128>,
    late: HashSet<u128>,
}

impl RowSet {
    /// An empty set for an action, which is named by its command, such as `outbox dead retry`. It
    /// ends at the time of `confirmed`, or now.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn new(operator: &Operator, action: &'static str, confirmed: Option<&Shown>) -> Result<Self> {
        let until = match confirmed {
            Some(shown) => SystemTime::UNIX_EPOCH + Duration::from_micros(shown.until),
            None => operator.now().await?,
        };
        Ok(Self { action, until, rows: HashSet::new(), late: HashSet::new() })
    }

    /// The same of settled messages, for `outbox replay`. It ends before the oldest message that
    /// still waits, or may be uncommitted, was enqueued: those that are settled from then on came
    /// later.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn of_settled(
        operator: &mut Operator,
        action: &'static str,
        confirmed: Option<&Shown>,
    ) -> Result<Self> {
        let found = Self::new(operator, action, confirmed).await?;
        match confirmed {
            Some(_) => Ok(found),
            None => Ok(Self { until: operator.settled_until(found.until).await?, ..found }),
        }
    }

    /// Its end: rows that came later are not in it.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// The number of rows that the action may change.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The number of rows that came later.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.difference(&self.rows).count() as u64
    }

    /// The set that an operator confirms.
    #[must_use]
    pub fn shown(&self) -> Shown {
        let until = self.until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Shown {
            until: u64::try_from(until.as_micros()).unwrap_or(u64::MAX),
            count: self.count(),
            // A sum: the order in which rows were found does not matter.
            digest: self.rows.iter().fold(self.digest(&""), |sum, row| sum.wrapping_add(*row)),
        }
    }

    /// Whether this is the set that was shown.
    ///
    /// # Errors
    /// It is another one.
    pub fn check(&self, shown: &Shown) -> Result<(), Changed> {
        match self.shown() == *shown {
            true => Ok(()),
            false => Err(Changed { shown: shown.count, found: self.count() }),
        }
    }

    /// Takes a row in, which came at that time.
    pub(crate) fn add(&mut self, row: &impl fmt::Display, came_at: SystemTime) {
        let digest = self.digest(row);
        let rows = if came_at <= self.until { &mut self.rows } else { &mut self.late };
        rows.insert(digest);
    }

    /// Takes a row in, whenever it came.
    pub(crate) fn add_old(&mut self, row: &impl fmt::Display) {
        self.rows.insert(self.digest(row));
    }

    /// The later ones are no part of the selection, whose limit the others have reached.
    pub(crate) fn forget_late(&mut self) {
        self.late.clear();
    }

    pub(crate) fn has(&self, row: &impl fmt::Display) -> bool {
        self.rows.contains(&self.digest(row))
    }

    fn digest(&self, row: &impl fmt::Display) -> u128 {
        let digest = Sha256::digest(format!("{}\0{row}", self.action));
        u128::from_be_bytes(std::array::from_fn(|place| digest[place]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(action: &'static str, rows: &[(i64, u64)]) -> RowSet {
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let mut found = RowSet { action, until: at(10), rows: HashSet::new(), late: HashSet::new() };
        rows.iter().for_each(|(row, second)| found.add(row, at(*second)));
        found
    }

    #[test]
    fn a_token_confirms_its_set_and_no_other() {
        let shown = found("outbox dead discard", &[(1, 3), (2, 10)]);
        let token: Shown = shown.shown().to_string().parse().unwrap();
        let later = found("outbox dead discard", &[(3, 11), (2, 10), (1, 3)]);
        assert_eq!((later.check(&token), later.late()), (Ok(()), 1));
        assert!(later.has(&1) && !later.has(&3));
        for other in [
            found("outbox dead discard", &[(1, 3)]),
            found("outbox dead discard", &[(1, 3), (3, 10)]),
            found("outbox dead discard", &[(1, 3), (2, 10), (3, 9)]),
            found("outbox dead retry", &[(1, 3), (2, 10)]),
        ] {
            assert!(other.check(&token).is_err(), "{other:?}");
        }
        for text in ["", "1-2-3", "2-1-1-1", "1-x-1-1", "1-1-1-1-1"] {
            assert!(text.parse::<Shown>().is_err(), "{text}");
        }
    }
}
