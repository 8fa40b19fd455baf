//! The statements of a batch: many keys in one transaction.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use deadpool_postgres::Object;
use futures_util::future::OptionFuture;
use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::types::Type;

use super::{TransactionId, TransactionalClaims, Wanted};
use crate::{
    Claim, Error,
    database::{Parameter, failed, statement},
    failure::CommitError,
    identity::Identity,
    stored::{COMPLETED, Settlement, Stored, arrival, status_of},
};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    open: String,
    claim: String,
    stored: String,
    settle: String,
    release: String,
    close: String,
    end: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            open: statement(schema, include_str!("batch/open.sql")),
            claim: statement(schema, include_str!("batch/claim.sql")),
            stored: statement(schema, include_str!("batch/stored.sql")),
            settle: statement(schema, include_str!("batch/settle.sql")),
            release: statement(schema, include_str!("batch/release.sql")),
            close: statement(schema, include_str!("batch/close.sql")),
            end: statement(schema, include_str!("batch/end.sql")),
        }
    }
}

/// Which session a batch runs in, and which transaction.
#[derive(Debug)]
pub struct Session {
    process: i32,
    transaction: TransactionId,
}

impl Session {
    /// The transaction that has claimed the keys.
    #[must_use]
    pub fn transaction(&self) -> TransactionId {
        self.transaction
    }
}

/// A tenant and a key.
type Name<'a> = (&'a str, &'a str);

fn name(identity: &Identity) -> Name<'_> {
    (&identity.tenant, identity.key.as_str())
}

impl TransactionalClaims {
    /// Opens a batch in a transaction that was begun just now, and claims these keys, none of which
    /// may occur twice. Returns the session, and the result of each claim in the order of the keys.
    /// The whole may take `within`.
    pub async fn claim_all(
        &self,
        transaction: &mut Transaction,
        scope: &str,
        wanted: &[Wanted<'_>],
        within: Duration,
    ) -> Result<(Session, Vec<Claim>), Error> {
        let inserted = self.open_and_insert(transaction, scope, wanted, within).await;
        let (session, won) = inserted.map_err(failed("claim a batch"))?;
        let won: HashSet<Name<'_>> =
            won.iter().map(|(tenant, key)| (tenant.as_str(), key.as_str())).collect();
        let lost: Vec<&Identity> = wanted
            .iter()
            .map(|(identity, _)| *identity)
            .filter(|identity| !won.contains(&name(identity)))
            .collect();
        let mut stored =
            if lost.is_empty() { HashMap::new() } else { self.stored_all(transaction, scope, &lost).await? };
        let mut claims = Vec::with_capacity(wanted.len());
        for (identity, _) in wanted {
            let (tenant, key) = name(identity);
            if won.contains(&(tenant, key)) {
                claims.push(Claim::Won(session.transaction));
                continue;
            }
            let stored = match stored.remove(&(tenant.to_owned(), key.to_owned())) {
                Some(stored) => self.certain(transaction, scope, identity, stored).await?,
                None => None,
            };
            claims.push(Claim::refused(arrival(stored.as_ref(), identity), stored));
        }
        Ok((session, claims))
    }

    async fn open_and_insert(
        &self,
        transaction: &Transaction,
        scope: &str,
        wanted: &[Wanted<'_>],
        within: Duration,
    ) -> Result<(Session, Vec<(String, String)>), tokio_postgres::Error> {
        let open = self.database.ready(transaction, &self.batch.open).await?;
        let claim = self.database.ready(transaction, &self.batch.claim).await?;
        let text = |limit: Duration| format!("{}ms", limit.as_millis());
        let limits = [
            self.database.limits().statement_timeout.map(text),
            self.database.limits().lock_timeout.map(text),
        ];
        let opening: [Parameter<'_>; 3] =
            [(&text(within), Type::TEXT), (&limits[0], Type::TEXT), (&limits[1], Type::TEXT)];
        let mut sorted: Vec<&Wanted<'_>> = wanted.iter().collect();
        sorted.sort_unstable_by_key(|(identity, _)| name(identity));
        let locks: Vec<i64> = sorted.iter().map(|(identity, _)| identity.lock).collect();
        let (tenants, keys) = names(sorted.iter().map(|(identity, _)| *identity));
        let fingerprints: Vec<&[u8]> = sorted.iter().map(|(identity, _)| &identity.fingerprint[..]).collect();
        let message_ids: Vec<Option<i64>> = sorted.iter().map(|(_, id)| *id).collect();
        let claiming: [Parameter<'_>; 6] = [
            (&scope, Type::TEXT),
            (&locks, Type::INT8_ARRAY),
            (&tenants, Type::TEXT_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
            (&message_ids, Type::INT8_ARRAY),
        ];
        // The first poll of each sends its statement: both take one round trip.
        let (opened, won) =
            futures_util::join!(open.query(transaction, &opening), claim.query(transaction, &claiming));
        let opened = opened?.pop().expect("a SELECT without FROM has one row");
        let session = Session { process: opened.get(0), transaction: TransactionId::parse(opened.get(1)) };
        Ok((session, won?.iter().map(|row| (row.get(0), row.get(1))).collect()))
    }

    async fn stored_all(
        &self,
        transaction: &Transaction,
        scope: &str,
        lost: &[&Identity],
    ) -> Result<HashMap<(String, String), Stored>, Error> {
        let failed = failed("read stored outcomes");
        let statement = self.database.ready(transaction, &self.batch.stored).await.map_err(&failed)?;
        let (tenants, keys) = names(lost.iter().copied());
        let seconds = self.database.retention_seconds();
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&tenants, Type::TEXT_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&seconds, Type::FLOAT8),
        ];
        let rows = statement.query(transaction, &parameters).await.map_err(&failed)?;
        let stored = rows.iter().map(|row| {
            let (key, status): (String, &str) = (row.get(1), row.get(2));
            let stored = Stored {
                status: status_of(&key, status)?,
                fingerprint: row.get(3),
                outcome: row.get(4),
                message_id: row.get(5),
                is_expired: row.get(6),
            };
            Ok(((row.get(0), key), stored))
        });
        stored.collect()
    }

    /// Stores outcomes that are more than [`COMPLETED`], gives back the keys without effect, and
    /// commits: in one round trip. When one of the statements fails, the transaction is aborted and
    /// the commit has no effect.
    pub async fn commit_all(
        &self,
        transaction: &Transaction,
        scope: &str,
        settled: &[(&Identity, Settlement<'_>)],
        released: &[&Identity],
    ) -> Result<(), CommitError> {
        let settled: Vec<_> = settled.iter().filter(|(_, settlement)| *settlement != COMPLETED).collect();
        let ready = async {
            let settle = self.database.ready(transaction, &self.batch.settle).await?;
            let release = self.database.ready(transaction, &self.batch.release).await?;
            Ok((settle, release, self.database.ready(transaction, &self.batch.close).await?))
        };
        let (settle, release, close) = ready.await.map_err(CommitError::of)?;
        let (tenants, keys) = names(settled.iter().map(|(identity, _)| *identity));
        let statuses: Vec<&str> = settled.iter().map(|(_, settlement)| settlement.status.as_str()).collect();
        let outcomes: Vec<Option<&[u8]>> = settled.iter().map(|(_, settlement)| settlement.outcome).collect();
        let settling: [Parameter<'_>; 5] = [
            (&scope, Type::TEXT),
            (&tenants, Type::TEXT_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&statuses, Type::TEXT_ARRAY),
            (&outcomes, Type::BYTEA_ARRAY),
        ];
        let (released_tenants, released_keys) = names(released.iter().copied());
        let releasing: [Parameter<'_>; 3] =
            [(&scope, Type::TEXT), (&released_tenants, Type::TEXT_ARRAY), (&released_keys, Type::TEXT_ARRAY)];
        let settle =
            OptionFuture::from((!settled.is_empty()).then(|| settle.execute(transaction, &settling)));
        let release =
            OptionFuture::from((!released.is_empty()).then(|| release.execute(transaction, &releasing)));
        let (settled, released, closed, committed) = futures_util::join!(
            settle,
            release,
            close.execute(transaction, &[]),
            transaction.batch_execute(self.database.commit_sql())
        );
        if committed.is_ok() {
            transaction.set_over();
        }
        settled.transpose().and(released.transpose()).and(closed).and(committed).map_err(CommitError::of)
    }
}

impl TransactionalClaims {
    /// Ends the session of a batch while a statement goes on in it: closing the connection would
    /// leave it running, with the keys of all messages locked. `held` is that connection, so that
    /// the process is still its own.
    pub async fn end(&self, held: Object, session: &Session) -> Result<(), Error> {
        // Its place in the pool is free for the one that is needed.
        let held = Object::take(held);
        let object = self.database.connect().await?;
        let ended = object
            .query_typed(
                &self.batch.end,
                &[(&session.process, Type::INT4), (session.transaction.as_i64(), Type::INT8)],
            )
            .await;
        drop(held);
        ended.map(drop).map_err(failed("end a session"))
    }
}

fn names<'a>(identities: impl Iterator<Item = &'a Identity>) -> (Vec<&'a str>, Vec<&'a str>) {
    identities.map(name).unzip()
}
