//! The records of a claim's effects.

use std::time::Duration;

use oncebox_schema::Key;
use oncebox_schema::Transaction;
use tokio_postgres::{Row, types::Type};

use super::{Holder, LeasedClaims, Name, milliseconds};
use crate::{Error, database::failed};

/// The record of an effect, as the next call finds it.
#[derive(Debug)]
pub(in crate::leased) enum Begun {
    /// There was no record. Now the effect is recorded as begun.
    New,
    /// An earlier call began the effect `age` ago and left no result, so it may have happened.
    /// `is_own`: this owner of the claim began it.
    Before {
        age: Duration,
        is_own: bool,
    },
    Done(Vec<u8>),
    Rejected(String),
}

/// How an effect ended.
#[derive(Debug)]
pub(in crate::leased) enum Settled<'a> {
    Done(&'a [u8]),
    Rejected(&'a str),
}

impl LeasedClaims {
    /// Records that an effect may happen from now on; `None` when the lease is lost.
    pub(in crate::leased) async fn begin_effect(
        &self,
        holder: &Holder,
        step: &str,
    ) -> Result<Option<Begun>, Error> {
        let lease = milliseconds(self.lease);
        let parameters = holder.and([(&lease, Type::INT8), (&step, Type::TEXT)]);
        let Some(row) = self.query("begin an effect", &self.begin_effect, &parameters).await? else {
            return Ok(None);
        };
        if row.get("is_begun") {
            return Ok(Some(Begun::New));
        }
        remembered(&row, &holder.name.key).map(Some)
    }

    /// Records that an effect begins again; false when the lease is lost.
    pub(in crate::leased) async fn begin_again(&self, holder: &Holder, step: &str) -> Result<bool, Error> {
        let lease = milliseconds(self.lease);
        let parameters = holder.and([(&lease, Type::INT8), (&step, Type::TEXT)]);
        self.execute("begin an effect again", &self.begin_again, &parameters).await
    }

    /// Remembers how an effect ended; false when the lease is lost.
    pub(in crate::leased) async fn settle_effect(
        &self,
        holder: &Holder,
        step: &str,
        settled: &Settled<'_>,
    ) -> Result<bool, Error> {
        let lease = milliseconds(self.lease);
        let (state, result) = settled.columns();
        let parameters = holder.and([
            (&lease, Type::INT8),
            (&step, Type::TEXT),
            (&state, Type::TEXT),
            (&result, Type::BYTEA),
        ]);
        self.execute("remember an effect", &self.settle_effect, &parameters).await
    }

    /// Remembers a result among the writes of a transaction: from here to its commit the lease
    /// cannot be lost.
    pub(in crate::leased) async fn settle_within(
        &self,
        transaction: &Transaction,
        holder: &Holder,
        step: &str,
        result: &[u8],
    ) -> Result<bool, tokio_postgres::Error> {
        let lease = milliseconds(self.lease);
        let (state, result) = Settled::Done(result).columns();
        let parameters = holder.and([
            (&lease, Type::INT8),
            (&step, Type::TEXT),
            (&state, Type::TEXT),
            (&result, Type::BYTEA),
        ]);
        Ok(transaction.execute_typed(&self.settle_effect, &parameters).await? == 1)
    }

    /// Forgets an effect that did not happen; false when the lease is lost.
    pub(in crate::leased) async fn forget_effect(&self, holder: &Holder, step: &str) -> Result<bool, Error> {
        let lease = milliseconds(self.lease);
        let parameters = holder.and([(&lease, Type::INT8), (&step, Type::TEXT)]);
        self.execute("forget an effect", &self.forget_effect, &parameters).await
    }

    /// The effects of a key that may have happened, for a reason; also those of earlier runs.
    pub(in crate::leased) async fn open_effects(&self, name: &Name) -> Result<Option<String>, Error> {
        let row = self.query("read the open effects", &self.open_effects, &name.parameters()).await?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// The result of a step, if there is one.
    pub(in crate::leased) async fn remembered(
        &self,
        transaction: &Transaction,
        name: &Name,
        step: &str,
    ) -> Result<Option<Vec<u8>>, Error> {
        let [scope, tenant, key] = name.parameters();
        let row = transaction
            .query_typed_opt(&self.remembered, &[scope, tenant, key, (&step, Type::TEXT)])
            .await
            .map_err(failed("read what is remembered"))?;
        Ok(row.map(|row| row.get(0)))
    }
}

impl<'a> Settled<'a> {
    fn columns(&self) -> (&'static str, &'a [u8]) {
        match self {
            Self::Done(result) => ("done", result),
            Self::Rejected(reason) => ("rejected", reason.as_bytes()),
        }
    }
}

fn remembered(row: &Row, key: &Key) -> Result<Begun, Error> {
    let (state, result): (Option<&str>, Option<&[u8]>) = (row.get("state"), row.get("result"));
    let result = result.unwrap_or_default();
    match state {
        Some("done") => Ok(Begun::Done(result.to_vec())),
        Some("rejected") => Ok(Begun::Rejected(String::from_utf8_lossy(result).into_owned())),
        Some("started") => {
            let age = u64::try_from(row.get::<_, i64>("age_milliseconds")).unwrap_or(0);
            Ok(Begun::Before { age: Duration::from_millis(age), is_own: row.get("is_own") })
        }
        other => Err(Error::UnknownStatus {
            key: key.as_str().to_owned(),
            status: other.unwrap_or("none").to_owned(),
        }),
    }
}
