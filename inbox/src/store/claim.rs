//! Claiming a key: the statement that decides who handles a message.

use deadpool_postgres::{Object, Transaction};
use oncebox_schema::{VersionError, check_version};
use tokio_postgres::{Row, error::SqlState, types::Type};

use super::{Parameter, Ready, Settlement, Store, Stored, Wanted, failed, statement, timeouts};
use crate::{Error, identity::Identity};

/// What a claim found.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The key is ours until the transaction ends.
    Won,
    /// Another transaction works on the key.
    InFlight,
    /// The key was handled before.
    Stored(Stored),
}

/// What a claim is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A new key; another one costs the transaction and a line in PostgreSQL's log.
    New,
    /// A new key or a known one.
    Either,
}

/// What a claim that went out behind a commit came to: whether a row was inserted, and what a look behind it found.
pub(crate) struct Claimed {
    pub(super) inserted: Result<bool, tokio_postgres::Error>,
    pub(super) found: Option<Result<Option<Row>, tokio_postgres::Error>>,
}

/// The claims as a server takes them: `claim.sql` without and with its last line.
#[derive(Debug)]
pub(super) struct Claims {
    expecting_new: String,
    expecting_either: String,
}

impl Store {
    /// The claims for this server, if it is one that the inbox can work with.
    pub(super) async fn check(&self, object: &Object) -> Result<Claims, Error> {
        check_version(&**object.as_ref(), &self.schema).await.map_err(|error| match error {
            VersionError::Postgres { source, .. } => failed("read the schema version")(source),
            other => Error::Version(other),
        })?;
        let sql = statement(&self.schema, include_str!("settings.sql"));
        let settings =
            object.query_typed_one(&sql, &[]).await.map_err(failed("read the server's settings"))?;
        if settings.get("deferrable") {
            let remedy = "default_transaction_deferrable is on, so that a claim would not know its own transaction; \
                          set it off for this role: ALTER ROLE ... SET default_transaction_deferrable = off";
            return Err(Error::Refused("check the settings", remedy.into()));
        }
        let claim = statement(&self.schema, include_str!("claim.sql"));
        let claim = timeouts::fill_in(&claim, &self.limits, settings.get("version"));
        let (expecting_new, _) =
            claim.split_once("ON CONFLICT").expect("claim.sql has such a line, its last");
        Ok(Claims { expecting_new: expecting_new.to_owned(), expecting_either: claim })
    }

    pub(super) async fn ready_claim(
        &self,
        transaction: &Transaction<'_>,
        expect: Expect,
    ) -> Result<Ready<'_>, tokio_postgres::Error> {
        let claims = self.claims.get().expect("connections come from connect, which has checked the server");
        let claim = match expect {
            Expect::New => &claims.expecting_new,
            Expect::Either => &claims.expecting_either,
        };
        self.ready(transaction, claim).await
    }

    /// Claims a key, or finds out why not. `settlement` is what is committed unless it is changed. `None` when the key
    /// is known, which [`Expect::New`] did not expect: the transaction is aborted.
    pub(crate) async fn claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        message_id: Option<i64>,
        expect: Expect,
        settlement: Settlement<'_>,
    ) -> Result<Option<Claim>, Error> {
        let statement = self.ready_claim(transaction, expect).await.map_err(failed("claim"))?;
        let inserted = self.insert(transaction, &statement, scope, identity, message_id, settlement).await;
        let claimed = Claimed { inserted, found: None };
        self.claimed(transaction, scope, (identity, message_id), settlement, claimed).await
    }

    /// What came of a claim; a lost one is looked up, and made again where the row is older than the retention.
    pub(crate) async fn claimed(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        (identity, message_id): Wanted<'_>,
        settlement: Settlement<'_>,
        claimed: Claimed,
    ) -> Result<Option<Claim>, Error> {
        match claimed.inserted {
            Ok(true) => return Ok(Some(Claim::Won)),
            Ok(false) => {}
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(None),
            Err(error) => return Err(failed("claim")(error)),
        }
        let found = match claimed.found {
            Some(found) => found,
            None => match self.ready(transaction, &self.stored).await {
                Ok(look) => self.look(transaction, &look, scope, identity).await,
                Err(error) => Err(error),
            },
        };
        let found = found.map_err(failed("read the stored outcome"))?;
        let found = self.found(transaction, scope, identity, found).await?;
        match (&found, self.limits.retention) {
            (Claim::Stored(Stored { is_expired: true, .. }), Some(retention)) => {
                self.expire(transaction, scope, identity, retention).await?;
            }
            _ => return Ok(Some(found)),
        }
        let statement = self.ready_claim(transaction, Expect::Either).await.map_err(failed("claim"))?;
        let again = self.insert(transaction, &statement, scope, identity, message_id, settlement).await;
        // Not ours: another transaction does the same, or has done it just now. The caller looks again.
        Ok(Some(if again.map_err(failed("claim"))? { Claim::Won } else { Claim::InFlight }))
    }

    /// Reads the row of a key that was not claimed.
    pub(super) async fn look(
        &self,
        transaction: &Transaction<'_>,
        statement: &Ready<'_>,
        scope: &str,
        identity: &Identity,
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&self.retention_seconds(), Type::FLOAT8),
        ];
        statement.query_opt(transaction, &parameters).await
    }

    pub(super) async fn insert(
        &self,
        transaction: &Transaction<'_>,
        statement: &Ready<'_>,
        scope: &str,
        identity: &Identity,
        message_id: Option<i64>,
        (status, outcome): Settlement<'_>,
    ) -> Result<bool, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 8] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&&identity.fingerprint[..], Type::BYTEA),
            (&message_id, Type::INT8),
            (&status.as_str(), Type::TEXT),
            (&outcome, Type::BYTEA),
        ];
        Ok(statement.execute(transaction, &parameters).await? == 1)
    }
}
