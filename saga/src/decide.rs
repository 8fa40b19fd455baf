//! The state machine of a saga: it takes a graph, the state of an instance and an event, and
//! returns the next state and the commands to send. Pure: it knows neither data nor clock nor
//! database.
//!
//! Forward, a step is sent when all steps before it are done. If a step fails for good and there is
//! a way back, the direction turns. Steps under way then count as failed, since it is not known
//! whether they have an effect. Each step that may have had one is undone once all sent steps after
//! it are settled. A step that cannot go on without an operator stays as it is, and makes the
//! instance *stuck*. Independent steps go on, and a late success is still welcome.
//!
//! Retries belong to the participants: an answer says that all of them are over. Another attempt is
//! a command of its own, with a number, which their barrier admits only if none before it had an
//! effect. A success of any attempt is a success of the step; a failure counts for the newest only.

use std::time::Duration;

use crate::{
    graph::{Graph, Node},
    progress::{
        Answer, Command, Direction, Event, Progress, Sending, State, StepProgress, StepState, Transition,
        Verdict,
    },
};

/// Applies an event.
pub fn decide(graph: &Graph, progress: &Progress, event: &Event) -> Transition {
    let mut machine = Machine { graph, progress: progress.clone(), sendings: Vec::new() };
    let verdict = match event {
        Event::Started => Verdict::Applied,
        Event::Answered(command, Answer::Dead { scope, .. })
            if scope != graph.nodes[command.step].scope(command.is_undo) =>
        {
            Verdict::Foreign
        }
        Event::Answered(command, answer) if command.is_undo => machine.undo_answered(*command, answer),
        Event::Answered(command, answer) => machine.answered(*command, answer),
        Event::StepLate(step) => machine.step_late(*step),
        Event::Late => machine.late(),
        Event::Retry(command) => machine.retry(*command),
        Event::Skip(command) => machine.skip(*command),
    };
    if verdict == Verdict::Applied {
        machine.send_what_is_ready();
    }
    Transition { progress: machine.progress, verdict, sendings: machine.sendings }
}

struct Machine<'a> {
    graph: &'a Graph,
    progress: Progress,
    sendings: Vec<Sending>,
}

impl Machine<'_> {
    fn answered(&mut self, command: Command, answer: &Answer) -> Verdict {
        let is_forward = self.progress.direction == Direction::Forward;
        let step = &mut self.progress.steps[command.step];
        let is_newest = command.attempt == step.attempt;
        if command.attempt > step.attempt {
            return if is_forward { Verdict::Early } else { Verdict::Late };
        }
        match (answer, step.state) {
            (Answer::Done, StepState::Done) | (Answer::Rejected, StepState::Rejected) => Verdict::Duplicate,
            _ if !is_forward => Verdict::Late,
            (Answer::Done, StepState::Sent | StepState::Rejected | StepState::Failed) => {
                step.state = StepState::Done;
                step.reason = None;
                Verdict::Applied
            }
            (Answer::Rejected, StepState::Sent | StepState::Failed) if is_newest => {
                step.state = StepState::Rejected;
                step.reason = Some("rejected by the participant".to_owned());
                self.fail(command.step)
            }
            (Answer::Dead { reason, .. }, StepState::Sent | StepState::Failed) if is_newest => {
                let was_known =
                    step.state == StepState::Failed && step.attempt >= self.attempts(command.step);
                if was_known {
                    return Verdict::Duplicate;
                }
                self.set_failed(command.step, &format!("given up by the participant: {reason}"));
                self.fail(command.step)
            }
            _ => Verdict::Late,
        }
    }

    fn undo_answered(&mut self, command: Command, answer: &Answer) -> Verdict {
        let attempts = self.attempts(command.step);
        let step = &mut self.progress.steps[command.step];
        if command.attempt > step.undo_attempt {
            return Verdict::Early;
        }
        let is_newest = command.attempt == step.undo_attempt;
        let reason = match (answer, step.state) {
            (Answer::Done, StepState::Undone) => return Verdict::Duplicate,
            (Answer::Done, StepState::Undoing | StepState::UndoFailed) => {
                step.state = StepState::Undone;
                step.reason = None;
                return Verdict::Applied;
            }
            (_, StepState::UndoFailed) if is_newest && step.undo_attempt >= attempts => {
                return Verdict::Duplicate;
            }
            (Answer::Rejected, StepState::Undoing | StepState::UndoFailed) if is_newest => {
                "its compensation was rejected by the participant".to_owned()
            }
            (Answer::Dead { reason, .. }, StepState::Undoing | StepState::UndoFailed) if is_newest => {
                format!("its compensation was given up by the participant: {reason}")
            }
            _ => return Verdict::Late,
        };
        step.state = StepState::UndoFailed;
        step.reason = Some(reason);
        if step.undo_attempt < attempts {
            self.send_again(command.step);
        }
        Verdict::Applied
    }

    fn step_late(&mut self, at: usize) -> Verdict {
        match self.progress.steps[at].state {
            StepState::Sent => {
                self.set_failed(at, "no answer by its deadline");
                self.turn_back_if_possible(at);
                Verdict::Applied
            }
            StepState::Undoing => {
                let step = &mut self.progress.steps[at];
                step.state = StepState::UndoFailed;
                step.reason = Some("no answer to its compensation by the deadline".to_owned());
                Verdict::Applied
            }
            _ => Verdict::Late,
        }
    }

    fn late(&mut self) -> Verdict {
        let is_over = self.progress.state(self.graph) == State::Completed;
        if self.progress.direction == Direction::Backward || is_over || !self.has_way_back() {
            return Verdict::Late;
        }
        self.turn_back("its deadline has passed".to_owned());
        Verdict::Applied
    }

    fn retry(&mut self, command: Command) -> Verdict {
        if !self.waits_for_operator(command) {
            return Verdict::Late;
        }
        self.send_again(command.step);
        // An operator who asks for a retry wants it at once.
        if let Some(sending) = self.sendings.last_mut() {
            sending.pause = Duration::ZERO;
        }
        Verdict::Applied
    }

    /// A step is skipped while it is under way only if its saga was in quarantine.
    fn skip(&mut self, command: Command) -> Verdict {
        if !self.waits_for_operator(command) && !self.is_under_way(command) {
            return Verdict::Late;
        }
        let step = &mut self.progress.steps[command.step];
        step.state = if command.is_undo { StepState::Undone } else { StepState::Done };
        step.reason = Some("skipped by an operator".to_owned());
        Verdict::Applied
    }

    /// And nothing has come in between since the operator looked.
    fn waits_for_operator(&self, command: Command) -> bool {
        let step = &self.progress.steps[command.step];
        match (self.progress.direction, step.state) {
            (Direction::Forward, StepState::Rejected | StepState::Failed) => {
                !command.is_undo && command.attempt == step.attempt
            }
            (Direction::Backward, StepState::UndoFailed) => {
                command.is_undo && command.attempt == step.undo_attempt
            }
            _ => false,
        }
    }

    fn is_under_way(&self, command: Command) -> bool {
        let step = &self.progress.steps[command.step];
        match step.state {
            StepState::Sent => !command.is_undo && command.attempt == step.attempt,
            StepState::Undoing => command.is_undo && command.attempt == step.undo_attempt,
            _ => false,
        }
    }

    fn set_failed(&mut self, at: usize, reason: &str) {
        let step = &mut self.progress.steps[at];
        step.state = StepState::Failed;
        step.reason = Some(reason.to_owned());
    }

    /// A step has failed for a reason that is known: it is tried again, or that was all.
    fn fail(&mut self, at: usize) -> Verdict {
        if self.progress.steps[at].attempt < self.attempts(at) {
            self.send_again(at);
        } else {
            self.turn_back_if_possible(at);
        }
        Verdict::Applied
    }

    fn turn_back_if_possible(&mut self, at: usize) {
        if self.has_way_back() {
            let why = self.progress.steps[at].reason.clone().unwrap_or_default();
            self.turn_back(format!("step \"{}\": {why}", self.graph.nodes[at].name));
        }
    }

    /// The pivot is not done, nor may it be without a way to undo it.
    fn has_way_back(&self) -> bool {
        let is_behind = |(node, step): (&Node, &StepProgress)| {
            node.is_pivot
                && (step.state == StepState::Done || node.compensation.is_none() && step.may_have_acted())
        };
        !self.graph.nodes.iter().zip(&self.progress.steps).any(is_behind)
    }

    fn turn_back(&mut self, reason: String) {
        self.progress.direction = Direction::Backward;
        self.progress.reason = Some(reason);
        for at in 0..self.progress.steps.len() {
            if self.progress.steps[at].state == StepState::Sent {
                self.set_failed(at, "under way when the saga was given up");
            }
        }
    }

    /// Another attempt at a failed step, or at its compensation.
    fn send_again(&mut self, at: usize) {
        let step = &mut self.progress.steps[at];
        if self.progress.direction == Direction::Forward {
            step.in_doubt |= step.state == StepState::Failed;
        }
        self.send(at, self.graph.nodes[at].pause);
    }

    fn send(&mut self, at: usize, pause: Duration) {
        let is_undo = self.progress.direction == Direction::Backward;
        let step = &mut self.progress.steps[at];
        let attempt = if is_undo { &mut step.undo_attempt } else { &mut step.attempt };
        *attempt += 1;
        let command = Command { step: at, is_undo, attempt: *attempt };
        step.state = if is_undo { StepState::Undoing } else { StepState::Sent };
        self.sendings.push(Sending { command, pause });
    }

    fn send_what_is_ready(&mut self) {
        for at in 0..self.progress.steps.len() {
            let is_ready = match self.progress.direction {
                Direction::Forward => self.is_next(at),
                Direction::Backward => self.is_to_be_undone(at),
            };
            if is_ready {
                self.send(at, Duration::ZERO);
            }
        }
    }

    fn is_next(&self, at: usize) -> bool {
        let is_done = |before: usize| self.progress.steps[before].state == StepState::Done;
        self.progress.steps[at].state == StepState::Pending && self.graph.nodes[at].after.iter().all(is_done)
    }

    fn is_to_be_undone(&self, at: usize) -> bool {
        let step = |at: usize| &self.progress.steps[at];
        let is_settled = |at: usize| step(at).is_settled(&self.graph.nodes[at]);
        let waits = matches!(step(at).state, StepState::Done | StepState::Rejected | StepState::Failed);
        waits && !is_settled(at) && self.graph.nodes[at].descendants.iter().all(is_settled)
    }

    fn attempts(&self, at: usize) -> u32 {
        self.graph.nodes[at].attempts
    }
}

#[cfg(test)]
mod tests;
