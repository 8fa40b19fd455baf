//! The migration to the next version: a database ends as a fresh one, and producers and consumers
//! beside it wait for less than a second.

use std::{process::Command, time::Duration};

use oncebox_schema::{LATEST_VERSION, Migrated, SchemaName, migrate_beyond};
use oncebox_tests::{Log, TestEnv, eventually};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber as _;

use crate::{
    relay::support::{LIMIT, enqueue},
    schema::migrate::normalise,
};

/// The longest wait of any user of the database, in milliseconds.
const WAIT_MAX: f64 = 1_000.0;

/// A migration as the next version may have it: an index of a large table is built beforehand, then
/// several tables are locked at once. The table that a test holds is the last one.
pub(crate) const NEXT: &str = "
-- Beforehand: message_key_next ON message
CREATE UNIQUE INDEX CONCURRENTLY message_key_next ON {schema}.message_0 (key);
-- Then:
LOCK TABLE {schema}.message_0, {schema}.inbox_scope, {schema}.audit IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}.message_0 DROP CONSTRAINT message_0_key_unique;
ALTER TABLE {schema}.message_0 ADD CONSTRAINT message_0_key_unique UNIQUE USING INDEX message_key_next;
ALTER TABLE {schema}.audit ADD COLUMN next text;
CREATE INDEX audit_next ON {schema}.audit (next COLLATE \"C\");
";
pub(crate) const MIGRATED: Migrated = Migrated { from: LATEST_VERSION, to: LATEST_VERSION + 1 };

async fn migrate_to_next(client: &mut Client) -> Migrated {
    migrate_beyond(client, &SchemaName::default(), NEXT, None).await.unwrap()
}

/// The schema's definition, with nothing in it that differs between two databases.
pub(crate) fn dump(env: &TestEnv) -> String {
    let mut pg_dump = Command::new(oncebox_tests::postgres_directory().unwrap().join("pg_dump"));
    pg_dump.args(["--schema-only", "--no-owner", "--schema=oncebox"]).arg(env.database_url());
    let output = pg_dump.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    normalise(&String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn a_database_that_is_migrated_ends_as_a_fresh_one() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    enqueue(&client, "s", "m-", 0..100, 3).await;
    assert_eq!(migrate_to_next(&mut client).await, MIGRATED);
    let migrated = dump(&env);
    let prefix = "SELECT role_prefix FROM oncebox.installation";
    let roles: String = client.query_one(prefix, &[]).await.unwrap().get(0);
    assert_eq!(roles, "oncebox", "roles are still called what they were");

    client.batch_execute("DROP SCHEMA oncebox CASCADE").await.unwrap();
    let roles = roles.parse().unwrap();
    let installed = migrate_beyond(&mut client, &SchemaName::default(), NEXT, Some(&roles)).await.unwrap();
    assert_eq!(installed, Migrated { from: 0, ..MIGRATED });
    let fresh = dump(&env);
    let differs = fresh.lines().zip(migrated.lines()).find(|(fresh, migrated)| fresh != migrated);
    assert!(fresh == migrated, "first: {differs:?}");
}

/// The index that was built beforehand is the one that keeps keys unique afterwards: nothing is
/// built under a lock.
#[tokio::test]
async fn an_index_that_was_built_before_a_crash_is_used_and_a_broken_one_is_built_again() {
    for is_broken in [false, true] {
        let env = TestEnv::new().await;
        let client = env.pg().await;
        enqueue(&client, "s", "m-", 0..100, 3).await;
        client
            .batch_execute("CREATE UNIQUE INDEX message_key_next ON oncebox.message_0 (key)")
            .await
            .unwrap();
        if is_broken {
            // As CREATE INDEX CONCURRENTLY leaves it, when its process dies.
            let broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'oncebox.message_key_next'::regclass";
            client.execute(broken, &[]).await.unwrap();
        }
        let file = async |index: &str| -> i64 {
            let sql = "SELECT pg_relation_filenode(to_regclass($1))::bigint";
            client.query_one(sql, &[&index]).await.unwrap().get(0)
        };
        let table = file("oncebox.message_0").await;
        let before = file("oncebox.message_key_next").await;
        migrate_to_next(&mut env.pg().await).await;
        assert_eq!(file("oncebox.message_0").await, table, "the table is not rewritten");
        assert_eq!(file("oncebox.message_0_key_unique").await == before, !is_broken);
        let again = client.query_one("SELECT oncebox.enqueue('m-1', 's', '1'::bytea)", &[]).await.unwrap();
        assert_eq!(again.get::<_, Option<i64>>(0), None, "the key is known");
    }
}

/// Two at once, and the second meets the index that the first is building.
#[tokio::test]
async fn two_processes_migrate_a_database_at_once() {
    let env = TestEnv::new().await;
    enqueue(&env.pg().await, "s", "m-", 0..20_000, 3).await;
    let (mut one, mut other) = (env.pg().await, env.pg().await);
    let (one, other) = tokio::join!(migrate_to_next(&mut one), migrate_to_next(&mut other));
    assert_eq!((one.to, other.to), (MIGRATED.to, MIGRATED.to));
    // One of them may begin when the other has ended.
    assert_eq!(one.from.min(other.from), MIGRATED.from);
}

/// A session has a table locked, for longer than the migration waits at a time: those who come
/// later do not wait for both.
#[tokio::test]
async fn a_migration_gives_way_says_to_whom_and_tries_again() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let holder = env.pg().await;
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    // The table that is locked last, so that the others are locked meanwhile.
    holder.batch_execute("SET application_name = 'payroll'; BEGIN; SELECT FROM oncebox.audit").await.unwrap();
    let log = Log::default();
    let mut migrating = env.pg().await;
    let schema = SchemaName::default();
    let migration = migrate_beyond(&mut migrating, &schema, NEXT, None).with_subscriber(log.subscriber());
    let over = CancellationToken::new();
    let releasing = async {
        // It gave up twice, so it tried again.
        let said = format!("session {pid} \"payroll\"");
        eventually("it says who blocks", LIMIT, async || (log.count(&said) >= 2).then_some(())).await;
        assert!(log.text().contains("in a transaction for"), "{}", log.text());
        holder.batch_execute("COMMIT").await.unwrap();
    };
    let migrating = async {
        let (migrated, ()) = tokio::join!(migration, releasing);
        over.cancel();
        migrated
    };
    let consuming = client_of_all_tables(&client, &over);
    let (migrated, waited, ()) = tokio::join!(migrating, longest_wait(&env, &over), consuming);
    assert_eq!(migrated.unwrap(), MIGRATED);
    assert!(waited < WAIT_MAX, "somebody waited {waited} ms for a lock");
    assert!(waited > 0.0, "nobody waited: nothing is shown");
}

/// Writes to the tables that consumers use, as fast as it can.
async fn client_of_all_tables(client: &Client, over: &CancellationToken) {
    while !over.is_cancelled() {
        let sql = "INSERT INTO oncebox.inbox_scope (scope) VALUES ('x') ON CONFLICT DO NOTHING";
        client.execute(sql, &[]).await.unwrap();
    }
}

/// The longest time that any session but the migration has waited for a lock on a table of ours, in
/// milliseconds.
async fn longest_wait(env: &TestEnv, over: &CancellationToken) -> f64 {
    let watcher = env.pg().await;
    let sql = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart) * 1000), 0)::float8 FROM pg_locks
               WHERE NOT granted AND locktype = 'relation' AND mode NOT IN ('AccessExclusiveLock', 'ShareUpdateExclusiveLock')
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let mut longest = 0.0_f64;
    while !over.is_cancelled() {
        longest = longest.max(watcher.query_one(sql, &[]).await.unwrap().get(0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    longest
}

/// A hundred thousand rows here; the numbers for ten million are in the commit.
#[tokio::test]
async fn producers_go_on_while_the_log_gets_another_index() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, "s", "m-", 0..100_000, 100).await;
    let over = CancellationToken::new();
    let (mut migrating, producer) = (env.pg().await, env.pg().await);
    let migrating = async {
        let migrated = migrate_to_next(&mut migrating).await;
        over.cancel();
        migrated
    };
    let producing = async {
        let mut n = 0;
        while !over.is_cancelled() {
            enqueue(&producer, "s", "beside-", n..n + 1, 1).await;
            n += 1;
        }
        n
    };
    let (migrated, waited, enqueued) = tokio::join!(migrating, longest_wait(&env, &over), producing);
    println!(
        "{enqueued} messages were enqueued beside the migration, the longest wait for a lock was {waited} ms"
    );
    assert_eq!(migrated, MIGRATED);
    assert!(waited < WAIT_MAX, "somebody waited {waited} ms for a lock");
    let total: i64 = client.query_one("SELECT count(*) FROM oncebox.message", &[]).await.unwrap().get(0);
    assert_eq!(total, 100_000 + i64::from(enqueued));
}
