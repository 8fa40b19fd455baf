//! Which mode a scope's keys are claimed in: a process of the other one is refused.
//!
//! The two modes know a key in different tables until it ends, so processes of both would handle
//! one message twice.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::{Database, Parameter, discard, failed};
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
    fn as_str(self) -> &'static str {
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
    fn as_str(self) -> &'static str {
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

impl Database {
    /// Says, once per process, that this consumer, or route, exists, in which mode, and how long it
    /// keeps what it stores.
    ///
    /// # Errors
    /// Among others [`Error::OtherMode`].
    pub async fn register(&self, scope: &str, kind: Kind, mode: Mode) -> Result<(), Error> {
        const WHAT: &str = "register the scope";
        if self.scopes.has(scope, mode) {
            return Ok(());
        }
        let object = self.connect().await?;
        let seconds = self.retention_seconds();
        let letters = self.limits.dead_letter_retention().map(|retention| retention.as_secs_f64());
        let parameters: [Parameter<'_>; 5] = [
            (&scope, Type::TEXT),
            (&seconds, Type::FLOAT8),
            (&letters, Type::FLOAT8),
            (&kind.as_str(), Type::TEXT),
            (&mode.as_str(), Type::TEXT),
        ];
        let registering = object.execute_typed(&self.register, &parameters);
        let Ok(registered) = timeout(self.limits.acquire_timeout, registering).await else {
            discard(object);
            return Err(Error::Unavailable(WHAT, "no answer in time".into()));
        };
        if registered.map_err(failed(WHAT))? == 0 {
            let (scope, schema) = (scope.to_owned(), self.schema.as_str().to_owned());
            return Err(Error::OtherMode { scope, mode: mode.as_str(), schema });
        }
        self.limits.warn_of_short_retention(scope);
        self.scopes.add(scope, mode);
        Ok(())
    }
}
