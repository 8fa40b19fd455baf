//! A saga: two orchestrators, participants with their barriers, answers that come late, twice and
//! in any order, deadlines, and operators. The production code decides (`oncebox_saga::rules`).
//!
//! An orchestrator's transaction locks the saga, decides, writes it and enqueues the commands. It
//! may die before its commit. A commit whose answer is lost is made again: answers may come again
//! for ever, also those that were dealt with.

mod decisions;
mod participant;
mod shape;

use oncebox_saga::{
    Graph,
    rules::{Command, Direction, Progress, State as Standing, StepState},
};
use stateright::{Model, Property};

use self::shape::{AGAIN, CHAIN, PARALLEL, PIVOT};
pub use self::{
    participant::{Outcome, Row},
    shape::Shape,
};
use crate::bits::{self, Bits};

/// A mistake with sagas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Orchestrators neither lock the saga nor look whether it has changed.
    NoLock,
    /// The commands are sent before the saga is written.
    SendsBeforeCommit,
    /// The saga is written before the commands are sent.
    CommitsBeforeSend,
    /// An answer is acknowledged before the commit.
    AckBeforeCommit,
    /// A step that is done while the saga goes back counts again, also after the end.
    LateAnswerCounts,
    /// A deadline passes for a step that was answered.
    TimeoutAfterAnswer,
    /// A saga's deadline turns it back after its pivot.
    PivotIsPassed,
    /// All steps are undone at the same time.
    UndoesAtOnce,
    /// A step that is under way when the saga turns back counts as not sent.
    ForgetsInFlight,
    /// Another attempt has the key of the first one.
    AttemptsShareKey,
    /// A participant undoes again.
    UndoTwice,
    /// A participant that has nothing to undo leaves no mark.
    NoMark,
}

/// How an orchestrator leads a saga of a shape.
#[derive(Debug)]
pub struct Leads {
    shape: Shape,
    graph: Graph,
    mutant: Option<Mutant>,
}

/// A transaction of an orchestrator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    before: Progress,
    after: Progress,
    commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Orchestrator {
    Idle,
    Deciding(Change),
    /// With the mistake of two transactions.
    Sending(Vec<Command>),
}

/// How often each may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    rejections: u8,
    deaths: u8,
    deadlines: u8,
    retries: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    progress: Progress,
    orchestrators: [Orchestrator; 2],
    /// Commands, by their numbers: enqueued, and those with an outcome.
    sent: Bits,
    done: Bits,
    rejected: Bits,
    dead: Bits,
    /// Answers that are never delivered any more.
    lost: Bits,
    rows: Vec<Row>,
    acted: Vec<u8>,
    undone: Vec<u8>,
    left: Left,
    /// For the checks.
    end: Option<Standing>,
    was_sent_twice: bool,
    was_undone_early: bool,
}

/// An event of the saga; commands by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happening {
    Started,
    Done(u8),
    Rejected(u8),
    Dead(u8),
    StepLate(usize),
    Late,
    Retry(Command),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Begin(usize, Happening),
    Commit(usize),
    Send(usize),
    Die(usize),
    Handle(u8, Outcome),
}

pub const ONCE: &str = "each command is sent once";
pub const IN_TURN: &str = "a step is undone if it was sent, when nothing behind it stands";
pub const EFFECT: &str = "a step acts once at most, and is undone once at most";
pub const BALANCED: &str = "in the end every effect stands, or none";
pub const END: &str = "nothing changes a saga that has ended";
pub const ENDS: &str = "a saga ends when its participants answer";

impl Leads {
    #[must_use]
    pub fn new(shape: Shape, mutant: Option<Mutant>) -> Self {
        Self { shape, graph: shape.graph(), mutant }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Answers that may come: any number of times, and in any order.
    fn happenings(&self, state: &State) -> Vec<Happening> {
        let of = |set: Bits, kind: fn(u8) -> Happening| bits::each(set & !state.lost).map(kind);
        let mut all: Vec<_> = of(state.done, Happening::Done).collect();
        all.extend(of(state.rejected, Happening::Rejected));
        all.extend(of(state.dead, Happening::Dead));
        if state.left.deadlines > 0 {
            let is_late = |at: &usize| {
                let answered = self.is(Mutant::TimeoutAfterAnswer) && state.progress.steps[*at].attempt > 0;
                state.progress.is_awaited(*at) || answered
            };
            all.extend((0..state.rows.len()).filter(is_late).map(Happening::StepLate));
            all.push(Happening::Late);
        }
        if state.left.retries > 0 {
            all.extend(Self::retries(&state.progress));
        }
        all
    }

    /// The newest command of each step, for an operator to try again.
    fn retries(progress: &Progress) -> impl Iterator<Item = Happening> {
        let is_undo = progress.direction == Direction::Backward;
        let steps = progress.steps.iter().enumerate();
        let stuck = steps.filter(|(_, step)| {
            matches!(step.state, StepState::Failed | StepState::Rejected | StepState::UndoFailed)
        });
        stuck.map(move |(at, step)| {
            let attempt = if is_undo { step.undo_attempt } else { step.attempt };
            Happening::Retry(Command { step: at, is_undo, attempt })
        })
    }

    fn begin(&self, next: &mut State, o: usize, happening: Happening) {
        let Some(change) = self.change(&next.progress, happening) else { return };
        match happening {
            Happening::StepLate(_) | Happening::Late => next.left.deadlines -= 1,
            Happening::Retry(_) => next.left.retries -= 1,
            Happening::Done(number) | Happening::Rejected(number) | Happening::Dead(number)
                if self.is(Mutant::AckBeforeCommit) =>
            {
                next.lost = bits::with(next.lost, number);
            }
            _ => {}
        }
        if self.is(Mutant::SendsBeforeCommit) {
            self.send(next, &change.commands);
        }
        next.orchestrators[o] = Orchestrator::Deciding(change);
    }

    /// The revision is that which was read, and no command is in the outbox already; else nothing
    /// is written.
    fn commit(&self, next: &mut State, change: Change) -> Orchestrator {
        let is_known = |command: &Command| bits::has(next.sent, shape::number(*command));
        let is_refused = next.progress != change.before || change.commands.iter().any(is_known);
        let sends_apart = self.is(Mutant::SendsBeforeCommit) || self.is(Mutant::CommitsBeforeSend);
        let is_checked = !self.is(Mutant::NoLock) && !self.is(Mutant::AttemptsShareKey) && !sends_apart;
        if is_checked && is_refused {
            return Orchestrator::Idle;
        }
        next.progress = change.after;
        if self.is_over(&next.progress) && next.end.is_none() {
            next.end = Some(next.progress.state(&self.graph));
        }
        if self.is(Mutant::CommitsBeforeSend) {
            return Orchestrator::Sending(change.commands);
        }
        if !self.is(Mutant::SendsBeforeCommit) {
            self.send(next, &change.commands);
        }
        Orchestrator::Idle
    }

    fn send(&self, next: &mut State, commands: &[Command]) {
        for command in commands {
            let number = shape::number(*command);
            if command.is_undo {
                let was_sent = next.sent & shape::actions_of(command.step) != 0;
                let stands = self.shape.behind[command.step].iter().any(|at| next.may_stand(*at));
                next.was_undone_early |= !was_sent || stands;
            }
            next.was_sent_twice |= bits::has(next.sent, number);
            next.sent = bits::with(next.sent, number);
        }
    }

    /// Everybody works, and no deadline passes: whether the saga ends.
    fn ends(&self, state: &State) -> bool {
        let mut calm = state.clone();
        calm.orchestrators = [Orchestrator::Idle, Orchestrator::Idle];
        for _ in 0..40 {
            if self.is_over(&calm.progress) {
                return true;
            }
            for number in bits::each(calm.sent & !calm.done & !calm.rejected) {
                calm.left = Left { rejections: 0, deaths: 0, deadlines: 0, retries: 0 };
                let outcome = Self::outcomes(&calm, shape::command(number))[0];
                self.handle(&mut calm, number, outcome);
            }
            let stuck = Self::retries(&calm.progress).collect::<Vec<_>>();
            let events = self.happenings(&calm).into_iter().chain(stuck);
            for happening in [Happening::Started].into_iter().chain(events).collect::<Vec<_>>() {
                let is_begun = happening != Happening::Started || calm.sent == 0;
                let change = self.change(&calm.progress, happening).filter(|_| is_begun);
                if let Some(change) = change {
                    self.commit(&mut calm, change);
                }
            }
        }
        false
    }
}

impl Model for Leads {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let steps = self.shape.behind.len();
        let progress = Progress::new(&self.graph);
        let mut state = State {
            progress,
            orchestrators: [Orchestrator::Idle, Orchestrator::Idle],
            sent: 0,
            done: 0,
            rejected: 0,
            dead: 0,
            lost: 0,
            rows: vec![Row::None; steps],
            acted: vec![0; steps],
            undone: vec![0; steps],
            left: Left { rejections: 2, deaths: 2, deadlines: 2, retries: 1 },
            end: None,
            was_sent_twice: false,
            was_undone_early: false,
        };
        // The start is a transaction of the service: the saga and its first commands are there, or
        // neither is.
        let change = self.change(&state.progress, Happening::Started).expect("it starts");
        state.progress = change.after;
        self.send(&mut state, &change.commands);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_locked = state.orchestrators.iter().any(|of| *of != Orchestrator::Idle);
        for (o, of) in state.orchestrators.iter().enumerate() {
            match of {
                Orchestrator::Idle if is_locked && !self.is(Mutant::NoLock) => {}
                Orchestrator::Idle => {
                    actions.extend(self.happenings(state).into_iter().map(|one| Action::Begin(o, one)));
                }
                Orchestrator::Deciding(_) => actions.extend([Action::Commit(o), Action::Die(o)]),
                Orchestrator::Sending(_) => actions.extend([Action::Send(o), Action::Die(o)]),
            }
        }
        for number in bits::each(state.sent & !state.done & !state.rejected) {
            let outcomes = Self::outcomes(state, shape::command(number)).into_iter();
            actions.extend(outcomes.map(|outcome| Action::Handle(number, outcome)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Begin(o, happening) => self.begin(&mut next, o, happening),
            Action::Commit(o) => {
                let Orchestrator::Deciding(change) = state.orchestrators[o].clone() else { return None };
                next.orchestrators[o] = self.commit(&mut next, change);
            }
            Action::Send(o) => {
                let Orchestrator::Sending(commands) = &state.orchestrators[o] else { return None };
                self.send(&mut next, commands);
                next.orchestrators[o] = Orchestrator::Idle;
            }
            Action::Die(o) => next.orchestrators[o] = Orchestrator::Idle,
            Action::Handle(number, outcome) => self.handle(&mut next, number, outcome),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| !state.was_sent_twice),
            Property::always(IN_TURN, |_, state: &State| !state.was_undone_early),
            Property::always(EFFECT, |_, state: &State| {
                let effects = state.acted.iter().zip(&state.undone);
                effects.into_iter().all(|(acted, undone)| *acted <= 1 && undone <= acted)
            }),
            Property::always(BALANCED, |_, state: &State| match state.end {
                Some(Standing::Completed) => state.rows.iter().all(|row| *row == Row::Acted),
                Some(_) => (0..state.rows.len()).all(|step| !state.may_stand(step)),
                None => true,
            }),
            Property::always(END, |leads: &Self, state: &State| {
                state.end.is_none_or(|end| state.progress.state(&leads.graph) == end)
            }),
            Property::always(ENDS, Self::ends),
            Property::sometimes("a saga is completed", |_, state: &State| {
                state.end == Some(Standing::Completed)
            }),
            Property::sometimes("a saga is compensated", |_, state: &State| {
                state.end == Some(Standing::Compensated) && state.undone.contains(&1)
            }),
            Property::sometimes("an answer comes after the end", |_, state: &State| {
                state.end == Some(Standing::Compensated) && state.sent & !state.done & !state.rejected != 0
            }),
            Property::sometimes("an undo comes before its action", |_, state: &State| {
                (0..state.rows.len()).any(|at| state.rows[at] == Row::Gone && state.acted[at] == 0)
            }),
        ]
    }
}

/// All, as CI checks them.
pub const ALL: [Shape; 4] = [CHAIN, PIVOT, AGAIN, PARALLEL];

/// Each mistake with the shape that shows it, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, Shape, &str)] = &[
    (Mutant::NoLock, CHAIN, END),
    (Mutant::SendsBeforeCommit, CHAIN, ONCE),
    (Mutant::CommitsBeforeSend, CHAIN, ENDS),
    (Mutant::AckBeforeCommit, CHAIN, ENDS),
    (Mutant::LateAnswerCounts, CHAIN, END),
    (Mutant::TimeoutAfterAnswer, CHAIN, END),
    (Mutant::PivotIsPassed, PIVOT, BALANCED),
    (Mutant::UndoesAtOnce, CHAIN, IN_TURN),
    (Mutant::ForgetsInFlight, CHAIN, BALANCED),
    (Mutant::AttemptsShareKey, AGAIN, ONCE),
    (Mutant::UndoTwice, CHAIN, EFFECT),
    (Mutant::NoMark, CHAIN, BALANCED),
];
