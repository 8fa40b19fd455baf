//! Time limits of an attempt, its isolation, and retention.

use std::time::Duration;

use tracing::warn;

const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);
const RETENTION_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
/// The default retention of dead letters.
const DEAD_LETTERS: Duration = Duration::from_secs(90 * 24 * 3600);

/// How much a handler's transaction sees of others that commit meanwhile, as PostgreSQL has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// Each statement sees all commits before it.
    #[default]
    ReadCommitted,
    /// All statements see only the commits before the first one. A transaction that updates a row
    /// which another has changed since is run again.
    RepeatableRead,
    /// As if transactions ran one after another; one for which that cannot be is run again.
    Serializable,
}

impl IsolationLevel {
    /// Its name in SQL.
    #[must_use]
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        }
    }
}

impl From<IsolationLevel> for tokio_postgres::IsolationLevel {
    fn from(level: IsolationLevel) -> Self {
        match level {
            IsolationLevel::ReadCommitted => Self::ReadCommitted,
            IsolationLevel::RepeatableRead => Self::RepeatableRead,
            IsolationLevel::Serializable => Self::Serializable,
        }
    }
}

/// The limits of the work for one key.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long the handler may take, its statements included.
    pub handler_timeout: Duration,
    /// PostgreSQL's limit for one statement, where it is to be shorter than the handler's.
    pub statement_timeout: Option<Duration>,
    /// PostgreSQL's limit for the wait for a lock, where it is to be shorter than the handler's.
    pub lock_timeout: Option<Duration>,
    /// How long to wait for a connection of the pool.
    pub acquire_timeout: Duration,
    /// The level of the handler's transaction.
    pub isolation_level: IsolationLevel,
    /// How long a key is kept at least; `None` is for ever.
    pub retention: Option<Duration>,
    /// How long a dead letter is kept at least, where it is set.
    pub dead_letters: Option<Duration>,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        handler_timeout: Duration::from_secs(60),
        statement_timeout: None,
        lock_timeout: None,
        acquire_timeout: Duration::from_secs(5),
        isolation_level: IsolationLevel::ReadCommitted,
        retention: None,
        dead_letters: None,
    };

    /// How long dead letters are kept; `None` is for ever, as keys are.
    #[must_use]
    pub fn dead_letter_retention(&self) -> Option<Duration> {
        let retention = self.retention?;
        Some(self.dead_letters.unwrap_or(DEAD_LETTERS).max(retention))
    }

    /// Warns where a key may be forgotten while its handler runs, so that a copy could be handled.
    pub fn warn_of_short_retention(&self, scope: &str) {
        if let Some(retention) = self.retention
            && retention < self.handler_timeout
        {
            let (retention, limit) = (retention.as_secs_f64(), self.handler_timeout.as_secs_f64());
            warn!(
                scope,
                "keys are kept for {retention} s, and a handler may take {limit} s: a late copy may be handled again; \
                 raise the retention"
            );
        }
    }

    /// The mistakes in these values, in words.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let timeouts = [
            ("handler_timeout", Some(self.handler_timeout)),
            ("statement_timeout", self.statement_timeout),
            ("lock_timeout", self.lock_timeout),
            ("acquire_timeout", Some(self.acquire_timeout)),
        ];
        for (name, limit) in timeouts {
            if limit.is_some_and(|limit| !(Duration::from_millis(1)..=LIMIT_MAX).contains(&limit)) {
                mistakes.push(format!("{name} is not 1 millisecond to 24 hours"));
            }
        }
        let is_kept = |limit: Duration| (Duration::from_secs(1)..=RETENTION_MAX).contains(&limit);
        if self.retention.is_some_and(|limit| !is_kept(limit)) {
            mistakes.push("retention is not 1 second to 100 years".to_owned());
        }
        if let Some(limit) = self.dead_letters {
            if !is_kept(limit) {
                mistakes.push("dead_letter_retention is not 1 second to 100 years".to_owned());
            } else if self.retention.is_none_or(|retention| limit < retention) {
                let problem = "dead_letter_retention is shorter than retention, which is for ever unless set";
                mistakes.push(problem.to_owned());
            }
        }
        mistakes
    }
}
