//! An orchestrator's reaction to an event: the production code decides, as it is or with a mistake
//! around it.

use oncebox_saga::rules::{
    Answer, Command, Direction, Event, Progress, State as Standing, StepState, Verdict, decide,
};

use super::{Change, Happening, Leads, Mutant, shape};

impl Happening {
    fn event(self) -> Event {
        let answered = |number, answer| Event::Answered(shape::command(number), answer);
        match self {
            Self::Started => Event::Started,
            Self::Done(number) => answered(number, Answer::Done),
            Self::Rejected(number) => answered(number, Answer::Rejected),
            Self::Dead(number) => {
                answered(number, Answer::Dead { scope: shape::SCOPE.to_owned(), reason: String::new() })
            }
            Self::StepLate(step) => Event::StepLate(step),
            Self::Late => Event::Late,
            Self::Retry(command) => Event::Retry(command),
        }
    }
}

impl Leads {
    pub(super) fn is_over(&self, progress: &Progress) -> bool {
        matches!(progress.state(&self.graph), Standing::Completed | Standing::Compensated)
    }

    /// The change that an event makes, if it makes one. A saga that has ended is not opened.
    pub(super) fn change(&self, before: &Progress, happening: Happening) -> Option<Change> {
        if let Some(change) = self.mistaken(before, happening) {
            return Some(change);
        }
        if self.is_over(before) {
            return None;
        }
        let mut change = self.decided(before.clone(), before, happening.event())?;
        let turns = before.direction == Direction::Forward && change.after.direction == Direction::Backward;
        if self.is(Mutant::ForgetsInFlight) && turns {
            for at in 0..before.steps.len() {
                if before.steps[at].state == StepState::Sent
                    && change.after.steps[at].state != StepState::Rejected
                {
                    change.after.steps[at].state = StepState::Pending;
                    change.commands.retain(|command| command.step != at);
                }
            }
        }
        if self.is(Mutant::UndoesAtOnce) && change.after.direction == Direction::Backward {
            for (at, step) in change.after.steps.iter_mut().enumerate() {
                if step.state == StepState::Done {
                    (step.state, step.undo_attempt) = (StepState::Undoing, 1);
                    change.commands.push(Command { step: at, is_undo: true, attempt: 1 });
                }
            }
        }
        if self.is(Mutant::AttemptsShareKey) {
            change.commands.iter_mut().for_each(|command| command.attempt = 1);
        }
        Some(change)
    }

    fn decided(&self, from: Progress, before: &Progress, event: Event) -> Option<Change> {
        let transition = decide(&self.graph, &from, &event);
        if transition.verdict != Verdict::Applied {
            return None;
        }
        let mut after = transition.progress;
        // Texts for people, which decide nothing.
        after.reason = None;
        after.steps.iter_mut().for_each(|step| step.reason = None);
        let commands = transition.sendings.into_iter().map(|sending| sending.command).collect();
        Some(Change { before: before.clone(), after, commands })
    }

    /// Events that a mistake lets through.
    fn mistaken(&self, before: &Progress, happening: Happening) -> Option<Change> {
        let mut from = before.clone();
        let event = match (self.mutant?, happening) {
            (Mutant::LateAnswerCounts, Happening::Done(number))
                if from.direction == Direction::Backward && !shape::command(number).is_undo =>
            {
                from.steps[shape::command(number).step].state = StepState::Done;
                // It has the state machine send the commands that are ready.
                Event::Started
            }
            (Mutant::TimeoutAfterAnswer, Happening::StepLate(step)) => {
                from.steps[step].state = StepState::Sent;
                Event::StepLate(step)
            }
            (Mutant::PivotIsPassed, Happening::Late)
                if from.direction == Direction::Forward && !self.is_over(before) =>
            {
                from.direction = Direction::Backward;
                let sent = from.steps.iter_mut().filter(|step| step.state == StepState::Sent);
                sent.for_each(|step| step.state = StepState::Failed);
                Event::Started
            }
            _ => return None,
        };
        self.decided(from, before, event)
    }
}
