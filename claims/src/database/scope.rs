//! Which mode a scope's keys are claimed in: a process of the other one is refused.
//!
//! The two modes know a key in different tables until it ends, so processes of both would handle
//! one message twice.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use oncebox_schema::{Driver, Value};

use super::Database;
use crate::Error;

/// How many scopes are remembered as registered: routes are few, but nothing else would keep them
/// so.
const SCOPES_MAX: usize = 10_000;

/// Whose keys they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The keys of a consumer.
    Consumer,
    /// The keys of a route of the HTTP layer.
    Http,
}

impl Kind {
    /// The kind as its column has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Http => "http",
        }
    }
}

/// How keys are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The key is claimed in the handler's transaction.
    Transaction,
    /// Before it, under a lease.
    Lease,
}

impl Mode {
    /// The mode as its column has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Lease => "lease",
        }
    }
}

/// The scopes that this process has registered.
#[derive(Debug, Default)]
pub(super) struct Registered(RwLock<HashMap<String, Mode>>);

impl Registered {
    fn has(&self, scope: &str, mode: Mode) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(scope) == Some(&mode)
    }

    fn add(&self, scope: &str, mode: Mode) {
        let mut modes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if modes.len() < SCOPES_MAX {
            modes.insert(scope.to_owned(), mode);
        }
    }
}

impl<D: Driver> Database<D> {
    /// Says, once per process, that this consumer, or route, exists, in which mode, and how long it
    /// keeps its keys and dead letters.
    ///
    /// # Errors
    /// Among others [`Error::OtherMode`].
    pub async fn register(&self, scope: &str, kind: Kind, mode: Mode) -> Result<(), Error> {
        if self.scopes.has(scope, mode) {
            return Ok(());
        }
        self.check().await?;
        let letters = self.limits.dead_letter_retention().map(|retention| retention.as_secs_f64());
        let values = [
            Value::Text(Some(scope)),
            Value::Float(self.retention_seconds()),
            Value::Float(letters),
            Value::Text(Some(kind.as_str())),
            Value::Text(Some(mode.as_str())),
        ];
        let Some(mut row) = self.alone("register the scope", &self.register, &values).await? else {
            let (scope, schema) = (scope.to_owned(), self.schema.as_str().to_owned());
            return Err(Error::OtherMode { scope, mode: mode.as_str(), schema });
        };
        let stored = String::from_utf8(row.take(0).unwrap_or_default()).unwrap_or_default();
        if stored != "registered" {
            tracing::warn!(
                scope,
                stored,
                "the scope keeps its stored settings, not those of this process; an operator changes them with \
                 change_scope()"
            );
        }
        self.limits.warn_of_short_retention(scope);
        self.scopes.add(scope, mode);
        Ok(())
    }
}
