//! The migrations as SQL for other tools: those that run a team's own migrations, or a person.
//!
//! A step is a file that a tool runs once, and each step refuses to run twice or out of its order.
//! The last step makes missing rows, the roles and their rights, and so follows each upgrade.

use crate::{
    LATEST_VERSION, Lanes, RolePrefix, SchemaName,
    migrate::{
        record,
        step::{Steps, at_once},
    },
    migrations::{MIGRATIONS, Migration},
};

/// A piece of a migration, as a tool runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name, of small letters, digits and `_`.
    pub name: String,
    /// Its statements.
    pub sql: String,
    /// Whether it runs in a transaction; an index that is built beside producers cannot.
    pub in_transaction: bool,
}

/// The steps that bring a schema from a version to [`LATEST_VERSION`]; 0 is a new installation, for
/// which alone `lanes` counts. Without `roles` the names of roles begin as [`migrate`] chooses.
///
/// A version that is not below [`LATEST_VERSION`] has the last step alone.
///
/// [`migrate`]: crate::migrate()
#[must_use]
pub fn steps(schema: &SchemaName, lanes: Lanes, roles: Option<&RolePrefix>, from: i32) -> Vec<Step> {
    steps_of(&MIGRATIONS, schema, lanes, roles, from)
}

/// [`steps`] as the next version of Oncebox will have them, with one migration more; for our tests.
#[doc(hidden)]
#[must_use]
pub fn steps_beyond(schema: &SchemaName, next: &str, roles: Option<&RolePrefix>, from: i32) -> Vec<Step> {
    let migrations = [&MIGRATIONS[..], &[(LATEST_VERSION + 1, "next", next)]].concat();
    steps_of(&migrations, schema, Lanes::default(), roles, from)
}

fn steps_of(
    migrations: &[Migration<'_>],
    schema: &SchemaName,
    lanes: Lanes,
    roles: Option<&RolePrefix>,
    from: i32,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut before = from;
    for (number, name, file) in migrations.iter().filter(|(number, ..)| *number > from) {
        let taken = Steps::new(file);
        for index in taken.indexes.iter().filter(|_| from > 0) {
            // A crash leaves a half built index, which is in the way of the next attempt.
            let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {{schema}}.{};\n", index.name);
            steps.push(alone(schema, format!("{name}_without_{}", index.name), &drop));
            steps.push(alone(schema, format!("{name}_with_{}", index.name), index.sql));
        }
        let bootstrap = if from == 0 && steps.is_empty() { BOOTSTRAP } else { "" };
        let body = if from == 0 { at_once(file) } else { taken.transaction.to_owned() };
        let body = body.replace("{lanes}", &lanes.to_string());
        let sql = [LOCKS, bootstrap, &follows(before), &body, &record(*number, name)].join("\n");
        steps.push(Step { name: (*name).to_owned(), sql: schema.sql(&sql), in_transaction: true });
        before = *number;
    }
    steps.push(Step {
        name: "rights".to_owned(),
        sql: rights(schema, roles, from == 0, before),
        in_transaction: true,
    });
    steps
}

/// A statement by itself: several that a tool sends together are a transaction to PostgreSQL.
fn alone(schema: &SchemaName, name: String, sql: &str) -> Step {
    Step { name, sql: schema.sql(sql.trim_start()), in_transaction: false }
}

/// Producers wait for a migration that waits for a lock: it gives up instead, and the tool runs it
/// again.
const LOCKS: &str = "SET LOCAL lock_timeout = '500ms';\n";
const BOOTSTRAP: &str = include_str!("../migrations/bootstrap.sql");

/// Refuses another version than the one that the step is for.
fn follows(version: i32) -> String {
    format!(
        "DO $$\nBEGIN\n  IF (SELECT coalesce(max(m.version), 0) FROM {{schema}}.migration AS m) <> {version} THEN\n    \
         RAISE EXCEPTION 'this step follows version {version} of schema {{schema}}, which has another'\n      \
         USING HINT = 'See `oncebox migrate --dry-run`.';\n  END IF;\nEND $$;\n"
    )
}

/// The names of roles are known to the database alone, so their grants are put together there.
fn rights(schema: &SchemaName, roles: Option<&RolePrefix>, is_fresh: bool, version: i32) -> String {
    let given = roles.map_or("NULL::text".to_owned(), |prefix| format!("'{}'", prefix.as_str()));
    let prefix: Vec<&str> =
        include_str!("sql/role_prefix.sql").lines().filter(|line| !line.starts_with("--")).collect();
    let prefix = prefix.join("\n").replace("$1", &given).replace("$2", &is_fresh.to_string());
    let grants = include_str!("../migrations/grants.sql").replace("{name}", "@prefix@");
    schema.sql(&format!(
        "{LOCKS}\n{}\n{}\nDO $oncebox$\nDECLARE\n  role_names text;\nBEGIN\n{prefix} INTO role_names;\n  \
         EXECUTE replace($grants$\n{grants}$grants$, '@prefix@', role_names);\nEND $oncebox$;\n",
        follows(version),
        include_str!("../migrations/repair.sql"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(from: i32) -> Vec<String> {
        let steps = steps(&SchemaName::default(), Lanes::default(), None, from);
        assert!(steps.iter().all(|step| !step.sql.contains("{schema}") && !step.sql.contains("{lanes}")));
        // The JDBC driver sees no statement after such a body: see findings/pgjdbc-sends-two-*.sh.
        assert!(steps.iter().all(|step| !step.sql.contains("BEGIN ATOMIC")));
        steps.into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn each_version_has_the_steps_behind_it_and_the_rights() {
        assert_eq!(names(0).len(), MIGRATIONS.len() + 1);
        let mut last = Vec::new();
        for (_, name, file) in &MIGRATIONS[MIGRATIONS.len() - 2..] {
            for index in Steps::new(file).indexes {
                last.extend(["without", "with"].map(|word| format!("{name}_{word}_{}", index.name)));
            }
            last.push((*name).to_owned());
        }
        last.push("rights".to_owned());
        assert_eq!(names(LATEST_VERSION - 2), last);
        assert_eq!(names(LATEST_VERSION), ["rights"]);
    }
}
