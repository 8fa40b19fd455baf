//! The model, and everything at one moment.

use super::{
    mutant::Mutant,
    pass::{Phase, Relay},
    postgres::{Database, Fate, Transaction},
    scope::{Faults, Scope},
    stream::Stream,
};
use crate::bits::{self, Bits};

/// The model, as it is or with one mistake in it.
#[derive(Clone, Copy, Debug)]
pub struct Outbox {
    pub scope: &'static Scope,
    pub mutant: Option<Mutant>,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    /// The database as it is on the disk, if that is an earlier one.
    pub(crate) durable: Option<Box<Database>>,
    pub(crate) stream: Stream,
    /// Sent, and neither stored nor gone yet: it may outlive its relay.
    pub(crate) network: Bits,
    pub(crate) relays: Vec<Relay>,
    pub(crate) left: Faults,
    pub(crate) history: History,
}

/// The record of the checks: no part of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// Messages that a relay has an acknowledgement for.
    pub acknowledged: Bits,
    /// Messages in the order in which the stream first stored them, with their ids.
    pub stored: Vec<(u8, u8)>,
    /// A message was deleted that was due.
    pub deleted_due: bool,
    /// A message was stored although it was discarded before.
    pub sent_discarded: bool,
    pub discarded: Bits,
    /// Messages that were stored after they had been parked.
    pub was_parked: Bits,
}

/// A step of the world; the number is the relay's, if one takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Begin(u8),
    Enqueue(u8),
    Commit(u8),
    Prepare(u8),
    Abort(u8),
    Flush,
    CrashPostgres,
    Restore,
    Look(u8),
    Read(u8),
    Acknowledge(u8, u8),
    Doubt(u8, u8),
    Refuse(u8, u8, u64),
    Settle(u8),
    Die(u8),
    LoseSession(u8),
    Ask(u8),
    NoteLoss(u8),
    Arrive(u8),
    LoseEnd(u8),
    ForgetWindow,
    Reach,
    Age,
    Prune,
    Discard(u8),
    Replay(u8),
    RetryDead(u8),
}

impl Outbox {
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn ordering_key(&self, message: u8) -> Option<&'static str> {
        self.scope.messages[usize::from(message)].1
    }

    pub(crate) fn messages(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.scope.messages.len()).expect("a few messages")
    }

    pub(crate) fn transactions(&self) -> std::ops::Range<u8> {
        0..self.scope.messages.iter().map(|(of, _)| of + 1).max().unwrap_or(0)
    }

    pub(crate) fn relays(&self) -> std::ops::Range<u8> {
        0..self.scope.relays
    }

    /// The next message that a transaction enqueues.
    pub(crate) fn next_message(&self, db: &Database, transaction: u8) -> Option<u8> {
        let enqueued = db.transactions[usize::from(transaction)].enqueued;
        self.messages()
            .find(|m| self.scope.messages[usize::from(*m)].0 == transaction && !bits::has(enqueued, *m))
    }

    /// Of transactions that enqueue the same, the first begins first: states that differ only by
    /// swapping two of them count once.
    pub(crate) fn begins_in_turn(&self, db: &Database, transaction: u8) -> bool {
        let enqueues =
            |of: u8| self.scope.messages.iter().filter(move |(by, _)| *by == of).map(|(_, key)| key);
        let has_begun = |of: u8| db.transactions[usize::from(of)].fate != Fate::NotBegun;
        (0..transaction).all(|of| has_begun(of) || !enqueues(of).eq(enqueues(transaction)))
    }

    /// Producers that touch the same entity wait for each other's row lock.
    pub(crate) fn waits_for_lock(&self, db: &Database, transaction: u8, message: u8) -> bool {
        let Some(key) = self.ordering_key(message) else { return false };
        let mine = db.transactions[usize::from(transaction)].xact;
        let holds = |of: &Transaction| {
            of.xact != mine && bits::each(of.enqueued).any(|held| self.ordering_key(held) == Some(key))
        };
        db.running().any(holds)
    }
}

impl State {
    /// Whether a relay holds the lane.
    pub(crate) fn is_locked(&self) -> bool {
        self.relays.iter().any(|relay| matches!(&relay.phase, Phase::Publishing(pass) if pass.has_session))
    }

    /// Before a commit that does not wait for the disk: the state before it is kept.
    pub(crate) fn write(&mut self, model: &Outbox) {
        if model.scope.faults.crash > 0 && self.left.crash > 0 && self.durable.is_none() {
            self.durable = Some(Box::new(self.db.clone()));
        }
    }
}
