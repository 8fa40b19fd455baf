//! A stream drops only copies: messages of other outboxes, other bodies, keys that come again and
//! replays are stored.

use std::collections::HashSet;

use async_nats::jetstream::stream::Stream;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::relay::{
    process::run_ok,
    support::{Stored, a_month, assert_delivered, connect, drain, enqueue, stored, values, values_of, with},
};

async fn relay(env: &TestEnv) -> usize {
    drain(&mut connect(&values_of(env)).await.worker()).await
}

/// All in the stream, after a check that each is a message of its own to the broker.
async fn distinct(stream: &Stream) -> Vec<Stored> {
    let all = stored(stream).await;
    let ids: HashSet<&str> = all.iter().map(|message| message.msg_id.as_str()).collect();
    assert_eq!(ids.len(), all.len(), "{all:#?}");
    all
}

async fn enqueue_one(client: &Client, subject: &str, key: &str, body: &str) -> i64 {
    let sql = "SELECT oncebox.enqueue($1, $2, convert_to($3, 'UTF8'))";
    client.query_one(sql, &[&key, &subject, &body]).await.unwrap().get(0)
}

/// A standby that is promoted before it has received the last messages lacks these, the cursors
/// after them, and the ids.
struct Standby(i64);

impl Standby {
    async fn lag(client: &Client) -> Self {
        client.batch_execute("CREATE TABLE lagging AS TABLE oncebox.cursor").await.unwrap();
        let sql = "SELECT last_value + is_called::int FROM oncebox.message_id_seq";
        Self(client.query_one(sql, &[]).await.unwrap().get(0))
    }

    async fn promote(&self, client: &Client) {
        let Self(next) = self;
        let sql = format!(
            "DELETE FROM oncebox.message_0 WHERE id >= {next}; DELETE FROM oncebox.replay WHERE id >= {next};
             DELETE FROM oncebox.cursor; INSERT INTO oncebox.cursor TABLE lagging;
             ALTER SEQUENCE oncebox.message_id_seq RESTART WITH {next}"
        );
        client.batch_execute(&sql).await.unwrap();
    }
}

#[tokio::test]
async fn two_outboxes_with_the_same_keys_share_a_stream() {
    let (env, copy) = tokio::join!(TestEnv::new(), TestEnv::new());
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let mut client = env.pg().await;
    let sql = "SELECT count(twin.enqueue('m-' || n, $1, convert_to(n::text, 'UTF8'))) FROM generate_series(0, 99) AS n";
    migrate(&mut client, &"twin".parse::<SchemaName>().unwrap(), Lanes::default()).await.unwrap();
    assert_eq!(client.query_one(sql, &[&subject]).await.unwrap().get::<_, i64>(0), 100);
    // The databases of tests are copies of one: even with one identity they have messages of their
    // own.
    for client in [client, copy.pg().await] {
        enqueue(&client, &subject, "m-", 0..100, 0).await;
    }
    let twin = with(&values_of(&env), [("schema", "twin")]);
    for values in [values_of(&env), values(copy.database_url(), env.nats_url()), twin] {
        assert_eq!(drain(&mut connect(&values).await.worker()).await, 100);
    }
    let all = distinct(&stream).await;
    assert_eq!(all.len(), 300);
    let outbox = |message: &Stored| message.msg_id[..13].to_owned();
    assert_eq!(
        all.iter().map(outbox).collect::<HashSet<_>>().len(),
        2,
        "each has an identity, which a copy keeps"
    );
    for half in all.chunks(100) {
        let keys: Vec<String> = (0..100).map(|n| format!("m-{n}")).collect();
        assert_eq!(assert_delivered(half, &keys), 0);
    }
}

#[tokio::test]
async fn what_a_standby_had_not_received_is_stored_when_it_is_enqueued_again() {
    let env = TestEnv::new().await;
    let (stream, client, subject) = (env.stream().await, env.pg().await, env.subject("a"));
    let standby = Standby::lag(&client).await;
    let first = enqueue_one(&client, &subject, "k", "10 euro").await;
    assert_eq!(relay(&env).await, 1);
    for body in ["20 euro", "10 euro"] {
        standby.promote(&client).await;
        assert_eq!(enqueue_one(&client, &subject, "k", body).await, first, "even the id is given out again");
        assert_eq!(relay(&env).await, 1);
    }
    let bodies: Vec<Vec<u8>> = distinct(&stream).await.into_iter().map(|message| message.payload).collect();
    assert_eq!(bodies, [b"10 euro", b"20 euro", b"10 euro"]);
}

#[tokio::test]
async fn a_key_that_comes_again_after_retention_is_stored_again() {
    let env = TestEnv::new().await;
    let (stream, client, subject) = (env.stream().await, env.pg().await, env.subject("a"));
    for _ in 0..2 {
        enqueue_one(&client, &subject, "k", "the same").await;
        assert_eq!(relay(&env).await, 1);
        assert_eq!(a_month(&client, &values_of(&env)).await, 1);
    }
    assert_eq!(distinct(&stream).await.len(), 2);
}

#[tokio::test]
async fn a_replay_is_taken_for_no_other_message() {
    let env = TestEnv::new().await;
    let (stream, client, subject) = (env.stream().await, env.pg().await, env.subject("a"));
    for key in ["a", "a;r=1", "r1/a", "0/a"] {
        enqueue_one(&client, &subject, key, "").await;
    }
    assert_eq!(relay(&env).await, 4);
    let replay = async || {
        run_ok(env.database_url(), &["outbox", "replay", "--key", "a"]).await;
        assert_eq!(relay(&env).await, 1);
    };
    replay().await;
    assert_eq!(distinct(&stream).await.len(), 5);
    // After a failover the number is given out again.
    client.batch_execute("DELETE FROM oncebox.replay").await.unwrap();
    replay().await;
    let numbers: Vec<String> =
        distinct(&stream).await.split_off(4).into_iter().map(|copy| copy.key).collect();
    assert_eq!(numbers, ["a;r=1", "a;r=1"]);
}

#[tokio::test]
async fn what_is_sent_again_is_recognised() {
    let env = TestEnv::new().await;
    let (stream, client, subject) = (env.stream().await, env.pg().await, env.subject("a"));
    let headers = r#"'{"zeta": "1", "a": "\u00e9", "traceparent": "00-1-2-01", "Mid": "3"}'"#;
    let sql = format!(
        "SELECT oncebox.enqueue('m-' || n, '{subject}', 'p', {headers}, 'k' || n % 3) FROM generate_series(1, 50) AS n"
    );
    client.batch_execute(&sql).await.unwrap();
    client.batch_execute("CREATE TABLE before AS TABLE oncebox.cursor").await.unwrap();
    assert_eq!(relay(&env).await, 50);
    run_ok(env.database_url(), &["outbox", "replay", "--all"]).await;
    client.batch_execute("CREATE TABLE asked AS TABLE oncebox.parked").await.unwrap();
    assert_eq!(relay(&env).await, 50);
    assert_eq!(distinct(&stream).await.len(), 100);
    // As if nothing of that had been committed.
    client
        .batch_execute(
            "DELETE FROM oncebox.cursor; INSERT INTO oncebox.cursor TABLE before;
             INSERT INTO oncebox.parked TABLE asked",
        )
        .await
        .unwrap();
    assert_eq!(relay(&env).await, 100);
    assert_eq!(distinct(&stream).await.len(), 100, "by another relay, after the loss of its commits");
}
