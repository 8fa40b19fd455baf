//! A look at a key, without claiming it.

use deadpool_postgres::Object;
use tokio_postgres::types::{ToSql, Type};

use super::{Parameter, Store, Stored, dead::stored, failed};
use crate::{Error, identity::Identity};

impl Store {
    /// What is stored for a key: one round trip, no transaction. Nothing says only that a claim is worth a try.
    pub(crate) async fn peek(
        &self,
        object: &Object,
        scope: &str,
        identity: &Identity,
    ) -> Result<Option<Stored>, Error> {
        let what = "read the stored outcome";
        let key = identity.key.as_str();
        let seconds = self.retention_seconds();
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&seconds, Type::FLOAT8),
        ];
        let found = if self.is_pooled {
            object.query_typed_opt(&self.stored, &parameters).await
        } else {
            let statement = object.prepare_cached(&self.stored).await.map_err(failed(what))?;
            let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
            object.query_opt(&statement, &values).await
        };
        let found = found.map_err(failed(what))?.map(|row| stored(&row, key)).transpose()?;
        Ok(found.filter(|stored| !stored.is_expired))
    }
}
