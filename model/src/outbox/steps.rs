//! The effect of each action.

use super::{
    mutant::Mutant,
    pass::{Outcome, Pass, Phase, Relay},
    postgres::{Fate, Parked, Row, Transaction},
    recovery,
    relay::is_dead,
    retention,
    statements::release,
    stream::REPLAY,
    world::{Action, Outbox, State},
};
use crate::bits;

impl State {
    pub(crate) fn apply(&mut self, model: &Outbox, action: Action) {
        match action {
            Action::Begin(t)
            | Action::Enqueue(t)
            | Action::Commit(t)
            | Action::Prepare(t)
            | Action::Abort(t) => {
                self.produce(model, action, t);
            }
            Action::Look(r) | Action::Read(r) | Action::Settle(r) | Action::Ask(r) | Action::NoteLoss(r) => {
                self.step(model, action, usize::from(r));
            }
            Action::Acknowledge(r, at) | Action::Doubt(r, at) | Action::Refuse(r, at, _) => {
                self.publish(model, action, usize::from(r), usize::from(at));
            }
            Action::Discard(m) | Action::Replay(m) | Action::RetryDead(m) => self.operate(model, action, m),
            Action::Reach | Action::Age | Action::Prune => self.maintain(model, action),
            _ => self.fail(action),
        }
    }

    fn produce(&mut self, model: &Outbox, action: Action, t: u8) {
        let at = usize::from(t);
        match action {
            Action::Begin(_) => {
                self.write(model);
                let xact = self.db.next_xact;
                self.db.next_xact += 1;
                self.db.transactions[at] = Transaction { fate: Fate::Open, xact, enqueued: 0 };
            }
            Action::Enqueue(_) => {
                let Some(message) = model.next_message(&self.db, t) else { return };
                self.write(model);
                let (id, of) = (self.db.next_id, &mut self.db.transactions[at]);
                of.enqueued = bits::with(of.enqueued, message);
                let xact = of.xact;
                self.db.next_id += 1;
                self.db.log.push(Row { message, id, xact });
            }
            Action::Abort(_) => {
                self.left.abort -= 1;
                self.db.end(at, Fate::Aborted);
            }
            Action::Prepare(_) => {
                self.left.prepare -= 1;
                self.db.transactions[at].fate = Fate::Prepared;
                self.durable = None;
            }
            _ if model.is(Mutant::CommitDoesNotWait) => {
                self.write(model);
                self.db.end(at, Fate::Committed);
            }
            _ => {
                // The commit waits for the disk, and everything before it in the log is there too.
                self.db.end(at, Fate::Committed);
                self.durable = None;
            }
        }
    }

    fn step(&mut self, model: &Outbox, action: Action, r: usize) {
        let phase = std::mem::take(&mut self.relays[r].phase);
        match (action, phase) {
            (Action::Look(_), _) => self.relays[r].phase = Phase::Looked(self.db.cursor),
            (Action::Read(_), Phase::Looked(looked)) => {
                let pass = self.read(model, &looked);
                let pass = pass.filter(|pass| !pass.readings.is_empty() || pass.is_draining());
                self.relays[r].phase = pass.map_or(Phase::Idle, Phase::Publishing);
            }
            (Action::Settle(_), Phase::Publishing(pass)) if pass.has_session => self.settle(model, r, pass),
            (Action::Ask(_), _) => {
                self.relays[r].phase = self.ask(model);
                self.relays[r].has_checked = self.relays[r].phase == Phase::Idle;
                self.left.is_unchecked &= !self.relays[r].has_checked;
                if self.relays[r].has_checked && self.db.losses.iter().any(|loss| !loss.has_ended) {
                    self.write(model);
                    recovery::end_resends(&mut self.db);
                }
            }
            (Action::NoteLoss(_), Phase::Checked { seen, proven, .. }) => {
                self.note_loss(model, seen, proven, proven.is_some());
                self.relays[r].has_checked = true;
                self.left.is_unchecked = false;
            }
            // PostgreSQL has ended the session meanwhile: nothing is settled.
            _ => {}
        }
    }

    fn publish(&mut self, model: &Outbox, action: Action, r: usize, at: usize) {
        let Phase::Publishing(mut pass) = std::mem::take(&mut self.relays[r].phase) else { return };
        let (sending, id) = (pass.readings[at].sending(), pass.readings[at].row.id);
        // A relay that hangs, or a copy that was on its way, may be too late to hear of it.
        let is_discarded = sending & REPLAY == 0 && bits::has(self.history.discarded, sending);
        self.history.sent_discarded |= is_discarded && pass.has_session;
        match action {
            Action::Acknowledge(..) => {
                let (sequence, is_duplicate) = self.store(sending, id);
                if pass.readings[at].is_parked {
                    self.history.was_parked = bits::with(self.history.was_parked, sending & !REPLAY);
                }
                pass.readings[at].outcome = Outcome::Stored { sequence, is_duplicate };
                self.history.acknowledged = bits::with(self.history.acknowledged, sending & !REPLAY);
            }
            Action::Refuse(_, _, code) => {
                self.left.refuse -= 1;
                pass.refuse(model, at, is_dead(code));
            }
            _ => {
                self.left.doubt -= 1;
                pass.readings[at].outcome = Outcome::InDoubt;
                self.network = bits::with(self.network, sending);
            }
        }
        self.relays[r].phase = Phase::Publishing(pass);
    }

    fn store(&mut self, sending: u8, id: u8) -> (u8, bool) {
        let message = sending & !REPLAY;
        if sending == message && self.history.stored.iter().all(|(known, _)| *known != message) {
            self.history.stored.push((message, id));
        }
        self.stream.store(sending)
    }

    fn fail(&mut self, action: Action) {
        match action {
            Action::Flush => self.durable = None,
            Action::CrashPostgres => {
                self.left.crash -= 1;
                if let Some(durable) = self.durable.take() {
                    self.db = *durable;
                }
                self.db.recover();
                for relay in &mut self.relays {
                    relay.lose_session();
                }
            }
            Action::Restore => {
                self.left.restore -= 1;
                self.db.restore(self.left.restored_xact);
                self.relays.iter_mut().for_each(|relay| *relay = Relay::default());
            }
            Action::Die(r) => {
                self.left.die -= 1;
                self.relays[usize::from(r)] = Relay::default();
            }
            Action::LoseSession(r) => {
                self.left.lose_session -= 1;
                self.relays[usize::from(r)].lose_session();
            }
            Action::Arrive(sending) => {
                self.network = bits::without(self.network, sending);
                let id =
                    self.db.log.iter().find(|row| row.message == sending & !REPLAY).map_or(0, |row| row.id);
                self.store(sending, id);
            }
            Action::LoseEnd(keeps) => {
                self.left.lose_end -= 1;
                (self.left.has_lost, self.left.is_unchecked) = (true, true);
                self.stream.lose_end(usize::from(keeps));
            }
            Action::ForgetWindow => {
                self.left.forget_window -= 1;
                self.stream.window = 0;
            }
            _ => {}
        }
    }

    fn maintain(&mut self, model: &Outbox, action: Action) {
        match action {
            Action::Reach => {
                self.left.reach -= u8::from(retention::reach(&mut self.db));
            }
            Action::Age => {
                self.left.age -= 1;
                self.db.milestones.iter_mut().for_each(|milestone| milestone.is_old = true);
                // A stream that loses messages older than the retention time is beyond help.
                self.stream.old = self.stream.last();
            }
            _ => {
                let gone = retention::prune(&self.db, model);
                let is_due = |message: &u8| {
                    let row = self.db.row(*message);
                    row.is_some_and(|row| !self.db.cursor.calls_settled(row))
                        || self.db.parked(*message).is_some()
                };
                self.history.deleted_due |= gone.iter().any(is_due);
                retention::delete(&mut self.db, &gone);
            }
        }
    }

    fn operate(&mut self, model: &Outbox, action: Action, message: u8) {
        match action {
            Action::Discard(_) => {
                self.left.discard -= 1;
                self.db.parked.retain(|parked| parked.message != message);
                self.db.discarded = bits::with(self.db.discarded, message);
                self.history.discarded = bits::with(self.history.discarded, message);
                release(&mut self.db, model, message);
            }
            Action::RetryDead(_) => {
                self.left.retry_dead -= 1;
                for parked in self.db.parked.iter_mut().filter(|parked| parked.message == message) {
                    (parked.is_dead, parked.is_due) = (false, true);
                }
            }
            _ => {
                self.left.replay -= 1;
                let Some(row) = self.db.row(message) else { return };
                self.db.replayed = bits::with(self.db.replayed, message);
                let parked = Parked { message, id: row.id, is_due: true, is_dead: false, is_replay: true };
                self.db.parked.push(parked);
                self.db.parked.sort_by_key(|parked| parked.id);
            }
        }
    }
}

impl Relay {
    /// PostgreSQL ends the session; the relay may go on publishing the rows that it has read.
    fn lose_session(&mut self) {
        if let Phase::Publishing(pass) = &mut self.phase {
            pass.has_session = false;
        }
    }
}

impl Pass {
    /// Nothing was read, and the cursor moves all the same.
    fn is_draining(&self) -> bool {
        self.begins_reset || self.cursor.target.is_some() || self.cursor.reset_until.is_some()
    }
}
