//! Message after message over one connection, each in a transaction of its own.
//!
//! ```text
//! BEGIN ─▶ claim 1 ─▶ handler 1 ─▶ [deferred writes 1, outcome 1, CLOSE ALL, COMMIT AND CHAIN, claim 2] ─▶ handler 2 ─▶ [...
//! ```
//!
//! What stands in brackets goes out at once: besides what the handler does, a message costs one round trip, and no
//! BEGIN of its own. Where duplicates follow each other, keys are only looked up.
//!
//! A claim that goes out behind a commit must not take effect when the commit fails: there is no transaction then, the
//! claim would be committed by itself, and its message would count as handled without its handler. Therefore
//! the transactions of a chain carry a mark, and `claim.sql` inserts nothing without it.

use std::{ops::Deref, time::Duration};

use deadpool_postgres::Transaction;
use oncebox_claims::{
    database::{Mode, discard},
    failure::text,
    identity::Identity,
    stored::COMPLETED,
    transactional::{Claim, Claimed, Deferred, Expect},
};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    Inbox,
    attempts::Alone,
    ending::{self, Ended, Failure},
    turn::{Answered, MISMATCH, Write},
};
use crate::{Error, Handler, Received, Source, Verdict};

/// How old a chain gets when somebody waits for a connection of the pool.
const CHAIN_SHORT: Duration = Duration::from_millis(50);
/// How old it gets at most, so that the pool sees its connections from time to time.
const CHAIN_MAX: Duration = Duration::from_secs(1);
/// After so many duplicates in a row the next message's key is looked up before it is claimed. A wrong guess costs a
/// round trip, a right one saves the claim and the commit, which are most of what a duplicate costs. To others the key that
/// was claimed last is in flight meanwhile, at most for as long as the chain lasts.
const COPIES_IN_A_ROW: u32 = 4;

/// A message that is worth a claim.
pub(super) struct Turn<T, M> {
    pub(super) seat: Seat<T>,
    pub(super) message: M,
}

/// Whose turn it is.
pub(super) struct Seat<T> {
    pub(super) received: T,
    pub(super) identity: Identity,
    /// Counts from 1; more after a conflict with another transaction.
    pub(super) round: u64,
    /// What the handler left to the commit.
    pub(super) deferred: Deferred,
    /// Nobody else who may be to blame for a process that died is at work.
    pub(super) _alone: Option<Alone>,
}

/// The end of a chain: the last message's. No transaction is open any more.
pub(super) struct Last<T, R> {
    pub(super) seat: Seat<T>,
    pub(super) result: Result<Ended<R>, Error>,
    /// Taken from the source, but not begun.
    pub(super) waiting: Option<T>,
}

impl<T> Seat<T> {
    pub(super) fn new(received: T, identity: Identity, round: u64) -> Self {
        Self { received, identity, round, deferred: Deferred::default(), _alone: None }
    }

    fn last<R>(self, result: Result<Ended<R>, Error>, waiting: Option<T>) -> Last<T, R> {
        Last { seat: self, result, waiting }
    }
}

impl Inbox {
    /// Deals with this message and with those that the source has behind it, until none waits or one did not end
    /// with a commit. All but the last have been reported.
    pub(super) async fn chain<H: Handler, S: Source<H::Reply>>(
        &self,
        handler: &H,
        source: &mut S,
        turn: Turn<S::Message, H::Message>,
    ) -> Last<S::Message, H::Reply> {
        let asked = Instant::now();
        let connected = match Box::pin(self.enter(Mode::Transaction)).await {
            Ok(()) => self.database.connect().await,
            Err(error) => Err(error),
        };
        let mut object = match connected {
            Ok(object) => object,
            Err(error) => return turn.seat.last(Err(error), None),
        };
        let (last, is_idle) = match self.database.begin(&mut object).await {
            Ok(transaction) => {
                let last = self.turns(&transaction, handler, source, turn, asked).await;
                let is_idle = match &last.result {
                    // Whoever gives the message up, or runs it again, must find its key free.
                    Ok(Ended::Failure(_)) => self.database.roll_back(transaction).await,
                    // What was sent may not have been answered.
                    Err(Error::Unavailable(..)) => false,
                    _ => true,
                };
                (last, is_idle)
            }
            Err(error) => (turn.seat.last(Err(error), None), false),
        };
        match &last.result {
            Ok(Ended::Failure(Failure::Abandoned { locked_since: Some(since), .. })) if !is_idle => {
                // A statement of the handler goes on, and so does the lock on the key.
                let ending = Box::pin(self.claims.end_holder(object, &last.seat.identity, *since));
                if let Err(error) = ending.await {
                    let (scope, key) = (&self.settings.scope, last.seat.identity.key.as_str());
                    warn!(scope, key, "a statement of the handler goes on: {}", text(&error));
                }
            }
            // What else a handler that was cut short has left behind is of no use to the next
            // message.
            Ok(Ended::Failure(Failure::Abandoned { .. })) => discard(object),
            _ if !is_idle => discard(object),
            _ => {}
        }
        last
    }

    async fn turns<H: Handler, S: Source<H::Reply>>(
        &self,
        transaction: &Transaction<'_>,
        handler: &H,
        source: &mut S,
        mut turn: Turn<S::Message, H::Message>,
        asked: Instant,
    ) -> Last<S::Message, H::Reply> {
        let begun = Instant::now();
        let mut copies = 0;
        let mut claim = self.claim(transaction, &turn.seat).await;
        self.counters.claims.claim_time.observe(asked, 1);
        loop {
            let Turn { seat, message } = turn;
            let answered = match claim {
                Ok(Some(claim)) => self.answer(transaction, handler, message, &seat, claim).await,
                Ok(None) => {
                    self.caution.raise();
                    return seat.last(Ok(Ended::Known), None);
                }
                Err(error) => Err(error),
            };
            let Answered { verdict, write } = match answered {
                Ok(Ok(answered)) => answered,
                Ok(Err(failure)) => return seat.last(Ok(Ended::Failure(failure)), None),
                Err(error) => return seat.last(Err(error), None),
            };
            copies = if matches!(write, Write::Nothing) { copies + 1 } else { 0 };
            let (mut next, waiting) = self.upcoming::<H, S>(source, begun);
            let asked = Instant::now();
            let known = self.known(transaction, copies, next.as_ref().map(|next| &next.seat.identity)).await;
            if let Some(next) = next.take_if(|_| known.is_some()) {
                // Nothing was written, so nothing is to be committed.
                self.counters.claims.claim_time.observe(asked, 1);
                self.report(source, seat, verdict);
                (claim, turn) = (Ok(known), next);
                continue;
            }
            if next.is_some() || !matches!(write, Write::Nothing) {
                let after = next.as_ref().map(|Turn { seat, .. }| {
                    (&seat.identity, seat.received.id(), self.expect(&seat.received, seat.round))
                });
                let commit = Box::pin(self.commit(transaction, &seat, &write, after));
                let answered = self.database.answered("commit", commit).await;
                let (committed, claimed) = match answered {
                    Ok(answered) => answered,
                    Err(error) => {
                        let waiting = next.map(|next| next.seat.received).or(waiting);
                        return seat.last(Err(error), waiting);
                    }
                };
                if let Err(error) = committed {
                    let waiting = next.map(|next| next.seat.received).or(waiting);
                    return seat.last(Ok(Ended::Failure(ending::of_commit(error))), waiting);
                }
                if let (Some(next), Some(claimed)) = (next, claimed) {
                    self.report(source, seat, verdict);
                    let wanted = (&next.seat.identity, next.seat.received.id());
                    let found =
                        self.claims.claimed(transaction, &self.settings.scope, wanted, COMPLETED, claimed);
                    claim = self.database.answered("claim", Box::pin(found)).await.flatten();
                    self.counters.claims.claim_time.observe(asked, 1);
                    turn = next;
                    continue;
                }
            }
            self.count(&verdict, &seat.received, &seat.identity);
            return seat.last(Ok(Ended::Verdict(verdict)), waiting);
        }
    }

    /// The next message that is worth a claim; or one that is not, and waits.
    #[expect(clippy::type_complexity, reason = "either")]
    fn upcoming<H: Handler, S: Source<H::Reply>>(
        &self,
        source: &mut S,
        begun: Instant,
    ) -> (Option<Turn<S::Message, H::Message>>, Option<S::Message>) {
        let upcoming = if self.may_go_on(begun) { source.next() } else { None };
        match upcoming.map(|next| self.screen::<H, _>(next, 1)) {
            Some(Ok(next)) => (Some(next), None),
            Some(Err(refused)) => (None, Some(refused.received())),
            None => (None, None),
        }
    }

    /// How the next message's key ended, where so many duplicates came before it that it is looked up first.
    async fn known(
        &self,
        transaction: &Transaction<'_>,
        copies: u32,
        next: Option<&Identity>,
    ) -> Option<Claim> {
        // A shadow runs its handler all the same, and a claim sets its limits of time.
        let next = next.filter(|_| copies >= COPIES_IN_A_ROW && !self.settings.is_shadow)?;
        self.claims.known(transaction, &self.settings.scope, next).await
    }

    /// Tells how a message ended that is not the chain's last.
    fn report<S: Source<R>, R>(&self, source: &mut S, seat: Seat<S::Message>, verdict: Verdict<R>) {
        self.count(&verdict, &seat.received, &seat.identity);
        source.ended(seat.received, Ok(verdict));
    }

    /// Whether a chain of this age may take another message: its first claim costs two round trips of its own.
    fn may_go_on(&self, begun: Instant) -> bool {
        let age = begun.elapsed();
        age < CHAIN_SHORT || (age < CHAIN_MAX && !self.database.is_awaited())
    }

    /// Stores the outcome, commits, and claims the next message.
    async fn commit(
        &self,
        transaction: &Transaction<'_>,
        seat: &Seat<impl Deref<Target = Received>>,
        write: &Write,
        next: Option<(&Identity, Option<i64>, Expect)>,
    ) -> (Result<(), tokio_postgres::Error>, Option<Claimed>) {
        let settlement = match write {
            Write::Settled(status, outcome) => Some((&seat.identity, (*status, outcome.as_deref()))),
            Write::Nothing | Write::Complete => None,
        };
        let settled = (&seat.deferred, settlement);
        self.claims.commit_and_claim(transaction, &self.settings.scope, settled, next).await
    }

    async fn claim(
        &self,
        transaction: &Transaction<'_>,
        seat: &Seat<impl Deref<Target = Received>>,
    ) -> Result<Option<Claim>, Error> {
        let expect = self.expect(&seat.received, seat.round);
        let id = seat.received.id();
        let scope = &self.settings.scope;
        let claim = self.claims.claim(transaction, scope, &seat.identity, id, expect, COMPLETED);
        self.database.answered("claim", Box::pin(claim)).await.flatten()
    }

    /// A message that was delivered before, or claimed a moment ago, may be known, and so may any other while
    /// duplicates come in.
    fn expect(&self, received: &Received, round: u64) -> Expect {
        let may_be_known = round > 1 || received.delivery_count() > 1 || self.caution.is_advised();
        if may_be_known { Expect::Either } else { Expect::New }
    }

    /// Counts what is committed, or was found committed or in flight.
    pub(super) fn count<R>(&self, verdict: &Verdict<R>, received: &Received, identity: &Identity) {
        self.counters.count(verdict, received);
        self.note_late(verdict, received, identity);
        let (scope, key) = (self.settings.scope.as_str(), identity.key.as_str());
        match verdict {
            Verdict::Mismatch => {
                let reason = MISMATCH;
                warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
            }
            Verdict::InFlight => debug!(scope, key, "duplicate of a message that is in flight"),
            Verdict::Replayed(_) | Verdict::Dead { .. } => {
                debug!(scope, key, "duplicate, answered from the stored outcome");
            }
            Verdict::Handled(_) | Verdict::Retry { .. } | Verdict::Behind => {}
        }
    }
}
