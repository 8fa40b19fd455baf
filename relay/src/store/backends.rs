//! Whether a connection to PostgreSQL is a session of its own, or a transaction pooler lends it another backend with
//! every transaction.
//!
//! A statement is prepared in a backend under a name, and every program uses the same names. Behind a transaction pooler
//! a name would meet what somebody else prepared: an error at best, at worst the settlement of another outbox. So every
//! transaction of the relay asks which backend it has got, along with its BEGIN and at no cost; a connection that has
//! changed its backend, or shares one with another, proves a pooler. From then on nothing is prepared.

use std::sync::{Mutex, PoisonError, Weak};

use deadpool_postgres::{ClientWrapper, StatementCache};

/// The backend that each connection of a pool was last seen with.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    /// A connection is known by its cache of statements, which lives as long.
    seen: Mutex<Vec<(Weak<StatementCache>, i32)>>,
}

impl Backends {
    /// Notes the backend of a connection; false when that proves a pooler.
    pub(crate) fn is_own(&self, connection: &ClientWrapper, backend: i32) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // As many as the pool has connections, at most.
        seen.retain(|(cache, _)| cache.strong_count() > 0);
        let is_this = |cache: &Weak<StatementCache>| {
            std::ptr::eq(cache.as_ptr(), &raw const *connection.statement_cache)
        };
        match seen.iter().find(|(cache, _)| is_this(cache)) {
            Some((_, known)) => *known == backend,
            None => {
                let is_shared = seen.iter().any(|(_, known)| *known == backend);
                seen.push((std::sync::Arc::downgrade(&connection.statement_cache), backend));
                !is_shared
            }
        }
    }
}
