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
    match Version::read(client, schema).await {
        Ok(found) => found.check(schema),
        Err(error) => Err(unread(client, schema, error).await),
    }
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
    let ask = async |sql: &str| {
        let answer = driver.alone(within, &schema.sql(sql), &[], is_pooled).await;
        answer.map_err(|source| (D::cause(&*source), source))
    };
    let found = match ask(include_str!("sql/version.sql")).await {
        Ok(row) => Version::of(row.as_ref()),
        Err((cause, source)) => {
            let schema = schema.clone();
            let state = cause.as_ref().map_or("", Cause::state).to_owned();
            if state == SqlState::INSUFFICIENT_PRIVILEGE.code()
                && let Ok(Some(row)) = ask(include_str!("sql/denied.sql")).await
            {
                let user = row.text(0).unwrap_or_default().to_owned();
                let remedy = grant(row.text(1), &user);
                return Err(VersionError::Denied { schema, user, remedy, source });
            }
            let missing = [SqlState::UNDEFINED_TABLE.code(), SqlState::INVALID_SCHEMA_NAME.code()];
            return Err(match missing.contains(&&*state) {
                true => VersionError::Missing(schema),
                false => VersionError::Postgres { schema, source },
            });
        }
    };
    found.check(schema)
}

/// Why the version could not be read.
async fn unread(
    client: &impl GenericClient,
    schema: &SchemaName,
    source: tokio_postgres::Error,
) -> VersionError {
    let schema = schema.clone();
    match source.code() {
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => VersionError::Missing(schema),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            // In a transaction, which has failed now, nothing more can be asked.
            let asked = client.query_typed_one(&schema.sql(include_str!("sql/denied.sql")), &[]).await;
            match asked {
                Ok(row) => {
                    let user: String = row.get("user_name");
                    let remedy = grant(row.get("role_prefix"), &user);
                    VersionError::Denied { schema, user, remedy, source: source.into() }
                }
                Err(_) => VersionError::Postgres { schema, source: source.into() },
            }
        }
        _ => VersionError::Postgres { schema, source: source.into() },
    }
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
        let rows = client.query_typed(&schema.sql(include_str!("sql/version.sql")), &[]).await?;
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
        let read =
            |row: &Row| Self { number: number(row.get(0)).unwrap_or(0), oldest_program: number(row.get(1)) };
        Ok(rows.first().map_or(Self { number: 0, oldest_program: None }, read))
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
