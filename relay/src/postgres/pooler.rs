//! Whether a connection to PostgreSQL is a session of its own, or a transaction pooler lends it
//! another backend with every transaction.
//!
//! A statement is prepared in a backend under a name, and every program uses the same names. Behind
//! a transaction pooler a name would meet what somebody else prepared: an error at best, at worst
//! the settlement of another outbox. So every transaction of the relay asks which backend it has
//! got, along with its BEGIN and at no cost; a connection that has changed its backend, or shares
//! one with another, proves a pooler. From then on nothing is prepared.

use std::sync::{Mutex, PoisonError, Weak};

use deadpool_postgres::{ClientWrapper, StatementCache};
use tokio_postgres::Client;

const BACKEND: &str = include_str!("sql/backend.sql");

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

/// When two connections ask in turns, a pooler lends both the backend that is free. But others may
/// ask at the same pace, so that two backends change hands and each connection keeps meeting its
/// own. This order is the Thue-Morse sequence, no part of which comes three times in a row, so it
/// follows no such cycle. By chance a pooler may still go unnoticed; each turn halves that chance.
const TURNS: [usize; 16] = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0];

/// Whether something gives both connections the same backend, or one of them several. A pooler in
/// transaction mode whose backends are all busy with others may go unnoticed.
pub(crate) async fn shares_backends(one: &Client, other: &Client) -> bool {
    let mut backends: [Option<i32>; 2] = [None, None];
    for turn in TURNS {
        let Ok(row) = [one, other][turn].query_typed_one(BACKEND, &[]).await else { return false };
        let backend: i32 = row.get(0);
        let (own, others) = (backends[turn], backends[1 - turn]);
        if own.is_some_and(|own| own != backend) || others == Some(backend) {
            return true;
        }
        backends[turn] = Some(backend);
    }
    false
}
