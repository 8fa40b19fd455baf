//! Messages one after another over one connection, where the next is claimed after the commit of
//! the last.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::Object;
use oncebox_inbox::{
    Answer, Context, Error, Handler, HandlerError, Inbox, Outcome, Received, Source, Verdict,
};
use oncebox_tests::TestEnv;
use serde::{Deserialize, Deserializer};
use tokio::time::{Instant, timeout};
use tokio_postgres::Config;

use crate::inbox::support::{
    Does, Job, LIMIT, SCOPE, Silent, builder, count, dead_letters, effects, environment, inbox, insert,
    message,
};

/// Gives out its messages, and keeps their ends.
struct Backlog<R> {
    waiting: VecDeque<Arc<Received>>,
    ended: Vec<(String, Result<Verdict<R>, Error>)>,
}

impl<R> Backlog<R> {
    fn of(messages: impl IntoIterator<Item = Received>) -> Self {
        Self { waiting: messages.into_iter().map(Arc::new).collect(), ended: Vec::new() }
    }

    fn verdicts(self) -> Vec<(String, Verdict<R>)> {
        self.ended.into_iter().map(|(key, result)| (key, result.unwrap())).collect()
    }
}

impl<R: Send> Source<R> for Backlog<R> {
    type Message = Arc<Received>;

    fn next(&mut self) -> Option<Arc<Received>> {
        self.waiting.pop_front()
    }

    fn ended(&mut self, message: Arc<Received>, result: Result<Verdict<R>, Error>) {
        let key = message.header_value("Idempotency-Key").unwrap_or_default().to_owned();
        self.ended.push((key, result));
    }
}

/// Runs them, and returns the names of the verdicts.
pub(crate) async fn each(
    inbox: &Inbox,
    handler: &Does,
    messages: impl IntoIterator<Item = Received>,
) -> Vec<String> {
    let mut backlog = Backlog::of(messages);
    inbox.run_each(handler, &mut backlog).await;
    let named = |(key, verdict)| match verdict {
        Verdict::Handled(Answer::Done(_)) => format!("{key} handled"),
        Verdict::Handled(_) => format!("{key} rejected"),
        Verdict::Replayed(_) => format!("{key} replayed"),
        Verdict::Mismatch => format!("{key} mismatch"),
        Verdict::Retry { .. } => format!("{key} retry"),
        Verdict::Dead { .. } => format!("{key} dead"),
        other => format!("{key} {other:?}"),
    };
    backlog.verdicts().into_iter().map(named).collect()
}

/// A stream that is delivered a second time, with delivery counts that begin at 1 again: every
/// message is recognised, and only the first runs into the unique index, where it leaves a dead
/// row, and a line in PostgreSQL's log.
#[tokio::test]
async fn duplicates_that_look_new_are_recognised_and_expected_from_then_on() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let all = || (0..10).map(|n| message(&format!("k{n}"), n));
    let handled = (0..10).map(|n| format!("k{n} handled")).collect::<Vec<_>>();
    assert_eq!(each(&inbox, &handler, all()).await, handled);
    let replayed = (0..10).map(|n| format!("k{n} replayed")).collect::<Vec<_>>();
    assert_eq!(each(&inbox, &handler, all()).await, replayed);
    assert_eq!(each(&inbox, &handler, [message("new", 10)]).await, ["new handled"]);
    assert_eq!((handler.runs(), effects(&env).await), (11, 11));
    let place = "SELECT ctid::text FROM oncebox.inbox WHERE key = 'new'";
    let place: String = env.pg().await.query_one(place, &[]).await.unwrap().get(0);
    assert_eq!(place, "(0,23)", "eleven rows written and settled, and one that was refused");
}

/// A message that was delivered before is not expected to be new, and leaves no dead row.
#[tokio::test]
async fn a_redelivery_is_expected() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let again = message("k", 1).deliveries(2);
    assert_eq!(each(&inbox, &handler, [message("k", 1), again]).await, ["k handled", "k replayed"]);
    assert_eq!(each(&inbox, &handler, [message("new", 2)]).await, ["new handled"]);
    let place = "SELECT ctid::text FROM oncebox.inbox WHERE key = 'new'";
    let place: String = env.pg().await.query_one(place, &[]).await.unwrap().get(0);
    assert_eq!(place, "(0,4)", "two rows written and settled");
}

/// How each message ends is its number's.
pub(crate) fn ends_by_number() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n {
                1 => Ok(Outcome::done(reply)),
                2 => Ok(Outcome::reject(reply)),
                3 => Ok(Outcome::retry(LIMIT)),
                4 => Ok(Outcome::dead("no")),
                5 => panic!("a mistake"),
                6 => Err("a failure".into()),
                _ => Ok(Outcome::done("x".repeat(2 << 20))),
            }
        })
    })
}

/// Every way in which a message can end, and the one after it is claimed all the same.
#[tokio::test]
async fn each_message_ends_as_it_would_alone() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant().build().unwrap();
    let handler = ends_by_number();
    let unreadable = Received::new("s.t", "{").header("Idempotency-Key", "j");
    let messages = [
        message("a", 1),
        message("a", 1),
        message("b", 2),
        message("c", 3),
        message("d", 4),
        message("e", 5),
        message("f", 6),
        message("g", 7),
        message("h", 1),
        message("a", 2),
        message("b", 2),
        message("d", 4),
        unreadable,
        Received::new("s.t", "{\"n\":1}"),
        message("k", 1),
    ];
    let ended = each(&inbox, &handler, messages).await;
    let expected = [
        "a handled",
        "a replayed",
        "b rejected",
        "c retry",
        "d dead",
        "e retry",
        "f retry",
        "g dead",
        "h handled",
        "a mismatch",
        "b replayed",
        "d dead",
        "j dead",
        " dead",
        "k handled",
    ];
    assert_eq!(ended, expected);
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (4, 7));
    assert_eq!(dead_letters(&env).await.len(), 5);
    let counts = inbox.counts();
    assert_eq!((counts.handled, counts.rejected, counts.replayed, counts.mismatched), (4, 1, 3, 1));
    assert_eq!((counts.retried, counts.dead, counts.in_flight), (3, 4, 0));
}

/// If it had one, the next message would count as handled without its handler. The commit fails in
/// three ways.
#[tokio::test]
async fn a_claim_behind_a_failed_commit_has_no_effect() {
    let env = environment().await;
    let deferred = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NEW.n = 13 THEN RAISE 'refused at commit'; END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION refuse()";
    env.pg().await.batch_execute(deferred).await.unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n {
                14 => cx.transaction().batch_execute("ROLLBACK").await?,
                15 => drop(cx.transaction().batch_execute("SELECT 1/0").await),
                _ => {}
            }
            Ok(Outcome::done(reply))
        })
    });
    let inbox = inbox(&env);
    for (n, fails, behind) in [(13, "a", "b"), (14, "c", "d"), (15, "e", "f")] {
        let ended = each(&inbox, &handler, [message(fails, n), message(behind, 1)]).await;
        assert_eq!(ended, [format!("{fails} retry"), format!("{behind} handled")]);
    }
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (3, 3));
}

/// The connection is lost at a COMMIT that a claim went out with; whether it happened is found out.
#[tokio::test]
async fn a_lost_commit_loses_neither_its_message_nor_the_one_behind() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    let handler = Silent(Does::effect());
    for (arrives, keys) in [(true, ["a", "b", "c"]), (false, ["d", "e", "f"])] {
        inbox.check().await.unwrap();
        proxy.cut_when_client_sends(b"CLOSE oncebox_claim", arrives);
        let mut again: Vec<Received> = keys.iter().map(|key| message(key, 7)).collect();
        let mut lost = 0;
        let ends = timeout(LIMIT, async {
            while !again.is_empty() {
                let mut backlog = Backlog::of(again.drain(..));
                inbox.run_each(&handler, &mut backlog).await;
                for (key, result) in backlog.ended {
                    if matches!(result, Err(Error::Unavailable(..)) | Ok(Verdict::InFlight)) {
                        lost += 1;
                        again.push(message(&key, 7));
                    } else {
                        result.unwrap();
                    }
                }
            }
        });
        ends.await.expect("everything ends");
        assert!(lost > 0, "the connection was not lost");
    }
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (6, 6));
}

/// Cannot be decoded without a panic when `n` is 13.
struct Fragile;

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        assert_ne!(Job::deserialize(decoder)?.n, 13, "unlucky");
        Ok(Self)
    }
}

struct Careless;

impl Handler for Careless {
    type Message = Fragile;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: Fragile) -> Result<Outcome<()>, HandlerError> {
        insert(&cx, &Job { n: 1 }).await?;
        Ok(Outcome::done(()))
    }
}

/// It is decoded while the transaction of the message before it is open.
#[tokio::test]
async fn a_panic_while_decoding_ends_its_own_message_only() {
    let env = environment().await;
    let mut backlog = Backlog::of([message("a", 1), message("b", 13), message("c", 1)]);
    inbox(&env).run_each(&Careless, &mut backlog).await;
    let verdicts = backlog.verdicts();
    assert!(matches!(verdicts[0].1, Verdict::Handled(_)), "{verdicts:?}");
    assert!(
        matches!(&verdicts[1].1, Verdict::Dead { reason } if reason.contains("decoding the payload panicked")),
        "{verdicts:?}"
    );
    assert!(matches!(verdicts[2].1, Verdict::Handled(_)), "{verdicts:?}");
    assert_eq!((effects(&env).await, dead_letters(&env).await.len()), (2, 1));
}

/// Never empty until it is told to be.
struct Endless<'a> {
    over: &'a AtomicBool,
    given: &'a AtomicU64,
}

impl<R> Source<R> for Endless<'_> {
    type Message = Arc<Received>;

    fn next(&mut self) -> Option<Arc<Received>> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        (!self.over.load(Ordering::Relaxed)).then(|| Arc::new(message(&format!("e{number}"), 1)))
    }

    fn ended(&mut self, _: Arc<Received>, result: Result<Verdict<R>, Error>) {
        assert!(matches!(result, Ok(Verdict::Handled(_))));
    }
}

/// A task that waits for a connection of the pool gets one, however long the queue of messages is.
#[tokio::test]
async fn a_long_queue_does_not_keep_its_connection() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant().build().unwrap();
    let (handler, over, given) = (Does::effect(), AtomicBool::new(false), AtomicU64::new(0));
    let mut endless = Endless { over: &over, given: &given };
    let other = async {
        let begun = Instant::now();
        // In turn with a queue that goes on: how far it gets in a turn is a matter of the machine.
        for n in 0.. {
            if n == 10 {
                // Ten turns of a queue that gives way to no other task take ten seconds.
                assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
            }
            if n >= 10 && given.load(Ordering::Relaxed) > 20 {
                break;
            }
            let message = message(&format!("k{n}"), 7);
            let verdict = timeout(LIMIT / 6, inbox.run(&handler, &message))
                .await
                .expect("a connection within the time")
                .unwrap();
            assert!(matches!(verdict, Verdict::Handled(_)));
        }
        over.store(true, Ordering::Relaxed);
    };
    let both = async { tokio::join!(inbox.run_each(&handler, &mut endless), other) };
    timeout(LIMIT, both).await.expect("the queue does not stand still");
}

/// Notes how often the pool has given its connection away.
struct NotesConnection(Mutex<BTreeSet<usize>>);

impl Handler for NotesConnection {
    type Message = Job;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, job: Job) -> Result<Outcome<()>, HandlerError> {
        insert(&cx, &job).await?;
        self.0.lock().unwrap().insert(Object::metrics(cx.transaction()).recycle_count);
        Ok(Outcome::done(()))
    }
}

/// Over a slow line, where three messages take longer than a chain lasts beside others: it lasts as
/// long as no other task wants its connection.
#[tokio::test]
async fn a_queue_keeps_its_connection_while_nobody_else_wants_it() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(1).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    inbox.check().await.unwrap();
    proxy.slow(0, Duration::from_millis(5));
    let handler = NotesConnection(Mutex::default());
    let mut backlog = Backlog::of((0..60).map(|n| message(&format!("k{n}"), n)));
    inbox.run_each(&handler, &mut backlog).await;
    let chains = handler.0.lock().unwrap().len();
    assert!(backlog.verdicts().len() == 60 && chains <= 10, "{chains} chains");
}

#[tokio::test]
async fn deferrable_by_default_is_refused_with_the_remedy() {
    let env: TestEnv = environment().await;
    let direct: Config = env.database_url().parse().unwrap();
    let database = direct.get_dbname().unwrap().to_owned();
    let sql = format!("ALTER DATABASE \"{database}\" SET default_transaction_deferrable = on");
    env.pg().await.batch_execute(&sql).await.unwrap();
    let error = builder(&env).build().unwrap().check().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("ALTER ROLE ... SET default_transaction_deferrable = off"), "{source}");
}
