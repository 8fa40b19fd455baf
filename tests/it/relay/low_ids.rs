//! Ids of new messages that stand below the cursors, as after a restore without sequences or a
//! restart of the sequence: nothing is lost, and nothing is deleted that was never sent.

use oncebox_tests::{Log, TestEnv};
use tokio_postgres::Client;

use crate::relay::{
    process::run,
    support::{a_month, age, assert_delivered, client, connect, drain, enqueue, stored, values, values_of},
};

async fn relay(env: &TestEnv) -> usize {
    drain(&mut connect(&values_of(env)).await.worker()).await
}

/// A round of maintenance, as the relay's own role.
async fn maintain(env: &TestEnv) -> u64 {
    let mut maintainer = connect(&values_of(env)).await.maintainer();
    let mut pruned = 0;
    for _ in 0..100 {
        let done = maintainer.run_once().await.unwrap();
        pruned += done.pruned;
        if !done.more {
            return pruned;
        }
    }
    panic!("maintenance has no end");
}

/// Two hundred messages, settled, in lanes that were reset, then deleted: floors stand where the
/// last ids were.
async fn restored(env: &TestEnv, client: &Client) -> Vec<String> {
    let settled = enqueue(client, &env.subject("a"), "settled-", 0..200, 0).await;
    assert_eq!(relay(env).await, 200);
    client.batch_execute("UPDATE oncebox.cursor SET system_identifier = 1").await.unwrap();
    assert_eq!(relay(env).await, 0);
    let floors = "SELECT count(*) FROM oncebox.lane_cursor WHERE floor > 100";
    assert_eq!(client.query_one(floors, &[]).await.unwrap().get::<_, i64>(0), 16);
    assert_eq!(a_month(client, &values_of(env)).await, 200);
    settled
}

async fn restart_ids(client: &Client) {
    client.batch_execute("ALTER SEQUENCE oncebox.message_id_seq RESTART").await.unwrap();
}

async fn last_id(client: &Client) -> i64 {
    client.query_one("SELECT last_value FROM oncebox.message_id_seq", &[]).await.unwrap().get(0)
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM oncebox.{table}"), &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_sequence_that_was_restarted_is_raised_before_anybody_enqueues() {
    let env = TestEnv::new().await;
    let (log, _guard) = Log::of_this_thread();
    let (stream, client) = (env.stream().await, env.pg().await);
    let mut expected = restored(&env, &client).await;
    restart_ids(&client).await;
    let (_, output, _) = run(env.database_url(), &["doctor", "--nats-url", env.nats_url()]).await;
    assert!(output.contains("the ids of new messages stand at 0, below 200"), "{output}");
    log.clear();
    maintain(&env).await;
    assert!(log.text().contains("stood_at=0 raised_to=200 set_aside=0"), "{}", log.text());
    expected.extend(enqueue(&client, &env.subject("a"), "new-", 0..20, 3).await);
    assert_eq!(relay(&env).await, 20);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    log.clear();
    maintain(&env).await;
    assert_eq!(log.count("WARN"), 0, "{}", log.text());
    let (_, output, _) = run(env.database_url(), &["doctor", "--nats-url", env.nats_url()]).await;
    assert!(!output.contains("ids of new messages"), "{output}");
}

#[tokio::test]
async fn what_was_enqueued_below_the_floor_is_sent_in_order_and_then_deleted() {
    let env = TestEnv::new().await;
    let (log, _guard) = Log::of_this_thread();
    let (stream, client) = (env.stream().await, env.pg().await);
    let mut expected = restored(&env, &client).await;
    restart_ids(&client).await;
    expected.extend(enqueue(&client, &env.subject("a"), "low-", 0..60, 4).await);
    assert_eq!(relay(&env).await, 0, "no pass sees them");
    age(&client).await;
    maintain(&env).await;
    assert!(log.text().contains("stood_at=60 raised_to=200 set_aside=60"), "{}", log.text());
    expected.extend(enqueue(&client, &env.subject("a"), "high-", 0..60, 4).await);
    assert_eq!(relay(&env).await, 120);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    assert!(last_id(&client).await >= 260);
    assert_eq!(a_month(&client, &values_of(&env)).await, 120, "sent, they go like all others");
    assert_eq!((count(&client, "message").await, count(&client, "parked").await), (0, 0));
}

/// The restored database comes without its sequence, producers begin at once, the relay later.
#[tokio::test]
async fn a_restored_database_without_its_sequence_loses_nothing() {
    for maintenance_first in [true, false] {
        let env = TestEnv::new().await;
        let (stream, client) = (env.stream().await, env.pg().await);
        // Old rows with ids of a cluster whose transactions are far ahead; its cursors say that the
        // first hundred are settled.
        enqueue(&client, &env.subject("a"), "settled-", 0..100, 5).await;
        let mut expected = enqueue(&client, &env.subject("a"), "due-", 0..50, 5).await;
        client
            .batch_execute(
                "DELETE FROM oncebox.message_0 WHERE id <= 40;
                 UPDATE oncebox.message_0 SET xact = CASE WHEN id <= 100 THEN '90000000' ELSE '90000020' END::xid8;
                 UPDATE oncebox.cursor SET system_identifier = 1, high = 100, snap = '90000010:90000010:'",
            )
            .await
            .unwrap();
        restart_ids(&client).await;
        expected.extend(enqueue(&client, &env.subject("a"), "low-", 0..30, 5).await);
        if maintenance_first {
            maintain(&env).await;
            assert_eq!(relay(&env).await, 80);
        } else {
            assert_eq!(relay(&env).await, 50, "the backlog of the dump");
            maintain(&env).await;
            assert_eq!(relay(&env).await, 30);
        }
        expected.extend(enqueue(&client, &env.subject("a"), "new-", 0..30, 5).await);
        assert_eq!(relay(&env).await, 30);
        let stored = stored(&stream).await;
        let known: Vec<_> = stored.into_iter().filter(|message| !message.key.starts_with("due-")).collect();
        let fresh: Vec<String> = expected.iter().filter(|key| !key.starts_with("due-")).cloned().collect();
        assert_eq!(assert_delivered(&known, &fresh), 0, "maintenance first: {maintenance_first}");
    }
}

#[tokio::test]
async fn ids_are_raised_when_the_last_transaction_with_a_low_one_has_ended() {
    let env = TestEnv::new().await;
    let (log, _guard) = Log::of_this_thread();
    let (stream, client, mut holder) = (env.stream().await, env.pg().await, env.pg().await);
    let mut expected = restored(&env, &client).await;
    restart_ids(&client).await;
    let held = holder.transaction().await.unwrap();
    expected.extend(enqueue(&held, &env.subject("a"), "held-", 0..10, 2).await);
    log.clear();
    age(&client).await;
    assert_eq!(maintain(&env).await, 0);
    assert!(log.count("ERROR") == 1 && log.text().contains("stand below what is settled"), "{}", log.text());
    // Producers went on.
    expected.extend(enqueue(&client, &env.subject("a"), "more-", 0..10, 2).await);
    held.commit().await.unwrap();
    maintain(&env).await;
    assert_eq!(relay(&env).await, 20);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// The sequence was raised by hand, so a relay cannot know which messages were enqueued in between;
/// but they are not deleted.
#[tokio::test]
async fn what_was_never_sent_is_not_deleted_whoever_raised_the_ids() {
    let env = TestEnv::new().await;
    let (log, _guard) = Log::of_this_thread();
    let (stream, client) = (env.stream().await, env.pg().await);
    let mut expected = restored(&env, &client).await;
    restart_ids(&client).await;
    let low = enqueue(&client, &env.subject("a"), "low-", 0..30, 4).await;
    client.batch_execute("SELECT setval('oncebox.message_id_seq', 500)").await.unwrap();
    expected.extend(enqueue(&client, &env.subject("a"), "new-", 0..30, 4).await);
    assert_eq!(relay(&env).await, 30);
    log.clear();
    assert_eq!(a_month(&client, &values_of(&env)).await, 60);
    assert!(log.text().contains("messages=30 last_id=30"), "{}", log.text());
    assert_eq!(count(&client, "message").await, 30, "set aside, though their segment is emptied");
    assert_eq!(relay(&env).await, 30);
    expected.extend(low);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    a_month(&client, &values_of(&env)).await;
    assert_eq!(count(&client, "message").await, 0);
}

#[tokio::test]
async fn the_relays_own_role_may_raise_ids() {
    let env = TestEnv::new().await;
    env.stream().await;
    let admin = env.pg().await;
    restored(&env, &admin).await;
    restart_ids(&admin).await;
    let role = format!("{}_r", env.name());
    let sql = format!("CREATE ROLE {role} LOGIN PASSWORD 'r' IN ROLE oncebox_relay");
    admin.batch_execute(&sql).await.unwrap();
    let authority = env.database_url().split_once("://").unwrap().1;
    let host = authority.split_once('@').map_or(authority, |(_, host)| host);
    let url = format!("postgres://{role}:r@{host}");
    client(&url).await.batch_execute("SELECT setval('oncebox.message_id_seq', 7)").await.unwrap_err();
    connect(&values(&url, env.nats_url())).await.maintainer().run_once().await.unwrap();
    assert_eq!(last_id(&admin).await, 201);
}
