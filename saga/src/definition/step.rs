//! One step of a definition, and the code of a user that belongs to it.

use std::{fmt, time::Duration};

use oncebox_schema::to_json;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::NO_JSON,
    graph::{Draft, Undo},
};

/// How long an answer may take, unless the step says otherwise.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Makes a payload.
pub(crate) type Make<D> = Box<dyn Fn(&D) -> Result<Vec<u8>, Unreadable> + Send + Sync>;
type Learn<D> = Box<dyn Fn(&mut D, &[u8]) -> Result<(), Unreadable> + Send + Sync>;

/// Why an instance cannot go on: in words, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(crate) String);

/// The code of a step.
pub(crate) struct Code<D> {
    pub(crate) command: Make<D>,
    pub(crate) compensation: Option<Make<D>>,
    pub(crate) on_done: Option<Learn<D>>,
    pub(crate) on_rejected: Option<Learn<D>>,
}

/// A step of a [`Definition`](crate::Definition): a command to one participant.
#[must_use = "a step does nothing until it is added to a definition"]
pub struct Step<D> {
    draft: Draft,
    comes_after: Option<Vec<String>>,
    code: Code<D>,
}

impl<D> fmt::Debug for Step<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("draft", &self.draft).finish_non_exhaustive()
    }
}

impl<D: 'static> Step<D> {
    /// A step of this name, which matches `[a-z0-9][a-z0-9._-]{0,63}`, whose command goes to this
    /// subject. The payload is made of the instance's data, as JSON, when the command is sent for
    /// the first time.
    pub fn new<P: Serialize>(
        name: impl Into<String>,
        subject: impl Into<String>,
        payload: impl Fn(&D) -> P + Send + Sync + 'static,
    ) -> Self {
        let draft = Draft {
            name: name.into(),
            subject: subject.into(),
            scope: String::new(),
            undo: Undo::Unsaid,
            undo_scope: None,
            after: Vec::new(),
            is_pivot: false,
            deadline: DEADLINE,
            attempts: 1,
            pause: Duration::ZERO,
        };
        let code = Code { command: made(payload), compensation: None, on_done: None, on_rejected: None };
        Self { draft, comes_after: None, code }
    }

    /// The scope of the participant's inbox that takes the commands of this step, as its
    /// [`Builder::scope`](oncebox_inbox::Builder::scope) has it. Required: a dead letter counts as
    /// the death of a command only when it comes from there. Others that consume the same subject,
    /// such as an audit, may give their copies up as they like.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.draft.scope = scope.into();
        self
    }

    /// The scope of the inbox that takes the compensation. Default: the scope of the step.
    pub fn compensation_scope(mut self, scope: impl Into<String>) -> Self {
        self.draft.undo_scope = Some(scope.into());
        self
    }

    /// Stores the participant's reply in the data when the step is done. It must be JSON that `R`
    /// can be read from: an instance whose answer cannot be read is put in quarantine.
    pub fn on_done<R: DeserializeOwned>(mut self, learn: impl Fn(&mut D, R) + Send + Sync + 'static) -> Self {
        self.code.on_done = Some(learned(learn));
        self
    }

    /// The change of the data by the reply of a participant that says no.
    pub fn on_rejected<R: DeserializeOwned>(
        mut self,
        learn: impl Fn(&mut D, R) + Send + Sync + 'static,
    ) -> Self {
        self.code.on_rejected = Some(learned(learn));
        self
    }

    /// The command that undoes this step, also when it is not known whether it had an effect; the
    /// participant's [`Barrier`](crate::Barrier) does.
    pub fn compensation<P: Serialize>(
        mut self,
        subject: impl Into<String>,
        payload: impl Fn(&D) -> P + Send + Sync + 'static,
    ) -> Self {
        self.draft.undo = Undo::Subject(subject.into());
        self.code.compensation = Some(made(payload));
        self
    }

    /// This step leaves nothing that would have to be undone. Each step before the pivot says this,
    /// or has a [compensation](Step::compensation).
    pub fn no_compensation(mut self) -> Self {
        self.draft.undo = Undo::NotNeeded;
        self.code.compensation = None;
        self
    }

    /// When this step is done there is no way back: later steps go forward, by further attempts and
    /// an operator's help. A pivot may have a compensation, for the case that it is not known
    /// whether it was done; one without waits for an operator then.
    pub fn pivot(mut self) -> Self {
        self.draft.is_pivot = true;
        self
    }

    /// How long the answer to a command of this step may take, 1 millisecond to 365 days, its
    /// compensation too. Default: 1 hour. Set it longer than the participant's total retry time: a
    /// late step is undone, or waits for an operator.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.draft.deadline = deadline;
        self
    }

    /// How many attempts this step and its compensation get in all, 1 to 1000, with this pause
    /// between. Default: 1. Another attempt is made after the participant has rejected the command
    /// or given it up; never because it is late. Participants need a barrier then.
    pub fn attempts(mut self, attempts: u32, pause: Duration) -> Self {
        self.draft.attempts = attempts;
        self.draft.pause = pause;
        self
    }

    /// The steps directly before this one, instead of the step added last; without any, it is one
    /// of the first.
    pub fn after<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        self.comes_after = Some(steps.into_iter().map(Into::into).collect());
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.draft.name
    }

    pub(super) fn into_parts(self, last_stage: &[String]) -> (Draft, Code<D>) {
        let after = self.comes_after.unwrap_or_else(|| last_stage.to_vec());
        (Draft { after, ..self.draft }, self.code)
    }
}

fn made<D, P: Serialize>(payload: impl Fn(&D) -> P + Send + Sync + 'static) -> Make<D> {
    Box::new(move |data| to_json(&payload(data)).map_err(|_| Unreadable(format!("its payload {NO_JSON}"))))
}

fn learned<D, R: DeserializeOwned>(learn: impl Fn(&mut D, R) + Send + Sync + 'static) -> Learn<D> {
    Box::new(move |data, reply| {
        // Participants that have nothing to say may send nothing.
        let reply = serde_json::from_slice(if reply.is_empty() { b"null" } else { reply });
        learn(data, reply.map_err(|problem| Unreadable(place(&problem)))?);
        Ok(())
    })
}

/// Where serde stopped; its own text may quote the data.
pub(crate) fn place(problem: &serde_json::Error) -> String {
    format!("it is not what the definition reads, line {} column {}", problem.line(), problem.column())
}
