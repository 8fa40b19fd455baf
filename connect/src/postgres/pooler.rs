//! Whether a connection to PostgreSQL is a session of its own, or a transaction pooler lends it
//! another backend with every transaction.
//!
//! A statement is prepared in a session under a name, and every program uses the same names. With a
//! transaction pooler a name would meet a statement that another program prepared: an error at
//! best, at worst the settlement of another outbox. So each connection marks its session with a
//! token of its own, and every transaction of the relay asks for it, along with its BEGIN and at no
//! cost. Another token, or none, proves a pooler. From then on nothing is prepared.
//!
//! The process id of a backend is no such token: a PostgreSQL that restarts in a container gives
//! the same ids again.

use std::{collections::hash_map::RandomState, hash::BuildHasher as _, sync::LazyLock, time::Duration};

use deadpool_postgres::{Hook, HookError, Metrics};
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use oncebox_schema::typed;

/// How long PostgreSQL may take for it.
const MARK_MAX: Duration = Duration::from_secs(10);
const TOKEN: &str = include_str!("sql/token.sql");

/// A number that no other process has, and when it was drawn.
static PROCESS: LazyLock<(u64, Instant)> =
    LazyLock::new(|| (RandomState::new().hash_one(std::process::id()), Instant::now()));

/// The token of a connection: the process and the moment of its creation.
#[must_use]
pub fn token_of(connection: &Metrics) -> String {
    let (process, began) = *PROCESS;
    format!("{process:016x}-{}", Instant::from_std(connection.created).duration_since(began).as_nanos())
}

/// Marks the session of each new connection of a pool.
pub(super) fn mark() -> Hook {
    LazyLock::force(&PROCESS);
    Hook::async_fn(|client, metrics| {
        let token = token_of(metrics);
        Box::pin(async move {
            let marking = timeout(MARK_MAX, client.query_typed(TOKEN, &typed(&[&token]))).await;
            let marked = marking.map_err(|_| HookError::message("PostgreSQL did not answer in time"))?;
            marked.map(drop).map_err(HookError::Backend)
        })
    })
}

/// When two connections ask in turns, a pooler lends both the backend that is free. But others may
/// ask at the same pace, so that two backends change hands and each connection keeps meeting its
/// own. This order is the Thue-Morse sequence, no part of which comes three times in a row, so it
/// follows no such cycle. By chance a pooler may still go unnoticed; each turn halves that chance.
const TURNS: [usize; 16] = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0];

/// Whether something gives both connections the same backend, or one of them several. A pooler in
/// transaction mode whose backends are all busy with others may go unnoticed.
pub async fn shares_backends(one: &Client, other: &Client) -> bool {
    let mut backends: [Option<i32>; 2] = [None, None];
    for turn in TURNS {
        let asking = [one, other][turn].query_typed_one("SELECT pg_backend_pid()", &[]);
        let Ok(Ok(row)) = timeout(MARK_MAX, asking).await else {
            return false;
        };
        let backend: i32 = row.get(0);
        let (own, others) = (backends[turn], backends[1 - turn]);
        if own.is_some_and(|own| own != backend) || others == Some(backend) {
            return true;
        }
        backends[turn] = Some(backend);
    }
    false
}
