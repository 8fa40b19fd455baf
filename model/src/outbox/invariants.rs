//! The promises of the outbox, as properties of each state.

use stateright::Property;

use super::{
    pass::{Outcome, Phase, Relay},
    postgres::{Fate, Row},
    promises::{ACKNOWLEDGED, COMMITTED, DELIVERED, DISCARDED, DUE, ORDER, PROVEN},
    recovery::{end_resends, resend_lost},
    scope::Faults,
    stream::REPLAY,
    world::{Action, Outbox, State},
};
use crate::bits::{self, Bits};

pub(crate) fn all() -> Vec<Property<Outbox>> {
    vec![
        Property::always(COMMITTED, |_, state: &State| state.relays_only_committed()),
        Property::always(ORDER, |model: &Outbox, state: &State| state.keeps_order(model)),
        Property::always(ACKNOWLEDGED, |_, state: &State| state.settles_only_acknowledged()),
        Property::always(DUE, |_, state: &State| !state.history.deleted_due),
        Property::always(DISCARDED, |_, state: &State| !state.history.sent_discarded),
        Property::always(PROVEN, |model: &Outbox, state: &State| {
            model.scope.faults.restore > 0 || state.proves_losses()
        }),
        Property::always(DELIVERED, |model: &Outbox, state: &State| state.delivers(model)),
    ]
}

/// A lane that stands still after this number of passes without a fault stands still for ever.
const PASSES_MAX: usize = 60;

impl State {
    fn relays_only_committed(&self) -> bool {
        let committed = self.db.transactions.iter().filter(|of| of.fate == Fate::Committed);
        let committed: Bits = committed.fold(0, |all, of| all | of.enqueued);
        self.history.stored.iter().all(|(message, _)| bits::has(committed, *message))
    }

    /// In the order in which a stream stored them first; copies that come later are duplicates,
    /// which the inbox knows. A discarded message may have been on its way.
    fn keeps_order(&self, model: &Outbox) -> bool {
        let stored = &self.history.stored;
        stored.iter().enumerate().all(|(at, (message, id))| {
            let key = model.ordering_key(*message);
            let counts =
                |other: u8| model.ordering_key(other) == key && !bits::has(self.history.discarded, other);
            key.is_none() || stored[at..].iter().all(|(later, above)| !counts(*later) || above >= id)
        })
    }

    fn settles_only_acknowledged(&self) -> bool {
        let is_kept = |row: &Row| {
            !self.db.cursor.calls_settled(*row)
                || bits::has(self.history.acknowledged, row.message)
                || bits::has(self.db.discarded, row.message)
                || self.db.parked(row.message).is_some()
        };
        self.db.visible().all(|row| is_kept(&row))
    }

    fn proves_losses(&self) -> bool {
        self.db.losses.iter().all(|loss| loss.proven.is_some())
    }

    /// If nothing fails any more, everything due is delivered: looked at from each state in which
    /// the relays rest.
    fn delivers(&self, model: &Outbox) -> bool {
        let rests = |relay: &Relay| relay.phase == Phase::Idle;
        if !self.relays.iter().all(rests) || self.network != 0 {
            return true;
        }
        let mut calm = self.clone();
        calm.left = Faults::NONE;
        calm.relays = vec![Relay::default()];
        for _ in 0..PASSES_MAX {
            let before = (calm.db.clone(), calm.stream.clone());
            calm.calm_round(model);
            if (&calm.db, &calm.stream) == (&before.0, &before.1) {
                break;
            }
        }
        let committed = self.db.transactions.iter().filter(|of| of.fate == Fate::Committed);
        let due = committed.fold(0, |all, of| all | of.enqueued) & !self.history.discarded;
        let has = calm.stream.entries.iter().fold(0, |all, sending| bits::with(all, *sending));
        let is_there = |message: u8| bits::has(has, message) || bits::has(has, message | REPLAY);
        bits::each(due).all(|message| is_there(message) || self.is_beyond_help(&calm, message))
            && calm.db.parked.iter().all(|parked| !parked.is_replay)
    }

    /// The known limits: `resend_lost.sql` sends nothing again that was settled before a restore,
    /// and retention deletes a message soon after it was stored, if it had been parked for longer
    /// than the retention time.
    fn is_beyond_help(&self, calm: &Self, message: u8) -> bool {
        let is_restored = calm.db.row(message).is_some_and(|row| row.id <= calm.db.cursor.floor);
        let was_parked = bits::has(self.history.was_parked, message);
        self.left.has_lost && (is_restored || was_parked && bits::has(self.db.deleted, message))
    }

    /// A check for losses, and a pass in which everything is acknowledged. Operators see to dead
    /// messages, and to losses that need them.
    fn calm_round(&mut self, model: &Outbox) {
        for parked in &mut self.db.parked {
            if std::mem::take(&mut parked.is_dead) {
                parked.is_due = true;
            }
        }
        self.apply(model, Action::Ask(0));
        self.apply(model, Action::NoteLoss(0));
        end_resends(&mut self.db);
        if model.scope.faults.restore > 0 {
            resend_lost(&mut self.db, model);
        }
        self.relays[0].has_checked = true;
        self.apply(model, Action::Look(0));
        self.apply(model, Action::Read(0));
        while let Phase::Publishing(pass) = &self.relays[0].phase {
            let Some(at) = pass.free(model).first().copied() else { break };
            debug_assert_eq!(pass.readings[at].outcome, Outcome::Unsent);
            self.apply(model, Action::Acknowledge(0, u8::try_from(at).expect("a few rows")));
        }
        self.apply(model, Action::Settle(0));
        self.relays[0].phase = Phase::Idle;
    }
}
