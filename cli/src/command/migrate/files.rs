//! The steps of a migration as files of the tools that teams run.

use oncebox_schema::script::Step;

/// A tool that runs migrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Plain,
    Flyway,
    Goose,
    Sqlx,
    Diesel,
    GolangMigrate,
    Alembic,
}

/// All steps as one text, for psql.
pub(super) fn script(steps: &[Step]) -> String {
    steps.iter().map(in_transaction).collect()
}

fn in_transaction(step: &Step) -> String {
    match step.in_transaction {
        true => format!("-- Oncebox: {}.\nBEGIN;\n{}COMMIT;\n\n", step.name, step.sql),
        false => format!("-- Oncebox: {}, outside of a transaction.\n{}\n", step.name, step.sql),
    }
}

/// Names and texts of the files, numbered after those that are there (name and text).
pub(super) fn files(
    format: Format,
    steps: &[Step],
    there: &[(String, String)],
) -> Result<Vec<(String, String)>, String> {
    let (mut number, width) = last(there);
    let mut head = if format == Format::Alembic { head(there)? } else { None };
    let mut files = Vec::new();
    for step in steps {
        number += 1;
        let name = format!("{number:0width$}_oncebox_{}", step.name);
        let sql = &step.sql;
        match format {
            Format::Plain => files.push((format!("{name}.sql"), in_transaction(step))),
            Format::Flyway => {
                let name = format!("V{number}__oncebox_{}.sql", step.name);
                if !step.in_transaction {
                    files.push((format!("{name}.conf"), "executeInTransaction=false\n".to_owned()));
                }
                files.push((name, sql.clone()));
            }
            Format::Goose => files.push((format!("{name}.sql"), goose(step))),
            Format::Sqlx => {
                let mark = if step.in_transaction { "" } else { "-- no-transaction\n" };
                files.push((format!("{name}.sql"), format!("{mark}{sql}")));
            }
            Format::Diesel => {
                files.push((format!("{name}/up.sql"), sql.clone()));
                files.push((
                    format!("{name}/down.sql"),
                    "-- Oncebox goes forward only.\nSELECT 1;\n".to_owned(),
                ));
                if !step.in_transaction {
                    files.push((format!("{name}/metadata.toml"), "run_in_transaction = false\n".to_owned()));
                }
            }
            Format::GolangMigrate => files.push((format!("{name}.up.sql"), in_transaction(step))),
            Format::Alembic => {
                let revision = format!("oncebox_{number:04}_{}", step.name);
                files.push((format!("{revision}.py"), alembic(&revision, head.as_deref(), step)));
                head = Some(revision);
            }
        }
    }
    Ok(files)
}

/// The highest number that a file begins with, and how many digits such numbers have.
fn last(there: &[(String, String)]) -> (u64, usize) {
    let digits = there.iter().map(|(name, _)| {
        let name = name.strip_prefix('V').or(name.strip_prefix("oncebox_")).unwrap_or(name);
        &name[..name.bytes().take_while(u8::is_ascii_digit).count()]
    });
    let numbers = digits.filter_map(|digits| Some((digits.parse().ok()?, digits.len())));
    numbers.max().unwrap_or((0, 4))
}

/// goose cuts a file at semicolons, unless it is told where a statement ends.
fn goose(step: &Step) -> String {
    match step.in_transaction {
        true => format!("-- +goose Up\n-- +goose StatementBegin\n{}-- +goose StatementEnd\n", step.sql),
        false => format!("-- +goose NO TRANSACTION\n-- +goose Up\n{}", step.sql),
    }
}

/// The revision that no other one follows.
fn head(there: &[(String, String)]) -> Result<Option<String>, String> {
    let value = |text: &str, name: &str| {
        let line =
            text.lines().find(|line| line.split([':', '=']).next().is_some_and(|key| key.trim() == name))?;
        let value = line.split_once('=')?.1.trim().trim_matches(['"', '\'']);
        Some(value.to_owned())
    };
    let revisions: Vec<String> = there.iter().filter_map(|(_, text)| value(text, "revision")).collect();
    let followed: Vec<String> = there.iter().filter_map(|(_, text)| value(text, "down_revision")).collect();
    let mut heads = revisions.into_iter().filter(|revision| !followed.contains(revision));
    let head = heads.next();
    match heads.next() {
        Some(other) => {
            Err(format!("several heads, {} and {other}: merge them first", head.unwrap_or_default()))
        }
        None => Ok(head),
    }
}

fn alembic(revision: &str, before: Option<&str>, step: &Step) -> String {
    let before = before.map_or("None".to_owned(), |before| format!("\"{before}\""));
    let upgrade = match step.in_transaction {
        true => "    run(SQL)\n",
        false => "    with op.get_context().autocommit_block():\n        run(SQL)\n",
    };
    format!(
        "\"\"\"Oncebox: {}.\"\"\"\n\nfrom alembic import op\n\nrevision = \"{revision}\"\ndown_revision = {before}\n\n\
         SQL = r\"\"\"\n{}\"\"\"\n\n\ndef run(sql: str) -> None:\n    # By the driver, for which a % stands for itself.\n    \
         op.get_bind().connection.cursor().execute(sql)\n\n\ndef upgrade() -> None:\n{upgrade}\n\n\
         def downgrade() -> None:\n    raise NotImplementedError(\"Oncebox goes forward only\")\n",
        step.name, step.sql
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format, there: &[(&str, &str)]) -> Vec<(String, String)> {
        let step = |name: &str, in_transaction| Step {
            name: name.to_owned(),
            sql: format!("{name};\n"),
            in_transaction,
        };
        let there: Vec<_> = there.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        files(format, &[step("index", false), step("sagas", true)], &there).unwrap()
    }

    #[test]
    fn files_are_numbered_behind_those_that_are_there() {
        let names = |format, there: &[(&str, &str)]| -> Vec<String> {
            written(format, there).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(Format::Plain, &[]), ["0001_oncebox_index.sql", "0002_oncebox_sagas.sql"]);
        assert_eq!(
            names(Format::Goose, &[("00007_users.sql", ""), ("00012_orders.sql", ""), ("README", "")]),
            ["00013_oncebox_index.sql", "00014_oncebox_sagas.sql"]
        );
        assert_eq!(
            names(Format::Flyway, &[("V9__orders.sql", "")]),
            ["V10__oncebox_index.sql.conf", "V10__oncebox_index.sql", "V11__oncebox_sagas.sql"]
        );
        assert_eq!(
            names(Format::Diesel, &[("20261101120000_orders", "")])[3..],
            ["20261101120002_oncebox_sagas/up.sql", "20261101120002_oncebox_sagas/down.sql"]
        );
    }

    #[test]
    fn a_revision_of_alembic_follows_the_head() {
        let there = [
            ("a.py", "revision: str = 'a1'\ndown_revision: Union[str, None] = None\n"),
            ("b.py", "revision = \"b2\"\ndown_revision = \"a1\"\n"),
        ];
        let written = written(Format::Alembic, &there);
        assert!(written[0].1.contains("down_revision = \"b2\"\n"), "{}", written[0].1);
        assert!(written[1].1.contains("down_revision = \"oncebox_0001_index\"\n"), "{}", written[1].1);
        let two: Vec<_> = ["x", "y"].map(|n| (n.to_owned(), format!("revision = '{n}'\n"))).into();
        assert!(head(&two).is_err());
    }
}
