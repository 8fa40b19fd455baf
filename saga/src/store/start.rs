//! The statements of a start.

use oncebox_outbox::InTransaction;
use oncebox_schema::{Parameter, typed};
use tokio_postgres::{Error, Row};

use super::{Store, row::changed_steps};
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
        let (graph, steps) = (instance.process.graph(), changed_steps([instance]));
        let (name, key, fingerprint) = (graph.name(), instance.key.as_str(), graph.fingerprint());
        let (version, due_in) = (i32::from(graph.version()), instance.due_in());
        let Beginning { business_id, data, likeness, scope } = beginning;
        let mut parameters: Vec<&dyn Parameter> = vec![&name, business_id, &key, &version, &fingerprint];
        parameters.extend([data as &dyn Parameter, &instance.late_in, &due_in, scope, likeness]);
        // The saga's id is not known yet.
        parameters.extend(steps[1..].iter().map(|column| &**column as &dyn Parameter));
        let rows = transaction.run(&self.sql.start, &typed(&parameters), self.is_pooled).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }

    /// Aborts the transaction. Should even that fail, the connection is gone, and it with it.
    pub(crate) async fn refuse_start(&self, transaction: &impl InTransaction) {
        let _ = transaction.run(&self.sql.refuse_start, &[], self.is_pooled).await;
    }

    pub(crate) async fn find_started(
        &self,
        transaction: &impl InTransaction,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Option<Standing>, Error> {
        let (name, key) = (instance.process.graph().name(), instance.key.as_str());
        let parameters = typed(&[&name, &beginning.business_id, &key, &beginning.likeness]);
        let standing = |row: &Row| {
            Ok(Standing {
                id: row.try_get("id")?,
                key: row.try_get("key")?,
                is_same_id: row.try_get("is_same_id")?,
                is_same_data: row.try_get("is_same_data")?,
            })
        };
        let rows = transaction.run(&self.sql.find_started, &parameters, self.is_pooled).await?;
        rows.first().map(standing).transpose()
    }
}
