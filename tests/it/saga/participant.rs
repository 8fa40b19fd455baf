//! Handlers with a barrier, in a real inbox, transactional and leased, and their answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use oncebox_inbox::{
    Answer, Context, Handler, HandlerError, Inbox, Leased, LeasedContext, LeasedHandler, Outcome, Received,
    Verdict,
};
use oncebox_outbox::{Message, Outbox};
use oncebox_saga::{Action, Barrier, Compensation, Replier};
use oncebox_tests::TestEnv;
use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    count: i32,
}

/// Reserves, and releases where the key says `undo`.
#[derive(Clone)]
struct Stock {
    barrier: Barrier,
    replier: Replier,
}

impl Stock {
    fn new() -> Self {
        Self {
            barrier: Barrier::new("stock:reserve").unwrap(),
            replier: Replier::new(Outbox::default(), ["sagas.replies", "odd.*.replies"]),
        }
    }

    async fn reserve(&self, cx: &Context<'_>, count: i32) -> Result<Outcome<String>, HandlerError> {
        Ok(match self.barrier.action(cx).await? {
            Action::Refused => Outcome::reject("too late".to_owned()),
            Action::Acted => Outcome::done("reserved before".to_owned()),
            Action::Act if count > 100 => {
                self.barrier.had_no_effect(cx).await?;
                Outcome::reject("not so many".to_owned())
            }
            Action::Act => {
                change(cx, count).await?;
                Outcome::done("reserved".to_owned())
            }
        })
    }

    async fn release(&self, cx: &Context<'_>, count: i32) -> Result<Outcome<String>, HandlerError> {
        Ok(match self.barrier.compensation(cx).await? {
            Compensation::Undo => {
                change(cx, -count).await?;
                Outcome::done("released".to_owned())
            }
            Compensation::Nothing => Outcome::done("nothing to release".to_owned()),
            Compensation::Wait => Outcome::snooze(Duration::from_millis(100), "a charge is under way"),
        })
    }
}

async fn change(cx: &Context<'_>, change: i32) -> Result<(), HandlerError> {
    cx.transaction().execute("INSERT INTO stock (change) VALUES ($1)", &[&change]).await?;
    Ok(())
}

impl Handler for Stock {
    type Message = Order;
    type Reply = String;

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<String>, HandlerError> {
        let outcome = if cx.key().is_undo() {
            self.release(&cx, order.count).await?
        } else {
            self.reserve(&cx, order.count).await?
        };
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}

async fn environment() -> TestEnv {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute("CREATE TABLE stock (change int)").await.unwrap();
    env
}

/// Two scopes, so that copies meet at the barrier and not before it.
fn inboxes(env: &TestEnv) -> [Inbox; 2] {
    ["stock:one", "stock:two"].map(|scope| {
        let short = Duration::from_millis(50);
        Inbox::builder(env.pool(4))
            .scope(scope)
            .single_tenant()
            .backoff(short, short)
            .acquire_timeout(LIMIT)
            .build()
            .unwrap()
    })
}

fn command(key: &str, count: i32) -> Received {
    let payload = serde_json::to_vec(&Order { count }).unwrap();
    Received::new("stock.reserve", payload).header("Idempotency-Key", key)
}

async fn reserved(env: &TestEnv) -> i64 {
    let sql = "SELECT coalesce(sum(change), 0) FROM stock";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

fn answered(verdict: Verdict<String>) -> String {
    match verdict {
        Verdict::Handled(Answer::Done(text)) => format!("done: {text}"),
        Verdict::Handled(Answer::Rejected(text)) => format!("rejected: {text}"),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn a_compensation_that_overtakes_leaves_a_mark_that_refuses_the_late_action() {
    let env = environment().await;
    let ([one, two], stock) = (inboxes(&env), Stock::new());
    let run = async |inbox: &Inbox, key: &str, count| {
        answered(inbox.run(&stock, &command(key, count)).await.unwrap())
    };
    assert_eq!(run(&one, "o-1:reserve:undo", 5).await, "done: nothing to release");
    assert_eq!(run(&one, "o-1:reserve", 5).await, "rejected: too late");
    assert_eq!(reserved(&env).await, 0);
    // In the right order, with copies that the inboxes do not know.
    assert_eq!(run(&one, "o-2:reserve", 5).await, "done: reserved");
    assert_eq!(run(&two, "o-2:reserve", 5).await, "done: reserved before");
    assert_eq!(reserved(&env).await, 5);
    assert_eq!(run(&one, "o-2:reserve:undo", 5).await, "done: released");
    assert_eq!(run(&two, "o-2:reserve:undo", 5).await, "done: nothing to release");
    assert_eq!(reserved(&env).await, 0);
    // A rejected action is not undone.
    assert_eq!(run(&one, "o-3:reserve", 500).await, "rejected: not so many");
    assert_eq!(run(&one, "o-3:reserve:undo", 500).await, "done: nothing to release");
    assert_eq!(reserved(&env).await, 0);
}

#[tokio::test]
async fn whatever_meets_at_once_the_books_balance() {
    const KEYS: usize = 60;
    let env = environment().await;
    let (inboxes, stock) = (inboxes(&env), Stock::new());
    let mut tasks = JoinSet::new();
    for number in 0..KEYS {
        for (at, inbox) in inboxes.iter().enumerate() {
            // Every third is never compensated; the others by one copy or two.
            let undoes = number % 3 > at;
            for key in [Some("reserve"), undoes.then_some("reserve:undo")].into_iter().flatten() {
                let (inbox, stock, key) = (inbox.clone(), stock.clone(), format!("o-{number}:{key}"));
                tasks.spawn(async move {
                    loop {
                        match inbox.run(&stock, &command(&key, 1)).await.unwrap() {
                            Verdict::Handled(_) => return,
                            Verdict::Retry { after, .. } => tokio::time::sleep(after).await,
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        }
    }
    while let Some(done) = timeout(LIMIT, tasks.join_next()).await.expect("nobody waits for ever") {
        done.unwrap();
    }
    assert_eq!(reserved(&env).await, (KEYS / 3) as i64, "those that were never compensated, once each");
}

#[tokio::test]
async fn an_answer_goes_where_the_command_says_with_its_effect_or_not_at_all() {
    let env = environment().await;
    let mut client = env.pg().await;
    let ([inbox, _], stock) = (inboxes(&env), Stock::new());
    let asks = |key: &str, count| {
        command(key, count)
            .header("Oncebox-Reply-To", "sagas.replies")
            .header("Oncebox-Ordering-Key", "order:7")
    };
    inbox.run(&stock, &asks("o-1:reserve", 5)).await.unwrap();
    inbox.run(&stock, &asks("o-1:reserve", 5)).await.unwrap();
    inbox.run(&stock, &asks("o-2:reserve", 500)).await.unwrap();
    inbox.run(&stock, &asks("o-1:reserve:undo", 5)).await.unwrap();
    inbox.run(&stock, &command("o-3:reserve", 5)).await.unwrap();
    let sql = "SELECT key, subject, ordering_key, headers ->> 'Reply-Outcome', headers ->> 'In-Reply-To',
                      convert_from(payload, 'UTF8')
               FROM oncebox.message ORDER BY id";
    let rows = client.query(sql, &[]).await.unwrap();
    let sent: Vec<String> = rows
        .iter()
        .map(|row| (0..6).map(|column| row.get::<_, String>(column)).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        sent,
        [
            "o-1:reserve:reply sagas.replies order:7 done o-1:reserve \"reserved\"",
            "o-2:reserve:reply sagas.replies order:7 rejected o-2:reserve \"not so many\"",
            "o-1:reserve:undo:reply sagas.replies order:7 done o-1:reserve:undo \"released\"",
        ]
    );
    // An invalid subject, or one where the participant does not answer: nothing happens, and the
    // error says why.
    for wrong in ["a.*", "payments.made", "sagas.replies.more", "odd.replies"] {
        let asks = command("o-4:reserve", 5).header("Oncebox-Reply-To", wrong);
        match inbox.run(&stock, &asks).await.unwrap() {
            Verdict::Retry { reason, .. } => assert!(reason.contains(&format!("{wrong:?}")), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reserved(&env).await, 5, "that of o-3");
    let asks = command("o-6:reserve", 5).header("Oncebox-Reply-To", "odd.eu.replies");
    assert_eq!(answered(inbox.run(&stock, &asks).await.unwrap()), "done: reserved");
    assert_eq!(client.query(sql, &[]).await.unwrap().len(), 4);

    // The producer's side.
    let transaction = client.transaction().await.unwrap();
    let message = Message::bytes("o-5".parse().unwrap(), "stock.reserve".parse().unwrap(), "p");
    let message = message.reply_to(&"sagas.replies".parse().unwrap());
    Outbox::default().enqueue(&transaction, &message).await.unwrap();
    let sql = "SELECT headers ->> 'Oncebox-Reply-To' FROM oncebox.message WHERE key = 'o-5'";
    assert_eq!(transaction.query_one(sql, &[]).await.unwrap().get::<_, String>(0), "sagas.replies");
}

#[tokio::test]
async fn what_is_asked_at_the_wrong_place_has_no_effect() {
    struct Wrong(Barrier);
    impl Handler for Wrong {
        type Message = Order;
        type Reply = ();

        async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
            match order.count {
                1 => drop(self.0.compensation(&cx).await?),
                2 => drop(self.0.action(&cx).await?),
                _ => self.0.had_no_effect(&cx).await?,
            }
            Ok(Outcome::done(()))
        }
    }
    let env = environment().await;
    let ([inbox, _], wrong) = (inboxes(&env), Wrong(Barrier::new("b").unwrap()));
    for (key, count, says) in [
        ("o-1:reserve", 1, "key \"o-1:reserve\" is not that of a compensation"),
        ("o-1:reserve:undo", 2, "key \"o-1:reserve:undo\" is that of a compensation, not of an action"),
        ("o-2:reserve", 3, "barrier \"b\": no run of attempt 1 at \"o-2:reserve\" is under way"),
    ] {
        match inbox.run(&wrong, &command(key, count)).await.unwrap() {
            Verdict::Retry { reason, .. } => assert!(reason.contains(says), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let rows = "SELECT count(*) FROM oncebox.barrier";
    assert_eq!(env.pg().await.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// Charges at a provider, in which it stops when it is told to.
#[derive(Clone)]
struct Cashier {
    barrier: Barrier,
    holds: Arc<Mutex<bool>>,
    holding: Arc<Notify>,
    /// The captures of the provider.
    captured: Arc<Mutex<i32>>,
}

impl Cashier {
    fn new() -> Self {
        Self {
            barrier: Barrier::new("cash:charge").unwrap(),
            holds: Arc::default(),
            holding: Arc::default(),
            captured: Arc::default(),
        }
    }
}

impl LeasedHandler for Cashier {
    type Message = Order;
    type Reply = String;

    async fn handle(&self, cx: &LeasedContext<'_>, order: Order) -> Result<Outcome<String>, HandlerError> {
        let refund = cx.key().is_undo();
        let may = if refund {
            match self.barrier.leased_compensation(cx).await? {
                Compensation::Undo => true,
                Compensation::Nothing => false,
                Compensation::Wait => {
                    return Ok(Outcome::snooze(Duration::from_millis(100), "the charge is under way"));
                }
            }
        } else {
            self.barrier.leased_action(cx).await? == Action::Act
        };
        if !may {
            return Ok(Outcome::reject("nothing".to_owned()));
        }
        if *self.holds.lock().unwrap() {
            self.holding.notify_one();
            std::future::pending::<()>().await;
        }
        *self.captured.lock().unwrap() += if refund { -order.count } else { order.count };
        Ok(Outcome::done("done".to_owned()))
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<String>) -> Result<(), HandlerError> {
        if !matches!(answer, Answer::Done(_)) {
            return Ok(());
        }
        match cx.key().is_undo() {
            true => self.barrier.end_leased_compensation(&cx).await,
            false => self.barrier.end_leased_action(&cx, true).await,
        }
    }
}

fn leased(env: &TestEnv) -> Leased {
    let lease = Duration::from_millis(900);
    Inbox::builder(env.pool(4)).scope("cash").single_tenant().leased(lease).build().unwrap()
}

/// The process dies between the barrier and the effect: its compensation waits until a later run
/// has settled it.
#[tokio::test]
async fn a_compensation_waits_for_a_leased_action_whose_process_died() {
    let env = environment().await;
    let (inbox, cashier) = (leased(&env), Cashier::new());
    *cashier.holds.lock().unwrap() = true;
    let mut first = JoinSet::new();
    let (running, doomed) = (inbox.clone(), cashier.clone());
    first.spawn(async move { running.run(&doomed, &command("o-1:charge", 7)).await });
    timeout(LIMIT, cashier.holding.notified()).await.expect("the action is let through");
    let undo = command("o-1:charge:undo", 7);
    let snoozed = inbox.run(&cashier, &undo).await.unwrap();
    assert!(matches!(snoozed, Verdict::Retry { .. }), "{snoozed:?}");
    first.abort_all();
    while first.join_next().await.is_some() {}
    let again = inbox.run(&cashier, &undo).await.unwrap();
    assert!(matches!(again, Verdict::Retry { .. } | Verdict::InFlight), "nobody knows yet: {again:?}");
    assert_eq!(*cashier.captured.lock().unwrap(), 0);
    *cashier.holds.lock().unwrap() = false;
    run_until_handled(&inbox, &cashier, &command("o-1:charge", 7)).await;
    assert_eq!(*cashier.captured.lock().unwrap(), 7);
    run_until_handled(&inbox, &cashier, &undo).await;
    assert_eq!(*cashier.captured.lock().unwrap(), 0);
    // And the other way round: an action after its compensation is refused.
    run_until_handled(&inbox, &cashier, &command("o-2:charge:undo", 7)).await;
    run_until_handled(&inbox, &cashier, &command("o-2:charge", 7)).await;
    assert_eq!(*cashier.captured.lock().unwrap(), 0);
    let states = "SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM oncebox.barrier";
    let states: String = env.pg().await.query_one(states, &[]).await.unwrap().get(0);
    assert_eq!(states, "o-1:charge undone, o-2:charge refused");
}

async fn run_until_handled(inbox: &Leased, cashier: &Cashier, message: &Received) {
    let handled = async {
        loop {
            match inbox.run(cashier, message).await.unwrap() {
                Verdict::Handled(_) => return,
                Verdict::Retry { after, .. } => tokio::time::sleep(after).await,
                Verdict::InFlight => tokio::time::sleep(Duration::from_millis(100)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(LIMIT, handled).await.expect("it is handled in the end");
}
