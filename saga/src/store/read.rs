//! From rows to instances, as far as they can be read.

use std::{collections::HashMap, fmt, sync::Arc};

use oncebox_schema::{Key, Subject};
use tokio_postgres::{Error, Row};

use crate::{
    definition::Unreadable,
    graph::Graph,
    instance::{Instance, Registered, Sent, Waiting},
    progress::{Answer, Command, Direction, Event, StepProgress, StepState},
};

/// The definitions that this process has, by their fingerprints: a saga is read with them.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) definitions: HashMap<String, Arc<dyn Registered>>,
    pub(crate) reply_to: Subject,
    /// The scope of the orchestrator, under which its sagas are stored.
    pub(crate) scope: String,
    /// Whether their changes are recorded.
    pub(crate) is_recorded: bool,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("definitions", &self.definitions.keys()).finish_non_exhaustive()
    }
}

/// A saga that is locked.
pub(crate) enum Found {
    /// It goes on.
    Open(Box<Instance>, Vec<Waiting>),
    /// It cannot be read: its id, and why.
    Unreadable(i64, Key, Unreadable),
    /// It is in quarantine already.
    Quarantined,
    /// It has finished.
    Finished,
    /// Another process of this orchestrator has its definition.
    Unknown,
    /// Another orchestrator has started it, and leads it.
    OfAnother,
}

impl Opening {
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = &str> {
        self.definitions.keys().map(String::as_str)
    }

    pub(crate) fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.definitions.values().map(|definition| definition.graph())
    }

    /// The sagas of these rows, in their order.
    pub(super) fn open(&self, sagas: &[Row], steps: &[Row], events: &[Row]) -> Result<Vec<Found>, Error> {
        sagas.iter().map(|saga| self.open_one(saga, steps, events)).collect()
    }

    fn open_one(&self, saga: &Row, steps: &[Row], events: &[Row]) -> Result<Found, Error> {
        if saga.try_get::<_, &str>("scope")? != self.scope {
            return Ok(Found::OfAnother);
        }
        let definition = self.definitions.get(saga.try_get::<_, &str>("fingerprint")?);
        match (saga.try_get("state")?, definition) {
            ("completed" | "compensated" | "abandoned", _) => return Ok(Found::Finished),
            ("quarantined", _) => return Ok(Found::Quarantined),
            _ => {}
        }
        let Some(definition) = definition else { return Ok(Found::Unknown) };
        let (id, key): (i64, &str) = (saga.try_get("id")?, saga.try_get("key")?);
        let Ok(key) = key.parse::<Key>() else { return Ok(Found::Unknown) };
        let process = match Arc::clone(definition).open(saga.try_get("data")?) {
            Ok(process) => process,
            Err(problem) => return Ok(Found::Unreadable(id, key, problem)),
        };
        let mut instance = Instance::new(process, key.clone(), self.reply_to.clone());
        instance.id = id;
        instance.revision = saga.try_get("revision")?;
        instance.late_in = saga.try_get("late_in")?;
        if saga.try_get::<_, &str>("direction")? == "backward" {
            instance.progress.direction = Direction::Backward;
            instance.progress.reason = saga.try_get("reason")?;
        }
        for row in steps {
            if row.try_get::<_, i64>("saga_id")? == id
                && let Err(problem) = read_step(&mut instance, row)?
            {
                return Ok(Found::Unreadable(id, key, problem));
            }
        }
        if self.is_recorded {
            instance.follow();
        }
        let mut waiting = Vec::new();
        for row in events {
            if row.try_get::<_, &str>("key")? == key.as_str() {
                match read_event(instance.process.graph(), row)? {
                    Ok(one) => waiting.push(one),
                    Err(problem) => return Ok(Found::Unreadable(id, key, problem)),
                }
            }
        }
        Ok(Found::Open(Box::new(instance), waiting))
    }
}

fn read_step(instance: &mut Instance, row: &Row) -> Result<Result<(), Unreadable>, Error> {
    let name: &str = row.try_get("step")?;
    let Some(at) = instance.process.graph().step(name) else {
        return Ok(Err(Unreadable(format!("its definition has no step \"{name}\""))));
    };
    let state: &str = row.try_get("state")?;
    let Some(state) = StepState::of_name(state) else {
        return Ok(Err(Unreadable(format!(
            "step \"{name}\" is \"{state}\", which this version does not know"
        ))));
    };
    instance.progress.steps[at] = StepProgress {
        state,
        attempt: number(row, "attempt")?,
        undo_attempt: number(row, "undo_attempt")?,
        in_doubt: row.try_get("in_doubt")?,
        reason: row.try_get("reason")?,
    };
    let commands = &mut instance.commands[at];
    commands.late_in = row.try_get("late_in")?;
    let sent = |subject: &str, payload: Vec<u8>| match subject.parse() {
        Ok(subject) => Ok(Some(Sent { subject, payload })),
        Err(_) => Err(Unreadable(format!("step \"{name}\": its stored subject is invalid"))),
    };
    let action = sent(row.try_get("subject")?, row.try_get("payload")?);
    let undo = match row.try_get::<_, Option<&str>>("undo_subject")? {
        Some(subject) => sent(subject, row.try_get("undo_payload")?),
        None => Ok(None),
    };
    Ok(action.and_then(|action| {
        (commands.action, commands.undo) = (action, undo?);
        Ok(())
    }))
}

fn read_event(graph: &Graph, row: &Row) -> Result<Result<Waiting, Unreadable>, Error> {
    let name: &str = row.try_get("step")?;
    let Some(step) = graph.step(name) else {
        return Ok(Err(Unreadable(format!(
            "an answer waits for step \"{name}\", which its definition has not"
        ))));
    };
    let command = Command { step, is_undo: row.try_get("is_undo")?, attempt: number(row, "attempt")? };
    let reason: Option<String> = row.try_get("reason")?;
    let scope: Option<String> = row.try_get("scope")?;
    let is_of_another =
        scope.as_ref().is_some_and(|scope| scope.trim() != graph.nodes[step].scope(command.is_undo));
    let event = match row.try_get("kind")? {
        // It came before its scope could be compared. As a death it would change nothing either.
        "done" | "rejected" if is_of_another => {
            let scope = scope.unwrap_or_default();
            Event::Answered(command, Answer::Dead { scope, reason: String::new() })
        }
        "done" => Event::Answered(command, Answer::Done),
        "rejected" => Event::Answered(command, Answer::Rejected),
        "dead" => {
            let (scope, reason) = (scope.unwrap_or_default(), reason.unwrap_or_default());
            Event::Answered(command, Answer::Dead { scope, reason })
        }
        "retry" => Event::Retry(command),
        _ => Event::Skip(command),
    };
    Ok(Ok(Waiting { id: row.try_get("id")?, event, payload: row.try_get("payload")? }))
}

fn number(row: &Row, column: &str) -> Result<u32, Error> {
    Ok(row.try_get::<_, i32>(column)?.unsigned_abs())
}
