//! The messages of a batch taken together: all of them or none, and then each by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use oncebox_inbox::{Answer, Context, Handler, HandlerError, Inbox, Outcome, Received, Set};
use oncebox_tests::eventually;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::inbox::{
    batch::{in_line, named, plain, transactions},
    consumer::{consumer, publish, settled},
    support::{
        Does, Job, LIMIT, Returned, SCOPE, builder, count, dead_letters, effects, environment, inbox, insert,
        message, replayed, stream_environment, tried,
    },
};

/// The behaviour of `handle_set` after its write.
#[derive(Clone, Copy, Debug)]
enum How {
    Right,
    Fails,
    Panics,
    Hangs,
    Swallows,
    AsksForRetry,
    ForgetsOne,
    InventsOne,
    RepliesTooMuch,
    RollsBack,
    Commits,
    GoesOn,
}

/// One INSERT for the whole set; by itself each message is handled as `each` says.
#[derive(Clone)]
struct Together {
    how: How,
    each: Does,
    sets: Arc<AtomicU64>,
}

impl Together {
    fn new(how: How) -> Self {
        Self { how, each: Does::effect(), sets: Arc::default() }
    }

    /// How often `handle_set` and `handle` ran.
    fn runs(&self) -> (u64, u64) {
        (self.sets.load(Ordering::SeqCst), self.each.runs())
    }
}

impl Handler for Together {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, cx: Context<'_>, job: Job) -> Returned {
        self.each.handle(cx, job).await
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Job>) -> Result<Vec<Outcome<String>>, HandlerError> {
        self.sets.fetch_add(1, Ordering::SeqCst);
        let keys: Vec<&str> = set.iter().map(|(cx, _)| cx.key().as_str()).collect();
        let lines: Vec<&str> =
            set.iter().map(|(cx, _)| cx.message().ordering_key().unwrap_or_default()).collect();
        let numbers: Vec<i64> = set.messages().map(|job| job.n).collect();
        let sql =
            "INSERT INTO effect (key, n, line) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[])";
        set.transaction().execute(sql, &[&keys, &numbers, &lines]).await?;
        let outcome = |n: &i64| match n {
            2 => Outcome::reject("no".to_owned()),
            _ => Outcome::done(format!("set {n}")),
        };
        let mut outcomes: Vec<Outcome<String>> = numbers.iter().map(outcome).collect();
        match self.how {
            How::Right => {}
            How::Fails => return Err("a failure".into()),
            How::Panics => panic!("a mistake"),
            How::Hangs => tokio::time::sleep(LIMIT).await,
            How::Swallows => drop(set.transaction().batch_execute("SELECT 1/0").await),
            How::AsksForRetry => outcomes[1] = Outcome::retry(LIMIT),
            How::ForgetsOne => drop(outcomes.pop()),
            How::InventsOne => outcomes.push(Outcome::done(String::new())),
            How::RepliesTooMuch => outcomes[1] = Outcome::done("x".repeat(2 << 20)),
            How::RollsBack => set.transaction().batch_execute("ROLLBACK").await?,
            How::Commits => drop(set.transaction().batch_execute("COMMIT").await),
            How::GoesOn => set.transaction().batch_execute("SELECT pg_sleep(600)").await?,
        }
        Ok(outcomes)
    }
}

async fn sets(inbox: &Inbox, handler: &Together, messages: &[Received]) -> Vec<String> {
    named(messages, timeout(LIMIT, inbox.run_batch(handler, messages)).await.expect("a batch ends"))
}

/// With every kind of message that is not to be in a set.
#[tokio::test]
async fn a_set_is_of_the_new_messages_only_and_each_gets_its_own_answer() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Together::new(How::Right);
    let messages = [
        message("a", 1),
        message("a", 1),
        Received::new("s.t", "{").header("Idempotency-Key", "j"),
        message("b", 2),
        Received::new("s.t", "{\"n\":1}"),
        message("h", 1),
        message("a", 2),
        message("b", 2),
        message("over", 1).deliveries(21),
    ];
    let expected = [
        "a handled",
        "a replayed",
        "j dead",
        "b rejected",
        " dead",
        "h handled",
        "a mismatch",
        "b replayed",
        "over dead",
    ];
    tried(&env, "over", 20).await;
    assert_eq!(sets(&inbox, &handler, &messages).await, expected);
    assert_eq!((handler.runs(), effects(&env).await), ((1, 0), 3));
    assert_eq!((transactions(&env).await, dead_letters(&env).await.len()), (3, 4), "a set and two dead keys");
    let counts = inbox.counts();
    assert_eq!((counts.handled, counts.rejected, counts.replayed, counts.mismatched), (3, 1, 2, 1));
    assert_eq!((counts.retried, counts.dead, counts.in_flight), (0, 3, 0));
    // Alone or together, a duplicate gets the answer of `handle_set`.
    let again = inbox.run(&handler, &message("h", 1)).await.unwrap();
    assert_eq!(replayed(&again), Answer::Done("set 1".to_owned()));
}

/// Appendix B3 and B5: the writes of `handle_set` are gone, and every message has its effect once.
#[tokio::test]
async fn whatever_goes_wrong_in_a_set_each_message_is_handled_by_itself() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(Duration::from_secs(1)).build().unwrap();
    let all = [
        How::Right,
        How::Fails,
        How::Panics,
        How::Hangs,
        How::Swallows,
        How::AsksForRetry,
        How::ForgetsOne,
        How::InventsOne,
        How::RepliesTooMuch,
        How::RollsBack,
        How::Commits,
        How::GoesOn,
    ];
    for (number, how) in (1..).zip(all) {
        let handler = Together::new(how);
        let ended = sets(&inbox, &handler, &plain(&format!("{how:?}"), 10..15)).await;
        assert!(ended.iter().all(|verdict| verdict.ends_with("handled")), "{how:?}: {ended:?}");
        let runs = if matches!(how, How::Right) { (1, 0) } else { (1, 5) };
        assert_eq!((handler.runs(), effects(&env).await), (runs, 5 * number), "{how:?}");
        assert_eq!(count(&env, "oncebox.inbox").await, 5 * number, "{how:?}");
    }
    assert_eq!(count(&env, "oncebox.inbox_batch").await, 0);
    assert_eq!(inbox.counts().retried, 0, "a set that fails costs no attempt");
}

/// Neither those after a message that is in flight, nor a message alone; the order in a line is
/// kept.
#[tokio::test]
async fn what_is_held_up_is_not_in_the_set() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Together::new(How::Right);
    let holds = Does::new({
        let (inbox, handler) = (inbox.clone(), handler.clone());
        move |cx, job| {
            let (inbox, handler) = (inbox.clone(), handler.clone());
            Box::pin(async move {
                let messages = [
                    in_line("l", message("a", 1)),
                    in_line("l", message("b", 3)),
                    in_line("m", message("c", 4)),
                    in_line("m", message("d", 5)),
                    in_line("l", message("e", 6)),
                ];
                let ended = sets(&inbox, &handler, &messages).await;
                assert_eq!(ended, ["a InFlight", "b Behind", "c handled", "d handled", "e Behind"]);
                assert_eq!(sets(&inbox, &handler, &[message("f", 7)]).await, ["f handled"]);
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        }
    });
    inbox.run(&holds, &message("a", 1)).await.unwrap();
    assert_eq!((holds.runs(), handler.runs(), effects(&env).await), (1, (1, 1), 4));
    let rows = env.pg().await.query("SELECT n FROM effect WHERE line = 'm' ORDER BY id", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [4, 5]);
}

/// The connection is lost at the COMMIT, before or after it happened.
#[tokio::test]
async fn a_lost_commit_of_a_set_doubles_and_loses_nothing() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    let handler = Together::new(How::Right);
    for (arrives, prefix, end) in [(true, "a", "replayed"), (false, "b", "handled")] {
        inbox.check().await.unwrap();
        proxy.cut_when_client_sends(b"CLOSE oncebox_claim", arrives);
        let messages = plain(prefix, 10..15);
        let mut first = sets(&inbox, &handler, &messages).await;
        assert!(!proxy.is_armed(), "the connection was not lost");
        // The server may still be at that COMMIT, or not know yet that it will never come.
        for (message, ended) in messages.iter().zip(&mut first) {
            if ended.ends_with("InFlight") {
                *ended = eventually("the key is free, or handled", LIMIT, async || {
                    let now = sets(&inbox, &handler, std::slice::from_ref(message)).await.remove(0);
                    (!now.ends_with("InFlight")).then_some(now)
                })
                .await;
            }
        }
        assert!(first.iter().all(|verdict| verdict.ends_with(end)), "{arrives}: {first:?}");
    }
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (10, 10));
}

/// From a stream, with two copies of each message and a dead one among them.
#[tokio::test]
async fn a_consumer_of_sets_has_each_effect_once() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for round in 0..2 {
        for n in 0..200 {
            publish(&jetstream, env.subject(&format!("r{round}")), &format!("k{n}"), n, None).await;
        }
    }
    let inbox = inbox(&env);
    let handler = Together::new(How::Right);
    let (shutdown, mut running) = (CancellationToken::new(), JoinSet::new());
    let consumer = consumer(&env).await.concurrency(2);
    running.spawn(consumer.batch(50).run(inbox.clone(), handler.clone(), shutdown.clone()));
    eventually("all effects", LIMIT, async || (effects(&env).await >= 200).then_some(())).await;
    settled(&env).await;
    shutdown.cancel();
    timeout(LIMIT, running.join_next()).await.expect("a shutdown in time").unwrap().unwrap().unwrap();
    assert_eq!(effects(&env).await, 200);
    assert_eq!((inbox.counts().handled, inbox.counts().rejected, inbox.counts().replayed), (200, 1, 200));
    let (sets, alone) = handler.runs();
    assert!(sets >= 2 && alone < 100, "{sets} sets, {alone} messages alone");
}
