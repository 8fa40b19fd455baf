//! The inbox: one key, copies of its message, consumers that die or hang at any step, in a
//! transaction with the handler's own writes, or under a lease with effects elsewhere.
//!
//! All that decides here is SQL: the model's steps name the files of `claims/src`.

use stateright::{Model, Property};

/// A mistake in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The handler runs without a look at the key.
    NoClaim,
    /// The key is looked up, not claimed: two copies may run at once.
    LookOnly,
    /// The key is committed before the handler runs.
    ClaimCommitsFirst,
    /// The handler's writes are committed before the key.
    EffectCommitsFirst,
    /// The message is acknowledged before the commit.
    AckBeforeCommit,
    /// A commit without an answer counts as done.
    LostCommitIsDone,
    /// A commit without an answer: the handler runs again without a new claim.
    RestartWithoutClaim,
    /// The handler's own rollback takes the claim away, and the inbox does not notice.
    RollbackUnnoticed,
    /// The owner of a lease that has ended may still write.
    Unfenced,
    /// A lease is taken over while it runs.
    TakenWhileRunning,
    /// An effect is not recorded before it is made.
    EffectUnrecorded,
    /// An effect that another owner has begun is made again without asking.
    BegunIsMadeAgain,
}

/// Which kind of claim, and with which mistake.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    pub is_leased: bool,
    pub mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// It found the key free.
    Looked,
    /// It has the key: in its transaction, or by a lease of this epoch.
    Claimed { epoch: u8 },
    /// An effect outside the database is recorded as begun.
    Begun { epoch: u8 },
    /// The handler has had its effect: in the transaction, or outside.
    Acted { epoch: u8, holds_claim: bool },
    /// Committed as far as it knows: to be acknowledged.
    Done,
}

/// The recorded state of an effect outside the database (`inbox_effect`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    #[default]
    None,
    Started,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    consumers: [Phase; 2],
    /// The row of `inbox` is committed.
    has_ended: bool,
    /// The holder of the advisory lock and of the uncommitted row (`claim.sql`).
    holder: Option<u8>,
    /// The lease: its epoch, and whether it has run out (`leased/sql/claim.sql`).
    lease: Option<(u8, bool)>,
    epoch: u8,
    effect: Effect,
    /// Committed writes of handlers without a lease, or calls of another system under one.
    effects: u8,
    /// Writes that were committed under a lease.
    writes: u8,
    /// The stream delivers the message no more.
    is_acknowledged: bool,
    left: Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    die: u8,
    lose_answer: u8,
    roll_back: u8,
    run_out: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Look(usize),
    Claim(usize),
    Begin(usize),
    Act(usize),
    /// The handler rolls back, and goes on in a transaction of its own.
    RollBack(usize),
    Commit(usize),
    /// Whether the commit happened; the answer is lost.
    LoseCommit(usize, bool),
    Acknowledge(usize),
    Die(usize),
    RunOut,
}

pub const ONCE: &str = "the effect happens at most once";
pub const ACKNOWLEDGED: &str = "what is acknowledged has its effect";
pub const FINISHES: &str = "a message that comes again ends";

impl Inbox {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn claim(&self, next: &mut State, c: usize) {
        let me = u8::try_from(c).expect("two consumers");
        if self.is(Mutant::NoClaim) || self.is(Mutant::LookOnly) {
            next.consumers[c] = Phase::Claimed { epoch: 0 };
        } else if next.has_ended {
            // `found.sql`, `stored.sql`: a copy is answered from the stored outcome.
            next.consumers[c] = Phase::Done;
        } else if self.is_leased {
            let is_free = next.lease.is_none_or(|(_, has_run_out)| has_run_out);
            if is_free || self.is(Mutant::TakenWhileRunning) {
                next.epoch += 1;
                next.lease = Some((next.epoch, false));
                next.consumers[c] = Phase::Claimed { epoch: next.epoch };
            }
        } else if next.holder.is_none() {
            next.holder = Some(me);
            next.has_ended |= self.is(Mutant::ClaimCommitsFirst);
            next.consumers[c] = Phase::Claimed { epoch: 0 };
        }
    }

    /// `held.sql`: whether the owner still has the lease.
    fn is_held(&self, state: &State, epoch: u8) -> bool {
        !self.is_leased || self.is(Mutant::Unfenced) || state.lease.is_some_and(|(of, _)| of == epoch)
    }

    /// `begin_effect.sql`. An effect that another owner began may have happened: the user's code
    /// finds out, by the key that it gave the other system.
    fn begin(&self, next: &mut State, c: usize, epoch: u8) {
        if !self.is_held(next, epoch) {
            next.consumers[c] = Phase::Idle;
            return;
        }
        let may_have_happened = next.effect == Effect::Started && next.effects > 0;
        if (may_have_happened && !self.is(Mutant::BegunIsMadeAgain)) || next.effect == Effect::Done {
            next.consumers[c] = Phase::Acted { epoch, holds_claim: true };
            return;
        }
        // It renews the lease, even one that has run out, if no other owner has taken it.
        next.lease = next.lease.map(|(of, has_run_out)| (of, has_run_out && of != epoch));
        if !self.is(Mutant::EffectUnrecorded) {
            next.effect = Effect::Started;
        }
        next.consumers[c] = Phase::Begun { epoch };
    }

    /// The end of a transaction, or of a lease (`ending.rs`, `end.sql`): key and writes together.
    fn commit(&self, next: &mut State, c: usize, epoch: u8, holds_claim: bool) -> bool {
        if self.is_leased {
            if !self.is_held(next, epoch) || (next.has_ended && !self.is(Mutant::Unfenced)) {
                return false;
            }
            (next.lease, next.effect, next.has_ended) = (None, Effect::None, true);
            next.writes += 1;
            return true;
        }
        next.release(c);
        // The CLOSE of the claim's cursor fails in any other transaction (`database/begin.sql`).
        if !holds_claim && !self.is(Mutant::RollbackUnnoticed) {
            return false;
        }
        next.has_ended |= holds_claim;
        next.effects += u8::from(!self.is(Mutant::EffectCommitsFirst));
        true
    }
}

impl State {
    fn release(&mut self, c: usize) {
        if self.holder.is_some_and(|holder| usize::from(holder) == c) {
            self.holder = None;
        }
    }
}

impl Model for Inbox {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            consumers: [Phase::Idle; 2],
            has_ended: false,
            holder: None,
            lease: None,
            epoch: 0,
            effect: Effect::None,
            effects: 0,
            writes: 0,
            is_acknowledged: false,
            left: Left { die: 2, lose_answer: 2, roll_back: 1, run_out: 2 },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for c in 0..2 {
            match state.consumers[c] {
                Phase::Idle if !state.is_acknowledged => actions.push(Action::Look(c)),
                Phase::Idle => {}
                Phase::Looked => actions.push(Action::Claim(c)),
                Phase::Claimed { .. } if self.is_leased => actions.push(Action::Begin(c)),
                Phase::Claimed { .. } | Phase::Begun { .. } => actions.push(Action::Act(c)),
                Phase::Acted { holds_claim, .. } => {
                    actions.push(Action::Commit(c));
                    if state.left.lose_answer > 0 {
                        actions.extend([Action::LoseCommit(c, false), Action::LoseCommit(c, true)]);
                    }
                    if state.left.roll_back > 0 && holds_claim && !self.is_leased {
                        actions.push(Action::RollBack(c));
                    }
                }
                Phase::Done => actions.push(Action::Acknowledge(c)),
            }
            if state.left.die > 0 && state.consumers[c] != Phase::Idle {
                actions.push(Action::Die(c));
            }
        }
        // A call of another system ends before the lease that was renewed for it. A process that
        // hangs right there calls too late, which no rule can prevent.
        let calls = |(of, _): (u8, bool)| state.consumers.contains(&Phase::Begun { epoch: of });
        let may_run_out = state.lease.is_some_and(|lease| !lease.1 && !calls(lease));
        if state.left.run_out > 0 && may_run_out {
            actions.push(Action::RunOut);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Look(c) => {
                let is_new = !state.has_ended || self.is(Mutant::NoClaim);
                next.consumers[c] = if is_new { Phase::Looked } else { Phase::Done };
            }
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
                next.effects += u8::from(self.is_leased || self.is(Mutant::EffectCommitsFirst));
                next.consumers[c] = Phase::Acted { epoch, holds_claim: true };
                next.is_acknowledged |= self.is(Mutant::AckBeforeCommit);
            }
            Action::RollBack(c) => {
                next.left.roll_back -= 1;
                next.release(c);
                next.consumers[c] = Phase::Acted { epoch: 0, holds_claim: false };
            }
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
                // The key tells whether it was committed: the message is claimed again.
                next.consumers[c] = match self.mutant {
                    Some(Mutant::LostCommitIsDone) => Phase::Done,
                    Some(Mutant::RestartWithoutClaim) => Phase::Claimed { epoch },
                    _ => Phase::Idle,
                };
            }
            Action::Acknowledge(c) => {
                next.is_acknowledged = true;
                next.consumers[c] = Phase::Idle;
            }
            Action::Die(c) => {
                next.left.die -= 1;
                next.release(c);
                next.consumers[c] = Phase::Idle;
            }
            Action::RunOut => {
                next.left.run_out -= 1;
                next.lease = next.lease.map(|(epoch, _)| (epoch, true));
            }
        }
        (next != *state && next.effects < 4 && next.writes < 4).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| state.effects <= 1 && state.writes <= 1),
            Property::always(ACKNOWLEDGED, |_, state: &State| !state.is_acknowledged || state.effects > 0),
            Property::always(FINISHES, |model: &Self, state: &State| model.finishes(state)),
        ]
    }
}

impl Inbox {
    /// No process fails any more, the lease runs out, and the message comes once more.
    fn finishes(&self, state: &State) -> bool {
        let mut calm = state.clone();
        if calm.is_acknowledged {
            return true;
        }
        (calm.consumers, calm.holder) = ([Phase::Idle; 2], None);
        calm.lease = calm.lease.map(|(epoch, _)| (epoch, true));
        let steps = [Action::Look(0), Action::Claim(0), Action::Begin(0), Action::Act(0), Action::Commit(0)];
        for step in steps.into_iter().chain([Action::Acknowledge(0)]) {
            let mut possible = Vec::new();
            self.actions(&calm, &mut possible);
            if possible.contains(&step) {
                calm = self.next_state(&calm, step).unwrap_or(calm);
            }
        }
        calm.is_acknowledged && calm.has_ended | self.is(Mutant::NoClaim)
    }
}

/// Each mistake with the kind of claim, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, bool, &str)] = &[
    (Mutant::NoClaim, false, ONCE),
    (Mutant::LookOnly, false, ONCE),
    (Mutant::ClaimCommitsFirst, false, ACKNOWLEDGED),
    (Mutant::EffectCommitsFirst, false, ONCE),
    (Mutant::AckBeforeCommit, false, ACKNOWLEDGED),
    (Mutant::LostCommitIsDone, false, ACKNOWLEDGED),
    (Mutant::RestartWithoutClaim, false, ONCE),
    (Mutant::RollbackUnnoticed, false, ONCE),
    (Mutant::Unfenced, true, ONCE),
    (Mutant::TakenWhileRunning, true, ONCE),
    (Mutant::EffectUnrecorded, true, ONCE),
    (Mutant::BegunIsMadeAgain, true, ONCE),
];
