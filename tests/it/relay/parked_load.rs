//! A hundred thousand parked messages slow nothing else.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_relay::parts::Worker;
use oncebox_tests::TestEnv;
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::relay::support::{LIMIT, connect, enqueue, fresh_stream, stream_config, values_of, with};

const FRESH: i32 = 6_000;
const ROUNDS: usize = 7;

/// 30,000 dead ones of one ordering key, 30,000 after one that waits for its next attempt, 30,000
/// that wait for theirs, and 10,000 that are due, for a subject that no stream takes.
async fn park(client: &Client, lost: &str) {
    let fill = "INSERT INTO oncebox.message_0 (lane, key, subject, ordering_key, payload)
        SELECT oncebox.lane_of(coalesce(g.ordering_key, 'parked-' || g.n)), 'parked-' || g.n, $1, g.ordering_key, 'x'
        FROM (SELECT n, CASE WHEN n <= 30000 THEN 'dead' WHEN n <= 60000 THEN 'waiting' END AS ordering_key
              FROM generate_series(1, 100000) AS n) AS g";
    client.execute(fill, &[&lost]).await.unwrap();
    let settle = "UPDATE oncebox.cursor AS c SET snap = pg_current_snapshot(),
                  high = greatest(c.high, (SELECT max(id) FROM oncebox.message AS m WHERE m.lane = c.lane))";
    client.execute(settle, &[]).await.unwrap();
    let park =
        "INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, ordering_key, attempts,
                                     next_attempt_at, dead_at, error)
        SELECT m.lane, m.id, m.turn, m.key, m.subject, m.headers, m.payload, m.created_at, m.ordering_key, 5,
               CASE WHEN n.n = 30001 OR n.n BETWEEN 60001 AND 90000 THEN now() + interval '1 hour'
                    WHEN n.n > 90000 THEN now() END,
               CASE WHEN n.n <= 30000 THEN now() END, 'no stream takes the subject'
        FROM oncebox.message AS m CROSS JOIN LATERAL (SELECT substr(m.key, 8)::int AS n) AS n
        WHERE starts_with(m.key, 'parked-')";
    client.execute(park, &[]).await.unwrap();
}

/// A database with its stream, relay and producer.
struct Side {
    env: TestEnv,
    client: Client,
    worker: Worker,
    stream: Stream,
    shortest: Duration,
}

impl Side {
    async fn new() -> Self {
        let env = TestEnv::new().await;
        let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
        // The ordering key with the dead ones goes on.
        let values = with(&values_of(&env), [("on-dead", "skip"), ("batch-messages", "200")]);
        let (client, worker) = (env.pg().await, connect(&values).await.worker());
        Self { env, client, worker, stream, shortest: Duration::MAX }
    }

    async fn in_stream(&self) -> u64 {
        self.stream.get_info().await.unwrap().state.messages
    }

    /// How long fresh messages take, some of the ordering key that has the dead ones.
    async fn drain(&mut self, round: usize) {
        let (before, taken) = (self.in_stream().await, self.env.subject("taken"));
        enqueue(&self.client, &taken, &format!("{round}-"), 0..FRESH, 0).await;
        let sql =
            "SELECT oncebox.enqueue($1::text || n, $2, 'x', '{}', 'dead') FROM generate_series(1, 100) AS n";
        self.client.execute(sql, &[&format!("{round}-dead-"), &taken]).await.unwrap();
        let started = Instant::now();
        while self.in_stream().await < before + FRESH as u64 + 100 {
            self.worker.run_once().await.unwrap();
        }
        self.shortest = self.shortest.min(started.elapsed());
    }
}

#[tokio::test]
async fn a_hundred_thousand_parked_messages_slow_nothing_else() {
    let (mut without, mut parked) = (Side::new().await, Side::new().await);
    park(&parked.client, &parked.env.subject("lost")).await;
    // By turns, and the shortest of each: other tests run at the same time.
    for round in 0..ROUNDS {
        without.drain(round).await;
        parked.drain(round).await;
    }
    let ratio = without.shortest.as_secs_f64() / parked.shortest.as_secs_f64();
    println!("drain with 100,000 parked messages against without: {ratio:.2}");
    // An index that mixes dead and waiting messages gives 0.25; a busy machine spreads the rest
    // from 0.69 to 1.06.
    assert!(ratio > 0.45, "{ratio:.2}: {:?} instead of {:?}", parked.shortest, without.shortest);
}

/// C10: the groups of a lane are bounded, and messages beyond them were tried every few seconds.
#[tokio::test]
async fn more_subjects_without_a_stream_than_there_are_groups_are_tried_seldom() {
    const SUBJECTS: i64 = 1_500;
    const GROUPS: i64 = 16 * 64;
    let env = TestEnv::new().await;
    let _stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let fill = "SELECT count(oncebox.enqueue('lost-' || n, $1 || '.' || n, 'x')) FROM generate_series(1, $2::bigint) AS n";
    client.query_one(fill, &[&env.subject("lost"), &SUBJECTS]).await.unwrap();
    let mut worker = connect(&values_of(&env)).await.worker();
    let count = async |condition: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM oncebox.parked WHERE {condition}");
        client.query_one(&sql, &[]).await.unwrap().get(0)
    };
    // A pass finds out of a few subjects whether a stream takes them, so it takes some.
    oncebox_tests::eventually("those beyond the groups are tried seldom", LIMIT * 4, async || {
        worker.run_once().await.unwrap();
        let soon = count("next_attempt_at < clock_timestamp() + interval '45 s'").await;
        (count("true").await == SUBJECTS && soon <= GROUPS).then_some(())
    })
    .await;
    assert_eq!(count("next_attempt_at < clock_timestamp() + interval '4 min'").await, SUBJECTS);
}
