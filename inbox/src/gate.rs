//! A gate in Redis before the claim.
//!
//! PostgreSQL alone tells duplicates from new messages: a message that passes the gate is claimed
//! as it would be without a gate. The gate only keeps most copies of a message away while the first
//! one is handled. This helps when thousands of copies of one key arrive at once. So no promise
//! depends on Redis: it may be away, forget a lock, or let two copies through.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use oncebox_claims::failure::text;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::InvalidSettings;

const RELEASE: &str = include_str!("gate/release.lua");
const RENEW: &str = include_str!("gate/renew.lua");
const PREFIX_LENGTH_MAX: usize = 100;
/// How long Redis is left alone after it failed: meanwhile no message waits for it.
const AWAY: Duration = Duration::from_secs(1);

/// A lock in Redis for each key that is in flight: a copy of its message is turned away after one
/// look-up in PostgreSQL, without a transaction and a claim; see
/// [`Builder::gate`](crate::Builder::gate).
///
/// PostgreSQL still decides: a message that passes the gate claims its key there as always. So a
/// lock in Redis that is lost, has expired or is held twice costs one query to PostgreSQL, never a
/// second effect. While Redis is away, messages go on without it. Use it when measurements show
/// many copies of the same keys at once, not otherwise: a first delivery costs two round trips to
/// Redis more, and is not [committed and claimed with its neighbours](crate::Inbox::run_each).
///
/// If a process dies while it holds the gate, or loses its connection to Redis, copies are answered
/// as in flight for up to [`Gate::ttl`] more. If the outcome is stored, they are answered from it
/// at once.
///
/// ```
/// use std::time::Duration;
///
/// use oncebox_inbox::{Gate, Inbox, InvalidSettings};
///
/// fn inbox(pool: deadpool_postgres::Pool) -> Result<Inbox, InvalidSettings> {
///     let gate = Gate::new("redis://127.0.0.1:6379")?.ttl(Duration::from_secs(5)).prefix("shop:");
///     Inbox::builder(pool).scope("rewards:claim").single_tenant().gate(gate).build()
/// }
/// ```
#[derive(Clone)]
pub struct Gate {
    client: Client,
    connection_state: Arc<Mutex<Connection>>,
    prefix: String,
    ttl: Duration,
    timeout: Duration,
}

/// The connection to Redis, shared by the clones of a gate. A connection that failed is not used
/// again.
enum Connection {
    New,
    Up(MultiplexedConnection),
    /// Failed, and not to be tried before this time.
    Away(Instant),
}

/// The gate's answer to a copy of a message.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It may go on, and holds the gate.
    Open(Permit),
    /// Another copy holds the gate.
    Busy,
    /// The gate cannot be reached now.
    Away,
}

/// Who holds the gate of a key.
#[derive(Debug)]
pub(crate) struct Permit {
    key: String,
    token: String,
}

impl Gate {
    /// A gate in the Redis of this URL, `redis://[user:password@]host[:port][/database]`, or
    /// `rediss://` where the application enables TLS in the crate `redis`. It connects with the
    /// first message.
    ///
    /// # Errors
    /// The URL is not a URL of Redis.
    pub fn new(url: &str) -> Result<Self, InvalidSettings> {
        // The error of the crate `redis` might repeat the URL, which may hold a password.
        let client = Client::open(url)
            .map_err(|_| InvalidSettings(vec!["invalid Redis URL for the gate".to_owned()]))?;
        Ok(Self {
            client,
            connection_state: Arc::new(Mutex::new(Connection::New)),
            prefix: "oncebox:".to_owned(),
            ttl: Duration::from_secs(10),
            timeout: Duration::from_millis(250),
        })
    }

    /// How long the gate of a key stays closed after its process has died or hangs. A process that
    /// works renews it, each time a third of this time has passed. Default: 10 seconds; 100
    /// milliseconds to 1 hour.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long an answer of Redis, or a connection to it, is waited for. Default: 250
    /// milliseconds; 1 millisecond to a third of [`Gate::ttl`].
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// The prefix of our keys in Redis, at most 100 bytes. Default: `oncebox:`. Two databases with
    /// equal scopes that share a Redis need different prefixes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    pub(crate) fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.ttl) {
            mistakes.push("the gate's ttl is not 100 milliseconds to 1 hour".to_owned());
        }
        if !(Duration::from_millis(1)..=self.ttl / 3).contains(&self.timeout) {
            mistakes.push("the gate's timeout is not 1 millisecond to a third of its ttl".to_owned());
        }
        if self.prefix.len() > PREFIX_LENGTH_MAX {
            mistakes.push(format!("the gate's prefix is longer than {PREFIX_LENGTH_MAX} bytes"));
        }
        mistakes
    }

    /// Tries to take the gate of a key. `lock` is the hash that stands for the key in PostgreSQL
    /// too.
    pub(crate) async fn enter(&self, lock: i64) -> Entry {
        let permit =
            Permit { key: format!("{}gate:{lock:016x}", self.prefix), token: Uuid::new_v4().to_string() };
        let mut set = redis::cmd("SET");
        set.arg(&permit.key).arg(&permit.token).arg("NX").arg("PX").arg(milliseconds(self.ttl));
        match self.ask::<Option<String>>(&set).await {
            Some(Some(_)) => Entry::Open(permit),
            Some(None) => Entry::Busy,
            None => Entry::Away,
        }
    }

    /// Renews the gate for as long as this future is polled. A handler that loses the gate need not
    /// stop: PostgreSQL keeps the other copies out.
    pub(crate) async fn hold(&self, permit: &Permit) -> Infallible {
        loop {
            sleep(self.ttl / 3).await;
            let mut renew = redis::cmd("EVAL");
            renew.arg(RENEW).arg(1).arg(&permit.key).arg(&permit.token).arg(milliseconds(self.ttl));
            if self.ask(&renew).await == Some(false) {
                debug!(key = permit.key, "the gate's lock is lost; PostgreSQL turns another copy away");
            }
        }
    }

    /// Opens the gate, unless another copy has taken it meanwhile. If Redis cannot be asked, the
    /// lock expires by itself.
    pub(crate) async fn leave(&self, permit: Permit) {
        let mut release = redis::cmd("EVAL");
        release.arg(RELEASE).arg(1).arg(&permit.key).arg(&permit.token);
        if self.ask(&release).await == Some(false) {
            debug!(key = permit.key, "the gate's lock had been lost before it was released");
        }
    }

    /// Sends a command to Redis; `None` when Redis is away. Takes three times the timeout at most.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Option<T> {
        let mut connection = self.connection().await?;
        let problem = match timeout(self.timeout, command.query_async::<T>(&mut connection)).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => text(&error),
            Err(_) => self.too_late(),
        };
        let mut connection_state = timeout(self.timeout, self.connection_state.lock()).await.ok()?;
        // Another command that failed with this connection may have logged it already.
        if matches!(*connection_state, Connection::Up(_)) {
            lost(&mut connection_state, &problem);
        }
        None
    }

    /// The connection to Redis. One caller makes it when there is none, and the other callers wait
    /// for it.
    async fn connection(&self) -> Option<MultiplexedConnection> {
        let mut connection_state = timeout(self.timeout, self.connection_state.lock()).await.ok()?;
        match &*connection_state {
            Connection::Up(connection) => return Some(connection.clone()),
            Connection::Away(until) if Instant::now() < *until => return None,
            Connection::Away(_) | Connection::New => {}
        }
        let problem = match timeout(self.timeout, self.connect()).await {
            Ok(Ok(connection)) => {
                if matches!(*connection_state, Connection::Away(_)) {
                    info!("the gate's Redis is back");
                }
                *connection_state = Connection::Up(connection.clone());
                return Some(connection);
            }
            Ok(Err(error)) => text(&error),
            Err(_) => self.too_late(),
        };
        match &mut *connection_state {
            Connection::Away(until) => *until = Instant::now() + AWAY,
            Connection::New | Connection::Up(_) => lost(&mut connection_state, &problem),
        }
        None
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let limit = Some(self.timeout);
        let config = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        // A server that hangs still accepts connections.
        redis::cmd("PING").exec_async(&mut connection).await?;
        Ok(connection)
    }

    fn too_late(&self) -> String {
        format!("no answer within {:?}", self.timeout)
    }
}

/// Shows no URL: it may hold a password.
impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("prefix", &self.prefix).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Notes and logs that the connection to Redis has failed.
fn lost(connection_state: &mut Connection, problem: &str) {
    *connection_state = Connection::Away(Instant::now() + AWAY);
    warn!("the gate's Redis is away, messages go on without it: {problem}");
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_cannot_work_are_refused() {
        let gate = || Gate::new("redis://127.0.0.1:1").unwrap();
        assert!(gate().mistakes().is_empty());
        let second = Duration::from_secs(1);
        for (bad, part) in [
            (gate().ttl(second / 20).timeout(second / 100), "ttl"),
            (gate().ttl(second * 3601), "ttl"),
            (gate().timeout(Duration::ZERO), "timeout"),
            (gate().ttl(second).timeout(second), "timeout"),
            (gate().prefix("x".repeat(101)), "prefix"),
        ] {
            assert!(matches!(&bad.mistakes()[..], [one] if one.contains(part)), "{:?}", bad.mistakes());
        }
    }

    #[test]
    fn no_password_is_shown() {
        let gate = Gate::new("redis://me:hunter2@127.0.0.1:1").unwrap();
        assert!(!format!("{gate:?}").contains("hunter2"));
        let error = Gate::new("rddis://me:hunter2@127.0.0.1").unwrap_err();
        assert_eq!(error.to_string(), "invalid settings: invalid Redis URL for the gate");
    }
}
