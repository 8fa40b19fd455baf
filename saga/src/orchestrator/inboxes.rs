//! The inboxes of an orchestrator: of answers, and of dead letters.

use deadpool_postgres::Pool;
use oncebox_inbox::{Inbox, KeySource};

use super::{ANSWER_LIMIT, Orchestrator};
use crate::Error;

impl Orchestrator {
    pub(super) fn inbox(&self, pool: &Pool, name: &str, key: Option<KeySource>) -> Result<Inbox, Error> {
        let mut builder = Inbox::builder(pool.clone())
            .schema(self.engine.schema.clone())
            .scope(format!("{}:{name}", self.engine.opening.scope))
            .handler_timeout(ANSWER_LIMIT)
            .single_tenant();
        if let Some(key) = key {
            builder = builder.key_from(key);
        }
        if let Some(retention) = self.retention {
            builder = builder.retention(retention);
        }
        if self.is_pooled {
            builder = builder.behind_pooler();
        }
        if let Some(path) = &self.trace_file {
            builder = builder.trace_file(path);
        }
        builder.build().map_err(|problem| Error::Invalid(problem.to_string()))
    }
}
