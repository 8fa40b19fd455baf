//! Numbered, forward-only migrations.

use tokio_postgres::{Client, GenericClient, error::SqlState};

use crate::SchemaName;

const MIGRATIONS: [(i32, &str, &str); 13] = [
    (1, "outbox", include_str!("../migrations/0001_outbox.sql")),
    (2, "inbox", include_str!("../migrations/0002_inbox.sql")),
    (3, "operations", include_str!("../migrations/0003_operations.sql")),
    (4, "retention", include_str!("../migrations/0004_retention.sql")),
    (5, "inbox domains", include_str!("../migrations/0005_inbox_domains.sql")),
    (6, "key bytes", include_str!("../migrations/0006_key_bytes.sql")),
    (7, "inbox columns", include_str!("../migrations/0007_inbox_columns.sql")),
    (8, "leases", include_str!("../migrations/0008_leases.sql")),
    (9, "batches", include_str!("../migrations/0009_batches.sql")),
    (10, "sweep", include_str!("../migrations/0010_sweep.sql")),
    (11, "parks", include_str!("../migrations/0011_parks.sql")),
    (12, "collations", include_str!("../migrations/0012_collations.sql")),
    (13, "modes", include_str!("../migrations/0017_modes.sql")),
];
const GRANTS: &str = include_str!("../migrations/grants.sql");

/// The schema version that this build works with.
pub const LATEST_VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// How many lanes the outbox has; fixed when it is installed. 1 to 256, 16 by default.
///
/// More lanes let more relay workers work at once; each costs an index probe per poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes(u16);

impl Lanes {
    /// `None` outside 1 to 256.
    #[must_use]
    pub fn new(count: u16) -> Option<Self> {
        (1..=256).contains(&count).then_some(Self(count))
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(16)
    }
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version found, 0 for a fresh installation.
    pub from: i32,
    /// The version reached.
    pub to: i32,
}

/// Why a migration did not happen; the database is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer Oncebox migrated this database.
    #[error(
        "schema \"{schema}\" is at version {found}, this program knows versions up to {LATEST_VERSION}: use a newer Oncebox"
    )]
    Ahead {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// PostgreSQL refused or went away.
    #[error("migrate schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
}

/// Brings the schema to [`LATEST_VERSION`], all in one transaction; safe when many processes do it at once.
///
/// `lanes` counts for a fresh installation only. Needs a user that may create a schema in this database; no
/// superuser, no extension. Roles are created when the user may create roles, see `schema/migrations/grants.sql`.
///
/// # Errors
/// The schema is newer than this program, or PostgreSQL refused; nothing is changed then.
pub async fn migrate(
    client: &mut Client,
    schema: &SchemaName,
    lanes: Lanes,
) -> Result<Migrated, MigrateError> {
    let failed = |source| MigrateError::Postgres { schema: schema.clone(), source };
    let transaction = client.transaction().await.map_err(failed)?;
    // Everybody else waits here. The lock is released with the transaction, also behind a pooler.
    transaction
        .execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
            &[&format!("oncebox migrate {schema}")],
        )
        .await
        .map_err(failed)?;
    transaction
        .batch_execute(&schema.sql(include_str!("../migrations/bootstrap.sql")))
        .await
        .map_err(failed)?;
    let from = version(&transaction, schema).await.map_err(failed)?;
    if from > LATEST_VERSION {
        return Err(MigrateError::Ahead { schema: schema.clone(), found: from });
    }
    for (number, name, template) in MIGRATIONS.iter().filter(|(number, ..)| *number > from) {
        let sql = schema.sql(template).replace("{lanes}", &lanes.0.to_string());
        transaction.batch_execute(&sql).await.map_err(failed)?;
        let recorded = schema.sql("INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)");
        transaction.execute(&recorded, &[number, name]).await.map_err(failed)?;
    }
    transaction.batch_execute(&schema.sql(GRANTS)).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(Migrated { from, to: LATEST_VERSION })
}

/// Why a program must not work with this database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// Nothing is installed under this name.
    #[error("schema \"{0}\" is not installed in this database: run `oncebox migrate`")]
    Missing(SchemaName),
    /// An older Oncebox installed it.
    #[error(
        "schema \"{schema}\" is at version {found}, this program needs {LATEST_VERSION}: run `oncebox migrate`"
    )]
    Behind {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// A newer Oncebox migrated it.
    #[error(
        "schema \"{schema}\" is at version {found}, this program needs {LATEST_VERSION}: use a newer Oncebox"
    )]
    Ahead {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// PostgreSQL refused or went away.
    #[error("read the version of schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
}

/// Checks that the database has the schema version that this program was built for.
///
/// # Errors
/// Not installed, behind, ahead, or PostgreSQL refused.
pub async fn check_version(client: &impl GenericClient, schema: &SchemaName) -> Result<(), VersionError> {
    let found = version(client, schema).await.map_err(|source| match source.code() {
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
            VersionError::Missing(schema.clone())
        }
        _ => VersionError::Postgres { schema: schema.clone(), source },
    })?;
    match found.cmp(&LATEST_VERSION) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(VersionError::Behind { schema: schema.clone(), found }),
        std::cmp::Ordering::Greater => Err(VersionError::Ahead { schema: schema.clone(), found }),
    }
}

async fn version(client: &impl GenericClient, schema: &SchemaName) -> Result<i32, tokio_postgres::Error> {
    let row = client
        // Not prepared, so that it works behind any pooler.
        .query_typed_one(&schema.sql("SELECT coalesce(max(version), 0) FROM {schema}.migration"), &[])
        .await?;
    Ok(row.get(0))
}
