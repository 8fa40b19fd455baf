//! Which programs work with which schema versions.

use std::time::Duration;

use tokio_postgres::{GenericClient, Row, error::SqlState};

use crate::{BeginError, Cause, Columns, Driver, LATEST_VERSION, SchemaName};

/// The oldest schema version that this build works with: migrate first, then replace the programs.
///
/// The programs' statements use the newest migration, so no older schema will do. The other way
/// round, the database says which older programs it still works with: see [`check_version`].
pub const OLDEST_VERSION: i32 = LATEST_VERSION;

/// The oldest program, by the [`LATEST_VERSION`] that it was built with, that works on this build's
/// schema. A migration that breaks running programs must raise it.
pub(crate) const OLDEST_PROGRAM: i32 = 14;

const VERSION: &str = include_str!("sql/version.sql");
const DENIED: &str = include_str!("sql/denied.sql");

/// Why a program must not work with this database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// Nothing is installed under this name.
    #[error("schema \"{0}\" is not installed in this database: run `oncebox migrate`")]
    Missing(SchemaName),
    /// An older Oncebox installed it.
    #[error(
        "schema \"{schema}\" is at version {found}, this program needs {OLDEST_VERSION}: run `oncebox migrate`, then start it again"
    )]
    Behind {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// A newer Oncebox migrated it, and this program cannot work with it.
    #[error(
        "schema \"{schema}\" is at version {found}, which no longer works with this program of version {LATEST_VERSION}: use a newer Oncebox"
    )]
    Ahead {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// This user may not read the tables that every program reads first.
    #[error("user \"{user}\" lacks privileges on schema \"{schema}\"; {remedy}")]
    Denied {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// The user of the connection.
        user: String,
        /// The roles that an administrator can grant it.
        remedy: String,
        /// PostgreSQL's error.
        source: BeginError,
    },
    /// PostgreSQL refused or went away.
    #[error("read the version of schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: BeginError,
    },
}

/// Checks that this program works with the database: that its schema has a version from
/// [`OLDEST_VERSION`] to [`LATEST_VERSION`], or a newer one that says it works with programs of
/// this version. So a database can be migrated beneath running programs, which may also restart,
/// before they are replaced by newer ones.
///
/// # Errors
/// The schema is not installed, older or newer than this program, the user lacks privileges on it,
/// or PostgreSQL refused.
pub async fn check_version(client: &impl GenericClient, schema: &SchemaName) -> Result<(), VersionError> {
    let error = match Version::read(client, schema).await {
        Ok(found) => return found.check(schema),
        Err(error) => error,
    };
    let state = error.code().map_or("", SqlState::code).to_owned();
    let mut denied = None;
    if state == SqlState::INSUFFICIENT_PRIVILEGE.code() {
        // In a transaction, which has failed now, nothing more can be asked.
        let rows = client.query_typed(&schema.sql(DENIED), &[]).await;
        denied = rows.ok().and_then(|rows| rows.first().map(texts));
    }
    Err(refused(schema, &state, error.into(), denied))
}

/// The same through a driver, for whose connections it waits no longer than `within`.
///
/// # Errors
/// Those of [`check_version`].
pub async fn check_version_through<D: Driver>(
    driver: &D,
    schema: &SchemaName,
    within: Duration,
    is_pooled: bool,
) -> Result<(), VersionError> {
    let ask = async |sql: &str| driver.alone(within, &schema.sql(sql), &[], is_pooled).await;
    let source = match ask(VERSION).await {
        Ok(row) => return Version::of(row.as_ref()).check(schema),
        Err(source) => source,
    };
    let state = D::cause(&*source).as_ref().map_or("", Cause::state).to_owned();
    let is_denied = state == SqlState::INSUFFICIENT_PRIVILEGE.code();
    let denied = if is_denied { ask(DENIED).await.ok().flatten() } else { None };
    Err(refused(schema, &state, source, denied))
}

/// Why the version could not be read.
fn refused(schema: &SchemaName, state: &str, source: BeginError, denied: Option<Columns>) -> VersionError {
    let schema = schema.clone();
    match (SqlState::from_code(state), denied) {
        (SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME, _) => VersionError::Missing(schema),
        (_, Some(row)) => {
            let user = row.text(0).unwrap_or_default().to_owned();
            let remedy = grant(row.text(1), &user);
            VersionError::Denied { schema, user, remedy, source }
        }
        _ => VersionError::Postgres { schema, source },
    }
}

fn texts(row: &Row) -> Columns {
    let text = |column| row.get::<_, Option<&str>>(column).map(|text| text.as_bytes().to_vec());
    Columns((0..row.len()).map(text).collect())
}

/// The remedy for a user without privileges.
fn grant(role_prefix: Option<&str>, user: &str) -> String {
    let Some(prefix) = role_prefix else {
        return "have an administrator run `oncebox migrate`, which creates the roles for it, and grant it one of them".to_owned();
    };
    let (role, user) = (quoted(&format!("{prefix}_relay")), quoted(user));
    format!(
        "have an administrator grant it the role for its purpose, for a relay: GRANT {role} TO {user}; the roles for \
         other purposes are {prefix}_producer, {prefix}_consumer and {prefix}_operator"
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The versions that a database has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// 0 when nothing is installed.
    pub(crate) number: i32,
    /// `None` in the middle of a migration over several versions.
    oldest_program: Option<i32>,
}

impl Version {
    pub(crate) async fn read(
        client: &impl GenericClient,
        schema: &SchemaName,
    ) -> Result<Self, tokio_postgres::Error> {
        // It is not prepared, so that it works with any pooler.
        let rows = client.query_typed(&schema.sql(VERSION), &[]).await?;
        Ok(Self::of(rows.first().map(texts).as_ref()))
    }

    fn of(row: Option<&Columns>) -> Self {
        let number = |column| row.and_then(|row| row.number(column));
        Self { number: number(0).unwrap_or(0), oldest_program: number(1) }
    }

    fn check(self, schema: &SchemaName) -> Result<(), VersionError> {
        if self.number < OLDEST_VERSION {
            Err(VersionError::Behind { schema: schema.clone(), found: self.number })
        } else if self.works_with(LATEST_VERSION) {
            Ok(())
        } else {
            Err(VersionError::Ahead { schema: schema.clone(), found: self.number })
        }
    }

    /// Whether a program that was built for a version may work here, as far as the database knows:
    /// it knows of older ones.
    pub(crate) fn works_with(self, program: i32) -> bool {
        self.number <= program || self.oldest_program.is_some_and(|oldest| oldest <= program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_says_which_older_programs_it_works_with() {
        let version = |number, oldest_program| Version { number, oldest_program };
        assert!(version(14, None).works_with(14) && version(14, None).works_with(15));
        assert!(!version(15, None).works_with(14), "it does not say");
        assert!(version(20, Some(14)).works_with(14));
        assert!(!version(20, Some(15)).works_with(14));
    }
}
