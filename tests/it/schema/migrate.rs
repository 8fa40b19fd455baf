//! Migrations: many at once, in any schema, by any user; versions; the committed dump.

use std::{fs, path::Path, process::Command, time::Duration};

use oncebox_schema::{
    LATEST_VERSION, Lanes, MigrateError, Migrated, RolePrefix, SchemaName, VersionError, check_version,
    migrate, migrate_with_roles,
};
use oncebox_tests::{TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, error::SqlState};

use crate::{operator::doctor::run_with, relay::process::run};

const LIMIT: Duration = Duration::from_secs(30);
const FRESH: Migrated = Migrated { from: 0, to: LATEST_VERSION };
const DONE: Migrated = Migrated { from: LATEST_VERSION, to: LATEST_VERSION };

#[tokio::test]
async fn twenty_migrations_at_once_install_it_once() {
    let env = TestEnv::new().await;
    // The default name once more, and another schema beside it.
    env.pg().await.batch_execute(&env.schema.sql("DROP SCHEMA {schema} CASCADE")).await.unwrap();
    for schema in [env.schema.clone(), other_schema(&env)] {
        for expected in [(1, 19), (0, 20)] {
            let results = migrate_at_once(&vec![env.database_url().to_owned(); 20], &schema, None).await;
            let count = |wanted| results.iter().filter(|result| **result == wanted).count();
            assert_eq!((count(FRESH), count(DONE)), expected, "{schema}: {results:?}");
        }
        let client = env.pg().await;
        check_version(&client, &schema).await.unwrap();
        let lanes = schema.sql("SELECT count(*) FROM {schema}.lane");
        assert_eq!(client.query_one(&lanes, &[]).await.unwrap().get::<_, i64>(0), 16);
    }
}

#[tokio::test]
async fn databases_of_one_cluster_migrate_at_once_although_they_share_roles() {
    let env = TestEnv::new().await;
    let databases: Vec<TestEnv> = futures_util::future::join_all((0..6).map(|_| TestEnv::new())).await;
    // A name that no role of the cluster has yet.
    let schema = other_schema(&env);
    let urls: Vec<_> = databases.iter().map(|database| database.database_url().to_owned()).collect();
    let results = migrate_at_once(&urls, &schema, Some(&schema.as_str().parse().unwrap())).await;
    assert_eq!(results, vec![FRESH; databases.len()]);
    for database in &databases {
        let client = database.pg().await;
        check_version(&client, &schema).await.unwrap();
        for role in ["producer", "relay", "consumer", "operator"] {
            let sql = "SELECT has_schema_privilege($1, $2, 'USAGE')";
            let role = format!("{schema}_{role}");
            let granted: bool = client.query_one(sql, &[&role, &schema.as_str()]).await.unwrap().get(0);
            assert!(granted, "{role} in {}", database.name());
        }
    }
}

#[tokio::test]
async fn a_role_that_another_database_is_just_creating_is_waited_for() {
    for commits in [true, false] {
        let (env, other) = (TestEnv::new().await, TestEnv::new().await);
        let schema = other_schema(&env);
        let (mut client, mut elsewhere, watcher) = (env.pg().await, other.pg().await, env.pg().await);
        let creating = elsewhere.transaction().await.unwrap();
        creating.batch_execute(&format!("CREATE ROLE {schema}_producer NOLOGIN")).await.unwrap();
        let deciding = async {
            let sql = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            eventually("the migration waits", LIMIT, async || watcher.query_opt(sql, &[]).await.unwrap())
                .await;
            if commits { creating.commit().await } else { creating.rollback().await }
        };
        let roles = schema.as_str().parse().unwrap();
        let migrating = migrate_with_roles(&mut client, &schema, Lanes::default(), Some(&roles));
        let (migrated, decided) = tokio::join!(migrating, deciding);
        decided.unwrap();
        assert_eq!(migrated.unwrap(), FRESH, "the other one commits: {commits}");
        let sql = "SELECT has_schema_privilege($1, $2, 'USAGE')";
        let role = format!("{schema}_producer");
        assert!(client.query_one(sql, &[&role, &schema.as_str()]).await.unwrap().get::<_, bool>(0));
    }
}

#[tokio::test]
async fn every_program_is_told_when_the_database_is_missing_behind_or_ahead() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let missing = other_schema(&env);
    let error = check_version(&client, &missing).await.unwrap_err();
    assert!(matches!(&error, VersionError::Missing(schema) if *schema == missing), "{error:?}");
    assert!(error.to_string().contains("run `oncebox migrate`"), "{error}");

    let schema = env.schema.clone();
    check_version(&client, &schema).await.unwrap();
    let behind = schema
        .sql("DELETE FROM {schema}.migration WHERE version = (SELECT max(version) FROM {schema}.migration)");
    let transaction = client.transaction().await.unwrap();
    transaction.execute(&behind, &[]).await.unwrap();
    let error = check_version(&transaction, &schema).await.unwrap_err();
    assert!(matches!(error, VersionError::Behind { found, .. } if found < LATEST_VERSION), "{error:?}");
    assert!(error.to_string().contains("run `oncebox migrate`"), "{error}");
    transaction.rollback().await.unwrap();

    let ahead = schema.sql("INSERT INTO {schema}.migration (version, name) VALUES (1000, 'future')");
    let works_with = schema.sql("UPDATE {schema}.migration SET oldest_program = $1 WHERE version = 1000");
    client.execute(&ahead, &[]).await.unwrap();
    let error = check_version(&client, &schema).await.unwrap_err();
    assert!(matches!(error, VersionError::Ahead { found: 1000, .. }), "{error:?}");
    assert!(error.to_string().contains("use a newer Oncebox"), "{error}");
    let error = migrate(&mut client, &schema, Lanes::default()).await.unwrap_err();
    assert!(matches!(error, MigrateError::Ahead { found: 1000, .. }), "{error:?}");

    // A newer one that still works with programs of this version, which may start beneath it, also
    // those that migrate.
    client.execute(&works_with, &[&LATEST_VERSION]).await.unwrap();
    check_version(&client, &schema).await.unwrap();
    let migrated = migrate(&mut client, &schema, Lanes::default()).await.unwrap();
    assert_eq!(migrated, Migrated { from: 1000, to: 1000 });
    client.execute(&works_with, &[&(LATEST_VERSION + 1)]).await.unwrap();
    let error = check_version(&client, &schema).await.unwrap_err();
    assert!(matches!(error, VersionError::Ahead { found: 1000, .. }), "{error:?}");
}

#[tokio::test]
async fn lanes_are_fixed_when_it_is_installed() {
    let env = TestEnv::new().await;
    let (mut client, schema) = (env.pg().await, other_schema(&env));
    migrate(&mut client, &schema, Lanes::new(3).unwrap()).await.unwrap();
    migrate(&mut client, &schema, Lanes::new(5).unwrap()).await.unwrap();
    let sql = schema.sql(
        "SELECT count(*), (SELECT count(DISTINCT {schema}.lane_of(n::text)) FROM generate_series(1, 100) AS n) FROM {schema}.lane",
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 3));

    let url = env.database_url();
    for (lanes, expected) in [(&["--lanes", "4"][..], 1), (&["--lanes", "3"], 0), (&[], 0)] {
        let arguments = [&["migrate", "--schema", schema.as_str()], lanes].concat();
        let (code, _, log) = run(url, &arguments).await;
        assert_eq!(code, expected, "{lanes:?}: {log}");
        assert_eq!(log.contains("has 3 lanes, not 4"), expected == 1, "{log}");
    }
}

/// The program passes PostgreSQL's warnings on, and the doctor finds the roles that are still
/// missing.
#[tokio::test]
async fn roles_that_could_not_be_created_are_told_by_migrate_and_by_the_doctor() {
    let env = TestEnv::new().await;
    let (schema, owner) = (other_schema(&env), format!("{}_owner", env.name()));
    let create = format!(
        "CREATE ROLE {owner} LOGIN PASSWORD 'o' NOCREATEROLE; GRANT CREATE ON DATABASE {} TO {owner}",
        env.name()
    );
    let admin = env.pg().await;
    admin.batch_execute(&create).await.unwrap();
    let authority = env.database_url().split_once("://").unwrap().1;
    let url =
        format!("postgres://{owner}:o@{}", authority.split_once('@').map_or(authority, |(_, host)| host));
    let in_schema = ["--schema", schema.as_str()];
    let (code, _, log) = run(&url, &[&["migrate"], &in_schema[..]].concat()).await;
    assert_eq!(code, 0, "{log}");
    let prefix = schema.sql("SELECT role_prefix FROM {schema}.installation");
    let relay = format!("{}_relay", admin.query_one(&prefix, &[]).await.unwrap().get::<_, String>(0));
    assert_eq!(log.matches("may not create it").count(), 4, "{log}");
    assert!(log.contains("WARN") && log.contains(&relay) && log.contains("administrator"), "{log}");

    let doctor = async || {
        let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
        run_with(&[&["doctor"], &in_schema[..]].concat(), &environment).await.1
    };
    let told = doctor().await;
    assert!(told.contains("[roles]") && told.contains(&format!("CREATE ROLE \"{relay}\"")), "{told}");
    let (code, _, log) = run(env.database_url(), &[&["migrate"], &in_schema[..]].concat()).await;
    assert!(code == 0 && !log.contains("WARN"), "{log}");
    let told = doctor().await;
    assert!(!told.contains("[roles]"), "{told}");
}

#[tokio::test]
async fn a_plain_owner_of_the_database_can_migrate_and_is_warned_about_roles() {
    let env = TestEnv::new().await;
    let admin = env.pg().await;
    let (schema, owner) = (other_schema(&env), format!("{}_owner", env.name()));
    admin
        .batch_execute(&format!(
            "CREATE ROLE {owner} LOGIN NOCREATEROLE NOSUPERUSER; GRANT CREATE ON DATABASE {} TO {owner}",
            env.name()
        ))
        .await
        .unwrap();
    let (mut client, mut notices) = connect_as(&env, &owner).await;
    let roles = schema.as_str().parse().unwrap();
    let migrated = migrate_with_roles(&mut client, &schema, Lanes::default(), Some(&roles)).await;
    assert_eq!(migrated.unwrap(), FRESH);
    let mut warnings = 0;
    while let Ok(notice) = notices.try_recv() {
        warnings += usize::from(notice.contains("may not create it"));
    }
    assert_eq!(warnings, 4, "one for each role");
    let enqueue = schema.sql("SELECT {schema}.enqueue_json('k', 's', '{}')");
    let id: Option<i64> = client.query_one(&enqueue, &[]).await.unwrap().get(0);
    assert_eq!(id, Some(1), "the schema works for its owner");

    // An administrator creates the roles; the owner migrates again, without warnings; the roles
    // work.
    for role in ["producer", "relay", "consumer", "operator"] {
        admin.batch_execute(&format!("CREATE ROLE {schema}_{role} NOLOGIN")).await.unwrap();
    }
    assert_eq!(migrate(&mut client, &schema, Lanes::default()).await.unwrap(), DONE);
    assert!(notices.try_recv().is_err(), "nothing to say the second time");
    admin.batch_execute(&format!("SET ROLE {schema}_producer")).await.unwrap();
    let second = schema.sql("SELECT {schema}.enqueue_json('k2', 's', '{}')");
    assert_eq!(admin.query_one(&second, &[]).await.unwrap().get::<_, Option<i64>>(0), Some(2));

    // Clean up: roles outlive the test's database.
    admin.batch_execute("RESET ROLE").await.unwrap();
    admin.batch_execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_an_administrator_created_is_enough() {
    let env = TestEnv::new().await;
    let admin = env.pg().await;
    let (schema, owner) = (other_schema(&env), format!("{}_owner", env.name()));
    let create = format!("CREATE ROLE {owner} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {owner}");
    admin.batch_execute(&create).await.unwrap();
    let (mut client, _notices) = connect_as(&env, &owner).await;
    assert_eq!(migrate(&mut client, &schema, Lanes::default()).await.unwrap(), FRESH);
    assert_eq!(migrate(&mut client, &schema, Lanes::default()).await.unwrap(), DONE);
    admin.batch_execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}")).await.unwrap();
}

#[tokio::test]
async fn a_user_without_any_right_changes_nothing() {
    let env = TestEnv::new().await;
    let (schema, nobody) = (other_schema(&env), format!("{}_nobody", env.name()));
    let admin = env.pg().await;
    admin.batch_execute(&format!("CREATE ROLE {nobody} LOGIN")).await.unwrap();
    let (mut client, _notices) = connect_as(&env, &nobody).await;
    let error = migrate(&mut client, &schema, Lanes::default()).await.unwrap_err();
    let MigrateError::Denied { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    assert!(error.to_string().contains(schema.as_str()), "{error}");
    let error = check_version(&client, &env.schema).await.unwrap_err();
    assert!(
        matches!(&error, VersionError::Denied { user, .. } if *user == nobody),
        "no right is not the same as not installed: {error:?}"
    );
    assert!(error.to_string().contains(&format!("_relay\" TO \"{nobody}\"")), "{error}");
    let transaction = client.transaction().await.unwrap();
    let error = check_version(&transaction, &env.schema).await.unwrap_err();
    assert!(matches!(&error, VersionError::Postgres { .. }), "nothing more can be asked: {error:?}");
    transaction.rollback().await.unwrap();
    admin.batch_execute(&format!("DROP ROLE {nobody}")).await.unwrap();
}

/// An index in a collation of the operating system's may miss rows after an upgrade of it, and a
/// key would count as new.
#[tokio::test]
async fn no_index_depends_on_a_collation_of_the_operating_system() {
    let env = TestEnv::new().await;
    let sql = "SELECT concat_ws(' ', i.indexrelid::regclass, a.attname)
               FROM pg_index AS i
               JOIN pg_class AS c ON c.oid = i.indexrelid
               CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (attnum, indcollation)
               JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               WHERE c.relnamespace = 'oncebox'::regnamespace
                 AND k.indcollation NOT IN (0, 'pg_catalog.\"C\"'::regcollation)";
    let rows = env.pg().await.query(sql, &[]).await.unwrap();
    let columns: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(columns, [""; 0]);
    let total = "SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
                 WHERE c.relnamespace = 'oncebox'::regnamespace AND 0 <> ANY (i.indcollation::oid[])";
    assert!(
        env.pg().await.query_one(total, &[]).await.unwrap().get::<_, i64>(0) > 5,
        "there are such indexes"
    );
}

/// The dump is committed so that a review sees the effect of a migration. `make schema` writes it.
#[tokio::test]
async fn committed_dump_is_current() {
    let env = TestEnv::new().await;
    let version: i32 = env
        .pg()
        .await
        .query_one("SELECT current_setting('server_version_num')::int / 10000", &[])
        .await
        .unwrap()
        .get(0);
    if version != 18 {
        // pg_dump of another version words some things differently.
        return;
    }
    let mut pg_dump = Command::new(oncebox_tests::postgres_directory().unwrap().join("pg_dump"));
    pg_dump.args(["--schema-only", "--no-owner", "--schema=oncebox"]).arg(env.database_url());
    let output = pg_dump.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let current = normalise(&String::from_utf8(output.stdout).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/schema.sql");
    if std::env::var_os("ONCEBOX_TEST_WRITE_SCHEMA").is_some() {
        fs::write(&path, &current).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(current.lines()).find(|(old, new)| old != new);
    assert!(
        committed == current,
        "schema/schema.sql is not what the migrations make: run `make schema` and review the diff; first: {differs:?}"
    );
}

/// Only the effects of the migrations: no settings, no versions, no empty lines in a row.
pub(crate) fn normalise(dump: &str) -> String {
    let mut text = String::from(
        "-- What the migrations make, by pg_dump 18. Written by `make schema`, compared by the tests.\n",
    );
    let kept = dump.lines().filter(|line| {
        !["--", "SET ", "SELECT pg_catalog.set_config", "\\"].iter().any(|prefix| line.starts_with(prefix))
    });
    for line in kept {
        if !(line.is_empty() && text.ends_with("\n\n")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// A schema name that no other test in the cluster uses.
fn other_schema(env: &TestEnv) -> SchemaName {
    env.name().parse().unwrap()
}

async fn migrate_at_once(urls: &[String], schema: &SchemaName, roles: Option<&RolePrefix>) -> Vec<Migrated> {
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(urls.len()));
    let mut migrations = JoinSet::new();
    for url in urls {
        let (url, schema, roles, barrier) = (url.clone(), schema.clone(), roles.cloned(), barrier.clone());
        migrations.spawn(async move {
            let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            let migrating = async move {
                barrier.wait().await;
                migrate_with_roles(&mut client, &schema, Lanes::default(), roles.as_ref()).await.unwrap()
            };
            tokio::join!(migrating, connection).0
        });
    }
    migrations.join_all().await
}

/// A connection as another user, and the server's notices.
async fn connect_as(env: &TestEnv, user: &str) -> (Client, tokio::sync::mpsc::Receiver<String>) {
    let mut config: Config = env.database_url().parse().unwrap();
    config.user(user);
    let (client, mut connection) = config.connect(NoTls).await.unwrap();
    let (sender, notices) = tokio::sync::mpsc::channel(100);
    env.keep(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notice(notice) = message {
                let _ = sender.send(notice.to_string()).await;
            }
        }
    });
    (client, notices)
}
