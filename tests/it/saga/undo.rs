//! Attempts at one compensation: at most one of them undoes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use oncebox_inbox::{
    Answer, CallError, Context, EffectError, Handler, HandlerError, Inbox, Leased, LeasedContext,
    LeasedHandler, Outcome, Received, Reconciled, Verdict,
};
use oncebox_saga::{Action, Barrier, Compensation};
use oncebox_tests::TestEnv;
use tokio::{sync::Notify, task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(30);
const UNDO: &str = "o-1:charge:undo";
const UNDO_AGAIN: &str = "o-1:charge:#2:undo";

/// The end of a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    /// It stops in the midst of the call.
    Hangs,
    /// The provider pays, and its answer is lost; then the message is given up.
    DiesPaid,
    /// The provider is away, for sure; then the message is given up.
    DiesUnpaid,
    /// The provider says no.
    IsRejected,
}

/// Charges and refunds at a provider that knows nothing of keys.
#[derive(Clone)]
struct Cashier {
    barrier: Barrier,
    fate: Arc<Mutex<Fate>>,
    hanging: Arc<Notify>,
    leave: Arc<Notify>,
    /// The keys of the calls that the provider has paid for.
    refunds: Arc<Mutex<Vec<String>>>,
}

impl Cashier {
    fn new() -> Self {
        Self {
            barrier: Barrier::new("cash:charge").unwrap(),
            fate: Arc::new(Mutex::new(Fate::Works)),
            hanging: Arc::default(),
            leave: Arc::default(),
            refunds: Arc::default(),
        }
    }

    fn is(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    fn refunds(&self) -> usize {
        self.refunds.lock().unwrap().len()
    }

    async fn refund(&self, cx: &LeasedContext<'_>) -> Result<Outcome<String>, HandlerError> {
        let fate = *self.fate.lock().unwrap();
        let refunded = cx
            .effect("refund")
            .settles_within(Duration::ZERO)
            .call(|key| async move {
                if fate == Fate::Hangs {
                    self.hanging.notify_one();
                    self.leave.notified().await;
                }
                match fate {
                    Fate::DiesUnpaid => return Err(CallError::failed("it is away")),
                    Fate::IsRejected => return Err(CallError::rejected("no")),
                    Fate::Works | Fate::Hangs | Fate::DiesPaid => {}
                }
                self.refunds.lock().unwrap().push(key.to_string());
                if fate == Fate::DiesPaid { Err(CallError::unknown("no answer")) } else { Ok(()) }
            })
            .reconcile(|key| async move {
                let is_paid = self.refunds.lock().unwrap().contains(&key.to_string());
                Ok(if is_paid { Reconciled::Happened(()) } else { Reconciled::Absent })
            })
            .await;
        match refunded {
            Ok(()) => Ok(Outcome::done("refunded".to_owned())),
            Err(EffectError::Rejected { .. }) => Ok(Outcome::reject("no".to_owned())),
            Err(_) => Ok(Outcome::dead("the provider does not answer")),
        }
    }
}

impl LeasedHandler for Cashier {
    type Message = i32;
    type Reply = String;

    async fn handle(&self, cx: &LeasedContext<'_>, _: i32) -> Result<Outcome<String>, HandlerError> {
        if !cx.key().is_undo() {
            assert_eq!(self.barrier.leased_action(cx).await?, Action::Act);
            return Ok(Outcome::done("charged".to_owned()));
        }
        match self.barrier.leased_compensation(cx).await? {
            Compensation::Undo => self.refund(cx).await,
            Compensation::Nothing => Ok(Outcome::done("nothing".to_owned())),
            Compensation::Wait => Ok(Outcome::snooze(Duration::from_millis(100), "it is under way")),
        }
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<String>) -> Result<(), HandlerError> {
        match answer {
            Answer::Done(word) if word == "charged" => self.barrier.end_leased_action(&cx, true).await,
            Answer::Done(word) if word == "refunded" => self.barrier.end_leased_compensation(&cx).await,
            _ => Ok(()),
        }
    }
}

fn leased(env: &TestEnv) -> Leased {
    let (lease, short) = (Duration::from_millis(900), Duration::from_millis(50));
    let builder = Inbox::builder(env.pool(4)).scope("cash").single_tenant().backoff(short, short);
    builder.leased(lease).build().unwrap()
}

fn command(key: &str) -> Received {
    let message = Received::new("cash.charge", "1").header("Idempotency-Key", key);
    if key.contains(":#2") { message.header("Saga-Attempt", "2") } else { message }
}

/// A shop in which an order is charged.
async fn charged() -> (TestEnv, Leased, Cashier) {
    let env = TestEnv::new().await;
    let (inbox, cashier) = (leased(&env), Cashier::new());
    assert_eq!(say(&inbox, &cashier, "o-1:charge").await, "done: charged");
    (env, inbox, cashier)
}

/// The end of a command that comes once.
async fn say(inbox: &Leased, cashier: &Cashier, key: &str) -> String {
    match inbox.run(cashier, &command(key)).await.unwrap() {
        Verdict::Handled(Answer::Done(text)) => format!("done: {text}"),
        Verdict::Handled(Answer::Rejected(text)) => format!("rejected: {text}"),
        Verdict::Retry { .. } | Verdict::InFlight => "later".to_owned(),
        Verdict::Dead { .. } => "dead".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Its end when it comes until it has ended.
async fn end(inbox: &Leased, cashier: &Cashier, key: &str) -> String {
    let ended = async {
        loop {
            let said = say(inbox, cashier, key).await;
            if said != "later" {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, ended).await.expect("it ends")
}

/// An operator has the dead letter of a command run again.
async fn free(env: &TestEnv, key: &str) {
    let sql = "DELETE FROM oncebox.inbox WHERE key = $1 AND status = 'dead'";
    assert_eq!(env.pg().await.execute(sql, &[&key]).await.unwrap(), 1);
}

/// The first is late, and an operator asks for another: it waits, and finds nothing to undo.
#[tokio::test]
async fn a_leased_compensation_that_is_under_way_is_not_joined_by_another_attempt() {
    let (_env, inbox, cashier) = charged().await;
    cashier.is(Fate::Hangs);
    let mut first = JoinSet::new();
    let (running, same) = (inbox.clone(), cashier.clone());
    first.spawn(async move { end(&running, &same, UNDO).await });
    timeout(LIMIT, cashier.hanging.notified()).await.expect("it calls");
    cashier.is(Fate::Works);
    assert_eq!(say(&inbox, &cashier, UNDO_AGAIN).await, "later");
    cashier.leave.notify_one();
    assert_eq!(first.join_next().await.unwrap().unwrap(), "done: refunded");
    assert_eq!(end(&inbox, &cashier, UNDO_AGAIN).await, "done: nothing");
    assert_eq!(cashier.refunds(), 1);
}

/// The first has paid, perhaps, and is dead: only its own next run can find out.
#[tokio::test]
async fn a_leased_compensation_that_may_have_undone_is_not_done_again() {
    let (env, inbox, cashier) = charged().await;
    cashier.is(Fate::DiesPaid);
    assert_eq!(end(&inbox, &cashier, UNDO).await, "dead");
    cashier.is(Fate::Works);
    for _ in 0..2 {
        assert_eq!(say(&inbox, &cashier, UNDO_AGAIN).await, "later");
    }
    // The operator has the letter run again: meanwhile the other still waits.
    free(&env, UNDO).await;
    assert_eq!(say(&inbox, &cashier, UNDO_AGAIN).await, "later");
    assert_eq!(end(&inbox, &cashier, UNDO).await, "done: refunded");
    assert_eq!(end(&inbox, &cashier, UNDO_AGAIN).await, "done: nothing");
    assert_eq!(cashier.refunds(), 1);
}

/// The first was given up, and is known to have undone nothing: the second does, and the first,
/// should it come again, does not.
#[tokio::test]
async fn a_leased_compensation_without_an_effect_is_done_by_the_next_attempt() {
    for fate in [Fate::DiesUnpaid, Fate::IsRejected] {
        let (env, inbox, cashier) = charged().await;
        cashier.is(fate);
        let ended = end(&inbox, &cashier, UNDO).await;
        assert_eq!(ended, if fate == Fate::IsRejected { "rejected: no" } else { "dead" });
        cashier.is(Fate::Works);
        assert_eq!(end(&inbox, &cashier, UNDO_AGAIN).await, "done: refunded", "{fate:?}");
        if fate == Fate::DiesUnpaid {
            free(&env, UNDO).await;
            assert_eq!(end(&inbox, &cashier, UNDO).await, "done: nothing");
        }
        assert_eq!(cashier.refunds(), 1, "{fate:?}");
    }
}

/// Releases from stock, in the handler's transaction, and says no the first time.
struct Stock(Barrier);

impl Handler for Stock {
    type Message = i32;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: i32) -> Result<Outcome<()>, HandlerError> {
        if !cx.key().is_undo() {
            assert_eq!(self.0.action(&cx).await?, Action::Act);
        } else if self.0.compensation(&cx).await? == Compensation::Undo {
            if cx.message().header_value("Saga-Attempt").is_none() {
                self.0.has_undone_nothing(&cx).await?;
                return Ok(Outcome::reject(()));
            }
            cx.transaction().batch_execute("INSERT INTO released VALUES (1)").await?;
        }
        Ok(Outcome::done(()))
    }
}

#[tokio::test]
async fn a_compensation_that_was_rejected_is_done_by_the_next_attempt() {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute("CREATE TABLE released (count int)").await.unwrap();
    let inbox = Inbox::builder(env.pool(4)).scope("stock").single_tenant().build().unwrap();
    let stock = Stock(Barrier::new("stock:reserve").unwrap());
    for key in ["o-1:charge", UNDO, UNDO_AGAIN] {
        let verdict = inbox.run(&stock, &command(key)).await.unwrap();
        let is_no = matches!(verdict, Verdict::Handled(Answer::Rejected(())));
        assert_eq!(is_no, key == UNDO, "{verdict:?}");
    }
    let released = "SELECT count(*) FROM released";
    assert_eq!(env.pg().await.query_one(released, &[]).await.unwrap().get::<_, i64>(0), 1);
}
