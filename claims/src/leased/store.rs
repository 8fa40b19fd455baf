//! The statements of leased mode. Only this module speaks its SQL.
//!
//! Each is a transaction of its own on a connection that goes back to the pool at once, except
//! those that take a transaction: they are part of an owner's writes.

mod claim;
mod effect_record;

use std::{sync::Arc, time::Duration};

use oncebox_schema::{Key, Recording, Transaction};
use serde_json::json;
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    Error, TransactionId,
    database::{Database, Parameter, discard, failed, statement},
    failure::bounded,
    identity::lock,
    stored::Status,
};

pub(super) use claim::Won;
pub(super) use effect_record::{Begun, Settled};

/// A statement that is not answered by then counts as lost; nothing here waits for long.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Everything that names a claim: scope, tenant and key.
#[derive(Clone, Debug)]
pub struct Name {
    /// Who claims.
    pub scope: String,
    /// Who the key belongs to.
    pub tenant: String,
    /// The key.
    pub key: Key,
    key_text: String,
}

/// Who holds a claim: every statement of an owner is checked against both.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub name: Name,
    pub owner: Uuid,
    pub epoch: i64,
}

/// How a claim stands that did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Failed,
    Unknown,
}

/// The claims of a scope that are in progress; see `Leased::in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// A process works on them, or did until it died.
    pub running: u64,
    /// They failed, without any effect that is not remembered, and are to be repeated.
    pub failed: u64,
    /// An effect of theirs may have happened; it is to be reconciled.
    pub unknown: u64,
    /// How long ago the oldest of these claims was made; zero when there are no claims.
    pub oldest: Duration,
}

/// Claims with a lease, in one schema.
#[derive(Debug)]
pub struct LeasedClaims {
    database: Arc<Database>,
    dead: String,
    pub(super) lease: Duration,
    found: String,
    expire: String,
    claim: String,
    renew: String,
    release: String,
    open: String,
    committed: String,
    end: String,
    begin_effect: String,
    begin_again: String,
    settle_effect: String,
    forget_effect: String,
    remembered: String,
    open_effects: String,
    in_flight: String,
    /// Where the steps of effects are written, if anywhere.
    recording: Option<Recording>,
}

impl LeasedClaims {
    /// Claims in this database that end after this lease unless they are renewed.
    #[must_use]
    pub fn new(database: Arc<Database>, lease: Duration) -> Self {
        let schema = database.schema();
        let held = |rest: &str| statement(schema, &format!("{}{rest}", include_str!("sql/held.sql")));
        Self {
            dead: statement(schema, include_str!("../transactional/dead.sql")),
            lease,
            found: statement(schema, include_str!("sql/found.sql")),
            expire: statement(schema, include_str!("sql/expire.sql")),
            claim: statement(schema, include_str!("sql/claim.sql")),
            renew: held(include_str!("sql/renew.sql")),
            release: statement(schema, include_str!("sql/release.sql")),
            open: statement(schema, include_str!("sql/open.sql")),
            committed: statement(schema, include_str!("sql/committed.sql")),
            end: statement(schema, include_str!("sql/end.sql")),
            begin_effect: held(include_str!("sql/begin_effect.sql")),
            begin_again: held(include_str!("sql/begin_again.sql")),
            settle_effect: held(include_str!("sql/settle_effect.sql")),
            forget_effect: held(include_str!("sql/forget_effect.sql")),
            remembered: statement(schema, include_str!("sql/remembered.sql")),
            open_effects: statement(schema, include_str!("sql/open_effects.sql")),
            in_flight: statement(schema, include_str!("sql/in_flight.sql")),
            recording: None,
            database,
        }
    }

    /// The same, with a recording of the steps of effects.
    #[must_use]
    pub fn recorded(self, recording: Option<Recording>) -> Self {
        Self { recording, ..self }
    }

    /// Records a step of an effect.
    pub(super) fn record(&self, holder: &Holder, effect: &str, did: &str) {
        let Some(recording) = &self.recording else { return };
        let Name { scope, tenant, key, .. } = &holder.name;
        let key = lock(self.database.schema().as_str(), scope, tenant, key);
        recording.write("effect", json!({ "key": key, "epoch": holder.epoch, "effect": effect, "did": did }));
    }

    /// The database that the claims are in.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Renews a lease; false when it is lost.
    pub(super) async fn renew(&self, holder: &Holder) -> Result<bool, Error> {
        let lease = milliseconds(self.lease);
        self.execute("renew a lease", &self.renew, &holder.and([(&lease, Type::INT8)])).await
    }

    /// Releases a claim for a run after the pause; false when the lease is lost.
    pub(super) async fn release(
        &self,
        holder: &Holder,
        pause: Duration,
        pending: Pending,
        reason: &str,
        is_attempt: bool,
    ) -> Result<bool, Error> {
        let state = match pending {
            Pending::Failed => "failed",
            Pending::Unknown => "unknown",
        };
        let (pause, reason) = (milliseconds(pause), bounded(reason));
        let attempt = i32::from(is_attempt);
        let parameters = holder.and([
            (&pause, Type::INT8),
            (&state, Type::TEXT),
            (&reason, Type::TEXT),
            (&attempt, Type::INT4),
        ]);
        self.execute("release a claim", &self.release, &parameters).await
    }

    /// Opens a transaction of an owner; false when the lease is lost.
    pub(super) async fn open(
        &self,
        transaction: &Transaction,
        holder: &Holder,
        limit: Duration,
    ) -> Result<Option<TransactionId>, Error> {
        const WHAT: &str = "open a transaction under a lease";
        let limit = milliseconds(limit);
        let parameters = holder.and([(&limit, Type::INT8)]);
        match timeout(ANSWER_MAX, transaction.query_typed_opt(&self.open, &parameters)).await {
            Ok(row) => Ok(row.map_err(failed(WHAT))?.map(|row| TransactionId::parse(row.get(0)))),
            Err(elapsed) => Err(Error::Unavailable(WHAT, elapsed.into())),
        }
    }

    /// Whether code of a user has committed a transaction that was opened for it.
    pub(super) async fn has_committed(&self, opened: TransactionId) -> Result<bool, Error> {
        const WHAT: &str = "look for a commit";
        let object = self.database.connect().await?;
        let parameters: [Parameter<'_>; 1] = [(opened.as_i64(), Type::INT8)];
        match timeout(ANSWER_MAX, object.query_typed_one(&self.committed, &parameters)).await {
            Ok(row) => Ok(row.map_err(failed(WHAT))?.get(0)),
            Err(elapsed) => {
                discard(object);
                Err(Error::Unavailable(WHAT, elapsed.into()))
            }
        }
    }

    /// Replaces the claim by how it ended, as the last writes of a transaction; false when the
    /// lease is lost.
    pub(super) async fn end(
        &self,
        transaction: &Transaction,
        holder: &Holder,
        status: Status,
        outcome: Option<&[u8]>,
    ) -> Result<bool, tokio_postgres::Error> {
        let status = status.as_str();
        let parameters = holder.and([(&status, Type::TEXT), (&outcome, Type::BYTEA)]);
        Ok(transaction.query_typed_one(&self.end, &parameters).await?.get(0))
    }

    /// The claims of a scope that are in progress, in all processes.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn in_flight(&self, scope: &str) -> Result<InFlight, Error> {
        let row = self.query("count the claims", &self.in_flight, &[(&scope, Type::TEXT)]).await?;
        let number = |column: &str| {
            row.as_ref().and_then(|row| u64::try_from(row.get::<_, i64>(column)).ok()).unwrap_or(0)
        };
        Ok(InFlight {
            running: number("running"),
            failed: number("failed"),
            unknown: number("unknown"),
            oldest: Duration::from_millis(number("oldest_milliseconds")),
        })
    }

    async fn query(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Row>, Error> {
        let object = self.database.connect().await?;
        match timeout(ANSWER_MAX, object.query_typed_opt(sql, parameters)).await {
            Ok(answer) => answer.map_err(failed(what)),
            Err(elapsed) => {
                discard(object);
                Err(Error::Unavailable(what, elapsed.into()))
            }
        }
    }

    /// Whether there was a row to write.
    async fn execute(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<bool, Error> {
        let object = self.database.connect().await?;
        match timeout(ANSWER_MAX, object.execute_typed(sql, parameters)).await {
            Ok(answer) => Ok(answer.map_err(failed(what))? == 1),
            Err(elapsed) => {
                discard(object);
                Err(Error::Unavailable(what, elapsed.into()))
            }
        }
    }
}

impl Name {
    /// A key of this tenant in this scope.
    pub fn new(scope: impl Into<String>, tenant: impl Into<String>, key: Key) -> Self {
        let key_text = key.as_str().to_owned();
        Self { scope: scope.into(), tenant: tenant.into(), key, key_text }
    }

    /// The three parameters that say which key it is, and more.
    fn and<'a, const N: usize>(&'a self, more: [Parameter<'a>; N]) -> Vec<Parameter<'a>> {
        self.parameters().into_iter().chain(more).collect()
    }

    fn parameters(&self) -> [Parameter<'_>; 3] {
        [(&self.scope, Type::TEXT), (&self.tenant, Type::TEXT), (&self.key_text, Type::TEXT)]
    }
}

impl Holder {
    /// The five parameters that say who writes, and more.
    fn and<'a, const N: usize>(&'a self, more: [Parameter<'a>; N]) -> Vec<Parameter<'a>> {
        let [scope, tenant, key] = self.name.parameters();
        let who = [scope, tenant, key, (&self.owner, Type::UUID), (&self.epoch, Type::INT8)];
        who.into_iter().chain(more).collect()
    }
}

/// The time in milliseconds, at least one, in PostgreSQL's type.
fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    /// The condition that only the owner's row fulfils, from `WHERE` on.
    fn fence(sql: &str) -> Vec<&str> {
        let lines = sql.lines().map(str::trim).skip_while(|line| !line.starts_with("WHERE"));
        lines.take_while(|line| line.starts_with("WHERE") || line.starts_with("AND")).collect()
    }

    #[test]
    fn statements_that_repeat_the_lease_fence_agree_with_it() {
        let held = fence(include_str!("sql/held.sql"));
        assert_eq!(held.len(), 6, "{held:?}");
        for (name, sql) in
            [("open", include_str!("sql/open.sql")), ("release", include_str!("sql/release.sql"))]
        {
            assert_eq!(fence(sql), held, "{name}.sql");
        }
    }
}
