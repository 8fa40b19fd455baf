//! Measures batches against the handler's transaction without an inbox, and duplicates against
//! first deliveries.
//!
//! Each side has sixteen workers. A batch has 64 messages. It is handled as a set, where one
//! statement of the handler writes for all messages, or message by message, where each message has
//! its own savepoint and statement. Messages and reference are those of `inbox`: the reference
//! commits each message by itself, as a consumer without an inbox does. Duplicates repeat keys that
//! were stored before. They go through `Inbox::run_each`, like the first deliveries that they are
//! compared with.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::ensure;
use oncebox_inbox::{
    Answer, Context, Error, Handler, HandlerError, Inbox, Outcome, Received, Source, Verdict,
};
use tokio::time::Instant;

use crate::{
    config::Config,
    inbox::{Bare, Effect, Order, message, pool},
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Rates, Side, alternate},
};

const WORKERS: usize = 16;
const BATCH: usize = 64;
/// How many keys are stored before the duplicates are measured.
const STORED: u64 = 10_000;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = WHAT.map(|_| Vec::new());
    for _ in 0..config.rounds {
        for ((_, what), rounds) in WHAT.into_iter().zip(&mut rounds) {
            rounds.push(take(servers, config, what).await?);
        }
    }
    for ((key, _), rounds) in WHAT.into_iter().zip(rounds) {
        let reference = median(rounds.iter().map(|round| round.reference));
        let measured = median(rounds.iter().map(|round| round.measured));
        let behind = format!("{measured:.0}/s, reference {reference:.0}/s");
        report.add(key, median(rounds.iter().map(|round| round.ratio())), behind);
        report.rate(&format!("{key}_reference"), reference);
        report.rate(&format!("{key}_measured"), measured);
    }
    Ok(())
}

const WHAT: [(&str, What); 3] = [
    ("inbox_set_ratio", What::Batches { as_sets: true }),
    ("inbox_batch_ratio", What::Batches { as_sets: false }),
    ("inbox_duplicate_ratio", What::Duplicates),
];

#[derive(Clone, Copy, Debug)]
enum What {
    Batches { as_sets: bool },
    Duplicates,
}

async fn take(servers: &Servers, config: &Config, what: What) -> anyhow::Result<Rates> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(include_str!("sql/effect_table.sql")).await?;
    let pool = pool(servers, &database, WORKERS)?;
    let inbox = Inbox::builder(pool.clone()).scope("bench:effect").single_tenant().build()?;
    let first = Arc::new(First { inbox: inbox.clone(), sent: AtomicU64::new(0) });
    let rates = match what {
        What::Batches { as_sets } => {
            let bare = Arc::new(Bare::new(pool));
            let batches = Arc::new(Batches { first: Arc::clone(&first), as_sets });
            alternate(config.duration / 3, WORKERS, &bare, &batches).await?
        }
        What::Duplicates => {
            while first.sent.load(Ordering::Relaxed) < STORED {
                Batches { first: Arc::clone(&first), as_sets: true }.once(0).await?;
            }
            let duplicates = Arc::new(Duplicates { inbox, sent: AtomicU64::new(0) });
            alternate(config.duration / 3, WORKERS, &first, &duplicates).await?
        }
    };
    let count = servers.schema.sql("SELECT count(*) FROM {schema}.inbox WHERE scope = 'bench:effect'");
    let stored: i64 = session.query_one(&count, &[]).await?.get(0);
    let sent = first.sent.load(Ordering::Relaxed);
    ensure!(stored.cast_unsigned() == sent, "the inbox has {stored} keys instead of {sent}");
    tracing::info!("{what:?}: reference {:.0}/s, measured {:.0}/s", rates.reference, rates.measured);
    drop((first, session));
    servers.drop_database(&database).await?;
    Ok(rates)
}

/// Runs new messages, one after another.
struct First {
    inbox: Inbox,
    /// How many messages were sent; the keys are numbered by it.
    sent: AtomicU64,
}

impl Side for First {
    async fn once(&self, _: usize) -> anyhow::Result<()> {
        anyhow::bail!("this side takes its messages from a queue: call `until`")
    }

    async fn until(&self, _: usize, deadline: Instant) -> anyhow::Result<u32> {
        let next = || message(self.sent.fetch_add(1, Ordering::Relaxed), 0);
        let is_right = |verdict: &Verdict<()>| matches!(verdict, Verdict::Handled(_));
        let mut queue = Queue { next, is_right, deadline, ended: Ok(0) };
        self.inbox.run_each(&Effect::Awaited, &mut queue).await;
        queue.ended
    }
}

/// Runs new messages in batches.
struct Batches {
    first: Arc<First>,
    as_sets: bool,
}

impl Side for Batches {
    async fn once(&self, _: usize) -> anyhow::Result<()> {
        let first = &self.first;
        let messages: anyhow::Result<Vec<Received>> =
            (0..BATCH).map(|_| message(first.sent.fetch_add(1, Ordering::Relaxed), 0)).collect();
        let messages = messages?;
        let results = if self.as_sets {
            first.inbox.run_batch(&Effect::Awaited, &messages).await
        } else {
            first.inbox.run_batch(&Alone(Effect::Awaited), &messages).await
        };
        for result in results {
            let verdict = result?;
            ensure!(
                matches!(verdict, Verdict::Handled(Answer::Done(()))),
                "a new message was not handled: {verdict:?}"
            );
        }
        Ok(())
    }

    async fn until(&self, worker: usize, deadline: Instant) -> anyhow::Result<u32> {
        let mut completed = 0;
        while Instant::now() < deadline {
            self.once(worker).await?;
            completed += u32::try_from(BATCH)?;
        }
        Ok(completed)
    }
}

/// The handler without its `handle_set`.
struct Alone(Effect);

impl Handler for Alone {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        self.0.handle(cx, order).await
    }
}

/// Runs messages that were handled before, one after another.
struct Duplicates {
    inbox: Inbox,
    sent: AtomicU64,
}

impl Side for Duplicates {
    async fn once(&self, _: usize) -> anyhow::Result<()> {
        anyhow::bail!("this side takes its messages from a queue: call `until`")
    }

    async fn until(&self, _: usize, deadline: Instant) -> anyhow::Result<u32> {
        let next = || message(self.sent.fetch_add(1, Ordering::Relaxed) % STORED, 0);
        let is_right = |v: &Verdict<()>| matches!(v, Verdict::Replayed(_) | Verdict::InFlight);
        let mut queue = Queue { next, is_right, deadline, ended: Ok(0) };
        self.inbox.run_each(&Effect::Awaited, &mut queue).await;
        queue.ended
    }
}

/// A source that always has a message, until the deadline or a failure.
struct Queue<N, V> {
    next: N,
    is_right: V,
    deadline: Instant,
    ended: anyhow::Result<u32>,
}

impl<N, V> Source<()> for Queue<N, V>
where
    N: FnMut() -> anyhow::Result<Received> + Send,
    V: Fn(&Verdict<()>) -> bool + Send,
{
    type Message = Box<Received>;

    fn next(&mut self) -> Option<Box<Received>> {
        if self.ended.is_err() || Instant::now() >= self.deadline {
            return None;
        }
        match (self.next)() {
            Ok(message) => Some(Box::new(message)),
            Err(error) => {
                self.ended = Err(error);
                None
            }
        }
    }

    fn ended(&mut self, _: Box<Received>, result: Result<Verdict<()>, Error>) {
        let counted = result.map_err(anyhow::Error::from).and_then(|verdict| {
            ensure!((self.is_right)(&verdict), "unexpected: {verdict:?}");
            Ok(())
        });
        match (&mut self.ended, counted) {
            (Ok(count), Ok(())) => *count += 1,
            (_, Err(error)) => self.ended = Err(error),
            (Err(_), Ok(())) => {}
        }
    }
}
