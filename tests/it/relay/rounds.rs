//! A pass over all lanes goes on while messages keep coming: round by round, with commits in
//! between, and faults of the relay and of the streams.

use std::time::Duration;

use oncebox_relay::parts::{Pass, Published, Worker};
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::Process,
    support::{LIMIT, assert_delivered, await_messages, connect, drain, enqueue, stored, values_of, with},
};

/// A pass over all lanes that has published `first`, and may go on.
async fn pass(env: &TestEnv, first: usize) -> (Worker, Published) {
    let mut worker = connect(&values_of(env)).await.worker();
    let claimed = worker.claim_all().await.unwrap().expect("nobody else has locked the lanes");
    assert_eq!(claimed.len(), first);
    let published = worker.publish(claimed).await;
    (worker, published)
}

/// Expects a round for each of `counts`, with that number of messages.
async fn rounds(worker: &mut Worker, published: &mut Published, counts: &[usize]) {
    for count in counts {
        assert_eq!(worker.round(published).await.unwrap(), Some(*count));
    }
}

async fn settle(worker: &mut Worker, published: Published) -> Pass {
    worker.settle(published).await.unwrap().commit().await.unwrap()
}

fn settled(messages: usize) -> Pass {
    Pass::Settled { messages, full: false }
}

#[tokio::test]
async fn rounds_bring_what_is_committed_in_whatever_order() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let (client, mut first, mut second) = (env.pg().await, env.pg().await, env.pg().await);
    let first = first.transaction().await.unwrap();
    let mut expected = enqueue(&first, &subject, "first-", 0..3, 0).await;
    expected.extend(enqueue(&client, &subject, "before-", 0..3, 2).await);
    let (mut worker, mut published) = pass(&env, 3).await;
    let second = second.transaction().await.unwrap();
    expected.extend(enqueue(&second, &subject, "second-", 0..4, 0).await);
    rounds(&mut worker, &mut published, &[0]).await;
    expected.extend(enqueue(&client, &subject, "before-", 3..8, 2).await);
    rounds(&mut worker, &mut published, &[5, 0]).await;
    // Their ids lie below those that are published.
    second.commit().await.unwrap();
    rounds(&mut worker, &mut published, &[4]).await;
    first.commit().await.unwrap();
    rounds(&mut worker, &mut published, &[3, 0]).await;
    assert_eq!(settle(&mut worker, published).await, settled(15));
    assert_eq!(worker.run_once().await.unwrap(), Pass::Idle, "the cursors cover all rounds");
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    let losses = connect(&values_of(&env)).await.recovery().run_once().await.unwrap();
    assert_eq!(losses, 0, "the receipts of all rounds are proven");
}

#[tokio::test]
async fn what_was_open_when_the_rounds_ended_is_not_forgotten() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let (client, mut open) = (env.pg().await, env.pg().await);
    let open = open.transaction().await.unwrap();
    let mut expected = enqueue(&open, &subject, "open-", 0..20, 3).await;
    expected.extend(enqueue(&client, &subject, "m-", 0..1, 0).await);
    let (mut worker, mut published) = pass(&env, 1).await;
    expected.extend(enqueue(&client, &subject, "m-", 1..20, 3).await);
    rounds(&mut worker, &mut published, &[19]).await;
    assert_eq!(settle(&mut worker, published).await, settled(20));
    open.commit().await.unwrap();
    assert_eq!(drain(&mut worker).await, 20);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_relay_that_dies_between_two_rounds_has_settled_nothing() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let mut expected = enqueue(&client, &subject, "m-", 0..10, 3).await;
    let (mut worker, mut published) = pass(&env, 10).await;
    expected.extend(enqueue(&client, &subject, "m-", 10..20, 3).await);
    rounds(&mut worker, &mut published, &[10]).await;
    drop(published);
    expected.extend(enqueue(&client, &subject, "m-", 20..30, 3).await);
    let mut next = connect(&values_of(&env)).await.worker();
    let mut sent = 0;
    eventually("the next relay sends all of it", LIMIT, async || {
        sent += drain(&mut next).await;
        (sent == 30).then_some(())
    })
    .await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "stored once within the window");
}

/// The keys of parked messages, in the order of their ids.
async fn parked(client: &Client) -> Vec<String> {
    let sql =
        "SELECT m.key FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id) ORDER BY m.id";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_message_that_is_refused_ends_the_rounds_and_holds_back_its_ordering_key() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let enqueue_in_order = async |key: &str, subject: &str| {
        let sql = "SELECT oncebox.enqueue($1, $2, '', '{}', 'order')";
        client.execute(sql, &[&key, &subject]).await.unwrap();
    };
    let mut expected = enqueue(&client, &subject, "m-", 0..5, 0).await;
    let (mut worker, mut published) = pass(&env, 5).await;
    enqueue_in_order("refused", "nobody.takes.this").await;
    expected.extend(enqueue(&client, &subject, "m-", 5..10, 0).await);
    rounds(&mut worker, &mut published, &[6]).await;
    assert_eq!(worker.round(&mut published).await.unwrap(), None);
    assert_eq!(settle(&mut worker, published).await, settled(11));
    assert_eq!(parked(&client).await, ["refused"]);
    // After it, and read in a round.
    let claimed = worker.claim_all().await.unwrap().unwrap();
    assert!(claimed.is_empty());
    let mut published = worker.publish(claimed).await;
    enqueue_in_order("behind", &subject).await;
    rounds(&mut worker, &mut published, &[1]).await;
    assert_eq!(worker.round(&mut published).await.unwrap(), None);
    settle(&mut worker, published).await;
    assert_eq!(parked(&client).await, ["refused", "behind"]);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Expects no further round once this was enqueued, and that the next pass delivers it.
async fn is_left_to_the_next_pass(sql: &str, count: usize) {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let mut expected = enqueue(&client, &subject, "m-", 0..5, 0).await;
    let (mut worker, mut published) = pass(&env, 5).await;
    client.execute(sql, &[&subject]).await.unwrap();
    expected.extend((1..=count).map(|n| format!("left-{n}")));
    assert_eq!(worker.round(&mut published).await.unwrap(), None);
    assert_eq!(settle(&mut worker, published).await, settled(5));
    assert_eq!(drain(&mut worker).await, count);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn many_messages_are_left_to_the_next_pass() {
    let sql =
        "SELECT oncebox.enqueue('left-' || n, $1, '', '{}', 'o' || n % 20) FROM generate_series(1, 200) AS n";
    is_left_to_the_next_pass(sql, 200).await;
}

#[tokio::test]
async fn a_large_message_is_left_to_the_next_pass() {
    let sql = "SELECT oncebox.enqueue('left-1', $1, convert_to(repeat('x', 10000), 'UTF8'))";
    is_left_to_the_next_pass(sql, 1).await;
}

/// A row of another cluster carries the id of a transaction of that cluster, which may come to pass
/// here. Expects no further round of a pass that has published these messages.
async fn goes_on_no_longer(sql: &str, first: usize) {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    client.execute(sql, &[&subject]).await.unwrap();
    let mut expected: Vec<String> = (1..=first).map(|n| format!("first-{n}")).collect();
    let (mut worker, mut published) = pass(&env, first).await;
    expected.extend(enqueue(&client, &subject, "left-", 0..1, 0).await);
    assert_eq!(worker.round(&mut published).await.unwrap(), None);
    assert_eq!(settle(&mut worker, published).await, settled(first));
    assert_eq!(drain(&mut worker).await, 1);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_pass_with_many_messages_goes_on_no_longer() {
    let sql = "SELECT oncebox.enqueue('first-' || n, $1, '') FROM generate_series(1, 512) AS n";
    goes_on_no_longer(sql, 512).await;
}

#[tokio::test]
async fn a_pass_that_holds_many_bytes_goes_on_no_longer() {
    let sql = "SELECT oncebox.enqueue('first-' || n, $1, convert_to(repeat('x', 4096), 'UTF8'))
               FROM generate_series(1, 64) AS n";
    goes_on_no_longer(sql, 64).await;
}

#[tokio::test]
async fn rows_below_the_floor_are_settled_whatever_their_transaction() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let sql =
        "SELECT setval('oncebox.message_id_seq', 1000); UPDATE oncebox.cursor SET floor = 1000, high = 1000";
    client.batch_execute(sql).await.unwrap();
    let expected = enqueue(&client, &subject, "m-", 0..5, 0).await;
    let (mut worker, mut published) = pass(&env, 5).await;
    let sql = "INSERT INTO oncebox.message_0 (id, lane, key, subject, payload) OVERRIDING SYSTEM VALUE
               VALUES (7, 3, 'restored', $1, '')";
    client.execute(sql, &[&subject]).await.unwrap();
    rounds(&mut worker, &mut published, &[0]).await;
    settle(&mut worker, published).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_relay_settles_more_rarely_than_it_publishes_while_messages_keep_coming() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let mut expected = Vec::new();
    eventually("more publishing than settling", LIMIT, async || {
        for _ in 0..100 {
            let number = i32::try_from(expected.len()).unwrap();
            expected.extend(enqueue(&client, &subject, "m-", number..number + 1, 3).await);
        }
        let published = relay.metric("oncebox_publish_seconds_count").await;
        (published > 1.5 * relay.metric("oncebox_settle_seconds_count").await).then_some(())
    })
    .await;
    await_messages(&stream, expected.len()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    relay.kill().await;
}

/// One by one, each of them alone in a round, with nothing for several looks in between.
#[tokio::test]
async fn messages_of_a_trickle_are_settled_together() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let client = env.pg().await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let mut expected = Vec::new();
    eventually("few passes for many messages", LIMIT, async || {
        let before = relay.metric("oncebox_settle_seconds_count").await;
        for _ in 0..30 {
            let number = i32::try_from(expected.len()).unwrap();
            expected.extend(enqueue(&client, &subject, "m-", number..number + 1, 0).await);
            await_messages(&stream, expected.len()).await;
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
        (relay.metric("oncebox_settle_seconds_count").await - before <= 10.0).then_some(())
    })
    .await;
    relay.kill().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Passes that go on for several rounds follow each other at once, so maintenance that does not
/// wait finds no lane free.
#[tokio::test]
async fn maintenance_waits_for_a_lane_that_a_pass_has() {
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let (client, values) = (env.pg().await, values_of(&env));
    // A relay that keeps messages back after dead ones, before one that does not.
    let sql = "SELECT oncebox.enqueue($1, $2, '', '{}', 'order')";
    client.execute(sql, &[&"dead", &"nobody.takes.this"]).await.unwrap();
    client.execute(sql, &[&"behind", &subject]).await.unwrap();
    let mut blocking = connect(&with(&values, [("attempts-max", "1")])).await.worker();
    drain(&mut blocking).await;
    assert_eq!(parked(&client).await, ["dead", "behind"]);
    let relay = connect(&with(&values, [("on-dead", "skip")])).await;
    let mut maintainer = relay.maintainer();
    let (mut worker, published) = pass(&env, 0).await;
    let maintaining = async {
        loop {
            let done = maintainer.run_once().await.unwrap();
            if done.released > 0 {
                return;
            }
            assert!(done.more, "maintenance came to its end without the lane");
        }
    };
    let passing = async {
        eventually("maintenance waits for the lane", LIMIT, async || {
            let sql = "SELECT FROM pg_stat_activity
                       WHERE wait_event_type = 'Lock' AND datname = current_database()";
            (!client.query(sql, &[]).await.unwrap().is_empty()).then_some(())
        })
        .await;
        settle(&mut worker, published).await
    };
    tokio::join!(maintaining, passing);
    drain(&mut relay.worker()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &["behind".to_owned()]), 0);
}
