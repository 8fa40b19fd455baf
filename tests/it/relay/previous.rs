//! A rolling deploy: the program of the version before (`tests/previous-version.txt`) beside this
//! one, on one database.

use oncebox_schema::{LATEST_VERSION, Lanes, Migrated, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, previous_program};
use tokio_util::sync::CancellationToken;

use crate::relay::{
    process::{Process, environment},
    support::{assert_delivered, await_messages, client, enqueue, stored, values},
};

/// The old relay and producers run, the database is migrated beneath them, a new relay starts
/// beside the old one, the old one goes: nothing is lost, nothing is sent out of order. Both relays
/// log in as members of the role that the old version made.
#[tokio::test]
async fn the_version_before_goes_on_while_the_database_is_migrated_and_its_successor_starts() {
    let Some(previous) = previous_program().unwrap() else { return };
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    let installing = Process::start_program(&previous, &["migrate"], [("DATABASE_URL", &*url)]);
    assert_eq!(installing.ended().await.0.code(), Some(0));
    let admin = client(&url).await;
    admin.batch_execute("CREATE ROLE old_and_new LOGIN IN ROLE oncebox_relay").await.unwrap();
    let relay_url = url.replacen("postgres@", "old_and_new@", 1);
    let values = values(&relay_url, env.nats_url());

    let old = Process::start_program(&previous, &["relay"], environment(&values));
    let over = CancellationToken::new();
    let producer = client(&url).await;
    let producing = async {
        let mut keys = Vec::new();
        for n in 0.. {
            if over.is_cancelled() {
                break;
            }
            keys.extend(enqueue(&**producer, &subject, "m-", n..n + 1, 3).await);
        }
        keys
    };
    let deploying = async {
        await_messages(&stream, 50).await;
        let migrated = migrate(&mut *client(&url).await, &SchemaName::default(), Lanes::default()).await;
        let Migrated { from, to } = migrated.unwrap();
        assert!((12..LATEST_VERSION).contains(&from) && to == LATEST_VERSION, "{from} to {to}");
        let more = async || await_messages(&stream, stored(&stream).await.len() + 50).await;
        more().await;
        let new = Process::relay(&values);
        new.await_log("relay is running").await;
        more().await;
        old.signal("TERM").await;
        let (status, log) = old.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
        more().await;
        over.cancel();
        new
    };
    let (expected, new) = tokio::join!(producing, deploying);
    await_messages(&stream, expected.len()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);

    // This one wants the very version that it was built for, and says so. Its successors accept a
    // range.
    let again = Process::start_program(&previous, &["relay"], environment(&values));
    let (status, log) = again.ended().await;
    assert_ne!(status.code(), Some(0));
    assert!(
        log.contains(&format!("is at version {LATEST_VERSION}, this program needs 12: use a newer Oncebox")),
        "{log}"
    );
    new.signal("TERM").await;
    assert_eq!(new.ended().await.0.code(), Some(0));
}
