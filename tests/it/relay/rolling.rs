//! A rolling deploy: the database is migrated to the next version beneath running programs, which
//! are replaced one after the other.

use oncebox_schema::{LATEST_VERSION, Lanes, SchemaName, migrate, migrate_beyond};
use oncebox_tests::{Postgres, TestEnv};
use tokio_util::sync::CancellationToken;

use crate::{
    relay::{
        process::Process,
        support::{assert_delivered, await_messages, client, enqueue, stored, values},
    },
    schema::beside::{MIGRATED, NEXT},
};

/// A relay and producers run, the database is migrated beneath them, another relay starts beside
/// the first, the first goes: nothing is lost, nothing is sent out of order. Both relays log in as
/// members of the role that the first migration made. They are one program here, of the version
/// before the database's.
#[tokio::test]
async fn relays_go_on_while_the_database_is_migrated_and_start_on_the_next_version() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    let mut admin = client(&url).await;
    let schema = SchemaName::default();
    migrate(&mut admin, &schema, Lanes::default()).await.unwrap();
    admin.batch_execute("CREATE ROLE old_and_new LOGIN IN ROLE oncebox_postgres_relay").await.unwrap();
    let values = values(&url.replacen("postgres@", "old_and_new@", 1), env.nats_url());

    let first = Process::relay(&values);
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
        let migrated = migrate_beyond(&mut *client(&url).await, &schema, NEXT, None).await;
        assert_eq!(migrated.unwrap(), MIGRATED);
        let more = async || await_messages(&stream, stored(&stream).await.len() + 50).await;
        more().await;
        let second = Process::relay(&values);
        second.await_log("relay is running").await;
        more().await;
        first.signal("TERM").await;
        let (status, log) = first.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
        more().await;
        over.cancel();
        second
    };
    let (expected, second) = tokio::join!(producing, deploying);
    await_messages(&stream, expected.len()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);

    // A migration may also take away a thing that this program needs.
    admin.execute("UPDATE oncebox.migration SET oldest_program = $1", &[&MIGRATED.to]).await.unwrap();
    let (status, log) = Process::relay(&values).ended().await;
    assert_ne!(status.code(), Some(0));
    let refused = format!(
        "is at version {}, which no longer works with this program of version {LATEST_VERSION}: use a newer Oncebox",
        MIGRATED.to
    );
    assert!(log.contains(&refused), "{log}");
    second.signal("TERM").await;
    assert_eq!(second.ended().await.0.code(), Some(0));
}
