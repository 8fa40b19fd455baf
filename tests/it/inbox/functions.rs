//! The inbox as SQL functions: one table of scenarios for them, for the inbox over tokio-postgres
//! and for the one over another driver, each by itself and two on the same keys.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use oncebox_inbox::{Answer, Inbox, Outcome, Received, Verdict};
use oncebox_sqlx::Sqlx;
use oncebox_tests::driven::{DEAD, Effect, REJECTED, SILENT};
use oncebox_tests::{TestEnv, eventually};
use tokio::{sync::Notify, task::JoinSet};
use tokio_postgres::{Client, IsolationLevel, error::SqlState, types::Type};

use crate::{
    inbox::support::{Does, Job, SCOPE, builder, effects, environment, insert},
    postgres::pgbouncer::{left_prepared, pooler},
    relay::support::{LIMIT, client},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Who deals with a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Rust,
    Sql,
    Driver,
}

/// An event of a key.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A message of this tenant arrives: its number decides the behaviour of its handler.
    Message(&'static str, i64),
    /// Its row grows older than the retention.
    Ages,
    /// An operator frees it.
    Freed,
}

use Step::{Ages, Freed, Message};

/// Steps, and the answers to the messages among them.
const SCENARIOS: &[(&[Step], &[&str])] = &[
    (
        &[Message("a", 1), Message("a", 1), Message("a", 1)],
        &["new", "replayed \"did 1\"", "replayed \"did 1\""],
    ),
    (&[Message("a", SILENT), Message("a", SILENT)], &["new", "replayed null"]),
    (&[Message("a", REJECTED), Message("a", REJECTED)], &["new", "rejected \"no\""]),
    (&[Message("a", DEAD), Message("a", DEAD)], &["dead no use", "dead no use"]),
    (&[Message("a", 1), Message("a", 7), Message("a", 1)], &["new", "mismatch", "replayed \"did 1\""]),
    (&[Message("a", DEAD), Message("a", 1), Message("a", DEAD)], &["dead no use", "mismatch", "dead no use"]),
    (&[Message("a", 1), Message("b", 1), Message("b", 7)], &["new", "new", "mismatch"]),
    (&[Message("a", 1), Ages, Message("a", 7), Message("a", 7)], &["new", "new", "replayed \"did 7\""]),
    (&[Message("a", DEAD), Ages, Message("a", DEAD)], &["dead no use", "dead no use"]),
    (&[Message("a", DEAD), Freed, Message("a", 1)], &["dead no use", "new"]),
    (&[Message("ä\u{1d11e}", 1), Message("ä\u{1d11e}", 1)], &["new", "replayed \"did 1\""]),
];

fn received(tenant: &str, key: &str, n: i64) -> Received {
    Received::new("s.t", serde_json::to_vec(&Job { n }).unwrap())
        .header("Tenant", tenant)
        .header("Idempotency-Key", key)
        .header("Oncebox-Id", "4711")
}

fn inbox(env: &TestEnv) -> Inbox {
    builder(env).tenant_header("Tenant").retention(DAY).build().unwrap()
}

fn handler() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Ok(match job.n {
                REJECTED => Outcome::reject("no".to_owned()),
                DEAD => Outcome::Dead("no use".to_owned()),
                n => Outcome::done(format!("did {n}")),
            })
        })
    })
}

/// A handler without a reply.
struct Silent(Does);

impl oncebox_inbox::Handler for Silent {
    type Message = Job;
    type Reply = ();

    async fn handle(
        &self,
        cx: oncebox_inbox::Context<'_>,
        job: Job,
    ) -> Result<Outcome<()>, oncebox_inbox::HandlerError> {
        self.0.handle(cx, job).await.map(|_| Outcome::done(()))
    }
}

async fn by_rust(inbox: &Inbox, tenant: &str, key: &str, n: i64) -> String {
    let message = received(tenant, key, n);
    match n {
        SILENT => answer(inbox.run(&Silent(handler()), &message).await.unwrap()),
        _ => answer(inbox.run(&handler(), &message).await.unwrap()),
    }
}

fn answer<R: Debug>(verdict: Verdict<R>) -> String {
    match verdict {
        Verdict::Handled(_) => "new".to_owned(),
        Verdict::Replayed(stored) => match stored.decode::<serde_json::Value>().unwrap() {
            Answer::Done(reply) => format!("replayed {reply}"),
            Answer::Rejected(reply) => format!("rejected {reply}"),
            other => format!("{other:?}"),
        },
        Verdict::Dead { reason } => format!("dead {reason}"),
        Verdict::Mismatch => "mismatch".to_owned(),
        Verdict::InFlight => "in_flight".to_owned(),
        other => format!("{other:?}"),
    }
}

const CLAIM: &str = "SELECT answer, coalesce(outcome::text, 'null'), reason
                     FROM oncebox.claim($1, $2, $3, tenant => $4, message_id => 4711)";
const BURY: &str = "SELECT oncebox.bury($1, $2, $3, tenant => $4, reason => $5, subject => 's.t', message_id => 4711,
                    headers => jsonb_build_object('Tenant', $4, 'Idempotency-Key', $2, 'Oncebox-Id', '4711'))";
const SETTLE: &str = "SELECT oncebox.settle($1, $2, $3::text::json, tenant => $4, status => $5)";

/// As a consumer in another language does it; nothing is prepared.
async fn by_sql(client: &mut Client, tenant: &str, key: &str, n: i64) -> String {
    let payload = serde_json::to_vec(&Job { n }).unwrap();
    let texts = [Type::TEXT; 5];
    let builder = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let transaction = builder.deferrable(true).start().await.unwrap();
    let named = [
        (&SCOPE as _, Type::TEXT),
        (&key as _, Type::TEXT),
        (&payload as _, Type::BYTEA),
        (&tenant as _, Type::TEXT),
    ];
    let row = transaction.query_typed_one(CLAIM, &named).await.unwrap();
    let answer: String = row.get(0);
    let given_up = match answer.as_str() {
        "new" => {
            let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, '')";
            transaction.query_typed(sql, &[(&key, Type::TEXT), (&n, Type::INT8)]).await.unwrap();
            (n == DEAD).then_some("no use")
        }
        "mismatch" => Some("the key was used before with another payload"),
        "replayed" | "rejected" => return format!("{answer} {}", row.get::<_, &str>(1)),
        "dead" => return format!("dead {}", row.get::<_, &str>(2)),
        _ => return answer,
    };
    let Some(reason) = given_up else {
        let did = format!("\"did {n}\"");
        let (status, outcome) = match n {
            REJECTED => ("rejected", Some("\"no\"")),
            SILENT => ("completed", None),
            _ => ("completed", Some(did.as_str())),
        };
        let [a, b, c, d, e] = texts;
        let ending =
            [(&SCOPE as _, a), (&key as _, b), (&outcome as _, c), (&tenant as _, d), (&status as _, e)];
        transaction.query_typed(SETTLE, &ending).await.unwrap();
        transaction.commit().await.unwrap();
        return answer;
    };
    transaction.rollback().await.unwrap();
    let [scope, key, payload, tenant] = named;
    let buried =
        client.query_typed_one(BURY, &[scope, key, payload, tenant, (&reason, Type::TEXT)]).await.unwrap();
    match buried.get(0) {
        "dead" => format!("dead {reason}"),
        other => other.to_owned(),
    }
}

/// All that the steps have left, but for times and ids.
async fn left(client: &Client) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', scope, tenant, key, encode(fingerprint, 'hex'), status, convert_from(outcome, 'UTF8'),
                                message_id) FROM oncebox.inbox
               UNION ALL SELECT concat_ws(' ', scope, tenant, key, subject, headers, convert_from(payload, 'UTF8'), stream,
                                          deliveries, reason) FROM oncebox.dead_letter
               UNION ALL SELECT concat_ws(' ', 'effect', key, n) FROM effect
               UNION ALL SELECT concat_ws(' ', 'attempts', key, failures) FROM oncebox.inbox_attempt
               UNION ALL SELECT concat_ws(' ', scope, retention_seconds, dead_letter_seconds, kind, mode)
                         FROM oncebox.inbox_scope
               ORDER BY 1";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn functions_and_crate_agree_on_every_scenario_and_take_over_from_each_other() {
    let env = environment().await;
    let (inbox, mut client, effect) = (inbox(&env), env.pg().await, Effect::<Sqlx>::new());
    let pool = Sqlx::from(sqlx::PgPool::connect_lazy(env.database_url()).unwrap());
    for (number, (steps, expected)) in SCENARIOS.iter().enumerate() {
        let mut lefts = Vec::new();
        for sides in [
            [Side::Rust, Side::Rust],
            [Side::Sql, Side::Sql],
            [Side::Rust, Side::Sql],
            [Side::Sql, Side::Rust],
            [Side::Driver, Side::Driver],
            [Side::Driver, Side::Rust],
            [Side::Rust, Side::Driver],
            [Side::Sql, Side::Driver],
        ] {
            // Without a hint of the scenario before.
            let driven = Inbox::<Sqlx>::over(pool.clone()).scope(SCOPE).tenant_header("Tenant");
            let driven = driven.retention(DAY).build().unwrap();
            let (mut answers, mut side) = (Vec::new(), sides.into_iter().cycle());
            client.batch_execute("SELECT oncebox.register_scope('tests:effect', '1 day')").await.unwrap();
            for step in *steps {
                let sql = match step {
                    Message(tenant, n) => {
                        let (side, message) = (side.next().unwrap(), received(tenant, "k", *n));
                        let answered = async || {
                            let answer = match side {
                                Side::Rust => by_rust(&inbox, tenant, "k", *n).await,
                                Side::Sql => by_sql(&mut client, tenant, "k", *n).await,
                                Side::Driver => answer(driven.run(&effect, &message).await.unwrap()),
                            };
                            (answer != "in_flight").then_some(answer)
                        };
                        answers.push(eventually("no sweep has the aged row", LIMIT, answered).await);
                        continue;
                    }
                    Ages => "UPDATE oncebox.inbox SET created_at = created_at - interval '25 hours'",
                    Freed => "DELETE FROM oncebox.inbox WHERE status = 'dead'",
                };
                assert_eq!(client.execute(sql, &[]).await.unwrap(), 1);
            }
            assert_eq!(answers, *expected, "scenario {number}, {sides:?}");
            lefts.push((sides, left(&client).await));
            let sql = "TRUNCATE oncebox.inbox, oncebox.dead_letter, oncebox.inbox_attempt, oncebox.inbox_scope, effect";
            client.batch_execute(sql).await.unwrap();
        }
        let differ = |(_, rows): &&(_, Vec<String>)| *rows != lefts[0].1;
        assert_eq!(lefts.iter().find(differ), None, "scenario {number}: {:?}", lefts[0]);
    }
}

/// One lock for both: who works on a key is in the way of all others, and of no other key.
#[tokio::test]
async fn a_key_in_the_hands_of_one_is_in_flight_for_the_other() {
    let env = environment().await;
    let (inbox, mut client) = (inbox(&env), env.pg().await);
    let (begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (begun, goes_on) = (Arc::clone(&begun), Arc::clone(&goes_on));
        Does::new(move |cx, job| {
            let (begun, goes_on) = (Arc::clone(&begun), Arc::clone(&goes_on));
            Box::pin(async move {
                insert(cx, &job).await?;
                begun.notify_one();
                goes_on.notified().await;
                Ok(Outcome::done("did 1".to_owned()))
            })
        })
    };
    let mut tasks = JoinSet::new();
    let (held, message) = (inbox.clone(), received("ä", "k", 1));
    tasks.spawn(async move { held.run(&slow, &message).await });
    begun.notified().await;
    assert_eq!(by_sql(&mut client, "ä", "k", 1).await, "in_flight");
    let bury = "SELECT oncebox.bury('tests:effect', 'k', 'p', tenant => 'ä', reason => 'no', subject => 's')";
    assert_eq!(client.query_one(bury, &[]).await.unwrap().get::<_, &str>(0), "in_flight");
    assert_eq!(by_sql(&mut client, "b", "k", 1).await, "new");
    goes_on.notify_one();
    assert!(matches!(tasks.join_next().await.unwrap().unwrap().unwrap(), Verdict::Handled(_)));
    assert_eq!(by_sql(&mut client, "ä", "k", 1).await, "replayed \"did 1\"");

    let claim = "BEGIN DEFERRABLE; SELECT oncebox.claim('tests:effect', 'q', '{\"n\":1}', tenant => 'ä')";
    client.batch_execute(claim).await.unwrap();
    assert_eq!(by_rust(&inbox, "ä", "q", 1).await, "in_flight");
    assert_eq!(by_sql(&mut env.pg().await, "ä", "q", 1).await, "in_flight");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(by_rust(&inbox, "ä", "q", 1).await, "new");
    assert_eq!(effects(&env).await, 3);
}

/// Consumers of both kinds, in processes of their own as far as PostgreSQL knows, get copies of the
/// same messages at once.
#[tokio::test]
async fn copies_for_both_at_once_have_one_effect() {
    const KEYS: u64 = 40;
    let env = environment().await;
    let inbox = inbox(&env);
    let handled = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..6_u64 {
        let (inbox, handled, mut client) = (inbox.clone(), Arc::clone(&handled), env.pg().await);
        tasks.spawn(async move {
            for copy in 0..KEYS {
                let key = format!("k{}", (copy * 7 + worker / 2) % KEYS);
                loop {
                    let answer = match worker % 2 {
                        0 => by_rust(&inbox, "a", &key, 1).await,
                        _ => by_sql(&mut client, "a", &key, 1).await,
                    };
                    match answer.as_str() {
                        "new" => drop(handled.fetch_add(1, Ordering::Relaxed)),
                        "replayed \"did 1\"" => {}
                        "in_flight" => {
                            tokio::task::yield_now().await;
                            continue;
                        }
                        other => panic!("{key}: {other}"),
                    }
                    break;
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!((handled.load(Ordering::Relaxed), effects(&env).await), (KEYS, KEYS.cast_signed()));
}

/// The attempts that one side counted count for the other, and a dead letter forgets them.
#[tokio::test]
async fn failed_attempts_are_counted_together() {
    let env = environment().await;
    let (inbox, client) = (inbox(&env), env.pg().await);
    let failing = Does::new(|_, _| Box::pin(async { Err("not today".into()) }));
    inbox.run(&failing, &received("a", "k", 1)).await.unwrap();
    let failed = "SELECT oncebox.attempt_failed('tests:effect', 'k', tenant => 'a')";
    assert_eq!(client.query_one(failed, &[]).await.unwrap().get::<_, i64>(0), 2);
    inbox.run(&failing, &received("a", "k", 1)).await.unwrap();
    assert_eq!(client.query_one(failed, &[]).await.unwrap().get::<_, i64>(0), 4);
    // Of a message in a stream, by its place there; to the microsecond.
    let stored =
        "SELECT oncebox.attempt_failed('tests:effect', 'k', 'a', 'S', 7, '2026-01-02 03:04:05.000006Z'),
                         (SELECT string_agg(message, ',') FROM oncebox.inbox_attempt WHERE message <> '')";
    client.query_one(stored, &[]).await.unwrap();
    let row = client.query_one(stored, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (2, "S 7 1767323045000006"));
    let bury = "SELECT oncebox.bury('tests:effect', 'k', '{\"n\":1}', tenant => 'a', reason => 'no', subject => 's')";
    assert_eq!(client.query_one(bury, &[]).await.unwrap().get::<_, &str>(0), "dead");
    let left = client.query_one("SELECT count(*) FROM oncebox.inbox_attempt", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
    assert_eq!(by_rust(&inbox, "a", "k", 1).await, "dead no");
}

#[tokio::test]
async fn functions_work_through_a_transaction_pooler() {
    let env = environment().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let mut pooled = client(&url).await;
    for (n, expected) in [(1, "new"), (REJECTED, "new"), (DEAD, "dead no use")] {
        assert_eq!(by_sql(&mut pooled, "a", &format!("k{n}"), n).await, expected);
    }
    let inbox = inbox(&env);
    for (n, expected) in [(1, "replayed \"did 1\""), (REJECTED, "rejected \"no\""), (DEAD, "dead no use")] {
        assert_eq!(by_rust(&inbox, "a", &format!("k{n}"), n).await, expected);
        assert_eq!(by_sql(&mut pooled, "a", &format!("k{n}"), n).await, expected);
    }
    assert_eq!((effects(&env).await, left_prepared(&url).await), (2, 0));
}

/// Where the snapshot is older than the first copy's commit, PostgreSQL names the remedy.
#[tokio::test]
async fn a_snapshot_that_is_too_old_for_a_claim_is_a_serialization_failure() {
    let env = environment().await;
    let client = env.pg().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let key = level.replace(' ', "-");
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level} READ WRITE DEFERRABLE; SELECT 1"))
            .await
            .unwrap();
        assert_eq!(by_sql(&mut env.pg().await, "", &key, 1).await, "new");
        let sql = format!("SELECT oncebox.claim('{SCOPE}', '{key}', '{{\"n\":1}}')");
        let error = client.batch_execute(&sql).await.expect_err("the row is not in the snapshot");
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// A claim that another has committed since this transaction began to write is not its own.
#[tokio::test]
async fn a_claim_of_a_younger_transaction_is_anothers() {
    let env = environment().await;
    let client = env.pg().await;
    client.batch_execute("BEGIN DEFERRABLE; SELECT pg_current_xact_id()").await.unwrap();
    assert_eq!(by_sql(&mut env.pg().await, "", "k", SILENT).await, "new");
    let claim = "SELECT answer FROM oncebox.claim('tests:effect', 'k', '{\"n\":-1}')";
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, &str>(0), "replayed");
    let settle = client.batch_execute("SELECT oncebox.settle('tests:effect', 'k', '1')").await;
    assert_eq!(settle.expect_err("not its own").code().unwrap().code(), "OB010");
}
