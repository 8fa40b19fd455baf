//! The steps of consumers. Each stands for one statement or transaction of `claims`.

use oncebox_claims::{
    life::{Arrival, Ended, Held, Next, Run},
    stored::Status,
};

use super::{ATTEMPTS_MAX, Action, Effect, Inbox, Lease, Mutant, Phase, State};

impl Inbox {
    pub(super) fn step(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Look(c) => self.look(&mut next, c),
            Action::Claim(c) => self.claim(&mut next, c),
            Action::Begin(c) => {
                if let Phase::Claimed { epoch } = state.consumers[c] {
                    self.begin(&mut next, c, epoch);
                }
            }
            Action::Act(c) => {
                let (Phase::Claimed { epoch } | Phase::Begun { epoch }) = state.consumers[c] else {
                    return None;
                };
                let is_committed = self.is_leased || self.is(Mutant::EffectCommitsFirst);
                next.effects[self.message(c)] += u8::from(is_committed);
                next.consumers[c] = Phase::Acted { epoch, holds_claim: true };
                next.is_acknowledged[self.message(c)] |= self.is(Mutant::AckBeforeCommit);
            }
            Action::RollBack(c) => {
                next.left.roll_back -= 1;
                next.release(c);
                next.consumers[c] = Phase::Acted { epoch: 0, holds_claim: false };
            }
            Action::CommitHalf(c) => {
                next.left.roll_back -= 1;
                next.is_half[self.message(c)] = true;
                next.ended = Some((Status::Completed, self.message(c)));
                next.effects[self.message(c)] += 1;
                next.release(c);
                self.settle(&mut next, c, 0, Run::HalfCommitted);
            }
            Action::Fail(c, run) => self.fail(&mut next, c, run)?,
            Action::Commit(c) => {
                let Phase::Acted { epoch, holds_claim } = state.consumers[c] else { return None };
                let is_done = self.commit(&mut next, c, epoch, holds_claim);
                next.consumers[c] = if is_done { Phase::Done } else { Phase::Idle };
            }
            Action::LoseCommit(c, happened) => {
                let Phase::Acted { epoch, holds_claim } = state.consumers[c] else { return None };
                next.left.lose_answer -= 1;
                if happened {
                    self.commit(&mut next, c, epoch, holds_claim);
                } else {
                    next.release(c);
                }
                self.settle(&mut next, c, epoch, Run::Unanswered);
            }
            Action::Acknowledge(c) => {
                next.is_acknowledged[self.message(c)] = true;
                next.consumers[c] = Phase::Idle;
            }
            Action::Die(c) => {
                next.left.die -= 1;
                next.release(c);
                next.consumers[c] = Phase::Idle;
            }
            Action::RunOut => {
                next.left.run_out -= 1;
                next.lease = next.lease.map(|lease| Lease { is_over: true, ..lease });
            }
        }
        Some(next)
    }

    /// The handler fails, loses a race, or asks for a later run.
    fn fail(&self, next: &mut State, c: usize, run: Run) -> Option<()> {
        let (Phase::Claimed { epoch } | Phase::Begun { epoch } | Phase::Acted { epoch, .. }) =
            next.consumers[c]
        else {
            return None;
        };
        match run {
            Run::Snoozed => next.left.snooze -= 1,
            _ => next.left.fail -= 1,
        }
        next.release(c);
        self.settle(next, c, epoch, run);
        Some(())
    }

    /// The committed row (`stored.sql`), and the claim of another (`claim.sql`, `found.sql`).
    fn arrive(&self, state: &State, c: usize) -> Arrival {
        let is_same = |message| message == self.message(c);
        let ended = state.ended.map(|(_, message)| Ended { is_same: is_same(message), is_expired: false });
        let held = match state.lease {
            Some(Lease { message, is_over, .. }) => {
                Some(Held { is_same: is_same(message), is_over, is_suspect: false })
            }
            None => state.holder.filter(|holder| *holder != c).map(|_| Held::BY_TRANSACTION),
        };
        (self.life().arrive)(ended, held)
    }

    /// A known key needs no claim. A copy is answered; another message is recorded aside.
    fn answer(&self, next: &mut State, c: usize, arrival: Arrival) {
        next.consumers[c] = match arrival {
            Arrival::Copy => Phase::Done,
            Arrival::Mismatch => {
                next.is_dead_letter[self.message(c)] = true;
                Phase::Done
            }
            Arrival::InFlight | Arrival::Claim | Arrival::Replace | Arrival::ClaimAlone => Phase::Idle,
        };
    }

    fn look(&self, next: &mut State, c: usize) {
        let arrival = self.arrive(next, c);
        match arrival {
            Arrival::Copy | Arrival::Mismatch if !self.is(Mutant::NoClaim) => self.answer(next, c, arrival),
            _ => next.consumers[c] = Phase::Looked,
        }
    }

    fn claim(&self, next: &mut State, c: usize) {
        if self.is(Mutant::NoClaim) || self.is(Mutant::LookOnly) {
            next.consumers[c] = Phase::Claimed { epoch: 0 };
            return;
        }
        match self.arrive(next, c) {
            Arrival::Claim | Arrival::Replace | Arrival::ClaimAlone => {}
            known => return self.answer(next, c, known),
        }
        if self.is_leased {
            next.epoch += 1;
            next.lease = Some(Lease { epoch: next.epoch, message: self.message(c), is_over: false });
            next.consumers[c] = Phase::Claimed { epoch: next.epoch };
        } else {
            next.holder = Some(c);
            if self.is(Mutant::ClaimCommitsFirst) {
                next.ended = Some((Status::Completed, self.message(c)));
            }
            next.consumers[c] = Phase::Claimed { epoch: 0 };
        }
    }

    /// `held.sql`: whether the owner still has the lease.
    fn is_held(&self, state: &State, epoch: u8) -> bool {
        !self.is_leased || self.is(Mutant::Unfenced) || state.lease.is_some_and(|lease| lease.epoch == epoch)
    }

    /// `begin_effect.sql`. An effect that another owner began may have happened: the user's code
    /// finds out, by the key that it gave the other system.
    fn begin(&self, next: &mut State, c: usize, epoch: u8) {
        if !self.is_held(next, epoch) {
            next.consumers[c] = Phase::Idle;
            return;
        }
        let may_have_happened = next.effect == Effect::Started && next.effects[self.message(c)] > 0;
        if (may_have_happened && !self.is(Mutant::BegunIsMadeAgain)) || next.effect == Effect::Done {
            next.consumers[c] = Phase::Acted { epoch, holds_claim: true };
            return;
        }
        // It renews the lease, even one that has run out, if no other owner has taken it.
        next.lease =
            next.lease.map(|lease| Lease { is_over: lease.is_over && lease.epoch != epoch, ..lease });
        if !self.is(Mutant::EffectUnrecorded) {
            next.effect = Effect::Started;
        }
        next.consumers[c] = Phase::Begun { epoch };
    }

    /// The end of a transaction, or of a lease (`ending.rs`, `end.sql`): key and writes together.
    fn commit(&self, next: &mut State, c: usize, epoch: u8, holds_claim: bool) -> bool {
        let Next::End(status) = (self.life().next)(Run::Done, 0, u64::from(ATTEMPTS_MAX)) else {
            return false;
        };
        let end = Some((status, self.message(c)));
        if self.is_leased {
            if !self.is_held(next, epoch) || (next.ended.is_some() && !self.is(Mutant::Unfenced)) {
                return false;
            }
            (next.lease, next.effect, next.ended) = (None, Effect::None, end);
            next.writes += 1;
            return true;
        }
        next.release(c);
        // The CLOSE of the claim's cursor fails in any other transaction (`database/begin.sql`).
        if !holds_claim && !self.is(Mutant::RollbackUnnoticed) {
            return false;
        }
        if holds_claim {
            next.ended = end;
        }
        next.effects[self.message(c)] += u8::from(!self.is(Mutant::EffectCommitsFirst));
        true
    }

    /// The end of a run that has no verdict yet, and is rolled back.
    fn settle(&self, next: &mut State, c: usize, epoch: u8, run: Run) {
        let life = self.life();
        if self.is_leased && run != Run::Unanswered && !self.is_held(next, epoch) {
            next.consumers[c] = Phase::Idle;
            return;
        }
        if self.is(Mutant::RestartWithoutClaim) && run == Run::Unanswered {
            next.consumers[c] = Phase::Claimed { epoch };
            return;
        }
        if (life.is_repeated)(run, 1) {
            next.consumers[c] = Phase::Looked;
            return;
        }
        let message = self.message(c);
        next.counted[message] += u8::from((life.is_attempt)(run));
        next.failed[message] += u8::from(run == Run::Failed);
        next.consumers[c] = Phase::Idle;
        let decision = (life.next)(run, u64::from(next.counted[message]), u64::from(ATTEMPTS_MAX));
        let is_last = run == Run::Failed && next.failed[message] >= ATTEMPTS_MAX;
        next.is_spared |= is_last && decision != Next::Bury;
        match decision {
            Next::Bury => self.bury(next, c, run),
            // `release.sql`: the pause, which is over at some time.
            Next::Retry | Next::Snooze => {
                next.lease = next.lease.map(|lease| Lease { is_over: true, ..lease });
            }
            Next::End(_) => next.consumers[c] = Phase::Done,
            Next::Arrive => {}
        }
    }

    /// `dead_lettering.rs`, `end.sql`: the key and the record in one transaction. A key that
    /// another consumer has, or has ended, is not given up.
    fn bury(&self, next: &mut State, c: usize, run: Run) {
        if run == Run::HalfCommitted {
            next.ended = None; // `disown.sql`
        }
        let arrival = if self.is_leased { Arrival::Claim } else { self.arrive(next, c) };
        if arrival != Arrival::Claim {
            return self.answer(next, c, arrival);
        }
        let message = self.message(c);
        (next.lease, next.ended) = (None, Some((Status::Dead, message)));
        next.is_dead_letter[message] = true;
        next.has_reached_limit[message] |= run == Run::Failed;
        next.consumers[c] = Phase::Done;
    }
}

impl State {
    fn release(&mut self, c: usize) {
        self.holder = self.holder.filter(|holder| *holder != c);
    }
}
