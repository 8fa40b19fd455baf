//! The outbox: producers, PostgreSQL, a stream, relays, retention and operators, and all that can
//! go wrong between them, within the bounds of a [`Scope`](scope::Scope).

mod ids;
mod invariants;
pub mod lockstep;
pub mod mutant;
mod pass;
mod postgres;
pub mod promises;
mod recovery;
mod relay;
mod retention;
pub mod scope;
mod statements;
mod steps;
mod stream;
mod world;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stateright::{Model, Property};

pub use self::world::{Action, Outbox, State};
use self::{
    pass::{Phase, Relay},
    postgres::{Cursor, Database, Fate, Row, Snapshot, Transaction},
    stream::Stream,
    world::History,
};
use crate::bits;

/// Which of two relays is the first does not matter: states that differ in it alone are one state.
fn of_relay(relay: &Relay) -> u64 {
    let mut hasher = DefaultHasher::new();
    relay.hash(&mut hasher);
    hasher.finish()
}

impl Model for Outbox {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let count = usize::from(self.transactions().end);
        let db = Database {
            next_xact: 1,
            ended: 1,
            next_id: 1,
            transactions: vec![Transaction::default(); count],
            cursor: Cursor { snap: Snapshot { xmax: 1, open: 0 }, ..Cursor::default() },
            ..Database::default()
        };
        let relays = vec![Relay { has_checked: true, phase: Phase::Idle }; usize::from(self.scope.relays)];
        vec![State {
            db,
            durable: None,
            stream: Stream::default(),
            network: 0,
            relays,
            left: self.scope.faults,
            history: History::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.producers(state, actions);
        self.relay_steps(state, actions);
        self.faults(state, actions);
        self.operators(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(self, action);
        next.relays.sort_by_cached_key(of_relay);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants::all()
    }
}

impl Outbox {
    pub(crate) fn producers(&self, state: &State, actions: &mut Vec<Action>) {
        for t in self.transactions() {
            let of = state.db.transactions[usize::from(t)];
            match of.fate {
                Fate::NotBegun if self.begins_in_turn(&state.db, t) => actions.push(Action::Begin(t)),
                Fate::NotBegun => {}
                Fate::Open => match self.next_message(&state.db, t) {
                    Some(m) if self.waits_for_lock(&state.db, t, m) => {}
                    Some(_) => actions.push(Action::Enqueue(t)),
                    None => {
                        actions.push(Action::Commit(t));
                        if state.left.abort > 0 {
                            actions.push(Action::Abort(t));
                        }
                        if state.left.prepare > 0 {
                            actions.push(Action::Prepare(t));
                        }
                    }
                },
                Fate::Prepared => actions.push(Action::Commit(t)),
                Fate::Committed | Fate::Aborted => {}
            }
        }
    }

    fn relay_steps(&self, state: &State, actions: &mut Vec<Action>) {
        for r in self.relays() {
            let relay = &state.relays[usize::from(r)];
            match &relay.phase {
                Phase::Idle if !relay.has_checked => actions.push(Action::Ask(r)),
                Phase::Idle => {
                    actions.push(Action::Look(r));
                    if state.left.has_lost {
                        actions.push(Action::Ask(r));
                    }
                }
                Phase::Looked(_) if !state.is_locked() => actions.push(Action::Read(r)),
                Phase::Looked(_) => {}
                Phase::Checked { .. } if !state.is_locked() => actions.push(Action::NoteLoss(r)),
                Phase::Checked { .. } => {}
                Phase::Publishing(pass) => {
                    for index in pass.free(self) {
                        let at = u8::try_from(index).expect("a few rows");
                        actions.push(Action::Acknowledge(r, at));
                        if state.left.doubt > 0 {
                            actions.push(Action::Doubt(r, at));
                        }
                        if state.left.refuse > 0 {
                            actions.extend(relay::REFUSALS.map(|code| Action::Refuse(r, at, code)));
                        }
                    }
                    actions.push(Action::Settle(r));
                    if state.left.lose_session > 0 && pass.has_session {
                        actions.push(Action::LoseSession(r));
                    }
                }
            }
            if state.left.die > 0 && relay.phase != Phase::Idle {
                actions.push(Action::Die(r));
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(bits::each(state.network).map(Action::Arrive));
        if state.left.crash > 0 {
            actions.push(Action::CrashPostgres);
            if state.durable.is_some() {
                actions.push(Action::Flush);
            }
        }
        if state.left.restore > 0 {
            actions.push(Action::Restore);
        }
        if state.left.lose_end > 0 {
            let last = state.stream.last();
            actions.extend((state.stream.old..last).map(Action::LoseEnd));
        }
        if state.left.forget_window > 0 && state.stream.window != 0 {
            actions.push(Action::ForgetWindow);
        }
    }

    fn operators(&self, state: &State, actions: &mut Vec<Action>) {
        if self.scope.has_retention {
            if state.left.reach > 0 {
                actions.push(Action::Reach);
            }
            actions.push(Action::Prune);
            // A relay looks for losses every half minute, so it has by then.
            if state.left.age > 0 && !state.left.is_unchecked {
                actions.push(Action::Age);
            }
        }
        if state.is_locked() {
            return;
        }
        for parked in &state.db.parked {
            if state.left.discard > 0 && !parked.is_replay {
                actions.push(Action::Discard(parked.message));
            }
            if parked.is_dead && state.left.retry_dead > 0 {
                actions.push(Action::RetryDead(parked.message));
            }
        }
        if state.left.replay > 0 {
            let is_settled = |row: &Row| state.db.cursor.calls_settled(*row);
            let is_free = |row: &Row| state.db.parked(row.message).is_none();
            let rows = state.db.visible().filter(|row| is_settled(row) && is_free(row));
            actions.extend(rows.map(|row| Action::Replay(row.message)));
        }
    }
}
