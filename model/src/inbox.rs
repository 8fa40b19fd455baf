//! The inbox: one key, copies of its message or messages that reuse it, consumers that die, hang or
//! fail at any step, in a transaction with the handler's own writes, or under a lease with effects
//! elsewhere.
//!
//! `oncebox_claims::life` decides here as it does in production; the mutants replace a decision by
//! a wrong one, or do a step of SQL wrongly. Those steps name the files of `claims/src`.

mod mutant;
mod steps;

use oncebox_claims::{life::Run, stored::Status};
use stateright::{Model, Property};

use mutant::Life;
pub use mutant::{MUTANTS, Mutant};

/// How often the message may fail.
const ATTEMPTS_MAX: u8 = 2;

/// Which kind of claim, whether the second consumer has another message of the same key, and the
/// mistake.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    pub is_leased: bool,
    pub is_reused: bool,
    pub mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
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
enum Effect {
    #[default]
    None,
    Started,
    Done,
}

/// A row of `inbox_claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    epoch: u8,
    message: usize,
    is_over: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    consumers: [Phase; 2],
    /// The committed row of `inbox`, and the message that it is of.
    ended: Option<(Status, usize)>,
    /// The holder of the advisory lock and of the uncommitted row (`claim.sql`).
    holder: Option<usize>,
    lease: Option<Lease>,
    epoch: u8,
    effect: Effect,
    /// Committed writes of handlers without a lease, or calls of another system under one, of each
    /// message.
    effects: [u8; 2],
    /// Writes that were committed under a lease.
    writes: u8,
    /// Attempts of each message as they are counted (`inbox_attempt`), and as they were.
    counted: [u8; 2],
    failed: [u8; 2],
    /// The handler has committed a part of its writes, with the claim.
    is_half: [bool; 2],
    is_dead_letter: [bool; 2],
    /// It was given up for its failures.
    has_reached_limit: [bool; 2],
    /// A message was to be tried again after its last attempt.
    is_spared: bool,
    /// The stream delivers the message no more.
    is_acknowledged: [bool; 2],
    left: Left,
}

/// The troubles that may still come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    die: u8,
    lose_answer: u8,
    roll_back: u8,
    run_out: u8,
    fail: u8,
    snooze: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Look(usize),
    Claim(usize),
    Begin(usize),
    Act(usize),
    /// The handler rolls back, and goes on in a transaction of its own.
    RollBack(usize),
    /// The handler sends COMMIT by itself, and fails then.
    CommitHalf(usize),
    /// The handler fails, loses a race, or asks for a later run.
    Fail(usize, Run),
    Commit(usize),
    /// Whether the commit happened; the answer is lost.
    LoseCommit(usize, bool),
    Acknowledge(usize),
    Die(usize),
    RunOut,
}

pub const ONCE: &str = "the effect of a key happens at most once";
pub const ACKNOWLEDGED: &str = "what is acknowledged has its effect, or is a dead letter";
pub const HALF: &str = "a message that is handled by half is a dead letter";
pub const LIMIT: &str = "a message is given up after its attempts, not before";
pub const BOUNDED: &str = "a message that fails at each attempt is given up";
pub const FINISHES: &str = "a message that comes again ends";

impl Inbox {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn life(&self) -> Life {
        self.mutant.map_or(Life::REAL, Mutant::life)
    }

    /// The message that this consumer was given.
    fn message(&self, consumer: usize) -> usize {
        if self.is_reused { consumer } else { 0 }
    }

    /// The next actions of a consumer that has the key, or its effect.
    fn working(&self, state: &State, c: usize, actions: &mut Vec<Action>) {
        let has_acted = matches!(state.consumers[c], Phase::Acted { .. });
        match state.consumers[c] {
            Phase::Claimed { .. } if self.is_leased => actions.push(Action::Begin(c)),
            Phase::Claimed { .. } | Phase::Begun { .. } => actions.push(Action::Act(c)),
            _ => {}
        }
        if let Phase::Acted { holds_claim, .. } = state.consumers[c] {
            actions.push(Action::Commit(c));
            if state.left.lose_answer > 0 {
                actions.extend([Action::LoseCommit(c, false), Action::LoseCommit(c, true)]);
            }
            if state.left.roll_back > 0 && holds_claim && !self.is_leased {
                actions.extend([Action::RollBack(c), Action::CommitHalf(c)]);
            }
        }
        if state.left.fail > 0 {
            actions.push(Action::Fail(c, Run::Failed));
            actions.extend((has_acted && !self.is_leased).then_some(Action::Fail(c, Run::Conflict)));
        }
        if state.left.snooze > 0 {
            actions.push(Action::Fail(c, Run::Snoozed));
        }
    }
}

impl Model for Inbox {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let left = Left { die: 2, lose_answer: 2, roll_back: 1, run_out: 2, fail: 3, snooze: 1 };
        vec![State { left, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for c in 0..2 {
            match state.consumers[c] {
                Phase::Idle if !state.is_acknowledged[self.message(c)] => actions.push(Action::Look(c)),
                Phase::Idle => {}
                Phase::Looked => actions.push(Action::Claim(c)),
                Phase::Claimed { .. } | Phase::Begun { .. } | Phase::Acted { .. } => {
                    self.working(state, c, actions);
                }
                Phase::Done => actions.push(Action::Acknowledge(c)),
            }
            if state.left.die > 0 && state.consumers[c] != Phase::Idle {
                actions.push(Action::Die(c));
            }
        }
        // A call of another system ends before the lease that was renewed for it. A process that
        // hangs right there calls too late, which nothing can prevent.
        let calls = |epoch| state.consumers.contains(&Phase::Begun { epoch });
        let may_run_out = state.lease.is_some_and(|lease| !lease.is_over && !calls(lease.epoch));
        if state.left.run_out > 0 && may_run_out {
            actions.push(Action::RunOut);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = self.step(state, action)?;
        let is_within = next.effects.iter().sum::<u8>() < 4 && next.writes < 4 && next.epoch < 10;
        (next != *state && is_within).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        /// A promise about each of the two messages.
        macro_rules! each {
            ($promise:expr, |$state:ident, $message:ident| $holds:expr) => {
                Property::always($promise, |_, $state: &State| (0..2).all(|$message| $holds))
            };
        }
        vec![
            Property::always(ONCE, |_, state: &State| {
                state.effects.iter().sum::<u8>() <= 1 && state.writes <= 1
            }),
            each!(ACKNOWLEDGED, |state, message| !state.is_acknowledged[message]
                || state.effects[message] > 0
                || state.is_dead_letter[message]),
            each!(HALF, |state, message| !state.is_half[message]
                || !state.is_acknowledged[message]
                || state.is_dead_letter[message]),
            each!(LIMIT, |state, message| !state.has_reached_limit[message]
                || state.failed[message] >= ATTEMPTS_MAX),
            Property::always(BOUNDED, |_, state: &State| !state.is_spared),
            Property::always(FINISHES, |model: &Self, state: &State| model.finishes(state)),
        ]
    }
}

impl Inbox {
    /// No process fails any more, the lease runs out, and the first message comes once more.
    fn finishes(&self, state: &State) -> bool {
        let mut calm = state.clone();
        if calm.is_acknowledged[0] {
            return true;
        }
        (calm.consumers, calm.holder) = ([Phase::Idle; 2], None);
        calm.lease = calm.lease.map(|lease| Lease { is_over: true, ..lease });
        let steps = [Action::Look(0), Action::Claim(0), Action::Begin(0), Action::Act(0), Action::Commit(0)];
        for step in steps.into_iter().chain([Action::Acknowledge(0)]) {
            let mut possible = Vec::new();
            self.actions(&calm, &mut possible);
            if possible.contains(&step) {
                calm = self.next_state(&calm, step).unwrap_or(calm);
            }
        }
        let has_ended = calm.ended.is_some() || calm.is_dead_letter[0];
        calm.is_acknowledged[0] && (has_ended || self.is(Mutant::NoClaim))
    }
}
