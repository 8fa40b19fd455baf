//! The migrations as SQL for other tools end in the same schema as `oncebox migrate`.

use std::process::Command;

use oncebox_schema::{
    LATEST_VERSION, Lanes, SchemaName, check_version, migrate_beyond,
    script::{Step, steps, steps_beyond},
};
use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::{
    relay::process::{run, run_ok},
    schema::beside::{NEXT, dump},
};

/// The dump of an environment that `oncebox migrate` has installed, which is empty afterwards.
async fn expected(env: &TestEnv) -> (String, Client) {
    let client = env.pg().await;
    let expected = dump(env);
    client.batch_execute("DROP SCHEMA oncebox CASCADE").await.unwrap();
    (expected, client)
}

fn psql(env: &TestEnv, script: &str) -> (bool, String) {
    let mut psql = Command::new(oncebox_tests::postgres_directory().unwrap().join("psql"));
    // From a file: psql ends in the middle of one that is refused.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, script.as_bytes()).unwrap();
    psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"]).arg(file.path());
    let output = psql.arg(env.database_url()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// `oncebox migrate --sql` asks no database; run by psql it installs the schema, and not twice.
#[tokio::test]
async fn psql_installs_what_migrate_installs() {
    let env = TestEnv::new().await;
    let (expected, client) = expected(&env).await;
    let script = run_ok("", &["migrate", "--sql", "--role-prefix", "oncebox"]).await;
    let (ok, log) = psql(&env, &script);
    assert!(ok, "{log}");
    assert_eq!(dump(&env), expected);
    check_version(&client, &SchemaName::default()).await.unwrap();
    let sql = "SELECT (SELECT count(*) FROM oncebox.lane), (SELECT count(*) FROM oncebox.cursor), \
               has_function_privilege('oncebox_producer', 'oncebox.enqueue_json(text, text, jsonb, jsonb, text)', 'EXECUTE')";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, bool>(2)), (16, 16, true));
    let (ok, log) = psql(&env, &script);
    assert!(!ok && log.contains("this step follows version 0"), "{log}");
    // `oncebox migrate` finds nothing to do afterwards.
    let (code, _, log) = run(env.database_url(), &["migrate"]).await;
    assert!(code == 0 && log.contains(&format!("from={LATEST_VERSION}")), "{log}");
    assert_eq!(dump(&env), expected);
}

/// From each version, as a team that took the files of an earlier release.
#[tokio::test]
async fn the_steps_of_an_upgrade_end_in_the_same_schema() {
    let env = TestEnv::new().await;
    let (expected, mut client) = expected(&env).await;
    let (schema, roles) = (SchemaName::default(), "oncebox".parse().unwrap());
    let fresh = steps(&schema, Lanes::default(), Some(&roles), 0);
    for from in 1..=LATEST_VERSION {
        client.batch_execute("DROP SCHEMA IF EXISTS oncebox CASCADE").await.unwrap();
        let installed = &fresh[..usize::try_from(from).unwrap()];
        for step in installed.iter().chain(&steps(&schema, Lanes::default(), Some(&roles), from)) {
            apply(&mut client, step).await;
        }
        assert_eq!(dump(&env), expected, "from version {from}");
    }
}

/// The next version builds an index of a large table beside producers: outside of a transaction,
/// each statement by itself, and again after a crash that left half of it.
#[tokio::test]
async fn an_upgrade_builds_indexes_outside_of_its_transaction() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let (schema, roles) = (SchemaName::default(), "oncebox".parse().unwrap());
    let steps = steps_beyond(&schema, NEXT, Some(&roles), LATEST_VERSION);
    let alone: Vec<&str> = steps.iter().filter(|s| !s.in_transaction).map(|s| &*s.name).collect();
    assert_eq!(alone, ["next_without_message_key_next", "next_with_message_key_next"]);
    client.batch_execute("CREATE INDEX message_key_next ON oncebox.message_0 (subject)").await.unwrap();
    for step in &steps {
        apply(&mut client, step).await;
    }
    let migrated = dump(&env);
    client.batch_execute("DROP SCHEMA oncebox CASCADE").await.unwrap();
    migrate_beyond(&mut client, &schema, NEXT, Some(&roles)).await.unwrap();
    assert_eq!(migrated, dump(&env));
}

async fn apply(client: &mut Client, step: &Step) {
    let refused = |error| panic!("{}: {error:?}", step.name);
    if !step.in_transaction {
        return client.batch_execute(&step.sql).await.unwrap_or_else(refused);
    }
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&step.sql).await.unwrap_or_else(refused);
    transaction.commit().await.unwrap();
}

/// sqlx runs the files from a folder that has a migration of the service's own, and later those of
/// an upgrade, which follow.
#[tokio::test]
async fn sqlx_installs_and_upgrades_from_extracted_files() {
    let env = TestEnv::new().await;
    let (expected, client) = expected(&env).await;
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    std::fs::write(folder.join("0007_own.sql"), "CREATE TABLE own (id int);").unwrap();
    let extract = async |from: &str| {
        let path = folder.to_str().unwrap();
        let arguments =
            ["migrate", "--extract", path, "--format", "sqlx", "--role-prefix", "oncebox", "--from", from];
        let written = run_ok("", &arguments).await;
        let pool = sqlx::PgPool::connect(env.database_url()).await.unwrap();
        sqlx::migrate::Migrator::new(folder).await.unwrap().run(&pool).await.unwrap();
        written.lines().count()
    };
    assert_eq!(extract("0").await, usize::try_from(LATEST_VERSION).unwrap() + 1);
    assert_eq!(dump(&env), expected);
    client
        .batch_execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA oncebox FROM oncebox_producer")
        .await
        .unwrap();
    assert_ne!(dump(&env), expected);
    assert_eq!(extract(&LATEST_VERSION.to_string()).await, 1);
    let sorted = |dump: &str| {
        let mut lines: Vec<String> = dump.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&dump(&env)), sorted(&expected));
}

/// For a pipeline: `--check` is the exit code, `--dry-run` the list, and neither changes anything.
#[tokio::test]
async fn check_and_dry_run_look_and_change_nothing() {
    let env = TestEnv::new().await;
    let url = env.database_url();
    let (code, text, _) = run(url, &["migrate", "--check"]).await;
    assert_eq!((code, &*text), (0, "this program works with schema oncebox as it is\n"));
    let text = run_ok(url, &["migrate", "--dry-run"]).await;
    assert_eq!(
        text,
        format!("schema oncebox: version {LATEST_VERSION} of {LATEST_VERSION}\n  rights, in a transaction\n")
    );
    env.pg().await.batch_execute("DROP SCHEMA oncebox CASCADE").await.unwrap();
    let (code, _, log) = run(url, &["migrate", "--check"]).await;
    assert!(code == 1 && log.contains("run `oncebox migrate`"), "{code}: {log}");
    let text = run_ok(url, &["migrate", "--dry-run"]).await;
    assert!(
        text.starts_with("schema oncebox: version 0 of ") && text.contains("\n  outbox, in a transaction\n"),
        "{text}"
    );
    let (code, _, _) = run(url, &["migrate", "--check"]).await;
    assert_eq!(code, 1, "a dry run installs nothing");
}
