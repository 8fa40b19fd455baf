//! A provider outside the database, and the handler that pays through it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use oncebox_inbox::{
    Answer, CallError, Context, HandlerError, Inbox, Leased, LeasedBuilder, LeasedContext, LeasedHandler,
    Outcome, Received, Reconciled,
};
use oncebox_tests::TestEnv;
use tokio::sync::Notify;

use crate::inbox::support::{Job, SCOPE, environment};

pub(crate) const LEASE: Duration = Duration::from_millis(900);

/// The provider's reaction to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Works,
    /// Does the work, and its answer is lost.
    LosesAnswers,
    /// The request is lost: nothing is done, and the caller cannot know.
    LosesRequests,
    /// Says that it did nothing.
    Fails,
    Declines,
    /// Does the work, and answers when it is told to.
    HoldsAnswers,
}

/// A payment provider that is not idempotent: it carries out each call.
#[derive(Debug, Default)]
pub(crate) struct Provider {
    mood: Mutex<Mood>,
    /// How often each key was called, and how often it had an effect.
    calls: Mutex<BTreeMap<String, u64>>,
    effects: Mutex<BTreeMap<String, u64>>,
    pub(crate) lookups: AtomicU64,
    pub(crate) holding: Notify,
    pub(crate) answer: Notify,
}

impl Provider {
    pub(crate) fn mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(crate) async fn charge(&self, key: &str) -> Result<String, CallError> {
        let mood = *self.mood.lock().unwrap();
        *self.calls.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        match mood {
            Mood::Fails => return Err(CallError::failed("out of order")),
            Mood::Declines => return Err(CallError::rejected("card declined")),
            Mood::LosesRequests => return Err(std::io::Error::other("connection reset").into()),
            Mood::Works | Mood::LosesAnswers | Mood::HoldsAnswers => {}
        }
        *self.effects.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        if mood == Mood::LosesAnswers {
            return Err(std::io::Error::other("connection reset").into());
        }
        if mood == Mood::HoldsAnswers {
            self.holding.notify_one();
            self.answer.notified().await;
        }
        Ok(format!("receipt of {key}"))
    }

    pub(crate) async fn find(&self, key: &str) -> Result<Reconciled<String>, CallError> {
        self.lookups.fetch_add(1, SeqCst);
        let found = self.effects.lock().unwrap().contains_key(key);
        Ok(if found { Reconciled::Happened(format!("receipt of {key}")) } else { Reconciled::Absent })
    }

    pub(crate) fn calls(&self, key: &str) -> u64 {
        self.calls.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    pub(crate) fn effects(&self, key: &str) -> u64 {
        self.effects.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(SeqCst)
    }
}

pub(crate) type Returned = Result<Outcome<String>, HandlerError>;
type Action = Arc<dyn for<'a> Fn(&'a LeasedContext<'a>, Job) -> BoxFuture<'a, Returned> + Send + Sync>;
type Finish = Arc<dyn for<'a> Fn(&'a Context<'a>) -> BoxFuture<'a, Result<(), HandlerError>> + Send + Sync>;

/// A handler from closures, which counts its runs.
#[derive(Clone)]
pub(crate) struct Pays {
    action: Action,
    finish: Finish,
    runs: Arc<AtomicU64>,
}

impl Pays {
    pub(crate) fn new<F>(action: F) -> Self
    where
        F: for<'a> Fn(&'a LeasedContext<'a>, Job) -> BoxFuture<'a, Returned> + Send + Sync + 'static,
    {
        let finish: Finish = Arc::new(|cx| Box::pin(book(cx)));
        Self { action: Arc::new(action), finish, runs: Arc::default() }
    }

    pub(crate) fn finishing<F>(mut self, finish: F) -> Self
    where
        F: for<'a> Fn(&'a Context<'a>) -> BoxFuture<'a, Result<(), HandlerError>> + Send + Sync + 'static,
    {
        self.finish = Arc::new(finish);
        self
    }

    /// One effect, `charge`, reconciled by asking the provider, at once taken at its word.
    pub(crate) fn charge(provider: &Arc<Provider>) -> Self {
        let provider = Arc::clone(provider);
        Self::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move { Ok(Outcome::done(charge(cx, &provider, "charge").await?)) })
        })
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(SeqCst)
    }
}

/// An effect that is reconciled.
pub(crate) async fn charge(
    cx: &LeasedContext<'_>,
    provider: &Provider,
    step: &str,
) -> Result<String, HandlerError> {
    let receipt = cx
        .effect(step)
        .settles_within(Duration::ZERO)
        .call(|key| async move { provider.charge(key.as_str()).await })
        .reconcile(|key| async move { provider.find(key.as_str()).await })
        .await?;
    Ok(receipt)
}

/// The write that must happen once.
pub(crate) async fn book(cx: &Context<'_>) -> Result<(), HandlerError> {
    let sql = "INSERT INTO effect (key, n) VALUES ($1, 0)";
    cx.transaction().execute(sql, &[&cx.key().as_str()]).await?;
    Ok(())
}

impl LeasedHandler for Pays {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, cx: &LeasedContext<'_>, job: Job) -> Returned {
        self.runs.fetch_add(1, SeqCst);
        (self.action)(cx, job).await
    }

    async fn finish(&self, cx: Context<'_>, _: &Answer<String>) -> Result<(), HandlerError> {
        (self.finish)(&cx).await
    }
}

pub(crate) fn builder(env: &TestEnv, lease: Duration) -> LeasedBuilder {
    let short = Duration::from_millis(1);
    Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant().backoff(short, short).leased(lease)
}

pub(crate) fn leased(env: &TestEnv) -> Leased {
    builder(env, LEASE).build().unwrap()
}

pub(crate) async fn setup() -> (TestEnv, Leased, Arc<Provider>) {
    let env = environment().await;
    let leased = leased(&env);
    (env, leased, Arc::default())
}

/// The answer of `Pays::charge` for key `k`.
pub(crate) fn receipt() -> Answer<String> {
    Answer::Done("receipt of k:charge".to_owned())
}

/// As if every claim had been made so often.
pub(crate) async fn claimed(env: &TestEnv, attempts: i32) {
    let sql = "UPDATE oncebox.inbox_claim SET attempts = $1, lease_until = clock_timestamp()";
    env.pg().await.execute(sql, &[&attempts]).await.unwrap();
}

/// Moves the database's clock past the lease, instead of waiting.
pub(crate) async fn expire(env: &TestEnv) -> u64 {
    let sql = "UPDATE oncebox.inbox_claim SET lease_until = clock_timestamp()";
    env.pg().await.execute(sql, &[]).await.unwrap()
}

/// Moves it past the time in which a call settles.
pub(crate) async fn age_effects(env: &TestEnv) {
    let sql = "UPDATE oncebox.inbox_effect SET started_at = started_at - interval '1 hour'";
    env.pg().await.execute(sql, &[]).await.unwrap();
}

/// State and reason of the only claim.
pub(crate) async fn claim(env: &TestEnv) -> Option<(String, Option<String>)> {
    let row =
        env.pg().await.query_opt("SELECT state, reason FROM oncebox.inbox_claim", &[]).await.unwrap()?;
    Some((row.get(0), row.get(1)))
}

/// Runs until the handler says anything but "again".
pub(crate) async fn run_until_ended(
    leased: &Leased,
    handler: &impl LeasedHandler<Message = Job, Reply = String>,
    received: &Received,
) -> oncebox_inbox::Verdict<String> {
    for _ in 0..50 {
        match leased.run(handler, received).await.unwrap() {
            oncebox_inbox::Verdict::Retry { .. } | oncebox_inbox::Verdict::InFlight => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            ended => return ended,
        }
    }
    panic!("it never ended");
}
