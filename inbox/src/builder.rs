//! Sets up an inbox, and checks all its settings together.

use std::{path::PathBuf, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use oncebox_claims::{
    InvalidSettings,
    backoff::Backoff,
    database::{Database, Mode, TokioPostgres},
    limits::{IsolationLevel, Limits},
};
use oncebox_schema::{Driver, Recording, SchemaName};
use serde_json::json;

use crate::{
    Inbox, KeySource, Part,
    identity::TenantSource,
    settings::{RetryPolicy, Settings},
};

const SCOPE_LENGTH_MAX: usize = 255;
const SNOOZE_LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
const BACKOFF_MAX: Duration = Duration::from_secs(24 * 3600);

/// Sets up an [`Inbox`]; see [`Inbox::builder`] and [`Inbox::over`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<D: Driver = TokioPostgres> {
    driver: D,
    schema: SchemaName,
    scope: String,
    tenant: Option<TenantSource>,
    keys: Vec<KeySource>,
    pub(crate) limits: Limits,
    retries: RetryPolicy,
    is_pooled: bool,
    pub(crate) is_shadow: bool,
    pub(crate) mode: Mode,
    trace_file: Option<PathBuf>,
    #[cfg(feature = "redis")]
    gate: Option<crate::Gate>,
}

impl Inbox {
    /// Sets up an inbox on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: Pool) -> Builder {
        Self::over(pool)
    }
}

impl<D: Driver> Inbox<D> {
    /// Sets up an inbox over a driver, on connections of this pool of the driver. The handler's
    /// tables are in the same database.
    pub fn over(pool: impl Into<D>) -> Builder<D> {
        Builder::over(pool.into())
    }
}

impl<D: Driver> Builder<D> {
    pub(crate) fn over(driver: D) -> Self {
        Self {
            driver,
            schema: SchemaName::default(),
            scope: String::new(),
            tenant: None,
            keys: vec![KeySource::header("Idempotency-Key"), KeySource::header("x-idempotency-key")],
            limits: Limits::DEFAULT,
            retries: RetryPolicy::DEFAULT,
            is_pooled: false,
            is_shadow: false,
            mode: Mode::Transaction,
            trace_file: None,
            #[cfg(feature = "redis")]
            gate: None,
        }
    }

    /// The PostgreSQL schema that Oncebox is installed in. Default: `oncebox`.
    pub fn schema(mut self, name: SchemaName) -> Self {
        self.schema = name;
        self
    }

    /// The name of the consumer, `service:handler`. Equal keys in different scopes are independent
    /// of each other. Required, 1 to 255 bytes. Never rename it while messages may be delivered
    /// again: they would be handled again.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// All messages belong to one tenant. This, [`Builder::tenant_header`] or
    /// [`Builder::tenant_from`] is required.
    pub fn single_tenant(mut self) -> Self {
        self.tenant = Some(TenantSource::Single);
        self
    }

    /// This header names the tenant. Equal keys of different tenants are independent of each other.
    /// A message without the header becomes a dead letter.
    pub fn tenant_header(self, name: impl Into<String>) -> Self {
        self.tenant_from(Part::Header(name.into()))
    }

    /// Like [`Builder::tenant_header`], but the tenant is read from any part of the message.
    pub fn tenant_from(mut self, part: Part) -> Self {
        self.tenant = Some(TenantSource::Part(part));
        self
    }

    /// Where the key is looked for, in this order. Default: the headers `Idempotency-Key`, then
    /// `x-idempotency-key`, which both hold a whole key. A message without a valid key becomes a
    /// dead letter.
    pub fn key_from(mut self, sources: impl Into<Vec<KeySource>>) -> Self {
        self.keys = sources.into();
        self
    }

    /// How many attempts a message gets before it is given up, 1 to 1,000,000. Default: 20. The
    /// inbox counts them itself: runs that failed, and runs that ended their process. Deliveries
    /// that only waited, were snoozed, or found PostgreSQL away do not count. A message that may
    /// have ended its process gets two more runs, to find out whether it was this message or
    /// another one at the same time.
    pub fn attempts_max(mut self, count: u64) -> Self {
        self.retries.attempts_max = count;
        self
    }

    /// The pauses between attempts: the first, doubled each time up to the largest, with jitter.
    /// Default: 1 second to 5 minutes.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.retries.backoff = Backoff { first, max };
        self
    }

    /// How long a message may be snoozed in all, from the first
    /// [`Outcome::Snooze`](crate::Outcome::Snooze) on, 1 second to 30 days. Default: 24 hours. One
    /// that is snoozed after this time becomes a dead letter. Let the stream keep its messages for
    /// longer (`max_age`).
    pub fn snooze_max(mut self, limit: Duration) -> Self {
        self.retries.snooze_max = limit;
        self
    }

    /// How long the handler may take for one message, its statements included. Default: 60 seconds,
    /// at most 24 hours.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.limits.handler_timeout = limit;
        self
    }

    /// How long to wait for a connection of the pool. Default: 5 seconds.
    pub fn acquire_timeout(mut self, limit: Duration) -> Self {
        self.limits.acquire_timeout = limit;
        self
    }

    /// The isolation level of the handler's transaction. Default: READ COMMITTED.
    ///
    /// At a higher level PostgreSQL ends a transaction with 40001 when it conflicts with another
    /// one. If this happens in the handler or its commit, the message is run again at once, a few
    /// times, and then after the pauses of a failed attempt. If it happens in the claim, since a
    /// copy was committed after the snapshot, the key is claimed again, which does not count as an
    /// attempt. At these levels messages never share a transaction: a batch is run one by one.
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.limits.isolation_level = level;
        self
    }

    /// How long a key is kept at least, 1 second to 100 years, by the database's clock. Default:
    /// `None`, for ever, and the table grows.
    ///
    /// After this time the key counts as new: a message that is delivered again then is handled
    /// again. So keep keys for longer than any message can come again: longer than the stream keeps
    /// messages (`max_age`), than the relay keeps those that `oncebox outbox replay` sends again,
    /// and than a saga lasts. `oncebox doctor` compares them, a saga's time when its configuration
    /// has it (`saga_lifetime`). A [`Consumer`](crate::Consumer) deletes older keys in small steps;
    /// in leased mode also claims that were not taken up again in that time, with the records of
    /// their effects. Then a message that is delivered again after that time can make an effect
    /// happen twice.
    pub fn retention(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limits.retention = limit.into();
        self
    }

    /// How long a dead letter is kept at least, 1 second to 100 years, and not shorter than
    /// [`Builder::retention`]: then it is deleted like an old key. Default: 90 days, or as long as
    /// keys if that is longer; for ever where keys are.
    pub fn dead_letter_retention(mut self, limit: Duration) -> Self {
        self.limits.dead_letters = Some(limit);
        self
    }

    /// The pool's connections go through a pooler in transaction mode, such as `PgBouncer`, which
    /// may give them another session for each transaction. So no statement is prepared: another
    /// program's statement could have its name. `PgBouncer` from 1.21 on, with
    /// `max_prepared_statements` above 0, does not need it.
    ///
    /// Handlers then use `query`, `query_typed` and similar methods, and
    /// [`Context::defer_typed`](crate::MessageContext::defer_typed), never `prepare_cached`.
    /// `Order::Strict` keeps a transaction open, and so one connection of the pooler.
    pub fn behind_pooler(mut self) -> Self {
        self.is_pooled = true;
        self
    }

    /// How long one statement may take. Default: only the limit of the handler. Each limit in
    /// PostgreSQL costs every message some microseconds more.
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.limits.statement_timeout = Some(limit);
        self
    }

    /// How long a statement may wait for a lock. Default: only the limit of the handler, as for
    /// [`Builder::statement_timeout`].
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.limits.lock_timeout = Some(limit);
        self
    }

    /// Suppresses nothing: handlers get every copy, as without an inbox. The inbox logs the copies
    /// that it would have suppressed, and counts them in
    /// [`Counts::shadowed`](crate::Counts::shadowed) and by their cause in the metrics. Use it to
    /// see the effect of an inbox on a service that works without one.
    ///
    /// Keys are recorded as usual, in the handler's transaction: a first copy that fails leaves no
    /// record, so the next copy is not a duplicate. Failures, the delivery limit and dead letters
    /// work as usual too; a message without a key becomes a dead letter.
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Writes a line of JSON to this file for each step of a message: claims, commits, answers to
    /// the broker. The specification replays them, see docs/correctness.md. The lines have hashes
    /// of keys, and neither keys nor payloads. Each step waits for its line, so this is for tests.
    /// Default: the file that the environment variable `ONCEBOX_TRACE_FILE` names, if it does. An
    /// inbox in [shadow mode](Builder::shadow) writes none.
    pub fn trace_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace_file = Some(path.into());
        self
    }

    /// Turns copies of a message in flight away with a lock in Redis, as long as Redis can be
    /// reached; see [`Gate`](crate::Gate).
    #[cfg(feature = "redis")]
    pub fn gate(mut self, gate: crate::Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Builds the inbox, if every value is valid.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn build(self) -> Result<Inbox<D>, InvalidSettings> {
        #[cfg_attr(not(feature = "redis"), expect(unused_mut, reason = "the gate's mistakes"))]
        let mut mistakes = Vec::new();
        #[cfg(feature = "redis")]
        {
            mistakes.extend(self.gate.iter().flat_map(crate::Gate::mistakes));
            if self.is_shadow && self.gate.is_some() {
                mistakes.push("shadow() and gate(..) are both set: shadow mode handles every copy, and a gate turns copies away".to_owned());
            }
        }
        let (database, settings) = self.checked(mistakes)?;
        Ok(Inbox::new(Arc::new(database), settings))
    }

    /// The checked parts of an inbox, or all mistakes.
    fn checked(self, mut mistakes: Vec<String>) -> Result<(Database<D>, Settings), InvalidSettings> {
        mistakes.extend(self.limits.mistakes());
        mistakes.extend(self.retries.mistakes());
        if !(1..=SCOPE_LENGTH_MAX).contains(&self.scope.len()) || self.scope.chars().any(char::is_control) {
            mistakes.push(format!("scope is not 1 to {SCOPE_LENGTH_MAX} bytes without control characters"));
        }
        match &self.tenant {
            None => mistakes
                .push("none of single_tenant(), tenant_header(..) and tenant_from(..) is set".to_owned()),
            Some(TenantSource::Part(part)) if part.is_empty() => {
                mistakes.push(format!("the tenant's {part} names nothing"));
            }
            Some(_) => {}
        }
        if self.keys.is_empty() {
            mistakes.push("key_from names no source".to_owned());
        }
        for source in self.keys.iter().filter(|source| source.is_empty()) {
            mistakes.push(format!("key_from: {source} names nothing"));
        }
        let Some(tenant) = self.tenant.filter(|_| mistakes.is_empty()) else {
            return Err(InvalidSettings(mistakes));
        };
        let recording = if self.is_shadow {
            None
        } else {
            let started = json!({ "scope": self.scope, "mode": self.mode.as_str() });
            Recording::if_wanted(self.trace_file, started)
                .map_err(|mistake| InvalidSettings(vec![mistake]))?
        };
        let settings = Settings {
            scope: self.scope,
            tenant,
            keys: self.keys,
            retries: self.retries,
            is_shadow: self.is_shadow,
            mode: self.mode,
            recording,
            #[cfg(feature = "redis")]
            gate: self.gate,
        };
        Ok((Database::new(self.driver, &self.schema, &self.limits, self.is_pooled), settings))
    }
}

impl RetryPolicy {
    const DEFAULT: Self = Self {
        attempts_max: 20,
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) },
        snooze_max: Duration::from_secs(24 * 3600),
    };

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if !(1..=1_000_000).contains(&self.attempts_max) {
            mistakes.push("attempts_max is not 1 to 1000000".to_owned());
        }
        if self.backoff.first.is_zero() || self.backoff.first > self.backoff.max {
            mistakes.push(
                "backoff: the first pause is not above zero, or is longer than the longest pause".to_owned(),
            );
        }
        if !(Duration::from_millis(1)..=BACKOFF_MAX).contains(&self.backoff.max) {
            mistakes.push("backoff: the longest pause is not 1 millisecond to 24 hours".to_owned());
        }
        if !(Duration::from_secs(1)..=SNOOZE_LONGEST).contains(&self.snooze_max) {
            mistakes.push("snooze_max is not 1 second to 30 days".to_owned());
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use deadpool_postgres::{Manager, Pool};
    use tokio_postgres::NoTls;

    use super::*;

    fn pool() -> Pool {
        Pool::builder(Manager::new("host=127.0.0.1".parse().unwrap(), NoTls)).build().unwrap()
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let built =
            Inbox::builder(pool()).attempts_max(0).lock_timeout(Duration::ZERO).key_from(vec![]).build();
        let text = built.unwrap_err().to_string();
        for part in ["scope", "single_tenant", "attempts_max", "lock_timeout", "key_from"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        assert!(Inbox::builder(pool()).scope("a:b").single_tenant().build().is_ok());
        assert!(
            Inbox::builder(pool()).scope("a:b").tenant_header("t").key_from(KeySource::MsgId).build().is_ok()
        );
    }
}
