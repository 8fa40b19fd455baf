//! Keys are kept for as long as they should be, and not for ever.

use std::time::Duration;

use oncebox_inbox::{Builder, Context, Handler, HandlerError, Inbox, Outcome, Received, Set, Verdict};
use oncebox_tests::{Log, TestEnv, eventually};

use crate::inbox::{
    consumer::{Running, consumer, publish},
    support::{
        Does, Job, LIMIT, Returned, SCOPE, builder, count, dead_letters, effects, environment, gives_up,
        message, stream_environment,
    },
};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn keeping(env: &TestEnv, days: u32) -> Inbox {
    builder(env).retention(DAY * days).build().unwrap()
}

/// Stores keys and does nothing else; as sets, which are quicker than savepoints.
struct Nothing;

impl Handler for Nothing {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, _: Context<'_>, _: Job) -> Returned {
        Ok(Outcome::done(String::new()))
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Job>) -> Result<Vec<Outcome<String>>, HandlerError> {
        Ok(set.messages().map(|_| Outcome::done(String::new())).collect())
    }
}

/// Time passes, for everything that is stored.
async fn pass(env: &TestEnv, hours: i32) {
    let pg = env.pg().await;
    let sql = "UPDATE oncebox.inbox SET created_at = created_at - make_interval(hours => $1)";
    pg.execute(sql, &[&hours]).await.unwrap();
    let sql = "UPDATE oncebox.inbox_sweep SET finished_at = finished_at - make_interval(hours => $1)";
    pg.execute(sql, &[&hours]).await.unwrap();
    let sql = "UPDATE oncebox.inbox_sweep_range SET due_at = due_at - make_interval(hours => $1)";
    pg.execute(sql, &[&hours]).await.unwrap();
}

/// All steps of a sweep; how many keys it deleted.
async fn sweep(inbox: &Inbox) -> u64 {
    let mut deleted = 0;
    for _ in 0..1000 {
        match inbox.sweep_once().await.unwrap() {
            Some(count) => deleted += count,
            None => return deleted,
        }
    }
    panic!("a sweep comes to an end")
}

/// An expired row counts for nothing on read, whether it has been deleted or not; by the database's
/// clock.
#[tokio::test]
async fn a_key_counts_as_new_after_its_retention() {
    let env = environment().await;
    let (inbox, handler) = (keeping(&env, 2), Does::effect());
    let run = async |n| inbox.run(&handler, &message("k", n)).await.unwrap();
    assert!(matches!(run(1).await, Verdict::Handled(_)));
    pass(&env, 47).await;
    assert!(matches!(run(1).await, Verdict::Replayed(_)));
    assert!(matches!(run(2).await, Verdict::Mismatch));
    pass(&env, 2).await;
    assert!(matches!(run(2).await, Verdict::Handled(_)), "another payload: the old one is forgotten");
    assert!(matches!(run(2).await, Verdict::Replayed(_)));
    pass(&env, 49).await;
    let batch = [message("k", 3), message("a", 1), message("k", 3)];
    let verdicts = inbox.run_batch(&handler, &batch).await;
    let is_handled = |at: usize| matches!(verdicts[at], Ok(Verdict::Handled(_)));
    assert!(
        is_handled(0) && is_handled(1) && matches!(verdicts[2], Ok(Verdict::Replayed(_))),
        "{verdicts:?}"
    );
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await, handler.runs()), (4, 2, 4));
    // A message that dies a second time is recorded a second time.
    for _ in 0..2 {
        pass(&env, 49).await;
        let over = inbox.run(&gives_up(), &message("over", 1)).await.unwrap();
        assert!(matches!(over, Verdict::Dead { .. }));
    }
    assert_eq!(dead_letters(&env).await.len(), 1 + 2);
}

/// The row comes back with the rollback, and is as old as before.
#[tokio::test]
async fn a_failure_over_an_old_key_leaves_it_as_it_was() {
    let env = environment().await;
    let inbox = keeping(&env, 1);
    inbox.run(&Does::effect(), &message("k", 1)).await.unwrap();
    pass(&env, 25).await;
    let failing = Does::new(|_, _| Box::pin(async { Err("no luck".into()) }));
    let verdict = inbox.run(&failing, &message("k", 1)).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    assert_eq!(count(&env, "oncebox.inbox").await, 1);
    // Two copies at once: one replaces the row.
    let handler = Does::effect();
    let (one, other) = (message("k", 1), message("k", 1));
    let verdicts = tokio::join!(inbox.run(&handler, &one), inbox.run(&handler, &other));
    let handled = [&verdicts.0, &verdicts.1].iter().filter(|v| matches!(v, Ok(Verdict::Handled(_)))).count();
    assert_eq!((handled, handler.runs(), effects(&env).await), (1, 1, 2), "{verdicts:?}");
}

/// By the retention of each consumer, bounded in each step, dead ones too; those without a
/// retention are kept.
#[tokio::test]
async fn a_sweep_deletes_what_is_old_and_nothing_else() {
    let env = environment().await;
    let handler = Does::effect();
    let (short, long) =
        (keeping(&env, 1), builder(&env).scope("tests:long").retention(DAY * 30).build().unwrap());
    let for_ever = builder(&env).scope("tests:for-ever").build().unwrap();
    let many: Vec<Received> = (0..20_000).map(|n| message(&format!("old{n}"), n)).collect();
    for part in many.chunks(5000) {
        short.run_batch(&Nothing, part).await;
    }
    for inbox in [&short, &long, &for_ever] {
        inbox.run(&handler, &message("k", 1)).await.unwrap();
        inbox.run(&gives_up(), &message("dead", 1)).await.unwrap();
        assert_eq!(sweep(inbox).await, 0);
    }
    pass(&env, 25).await;
    short.run(&handler, &message("young", 1)).await.unwrap();
    let first = long.sweep_once().await.unwrap().expect("a sweep is due: any process deletes for all");
    assert!((1..20_000).contains(&first), "{first} in one step");
    assert_eq!(first + sweep(&short).await, 20_002);
    assert_eq!(sweep(&long).await, 0, "not due again so soon");
    let sql = "SELECT string_agg(scope || ' ' || key, ', ' ORDER BY scope, key) FROM oncebox.inbox";
    let left: String = env.pg().await.query_one(sql, &[]).await.unwrap().get(0);
    let expected =
        format!("{SCOPE} young, tests:for-ever dead, tests:for-ever k, tests:long dead, tests:long k");
    assert_eq!(left, expected);
    assert_eq!(dead_letters(&env).await.len(), 3, "kept until an operator discards them");
    // An operator has a consumer keep its keys for ever from now on.
    pass(&env, 24 * 60).await;
    let change = "SELECT oncebox.change_scope('tests:long', NULL, NULL, 'consumer', 'mina')";
    env.pg().await.batch_execute(change).await.unwrap();
    builder(&env).scope("tests:long").build().unwrap().sweep_once().await.unwrap();
    sweep(&short).await;
    assert_eq!(count(&env, "oncebox.inbox").await, 4);
}

/// A process that dies between two steps, and one that sweeps already.
#[tokio::test]
async fn one_process_sweeps_at_a_time_and_goes_on_where_another_stopped() {
    let env = environment().await;
    let inbox = keeping(&env, 1);
    let many: Vec<Received> = (0..20_000).map(|n| message(&format!("old{n}"), n)).collect();
    inbox.run_batch(&Nothing, &many).await;
    sweep(&inbox).await;
    pass(&env, 25).await;
    let mut other = env.pg().await;
    let sweeping = other.transaction().await.unwrap();
    sweeping.execute("SELECT FROM oncebox.inbox_sweep FOR UPDATE", &[]).await.unwrap();
    assert_eq!(inbox.sweep_once().await.unwrap(), None);
    sweeping.rollback().await.unwrap();
    // Its row is locked by a handler, say: the sweep does not wait for it.
    let held = other.transaction().await.unwrap();
    held.execute("SELECT FROM oncebox.inbox WHERE key = 'old0' FOR UPDATE", &[]).await.unwrap();
    let first = inbox.sweep_once().await.unwrap().expect("due");
    let stands = "SELECT next_block FROM oncebox.inbox_sweep WHERE finished_at < now() - interval '1 hour'";
    let next: i64 = env.pg().await.query_one(stands, &[]).await.unwrap().get(0);
    assert!(next > 0);
    let rest = sweep(&keeping(&env, 1)).await;
    assert_eq!(first + rest, 19_999);
    held.rollback().await.unwrap();
    let explained = "EXPLAIN SELECT FROM oncebox.inbox AS i WHERE i.ctid >= format('(%s,0)', 1::bigint)::tid
                     AND i.ctid < format('(%s,0)', 129::bigint)::tid";
    let plan: String = env.pg().await.query(explained, &[]).await.unwrap()[0].get(0);
    assert!(plan.contains("Tid Range Scan"), "{plan}");
}

/// Else it would read all keys of a month each hour.
#[tokio::test]
async fn a_sweep_looks_only_where_something_is_due() {
    let env = environment().await;
    let pg = env.pg().await;
    let (day, month) =
        (keeping(&env, 1), builder(&env).scope("tests:long").retention(DAY * 30).build().unwrap());
    let fill = async |inbox: &Inbox, prefix: &str| {
        let many: Vec<Received> = (0..15_000).map(|n| message(&format!("{prefix}{n}"), n)).collect();
        for part in many.chunks(5000) {
            inbox.run_batch(&Nothing, part).await;
        }
    };
    // How many ranges a sweep looks at, and how many keys it deletes.
    let looks = async || {
        pg.batch_execute("UPDATE oncebox.inbox_sweep SET finished_at = NULL").await.unwrap();
        let (mut ranges, mut deleted) = (0, 0);
        while let Some(count) = day.sweep_once().await.unwrap() {
            (ranges, deleted) = (ranges + 1, deleted + count);
        }
        (ranges - 1, deleted)
    };
    month.sweep_once().await.unwrap();
    fill(&month, "m").await;
    fill(&day, "d").await;
    let all = looks().await.0;
    assert!(all > 3, "{all} ranges");
    assert_eq!(looks().await, (0, 0));
    let younger =
        "UPDATE oncebox.inbox SET created_at = created_at - interval '25 hours' WHERE key = 'd14999'";
    pg.batch_execute(younger).await.unwrap();
    pg.batch_execute("UPDATE oncebox.inbox_sweep_range SET due_at = due_at - interval '25 hours'")
        .await
        .unwrap();
    assert_eq!(looks().await, (all, 1), "a day later they are looked at: something new might stand there");
    assert_eq!(looks().await, (0, 0));
    pg.batch_execute("VACUUM FULL oncebox.inbox").await.unwrap();
    let all = looks().await.0;
    assert!(all > 2, "{all} ranges: rows have moved");
    pg.batch_execute("UPDATE oncebox.inbox_sweep_range SET due_at = due_at + interval '1 year'")
        .await
        .unwrap();
    assert_eq!(looks().await, (all, 0), "the clock was ahead");
    assert_eq!(looks().await, (0, 0));
    pg.batch_execute("UPDATE oncebox.inbox_scope SET retention_seconds = 1 WHERE scope = 'tests:long'")
        .await
        .unwrap();
    pg.batch_execute("UPDATE oncebox.inbox SET created_at = created_at - interval '2 seconds'")
        .await
        .unwrap();
    assert_eq!(looks().await.1, 15_000, "a retention is shorter");
}

/// A refused sweep stops no consumer, so only its log can say that the tables grow.
#[tokio::test]
async fn a_sweep_that_postgresql_refuses_is_logged_as_a_warning() {
    let env = stream_environment().await;
    let rename = "ALTER FUNCTION oncebox.sweep_inboxes RENAME TO sweep_elsewhere";
    env.pg().await.batch_execute(rename).await.unwrap();
    let (log, _guard) = Log::of_this_thread();
    let running = Running::start(consumer(&env).await, keeping(&env, 1), Does::effect());
    eventually("a warning", LIMIT, async || (log.count("WARN") > 0).then_some(())).await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    eventually("messages are handled", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
    assert_eq!(log.count("rows that are older than their retention are not deleted"), 1, "{}", log.text());
}

#[tokio::test]
async fn a_consumer_sweeps_by_itself_and_counts_what_came_late() {
    let env = stream_environment().await;
    let inbox = keeping(&env, 1);
    let handler = Does::effect();
    inbox.run(&handler, &message("old", 1)).await.unwrap();
    pass(&env, 25).await;
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    let jetstream = env.jetstream().await;
    publish(&jetstream, env.subject("a"), "fresh", 1, None).await;
    for (key, time) in [("late", "2001-01-01T00:00:00Z"), ("later", "2001-01-02T00:00:00Z")] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Idempotency-Key", key);
        headers.insert("Oncebox-Time", time);
        let sent = jetstream.publish_with_headers(env.subject("a"), headers, "{\"n\":1}".into()).await;
        sent.unwrap().await.unwrap();
    }
    eventually("all effects", LIMIT, async || (effects(&env).await == 4).then_some(())).await;
    let old = "oncebox.inbox WHERE key = 'old'";
    eventually("the old key is gone", LIMIT, async || (count(&env, old).await == 0).then_some(())).await;
    running.stop().await;
    assert_eq!((inbox.counts().late, inbox.counts().handled), (2, 4));
    let text = oncebox_inbox::metrics_text([&inbox]);
    assert!(text.contains("oncebox_inbox_late_total{scope=\"tests:effect\"} 2\n"), "{text}");
    assert_eq!(count(&env, "oncebox.inbox_scope WHERE retention_seconds = 86400").await, 1);
}

#[tokio::test]
async fn a_retention_that_cannot_work_is_refused() {
    let env = environment().await;
    for limit in [Duration::ZERO, Duration::from_millis(999), DAY * 40_000] {
        let built: Builder = builder(&env).retention(limit);
        let problem = built.build().unwrap_err().to_string();
        assert!(problem.contains("retention is not 1 second to 100 years"), "{problem}");
    }
}

/// A process that is stopped within a sweep keeps the others from sweeping, and old row versions
/// from VACUUM.
#[tokio::test]
async fn postgresql_ends_a_sweep_whose_process_is_silent() {
    let env = environment().await;
    keeping(&env, 1).run(&Nothing, &message("old", 1)).await.unwrap();
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    let claim = include_str!("../../../claims/src/retention/sweep.sql").replace("{schema}", "oncebox");
    assert_eq!(transaction.query(&claim, &[]).await.unwrap().len(), 1, "a sweep is due");
    let limit = transaction.query_one("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap();
    assert_eq!(limit.get::<_, String>(0), "1min");
}
