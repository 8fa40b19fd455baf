//! One message, from claim to commit.
//!
//! ```text
//! who is it? ──no key, no tenant──────────────────────────────────▶ dead letter
//!     │
//!     ▼            ┌─ row exists ─▶ same payload? ─▶ replay, else mismatch ─▶ dead letter
//! begin, claim ────┼─ locked ─────▶ in flight
//!     │            └─ PostgreSQL away ─▶ error "unavailable"
//!     ▼ won
//! handler ──error, panic, timeout──▶ ROLLBACK ─▶ conflict? again, else retry, else (at the limit) dead letter
//!     ▼ outcome
//! store outcome, CLOSE ALL, COMMIT ──answer lost──▶ error "unavailable": the next run finds out
//! ```
//!
//! A failure that is for good is recorded after the rollback, in a transaction of its own that claims the key as well:
//! so it neither vanishes with the rollback, nor overwrites what a concurrent copy committed.

use std::{
    collections::VecDeque,
    ops::Deref,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use deadpool_postgres::Pool;
use oncebox_claims::{
    backoff::Backoff,
    database::{Database, Kind, Mode},
    identity::{Identity, lock},
    transactional::TransactionalClaims,
};
use tracing::debug;

use crate::{
    Builder, Counts, Error, Handler, KeySource, Received, Source, Verdict,
    counts::Counters,
    identity::{self, TenantSource},
    records::Records,
    source::Alone,
};

mod attempts;
mod batch;
pub(crate) mod breaks;
mod caution;
mod chain;
pub(crate) mod dead_lettering;
pub(crate) mod ending;
mod feeding;
#[cfg(feature = "redis")]
mod gated;
mod parts;
mod snooze;
mod sweeping;
pub(crate) mod turn;

pub(crate) use batch::{AsSet, Each, Form};

use attempts::Suspects;
use breaks::Breaks;
use caution::Caution;
use chain::{Last, Seat, Turn};
use ending::{Ended, Failure};

const CONFLICT_ROUNDS: u64 = 5;
const CONFLICT_PAUSE: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(100) };

/// Runs handlers once per key. Cheap to clone; clones share the connections and the counts.
#[derive(Clone, Debug)]
pub struct Inbox {
    database: Arc<Database>,
    claims: Arc<TransactionalClaims>,
    records: Arc<Records>,
    settings: Arc<Settings>,
    counters: Arc<Counters>,
    caution: Arc<Caution>,
    breaks: Arc<Breaks>,
    suspects: Suspects,
    /// Whether PostgreSQL was away when last heard of, so that it is logged once.
    away: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) scope: String,
    pub(crate) tenant: TenantSource,
    pub(crate) keys: Vec<KeySource>,
    pub(crate) retries: RetryPolicy,
    /// Nothing is suppressed, only reported.
    pub(crate) is_shadow: bool,
    pub(crate) mode: Mode,
    #[cfg(feature = "redis")]
    pub(crate) gate: Option<crate::Gate>,
}

/// When a message is tried again, and when it is given up.
#[derive(Clone, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) deliveries_max: u64,
    pub(crate) backoff: Backoff,
    /// How long a message may be parked in all.
    pub(crate) park_max: Duration,
}

impl Inbox {
    /// Sets up an inbox on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: Pool) -> Builder {
        Builder::new(pool)
    }

    pub(crate) fn new(database: Arc<Database>, settings: Arc<Settings>) -> Self {
        Self {
            claims: Arc::new(TransactionalClaims::new(Arc::clone(&database))),
            records: Arc::new(Records::new(Arc::clone(&database))),
            database,
            settings,
            counters: Arc::default(),
            caution: Arc::default(),
            breaks: Arc::default(),
            suspects: Suspects::default(),
            away: Arc::default(),
        }
    }

    /// How messages ended so far, in this inbox and its clones; [`metrics_text`](crate::metrics_text) has it for a scrape.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.snapshot()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn scope(&self) -> &str {
        &self.settings.scope
    }

    /// Checks that PostgreSQL can be reached and has the schema version that this crate works with,
    /// and that the scope is not in use in the [other mode](crate::Builder::leased).
    ///
    /// # Errors
    /// It cannot, it has not, or it is. [`Inbox::run`] reports the same, for the first message.
    pub async fn check(&self) -> Result<(), Error> {
        self.enter(self.settings.mode).await
    }

    /// Refuses a scope that is in use in the other mode.
    async fn enter(&self, mode: Mode) -> Result<(), Error> {
        self.database.register(&self.settings.scope, Kind::Consumer, mode).await
    }

    /// Deals with one message: runs the handler, or answers from what is stored. The verdict is committed.
    ///
    /// Dropping the future rolls back, unless the commit is under way already; running the message again is always
    /// right. Where messages queue, [`Inbox::run_each`] is faster.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses our own statements, or a stored row cannot be read. Run the message again later.
    pub async fn run<H: Handler>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let mut alone = Alone { received: Some(received), result: None };
        self.run_each(handler, &mut alone).await;
        alone.result.expect("run_each reports every message that it took")
    }

    /// Deals with messages one after another until none waits: like [`Inbox::run`] for each, in a transaction of its
    /// own, but over one connection, which commits a message and claims the next in one round trip.
    ///
    /// ```
    /// use std::{collections::VecDeque, sync::Arc};
    ///
    /// use oncebox_inbox::{Error, Received, Source, Verdict};
    ///
    /// /// What fails comes again, later.
    /// struct Backlog { waiting: VecDeque<Arc<Received>>, again: Vec<Arc<Received>> }
    ///
    /// impl<R> Source<R> for Backlog {
    ///     type Message = Arc<Received>;
    ///
    ///     fn next(&mut self) -> Option<Arc<Received>> {
    ///         self.waiting.pop_front()
    ///     }
    ///
    ///     fn ended(&mut self, message: Arc<Received>, result: Result<Verdict<R>, Error>) {
    ///         if matches!(result, Err(_) | Ok(Verdict::InFlight | Verdict::Retry { .. })) {
    ///             self.again.push(message);
    ///         }
    ///     }
    /// }
    /// # async fn example<H: oncebox_inbox::Handler>(inbox: oncebox_inbox::Inbox, handler: H, mut backlog: Backlog) {
    /// inbox.run_each(&handler, &mut backlog).await;
    /// # }
    /// ```
    pub async fn run_each<H: Handler, S: Source<H::Reply>>(&self, handler: &H, source: &mut S) {
        #[cfg(feature = "redis")]
        if let Some(gate) = &self.settings.gate {
            return self.run_gated(gate, handler, source).await;
        }
        self.run_ungated(handler, source).await;
    }

    async fn run_ungated<H: Handler, S: Source<H::Reply>>(&self, handler: &H, source: &mut S) {
        // At most one that lost a race, and one that the chain took behind it.
        let mut waiting = VecDeque::new();
        while let Some((received, round)) = waiting.pop_front().or_else(|| Some((source.next()?, 1))) {
            let turn = match self.screen::<H, _>(received, round) {
                Ok(turn) => turn,
                Err(refused) => match Box::pin(self.examine::<H, _>(refused)).await {
                    Ok(turn) => turn,
                    Err((received, result)) => {
                        source.ended(received, result);
                        continue;
                    }
                },
            };
            let Last { seat, result, waiting: behind } = self.chain(handler, source, turn).await;
            match result {
                Ok(Ended::Failure(Failure::Conflict(_))) if seat.round < CONFLICT_ROUNDS => {
                    let (scope, key) = (&self.settings.scope, seat.identity.key.as_str());
                    debug!(scope, key, "conflict with another transaction, again");
                    tokio::time::sleep(CONFLICT_PAUSE.after(seat.round)).await;
                    waiting.push_back((seat.received, seat.round + 1));
                }
                Ok(Ended::Known) => waiting.push_back((seat.received, seat.round + 1)),
                Ok(Ended::Failure(failure)) => {
                    let result = Box::pin(self.fail(&seat.identity, &seat.received, failure)).await;
                    source.ended(seat.received, result);
                }
                Ok(Ended::Verdict(verdict)) => source.ended(seat.received, Ok(verdict)),
                Err(error) => source.ended(seat.received, Err(error)),
            }
            waiting.extend(behind.map(|received| (received, 1)));
        }
    }

    /// Who is it, and can it be run at once?
    fn screen<H: Handler, T: Deref<Target = Received>>(
        &self,
        received: T,
        round: u64,
    ) -> Result<Turn<T, H::Message>, Refused<T>> {
        let identity = match self.identify(&received) {
            Ok(identity) => identity,
            Err(reason) => return Err(Refused::Never { received, identity: None, reason }),
        };
        if received.delivery_count() > 1 {
            return Err(Refused::Again { received, identity, round });
        }
        match ending::decode(received.payload()) {
            Ok(message) => Ok(Turn { seat: Seat::new(received, identity, round), message }),
            Err(reason) => Err(Refused::Never { received, identity: Some(identity), reason }),
        }
    }

    fn identify(&self, received: &Received) -> Result<Identity, String> {
        let tenant = identity::tenant(&self.settings.tenant, received)?;
        let key = identity::key(&self.settings.keys, received)?;
        let lock = lock(self.database.schema().as_str(), &self.settings.scope, &tenant, &key);
        Ok(Identity { tenant, key, fingerprint: identity::fingerprint(received.payload()), lock })
    }
}

/// A message that cannot be run at once.
enum Refused<T> {
    /// Delivered before: that it begins is recorded first.
    Again { received: T, identity: Identity, round: u64 },
    /// No handler will see it.
    Never { received: T, identity: Option<Identity>, reason: String },
}

impl<T> Refused<T> {
    fn received(self) -> T {
        match self {
            Self::Again { received, .. } | Self::Never { received, .. } => received,
        }
    }
}
