//! The ring of segments turns: no message is lost, doubled or reordered, no key is enqueued twice,
//! and no producer waits for long.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use oncebox_relay::{Values, parts::Worker};
use oncebox_tests::TestEnv;
use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::{Client, error::SqlState};

use super::support::{
    assert_delivered, connect, drain, enqueue, fresh_stream, stored, stream_config, turn_the_ring, values_of,
};

/// Ends the turn; returns why it did not.
async fn end_turn(client: &Client) -> Option<String> {
    client.query_one("SELECT oncebox.end_turn(0, 500, 0)", &[]).await.unwrap().get(0)
}

/// Notes the drained segments; returns how many segments are live.
async fn live(client: &Client) -> i32 {
    client.query_one("SELECT oncebox.drain_segments()", &[]).await.unwrap().get(0)
}

/// A turn ends, and the oldest segment is emptied if it is drained.
async fn turn_on(client: &Client) -> Option<i64> {
    assert_eq!(end_turn(client).await, None);
    live(client).await;
    let emptied = client.query_opt("SELECT messages FROM oncebox.empty_segment(0)", &[]).await.unwrap();
    emptied.map(|row| row.get(0))
}

async fn worker(values: &Values) -> Worker {
    connect(values).await.worker()
}

#[tokio::test]
async fn a_pass_that_reads_one_segment_settles_nothing_that_it_has_not_seen() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let values = values_of(&env);
    let mut expected = enqueue(&client, &env.subject("a"), "a-", 0..20, 2).await;
    let relay = connect(&values).await;
    relay.maintainer().run_once().await.unwrap();
    let mut one = relay.worker();
    drain(&mut one).await;
    // From now on it reads the first segment alone, and twice the ring turns under it.
    for n in 0..2 {
        expected.extend(enqueue(&client, &env.subject("a"), &format!("b-{n}-"), 0..20, 2).await);
        assert_eq!(end_turn(&client).await, None);
        expected.extend(enqueue(&client, &env.subject("a"), &format!("c-{n}-"), 0..20, 2).await);
        drain(&mut one).await;
        assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
        assert_eq!(live(&client).await, 1, "the segment before is drained");
    }

    // Between two rounds of a pass.
    drain(&mut one).await;
    expected.extend(enqueue(&client, &env.subject("a"), "d-", 0..5, 2).await);
    let claimed = one.claim_all().await.unwrap().expect("all lanes");
    let mut published = one.publish(claimed).await;
    assert_eq!(end_turn(&client).await, None);
    expected.extend(enqueue(&client, &env.subject("a"), "e-", 0..5, 2).await);
    assert_eq!(one.round(&mut published).await.unwrap(), None, "it would not see them");
    one.settle(published).await.unwrap().commit().await.unwrap();
    drain(&mut one).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn what_is_to_be_sent_again_is_read_from_segments_that_were_drained() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let relay = connect(&values_of(&env)).await;
    relay.maintainer().run_once().await.unwrap();
    let mut one = relay.worker();
    enqueue(&client, &env.subject("a"), "a-", 0..40, 0).await;
    assert_eq!(drain(&mut one).await, 40);
    turn_the_ring(&client).await;
    enqueue(&client, &env.subject("a"), "b-", 0..40, 0).await;
    assert_eq!(drain(&mut one).await, 40, "it reads the second segment alone by now");
    let name = stream.cached_info().config.name.clone();
    let lose =
        "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
                SELECT lane, $1, number, 'unproven', 0, 1, 0, 0, '3:3:' FROM oncebox.lane_cursor";
    client.execute(lose, &[&name]).await.unwrap();
    let resend = "SELECT count(*) FILTER (WHERE oncebox.resend_lost(lane, $1)) FROM oncebox.lane";
    assert_eq!(client.query_one(resend, &[&name]).await.unwrap().get::<_, i64>(0), 16);
    assert_eq!(drain(&mut one).await, 80);
}

/// Rows that another program has written, a subscription or a restore, into segments that were
/// empty.
#[tokio::test]
async fn what_comes_into_an_empty_segment_is_delivered_before_any_cursor_passes_it() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let fill = "INSERT INTO oncebox.message_3 (lane, key, subject, payload)
                SELECT n % 16, 'there-' || n, $1, 'p' FROM generate_series(0, 29) AS n";
    client.execute(fill, &[&env.subject("a")]).await.unwrap();
    let mut expected: Vec<String> = (0..30).map(|n| format!("there-{n}")).collect();
    expected.extend(enqueue(&client, &env.subject("a"), "here-", 0..30, 0).await);
    let relay = connect(&values_of(&env)).await;
    let mut one = relay.worker();
    one.run_once().await.unwrap();
    relay.maintainer().run_once().await.unwrap();
    drain(&mut one).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn what_is_set_aside_or_delayed_outlives_its_segment() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let values = values_of(&env);
    let parked = enqueue(&client, &env.subject("later"), "parked-", 0..6, 2).await;
    let delay = "SELECT oncebox.enqueue_at('delayed', $1, 'p', now() + interval '1 hour')";
    client.execute(delay, &[&env.subject("taken")]).await.unwrap();
    let mut sent = enqueue(&client, &env.subject("taken"), "sent-", 0..10, 0).await;
    let mut one = worker(&values).await;
    drain(&mut one).await;
    for n in 0..12 {
        sent.extend(enqueue(&client, &env.subject("taken"), &format!("{n}-"), 0..3, 0).await);
        drain(&mut one).await;
        turn_on(&client).await;
    }
    let gone = "SELECT count(*) FROM oncebox.log WHERE key LIKE 'parked-%' OR key = 'delayed'";
    assert_eq!(client.query_one(gone, &[]).await.unwrap().get::<_, i64>(0), 0, "their segment is emptied");
    let keys = client.query("SELECT key FROM oncebox.message WHERE key LIKE 'parked-%'", &[]).await.unwrap();
    let keys: BTreeSet<String> = keys.iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, parked.iter().cloned().collect());
    let again = "SELECT oncebox.enqueue('delayed', $1, 'p')";
    let again: Option<i64> = client.query_one(again, &[&env.subject("taken")]).await.unwrap().get(0);
    assert_eq!(again, None, "a delayed message holds its key, however long");

    let mut config = stream.get_info().await.unwrap().config;
    config.subjects.push(env.subject("later"));
    env.jetstream().await.update_stream(config).await.unwrap();
    client.batch_execute("UPDATE oncebox.parked SET next_attempt_at = now(); UPDATE oncebox.delayed SET not_before = now()")
        .await
        .unwrap();
    client.query_one("SELECT * FROM oncebox.move_delayed(10, 1000000, '-infinity', 0)", &[]).await.unwrap();
    for _ in 0..5 {
        drain(&mut one).await;
    }
    let expected = [parked, sent, vec!["delayed".to_owned()]].concat();
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    let left = "SELECT count(*) FROM oncebox.message WHERE lane = -1";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0, "no placeholder is left");
}

#[tokio::test]
async fn a_turn_waits_for_those_who_have_enqueued_and_producers_do_not_wait_for_it() {
    let env = TestEnv::new().await;
    let (client, mut holder, other) = (env.pg().await, env.pg().await, env.pg().await);
    let held = holder.transaction().await.unwrap();
    enqueue(&held, "a", "held-", 0..1, 0).await;
    // The first try waits for it; it is a long one for every later try.
    let said = end_turn(&client).await.expect("somebody has enqueued and is open");
    assert!(said.contains("producers hold"), "{said}");
    for n in 0..20 {
        let said = end_turn(&client).await.expect("somebody has enqueued and is open");
        assert!(said.contains("has enqueued and is still open"), "{said}");
        let begun = Instant::now();
        enqueue(&other, "a", &format!("{n}-"), 0..1, 0).await;
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    held.commit().await.unwrap();
    let vacuum = holder.transaction().await.unwrap();
    vacuum.batch_execute("LOCK TABLE oncebox.message_0 IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    let said = end_turn(&client).await.expect("a vacuum is at work");
    assert!(said.contains("vacuums or analyses"), "{said}");
    vacuum.rollback().await.unwrap();
    assert_eq!(end_turn(&client).await, None);

    // A reader, such as pg_dump, keeps a segment from being emptied; no other session waits.
    let mut one = worker(&values_of(&env)).await;
    env.stream().await;
    client
        .batch_execute("UPDATE oncebox.cursor SET high = 1000, snap = pg_current_snapshot()")
        .await
        .unwrap();
    drain(&mut one).await;
    assert_eq!(end_turn(&client).await, None);
    live(&client).await;
    let reader = holder.transaction().await.unwrap();
    reader.execute("SELECT FROM oncebox.message_0", &[]).await.unwrap();
    let empty = "SELECT messages FROM oncebox.empty_segment(0)";
    assert!(client.query_opt(empty, &[]).await.unwrap().is_none());
    drop(reader);
    assert_eq!(client.query_one(empty, &[]).await.unwrap().get::<_, i64>(0), 21);
    for _ in 0..6 {
        end_turn(&client).await;
    }
    let said = end_turn(&client).await.expect("the ring is full");
    assert!(said.contains("is not empty"), "{said}");
}

/// Where retention is for ever no relay ends a turn any more, and the one that was cut off counts.
#[tokio::test]
async fn a_turn_whose_end_was_cut_off_is_noted_by_the_next_look() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, "a", "a-", 0..1, 0).await;
    client.batch_execute("BEGIN; SELECT oncebox.end_turn(0, 500, 0); ROLLBACK").await.unwrap();
    let strict = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT oncebox.enqueue('k', 'a', 'p')";
    let error = client.batch_execute(strict).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
    client.batch_execute("ROLLBACK").await.unwrap();
    live(&client).await;
    client.batch_execute(strict).await.unwrap();
}

/// Sessions enqueue the same keys at random isolation levels, while turns end as fast as they can,
/// now and then cut off between `setval` and COMMIT.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_enqueued_twice_in_turns_that_follow_each_other() {
    let env = Arc::new(TestEnv::new().await);
    let until = Instant::now() + Duration::from_secs(6);
    let taken: Arc<Mutex<HashMap<String, Vec<i64>>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let (env, taken) = (Arc::clone(&env), Arc::clone(&taken));
        tasks.spawn(async move {
            let client = env.pg().await;
            while Instant::now() < until {
                if let Some((key, turn)) = contend(&client).await {
                    taken.lock().unwrap().entry(key).or_default().push(turn);
                }
            }
        });
    }
    let mut turns = 0;
    while Instant::now() < until {
        let turner = env.pg().await;
        if fastrand::u8(..) < 32 {
            // The connection goes with the transaction open.
            turner.batch_execute("BEGIN; SELECT oncebox.end_turn(0, 100, 0)").await.unwrap();
            continue;
        }
        turns += usize::from(end_turn(&turner).await.is_none());
        turner
            .batch_execute(
                "UPDATE oncebox.segment SET is_live = number = pg_sequence_last_value('oncebox.turn') % 8",
            )
            .await
            .unwrap();
        turner.batch_execute("UPDATE oncebox.segment SET drained_at = now() WHERE NOT is_live; SELECT oncebox.empty_segment(0)").await.unwrap();
    }
    tasks.join_all().await;
    let taken = taken.lock().unwrap();
    let is_twice = |turns: &Vec<i64>| {
        let mut turns = turns.clone();
        turns.sort_unstable();
        turns.windows(2).any(|pair| pair[1] - pair[0] <= 1)
    };
    let twice: Vec<_> = taken.iter().filter(|(_, turns)| is_twice(turns)).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let all: usize = taken.values().map(Vec::len).sum();
    assert!(all > 30 && turns > 10, "{all} messages, {turns} turns: not worth much");
}

/// A transaction that enqueues one of a few keys, alone or in bulk; the key and the turn if it took
/// it and has committed.
async fn contend(client: &Client) -> Option<(String, i64)> {
    let turn = "SELECT pg_sequence_last_value('oncebox.turn')";
    let epoch: i64 = client.query_one(turn, &[]).await.unwrap().get(0);
    let key = format!("k-{}-{}", epoch / 4, fastrand::u8(..5));
    let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][fastrand::usize(..3)];
    client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM oncebox.lane")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
    let sql = if fastrand::bool() {
        "SELECT oncebox.enqueue($1, 's', 'p')"
    } else {
        "SELECT id FROM oncebox.enqueue_all(ARRAY[$1, $1], '{s,s}', '{p,p}') ORDER BY id NULLS LAST LIMIT 1"
    };
    let id = match client.query_one(sql, &[&key]).await {
        Ok(row) => row.get::<_, Option<i64>>(0),
        Err(error) => {
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
            client.batch_execute("ROLLBACK").await.unwrap();
            return None;
        }
    };
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    // While this transaction holds its segment the turn stays.
    let turn: i64 = client.query_one(turn, &[]).await.unwrap().get(0);
    let is_given_up = fastrand::u8(..) < 50;
    let ended = client.batch_execute(if is_given_up { "ROLLBACK" } else { "COMMIT" }).await;
    (id.is_some() && !is_given_up && ended.is_ok()).then_some((key, turn))
}
