//! Numbered, forward-only migrations.

mod attempt;
pub(crate) mod step;

use tokio_postgres::{Client, Error, GenericClient, Transaction, error::SqlState, types::Type};

use self::step::{Index, Steps, at_once};
use crate::{
    LATEST_VERSION, RolePrefix, SchemaName,
    migrations::{MIGRATIONS, Migration},
    version::{OLDEST_PROGRAM, Version},
};

const REPAIR: &str = include_str!("../migrations/repair.sql");
const GRANTS: &str = include_str!("../migrations/grants.sql");

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

impl std::fmt::Display for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(16)
    }
}

/// The result of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version found, 0 for a fresh installation.
    pub from: i32,
    /// The version reached; one that was found newer than this program's stays as it is.
    pub to: i32,
}

/// Why a migration did not happen, or not to its end. Finished steps stay; the next run goes on
/// from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer Oncebox migrated this database, and this program cannot work with it.
    #[error(
        "schema \"{schema}\" is at version {found}, this program knows versions up to {LATEST_VERSION}: use a newer Oncebox"
    )]
    Ahead {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// Its version.
        found: i32,
    },
    /// Others held locks for too long; no producer had to wait for this migration longer than half
    /// a second at a time.
    #[error(
        "migrate schema \"{schema}\": a lock was not free for {seconds} s; end what is in the way and run the migration again: {blockers}"
    )]
    Blocked {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// How long it was tried.
        seconds: u64,
        /// Who may have held it: sessions and prepared transactions, with their ages.
        blockers: String,
    },
    /// This user may not install or change the schema.
    #[error(
        "migrate schema \"{schema}\": the user lacks privileges; migrate as the user who installed the schema, which owns \
         it, or, where it is not installed yet, as one to whom the owner of the database has granted CREATE on the database"
    )]
    Denied {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: Error,
    },
    /// PostgreSQL refused or went away.
    #[error("migrate schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: Error,
    },
}

impl MigrateError {
    /// The meaning of a refusal by PostgreSQL for a migration.
    fn of(schema: &SchemaName, source: Error) -> Self {
        let schema = schema.clone();
        match source.code() {
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Self::Denied { schema, source },
            _ => Self::Postgres { schema, source },
        }
    }
}

/// Brings the schema to [`LATEST_VERSION`]; safe when many processes do it at once, and while
/// others use it.
///
/// A fresh installation is one transaction; later each migration is one. None waits for a lock
/// longer than half a second, since producers wait meanwhile; then it tries again, for a minute.
/// Large indexes are built beforehand, beside others.
///
/// `lanes` counts for a fresh installation only. Needs a user that may create a schema in this
/// database; no superuser, no extension. Roles are created when the user may create roles, see
/// `schema/migrations/grants.sql`.
///
/// # Errors
/// The schema is newer than this program can work with, another transaction held a lock for a
/// minute, or PostgreSQL refused.
pub async fn migrate(
    client: &mut Client,
    schema: &SchemaName,
    lanes: Lanes,
) -> Result<Migrated, MigrateError> {
    migrate_with_roles(client, schema, lanes, None).await
}

/// [`migrate`], with role names that begin with `roles`. Without it they begin with the names of
/// the schema and the database in a fresh installation, and keep their prefix in another. Roles of
/// the former prefix keep their rights.
///
/// # Errors
/// As for [`migrate`].
pub async fn migrate_with_roles(
    client: &mut Client,
    schema: &SchemaName,
    lanes: Lanes,
    roles: Option<&RolePrefix>,
) -> Result<Migrated, MigrateError> {
    Plan { schema, lanes, roles, migrations: &MIGRATIONS }.migrate(client).await
}

/// [`migrate_with_roles`] as the next version of Oncebox will do it, with one migration more. Our
/// own tests show with it that a database can be migrated beneath running programs.
///
/// # Errors
/// As for [`migrate`].
#[doc(hidden)]
pub async fn migrate_beyond(
    client: &mut Client,
    schema: &SchemaName,
    next: &str,
    roles: Option<&RolePrefix>,
) -> Result<Migrated, MigrateError> {
    let migrations = [&MIGRATIONS[..], &[(LATEST_VERSION + 1, "next", next)]].concat();
    Plan { schema, lanes: Lanes::default(), roles, migrations: &migrations }.migrate(client).await
}

/// How many lanes the installed outbox has; `None` when no outbox is installed.
///
/// # Errors
/// PostgreSQL refused or went away.
pub async fn installed_lanes(
    client: &impl GenericClient,
    schema: &SchemaName,
) -> Result<Option<Lanes>, MigrateError> {
    let sql = schema.sql("SELECT count(*)::integer FROM {schema}.lane");
    match client.query_typed_one(&sql, &[]).await {
        Ok(row) => Ok(u16::try_from(row.get::<_, i32>(0)).ok().and_then(Lanes::new)),
        Err(error) => match error.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(None),
            _ => Err(MigrateError::of(schema, error)),
        },
    }
}

/// The version of the installed schema; 0 when it is not installed.
///
/// # Errors
/// PostgreSQL refused or went away.
pub async fn installed_version(
    client: &impl GenericClient,
    schema: &SchemaName,
) -> Result<i32, MigrateError> {
    match Version::read(client, schema).await {
        Ok(version) => Ok(version.number),
        Err(error) => match error.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => Ok(0),
            _ => Err(MigrateError::of(schema, error)),
        },
    }
}

/// The installation to migrate.
#[derive(Clone, Copy, Debug)]
struct Plan<'a> {
    schema: &'a SchemaName,
    lanes: Lanes,
    roles: Option<&'a RolePrefix>,
    /// Ascending, and all there are.
    migrations: &'a [Migration<'a>],
}

/// The work of one transaction; each may run again.
#[derive(Clone, Copy, Debug)]
enum Work<'a> {
    /// Everything, in an empty database.
    Install,
    /// Looks whether an index of a migration is there; drops one that a crash left unfinished.
    LookFor { number: i32, index: Index<'a> },
    /// A migration, unless another process was faster.
    Apply { number: i32, name: &'a str, sql: &'a str },
    /// Missing rows, roles, and their rights.
    Finish,
}

/// The state that a transaction found when it began.
#[derive(Clone, Copy, Debug)]
struct Found {
    version: Version,
    /// Nothing needs to be built: see [`Work::LookFor`].
    has_index: bool,
}

impl Plan<'_> {
    async fn migrate(self, client: &mut Client) -> Result<Migrated, MigrateError> {
        let found = self.transact(client, Work::Install).await?.version;
        let (from, to) = (found.number, self.latest());
        if from > to {
            // A program of the version before, that starts while others are being replaced, still
            // works.
            let ahead = MigrateError::Ahead { schema: self.schema.clone(), found: from };
            return if found.works_with(to) { Ok(Migrated { from, to: from }) } else { Err(ahead) };
        }
        if from > 0 {
            for (number, name, file) in self.migrations.iter().filter(|(number, ..)| *number > from) {
                let Steps { indexes, transaction: sql } = Steps::new(file);
                for index in indexes {
                    self.build_index(client, *number, index).await?;
                }
                self.transact(client, Work::Apply { number: *number, name, sql }).await?;
            }
            self.transact(client, Work::Finish).await?;
        }
        Ok(Migrated { from, to })
    }

    fn latest(self) -> i32 {
        self.migrations.last().map_or(0, |(number, ..)| *number)
    }

    async fn run(self, transaction: &Transaction<'_>, work: Work<'_>) -> Result<Found, Error> {
        if matches!(work, Work::Install) {
            let bootstrap = self.schema.sql(include_str!("../migrations/bootstrap.sql"));
            transaction.batch_execute(&bootstrap).await?;
        }
        let version = Version::read(transaction, self.schema).await?;
        let mut found = Found { version, has_index: true };
        match work {
            Work::Install if version.number == 0 => {
                for (number, name, file) in self.migrations {
                    self.apply(transaction, *number, name, &at_once(file)).await?;
                }
                self.finish(transaction, true).await?;
            }
            Work::LookFor { number, index } if version.number < number => {
                found.has_index = self.look_for(transaction, index).await?;
            }
            Work::Apply { number, name, sql } if version.number < number => {
                self.apply(transaction, number, name, sql).await?;
            }
            Work::Finish => self.finish(transaction, false).await?,
            Work::Install | Work::LookFor { .. } | Work::Apply { .. } => {}
        }
        Ok(found)
    }

    /// One migration, and the record of it.
    async fn apply(
        self,
        transaction: &Transaction<'_>,
        number: i32,
        name: &str,
        sql: &str,
    ) -> Result<(), Error> {
        let sql = self.schema.sql(sql).replace("{lanes}", &self.lanes.0.to_string());
        transaction.batch_execute(&sql).await?;
        transaction.batch_execute(&self.schema.sql(&record(number, name))).await
    }

    async fn finish(self, transaction: &Transaction<'_>, is_fresh: bool) -> Result<(), Error> {
        transaction.batch_execute(&self.schema.sql(REPAIR)).await?;
        let given = self.roles.map(RolePrefix::as_str);
        let parameters = [(&given as _, Type::TEXT), (&is_fresh as _, Type::BOOL)];
        let sql = self.schema.sql(include_str!("sql/role_prefix.sql"));
        let row = transaction.query_typed_one(&sql, &parameters).await?;
        let prefix: &str = row.get(0);
        transaction.batch_execute(&self.schema.sql(&GRANTS.replace("{name}", prefix))).await
    }
}

/// The statements that record a migration. Only the newest one of a program says which programs it
/// works with.
pub(crate) fn record(number: i32, name: &str) -> String {
    let mut sql = format!("INSERT INTO {{schema}}.migration (version, name) VALUES ({number}, '{name}');\n");
    if number >= LATEST_VERSION {
        sql += &format!(
            "UPDATE {{schema}}.migration SET oldest_program = {OLDEST_PROGRAM} WHERE version = {number};\n"
        );
        // Where TRUNCATE does not reach: bootstrap.sql reads it when the table is empty.
        sql += &format!(
            "COMMENT ON TABLE {{schema}}.migration IS 'version {number}, oldest program {OLDEST_PROGRAM}';\n"
        );
    }
    sql
}

/// Another transaction's lock was in the way: the migration's turn will come.
fn is_blocked(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::QUERY_CANCELED)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_transaction_builds_an_index_of_a_table_that_was_there_before() {
        for (number, name, file) in &MIGRATIONS {
            let Steps { transaction: sql, .. } = Steps::new(file);
            for statement in sql.split(';').filter(|sql| sql.contains(" INDEX ") && sql.contains("CREATE ")) {
                let Some((_, table)) = statement.split_once(" ON {schema}.") else { continue };
                let table = table.split_whitespace().next().unwrap_or_default();
                assert!(
                    sql.contains(&format!("CREATE TABLE {{schema}}.{table} (")),
                    "migration {number} ({name}) would keep writers of {table} waiting: {statement}"
                );
            }
        }
    }
}
