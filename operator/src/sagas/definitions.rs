//! The definitions that orchestrators have registered.

use std::time::SystemTime;

use serde::Serialize;

use super::SagaGraphStep;
use crate::{Operator, Result, rows::from_row, time::Time};

const DEFINITIONS_MAX: i64 = 1_000;

/// A definition of sagas, as an orchestrator registered it when it started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SagaDefinition {
    /// Its name.
    #[serde(rename = "type")]
    pub saga_type: String,
    /// Its version.
    pub version: i32,
    /// When it was registered first.
    pub registered_at: Time,
    /// Its steps; none where this program cannot read them.
    pub graph: Vec<SagaGraphStep>,
}

from_row!(SagaDefinition: saga_type = "type", version, registered_at; row =>
    graph: serde_json::from_str(row.get("graph")).unwrap_or_default());

impl SagaDefinition {
    /// A definition that is not in a database, with its steps as JSON.
    #[must_use]
    pub fn of_file(saga_type: &str, version: i32, graph: &str) -> Self {
        let graph = serde_json::from_str(graph).unwrap_or_default();
        Self { saga_type: saga_type.to_owned(), version, registered_at: Time(SystemTime::UNIX_EPOCH), graph }
    }
}

impl Operator {
    /// The definitions of this name, all if none is given, and of this version; the newest version
    /// first. 1,000 at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn saga_definitions(
        &self,
        saga_type: Option<&str>,
        version: Option<i32>,
    ) -> Result<Vec<SagaDefinition>> {
        let saga_type = saga_type.map(str::to_owned);
        let sql = &self.sql.saga_definitions;
        self.all("read definitions", sql, &[&saga_type, &version, &DEFINITIONS_MAX]).await
    }
}
