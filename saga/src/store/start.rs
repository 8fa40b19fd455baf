//! The statements of a start.

use oncebox_claims::database::Parameter;
use oncebox_outbox::InTransaction;
use tokio_postgres::{Error, Row, types::Type};

use super::{Store, row::StepColumns};
use crate::instance::Instance;

/// A saga, as the caller of `start` describes it.
pub(crate) struct Beginning<'a> {
    pub(crate) business_id: &'a str,
    pub(crate) data: &'a str,
    /// By which another start with the same data is known.
    pub(crate) likeness: &'a [u8],
    /// The scope of its orchestrator.
    pub(crate) scope: &'a str,
}

/// A saga that stands where a new one was to.
pub(crate) struct Standing {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) is_same_id: bool,
    pub(crate) is_same_data: bool,
}

impl Store {
    /// The id of the new saga, unless there is one already. Its first steps are written with it.
    pub(crate) async fn start(
        &self,
        transaction: &impl InTransaction,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Option<i64>, Error> {
        let (graph, steps) = (instance.process.graph(), StepColumns::changed([instance]));
        let (name, key, fingerprint) = (graph.name(), instance.key.as_str(), graph.fingerprint());
        let (version, due_in) = (i32::from(graph.version()), instance.due_in());
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&name, Type::TEXT),
            (&beginning.business_id, Type::TEXT),
            (&key, Type::TEXT),
            (&version, Type::INT4),
            (&fingerprint, Type::TEXT),
            (&beginning.data, Type::TEXT),
            (&instance.late_in, Type::FLOAT8),
            (&due_in, Type::FLOAT8),
            (&beginning.scope, Type::TEXT),
            (&beginning.likeness, Type::BYTEA),
        ];
        parameters.extend(steps.parameters());
        let rows = transaction.run(&self.start, &parameters, self.is_pooled).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }

    /// Aborts the transaction. Should even that fail, the connection is gone, and it with it.
    pub(crate) async fn refuse_start(&self, transaction: &impl InTransaction) {
        let _ = transaction.run(&self.refuse_start, &[], self.is_pooled).await;
    }

    pub(crate) async fn find_started(
        &self,
        transaction: &impl InTransaction,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Option<Standing>, Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&instance.process.graph().name(), Type::TEXT),
            (&beginning.business_id, Type::TEXT),
            (&instance.key.as_str(), Type::TEXT),
            (&beginning.likeness, Type::BYTEA),
        ];
        let standing = |row: &Row| {
            Ok(Standing {
                id: row.try_get("id")?,
                key: row.try_get("key")?,
                is_same_id: row.try_get("is_same_id")?,
                is_same_data: row.try_get("is_same_data")?,
            })
        };
        let rows = transaction.run(&self.find_started, &parameters, self.is_pooled).await?;
        rows.first().map(standing).transpose()
    }
}
