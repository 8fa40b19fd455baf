//! Strict order after a dead letter: later messages of its ordering key wait, and follow it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use oncebox_inbox::{
    Answer, BehindDead, Consumer, Context, Handler, HandlerError, LeasedContext, LeasedHandler, Order,
    Outcome, Set,
};
use oncebox_tests::{TestEnv, eventually};

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        order::{assert_in_order, lines, publish_lines},
        support::{Does, Job, LIMIT, Returned, SCOPE, builder, count, effects, insert, stream_environment},
    },
    leased::support::LEASE,
    relay::{
        large::drained,
        process::{run, run_ok},
    },
};

/// Gives the messages up that the table `broken` names. It also takes sets, and refuses those that
/// have such a message.
#[derive(Clone)]
struct Breakable {
    each: Does,
    sets: Arc<AtomicU64>,
}

/// As [`Breakable`], one message at a time.
pub(crate) fn breakable() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let broken = "SELECT FROM broken WHERE n = $1";
            if cx.transaction().query_opt(broken, &[&job.n]).await?.is_some() {
                return Ok(Outcome::dead(format!("no account {}", job.n)));
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    })
}

impl Handler for Breakable {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, cx: Context<'_>, job: Job) -> Returned {
        self.each.handle(cx, job).await
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Job>) -> Result<Vec<Outcome<String>>, HandlerError> {
        let numbers: Vec<i64> = set.messages().map(|job| job.n).collect();
        let broken = "SELECT FROM broken WHERE n = ANY ($1)";
        if !set.transaction().query(broken, &[&numbers]).await?.is_empty() {
            return Err(HandlerError::message("one of them is broken"));
        }
        self.sets.fetch_add(1, SeqCst);
        let keys: Vec<&str> = set.iter().map(|(cx, _)| cx.key().as_str()).collect();
        let lines: Vec<&str> =
            set.iter().map(|(cx, _)| cx.message().ordering_key().unwrap_or_default()).collect();
        let sql =
            "INSERT INTO effect (key, n, line) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[])";
        set.transaction().execute(sql, &[&keys, &numbers, &lines]).await?;
        Ok(numbers.iter().map(|n| Outcome::done(format!("effect {n}"))).collect())
    }
}

pub(crate) async fn broken(env: &TestEnv, numbers: &[i64]) {
    let pg = env.pg().await;
    pg.batch_execute("CREATE TABLE IF NOT EXISTS broken (n bigint); DELETE FROM broken").await.unwrap();
    pg.execute("INSERT INTO broken SELECT unnest($1::bigint[])", &[&numbers]).await.unwrap();
}

async fn waiting(env: &TestEnv) -> i64 {
    count(env, "oncebox.inbox_behind").await
}

/// The numbers of the messages that are dead letters.
async fn dead(env: &TestEnv) -> Vec<String> {
    let sql = "SELECT key FROM oncebox.dead_letter ORDER BY id";
    env.pg().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The letters are in the order of their names: lines die side by side.
pub(crate) async fn until(env: &TestEnv, all: i64, behind: i64, letters: &[&str]) {
    eventually("the effects, those behind, and the letters", LIMIT, async || {
        let mut dead = dead(env).await;
        dead.sort_unstable();
        (effects(env).await == all && waiting(env).await == behind && dead == letters).then_some(())
    })
    .await;
}

async fn retry(env: &TestEnv) {
    let (code, output, log) =
        run(env.database_url(), &["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--all"]).await;
    assert_eq!(code, 0, "{output}{log}");
}

pub(crate) async fn strict(env: &TestEnv) -> Consumer {
    consumer(env).await.order(Order::Strict).concurrency(8)
}

async fn start(env: &TestEnv, consumer: Consumer, mode: &str) -> Running {
    let inbox = builder(env).build().unwrap();
    match mode {
        "each" => Running::start(consumer, inbox, breakable()),
        "batch" => Running::start(consumer.batch(16), inbox, breakable()),
        _ => {
            let sets = Breakable { each: breakable(), sets: Arc::default() };
            Running::start(consumer.batch(16), inbox, sets)
        }
    }
}

/// Messages 3, 10, 17 .. of `line-3` wait for 3, and run after it; other lines do not wait.
async fn waits_until_a_retry(mode: &str) {
    let env = stream_environment().await;
    broken(&env, &[3]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await, mode).await;
    until(&env, 60, 9, &["k3"]).await;
    publish_lines(&env, 70, 77).await;
    until(&env, 66, 10, &["k3"]).await;
    // Copies of one that waits, of the dead one, and of one that was handled.
    let jetstream = env.jetstream().await;
    for (key, n, line) in [("k10", 10, "line-3"), ("k3", 3, "line-3"), ("k0", 0, "line-0")] {
        publish(&jetstream, env.subject("a"), key, n, Some(line)).await;
    }
    settled(&env).await;
    assert_eq!(effects(&env).await, 66, "{mode}");
    // It dies again, and the rest waits again.
    retry(&env).await;
    eventually("it died again", LIMIT, async || {
        let sql = "SELECT FROM oncebox.audit AS a JOIN oncebox.dead_letter AS d ON d.id = a.message_id
                   WHERE a.action = 'retry' AND d.created_at > a.happened_at";
        env.pg().await.query_opt(sql, &[]).await.unwrap().map(drop)
    })
    .await;
    assert_eq!((effects(&env).await, dead(&env).await), (66, vec!["k3".to_owned()]), "{mode}");
    broken(&env, &[]).await;
    retry(&env).await;
    until(&env, 77, 0, &[]).await;
    publish_lines(&env, 77, 84).await;
    until(&env, 84, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    running.stop().await;
}

#[tokio::test]
async fn later_messages_wait_behind_a_dead_letter_until_it_is_retried() {
    waits_until_a_retry("each").await;
}

#[tokio::test]
async fn later_messages_of_a_batch_wait_behind_a_dead_letter() {
    waits_until_a_retry("batch").await;
}

#[tokio::test]
async fn later_messages_of_a_set_wait_behind_a_dead_letter() {
    waits_until_a_retry("sets").await;
}

/// The line goes on from its next message, and stops at the next one that dies.
#[tokio::test]
async fn a_discard_moves_the_line_on_to_the_next_that_dies() {
    let env = stream_environment().await;
    broken(&env, &[3, 17, 24]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await, "each").await;
    until(&env, 60, 9, &["k3"]).await;
    let url = env.database_url();
    run_ok(url, &["inbox", "dead", "discard", "--key", "k3"]).await;
    until(&env, 61, 7, &["k17"]).await;
    run_ok(url, &["inbox", "dead", "discard", "--all"]).await;
    until(&env, 61, 6, &["k24"]).await;
    broken(&env, &[]).await;
    retry(&env).await;
    until(&env, 68, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    running.stop().await;
}

/// As many wait as may; the rest stays in the stream, in its order, and is not lost.
#[tokio::test]
async fn a_full_line_keeps_its_messages_in_the_stream() {
    let env = stream_environment().await;
    broken(&env, &[3]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await.behind_dead(BehindDead::Wait(4)), "each").await;
    until(&env, 60, 4, &["k3"]).await;
    let unsettled = env.stream().await.consumer_info("d").await.unwrap().num_ack_pending;
    assert_eq!(unsettled, 5, "they wait in the stream");
    run_ok(env.database_url(), &["inbox", "dead", "discard", "--all"]).await;
    until(&env, 69, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    running.stop().await;
}

#[tokio::test]
async fn later_messages_overtake_a_dead_letter_where_that_is_asked_for() {
    let env = stream_environment().await;
    broken(&env, &[3]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await.behind_dead(BehindDead::Overtake), "each").await;
    until(&env, 69, 0, &["k3"]).await;
    broken(&env, &[]).await;
    retry(&env).await;
    until(&env, 70, 0, &[]).await;
    running.stop().await;
}

/// A consumer without strict order lets nothing wait, and still runs a line that another has left.
#[tokio::test]
async fn a_line_goes_on_under_a_consumer_without_strict_order() {
    let env = stream_environment().await;
    broken(&env, &[3]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await, "each").await;
    until(&env, 60, 9, &["k3"]).await;
    running.stop().await;
    broken(&env, &[]).await;
    retry(&env).await;
    let running = start(&env, consumer(&env).await, "each").await;
    until(&env, 70, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    running.stop().await;
}

/// The process dies wherever it stands; the next one finds the line as it is.
#[tokio::test]
async fn a_line_survives_the_death_of_processes() {
    let env = stream_environment().await;
    broken(&env, &[3, 5, 24]).await;
    publish_lines(&env, 0, 210).await;
    let mut process = start(&env, strict(&env).await, "each").await;
    let mut pause = Duration::from_millis(20);
    for round in 0..12 {
        // Each time a little later.
        tokio::time::sleep(pause).await;
        pause += Duration::from_millis(30);
        process.tasks.shutdown().await;
        process = start(&env, strict(&env).await, "each").await;
        if round == 5 {
            broken(&env, &[]).await;
        }
        if round >= 4 && !dead(&env).await.is_empty() {
            let _ =
                run(env.database_url(), &["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--all"])
                    .await;
        }
    }
    eventually("all effects", LIMIT * 2, async || {
        if !dead(&env).await.is_empty() {
            let _ =
                run(env.database_url(), &["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--all"])
                    .await;
        }
        (effects(&env).await == 210).then_some(())
    })
    .await;
    until(&env, 210, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    process.stop().await;
}

/// Retention takes a dead letter only when no message waits for it.
#[tokio::test]
async fn retention_keeps_a_dead_letter_while_others_wait_behind_it() {
    let env = stream_environment().await;
    broken(&env, &[3, 69]).await;
    publish_lines(&env, 0, 70).await;
    let inbox = builder(&env).retention(Duration::from_secs(3600)).build().unwrap();
    let running = Running::start(strict(&env).await, inbox, breakable());
    until(&env, 59, 9, &["k3", "k69"]).await;
    running.stop().await;
    let pg = env.pg().await;
    let old = "UPDATE oncebox.dead_letter SET created_at = now() - interval '91 days';
               UPDATE oncebox.inbox_behind SET created_at = now() - interval '91 days'";
    pg.batch_execute(old).await.unwrap();
    let kept = "1 dead letter, 0 abandoned claims; kept: 1 dead letter that messages of their ordering keys wait behind";
    let url = env.database_url();
    for (arguments, verb) in
        [(&["inbox", "prune", "--dry-run"][..], "would prune"), (&["inbox", "prune"][..], "pruned")]
    {
        let said = run_ok(url, arguments).await;
        assert!(said.starts_with(verb) && said.contains(kept), "{arguments:?}: {said}");
    }
    assert_eq!((dead(&env).await, waiting(&env).await), (vec!["k3".to_owned()], 9));
    run_ok(env.database_url(), &["inbox", "dead", "discard", "--all"]).await;
    let sql = "SELECT count(*) FROM oncebox.inbox_behind WHERE is_due AND scope = $1";
    assert_eq!(pg.query_one(sql, &[&SCOPE]).await.unwrap().get::<_, i64>(0), 1);
}

/// Gives messages up before its lease ends, or writes the effect as its lease does.
struct UnderLease(Arc<Mutex<HashSet<i64>>>);

impl LeasedHandler for UnderLease {
    type Message = Job;
    type Reply = i64;

    async fn handle(&self, _: &LeasedContext<'_>, job: Job) -> Result<Outcome<i64>, HandlerError> {
        let is_broken = self.0.lock().unwrap().contains(&job.n);
        Ok(if is_broken { Outcome::dead(format!("no account {}", job.n)) } else { Outcome::done(job.n) })
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<i64>) -> Result<(), HandlerError> {
        let Answer::Done(n) = answer else { return Ok(()) };
        insert(&cx, &Job { n: *n }).await.map(drop)
    }
}

#[tokio::test]
async fn later_messages_under_leases_wait_behind_a_dead_letter() {
    let env = stream_environment().await;
    let broken: Arc<Mutex<HashSet<i64>>> = Arc::new(Mutex::new([3, 17].into()));
    publish_lines(&env, 0, 70).await;
    let leased = builder(&env).leased(LEASE).build().unwrap();
    let running = Running::start(strict(&env).await, leased, UnderLease(Arc::clone(&broken)));
    until(&env, 60, 9, &["k3"]).await;
    broken.lock().unwrap().remove(&3);
    retry(&env).await;
    until(&env, 62, 7, &["k17"]).await;
    run_ok(env.database_url(), &["inbox", "dead", "discard", "--all"]).await;
    until(&env, 69, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    running.stop().await;
}

/// Its payload stays in the object store, and is fetched when it runs.
#[tokio::test]
async fn a_large_message_waits_behind_a_dead_letter() {
    let env = stream_environment().await;
    broken(&env, &[1]).await;
    let sql = "SELECT oncebox.enqueue('k' || n, $1, convert_to(
                 '{\"n\": ' || n || ', \"rest\": \"' || repeat('x', 3000000 * (n - 1)) || '\"}', 'UTF8'), '{}', 'line')
               FROM generate_series(1, 2) AS n";
    env.pg().await.query(sql, &[&env.subject("large")]).await.unwrap();
    drained(&env).await;
    let running = start(&env, strict(&env).await, "each").await;
    until(&env, 0, 1, &["k1"]).await;
    let bytes = "SELECT octet_length(payload) FROM oncebox.inbox_behind";
    assert_eq!(env.pg().await.query_one(bytes, &[]).await.unwrap().get::<_, i32>(0), 0);
    run_ok(env.database_url(), &["inbox", "dead", "discard", "--all"]).await;
    until(&env, 1, 0, &[]).await;
    running.stop().await;
}

#[tokio::test]
async fn operators_see_what_waits_behind_which_dead_letter() {
    let env = stream_environment().await;
    broken(&env, &[3]).await;
    publish_lines(&env, 0, 70).await;
    let running = start(&env, strict(&env).await, "each").await;
    until(&env, 60, 9, &["k3"]).await;
    let (url, nats) = (env.database_url(), env.nats_url());
    let list = run_ok(url, &["inbox", "dead", "list"]).await;
    assert!(list.contains("BEHIND") && list.lines().nth(1).unwrap().contains(" 9 "), "{list}");
    let shown = run_ok(url, &["inbox", "dead", "show", "1"]).await;
    assert!(
        shown.contains("line-3")
            && shown.lines().any(|line| line.starts_with("behind it") && line.ends_with('9')),
        "{shown}"
    );
    let trace = run_ok(url, &["trace", "k17"]).await;
    assert!(trace.contains("behind in tests:effect, behind dead letter 1 of ordering key line-3"), "{trace}");
    let (_, why, log) = run(url, &["why", "k17", "--nats-url", nats]).await;
    for part in [
        "behind dead letter 1 (key k3) of ordering key line-3",
        "with 1 message before it",
        "inbox dead retry --id '1'",
    ] {
        assert!(why.contains(part), "{part}: {why}{log}");
    }
    let (_, status, log) = run(url, &["status", "--nats-url", nats]).await;
    assert!(status.contains("9 messages of their ordering keys wait behind them"), "{status}{log}");
    running.stop().await;
}
