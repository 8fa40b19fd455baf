//! Many producers, transactions that commit out of order, relays that die between any two steps.
//!
//! The verdict compares the committed messages with the stream: nothing lost, nothing invented,
//! nothing out of order within an ordering key. The negative control runs the commonest bug through
//! the same harness: if the harness did not catch it, the other verdicts would mean nothing.

mod naive;
mod producers;
mod relays;
mod verdict;

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_model::trace::Circumstances;
use oncebox_tests::{Recording, TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use producers::{Committed, Producers};
use verdict::Verdict;

const DRAIN_LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_invented_or_reordered() {
    let env = TestEnv::new().await;
    env.stream().await;
    let stop = CancellationToken::new();
    let mut relays = JoinSet::new();
    let recording = Recording::new().unwrap();
    for number in 0..3 {
        let mut values = relays::values(&env);
        values.insert("trace-file", recording.file(number));
        relays.spawn(relays::relay_that_dies(values, number, stop.clone()));
    }
    let committed =
        Producers { count: 24, messages: 50_000, slowest: Duration::from_secs(4) }.run(&env).await;
    let verdict = Verdict::await_drained(&env, &committed, DRAIN_LIMIT).await;
    stop.cancel();
    let deaths: Vec<relays::Deaths> = relays.join_all().await;
    println!("{verdict:?}; deaths by step: {deaths:?}");
    assert!(committed.len() >= 50_000);
    assert_eq!(verdict, Verdict { stored: committed.len(), ..Verdict::default() });
    // A claim's snapshot may be older than the lane it locks: that must not pass for a restored
    // dump.
    let resets = env
        .pg()
        .await
        .query_one("SELECT count(*) FROM oncebox.lane_cursor WHERE floor > 0", &[])
        .await
        .unwrap();
    assert_eq!(resets.get::<_, i64>(0), 0, "no lane was reset");
    let total = relays::Deaths::sum(deaths);
    assert!(total.iter().all(|deaths| *deaths > 0), "a relay died at every step: {total:?}");
    let of = Circumstances { expected: &["late reads", "drains", "takeovers"], ..Circumstances::default() };
    println!("the specification accepts {}", recording.accepted(&env.pg().await, of).await.unwrap());
}

/// The same while the ring of segments turns as fast as it can.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_invented_or_reordered_while_the_ring_turns() {
    let env = TestEnv::new().await;
    env.stream().await;
    let stop = CancellationToken::new();
    let mut relays = JoinSet::new();
    for number in 0..2 {
        relays.spawn(relays::relay_that_dies(relays::values(&env), number, stop.clone()));
    }
    let mut turning = JoinSet::new();
    turning.spawn(turn_until(env.pg().await, stop.clone()));
    let committed =
        Producers { count: 12, messages: 15_000, slowest: Duration::from_millis(60) }.run(&env).await;
    let verdict = Verdict::await_drained(&env, &committed, DRAIN_LIMIT).await;
    stop.cancel();
    relays.join_all().await;
    let turns: usize = turning.join_all().await.into_iter().sum();
    println!("{verdict:?}; {turns} turns");
    assert_eq!(verdict, Verdict { stored: committed.len(), ..Verdict::default() });
    assert!(turns > 10, "{turns} turns: not worth much");
}

/// Ends turns as fast as it can; returns how many.
async fn turn_until(client: Client, stop: CancellationToken) -> usize {
    let mut turns = 0;
    while !stop.is_cancelled() {
        client.query_one("SELECT oncebox.drain_segments()", &[]).await.unwrap();
        // As if emptied, but for the verdict the rows stay.
        let reuse = "UPDATE oncebox.segment SET is_empty = true, drained_at = NULL
                     WHERE NOT is_live
                       AND number <> (pg_sequence_last_value('oncebox.turn') + 7) % 8";
        client.execute(reuse, &[]).await.unwrap();
        let turn = "SELECT oncebox.end_turn(0, 200, 0) IS NULL";
        turns += usize::from(client.query_one(turn, &[]).await.unwrap().get::<_, bool>(0));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_remembers_only_the_highest_id_is_caught() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let stop = CancellationToken::new();
    let mut relays = JoinSet::new();
    relays.spawn(naive::relay(env.database_url().to_owned(), env.jetstream().await, stop.clone()));
    let mut committed = commit_late(&env, &stream).await;
    committed
        .extend(Producers { count: 24, messages: 3_000, slowest: Duration::from_secs(1) }.run(&env).await);
    // The naive relay has nothing left to find once it has passed the highest id.
    let verdict = Verdict::await_drained(&env, &committed, Duration::from_secs(5)).await;
    stop.cancel();
    relays.join_all().await;
    assert!(verdict.lost > 0, "the harness must catch it: {verdict:?}");
}

/// Commits a message only when one with a higher id is in the stream. Among the producers that
/// happens by luck.
async fn commit_late(env: &TestEnv, stream: &Stream) -> Vec<Committed> {
    const ENQUEUE: &str = "SELECT oncebox.enqueue($1, $2, '{}')";
    let (mut early, later) = (env.pg().await, env.pg().await);
    let early = early.transaction().await.unwrap();
    early.execute(ENQUEUE, &[&"early", &env.subject("torture")]).await.unwrap();
    let subject = env.subject("later");
    later.execute(ENQUEUE, &[&"later", &subject]).await.unwrap();
    eventually("the later one is delivered", DRAIN_LIMIT, async || {
        stream.get_last_raw_message_by_subject(&subject).await.ok()
    })
    .await;
    early.commit().await.unwrap();
    ["early", "later"].map(|key| Committed { key: key.to_owned(), place: None }).into()
}
