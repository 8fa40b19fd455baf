//! An instance: its state, its data and its commands as they were sent, and how an event changes
//! them. No I/O: it collects the writes and the commands.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use oncebox_outbox::Message;
use oncebox_schema::{Key, Subject, to_json};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    command,
    decide::decide,
    definition::{Code, Inner, Unreadable},
    error::NO_JSON,
    graph::{Graph, StepSet},
    progress::{Answer, Command, Direction, Event, Progress, Sending, State, StepState, Verdict},
};

/// A definition with any type of data.
pub(crate) trait Registered: Send + Sync {
    fn graph(&self) -> &Graph;
    /// How SQL starts an instance, as JSON, if the definition is a file.
    fn plan(&self) -> Option<&str>;
    /// The data of an instance, as it is stored.
    fn open(self: Arc<Self>, data: &str) -> Result<Box<dyn Process>, Unreadable>;
}

/// The data of an instance, and the code of its definition.
pub(crate) trait Process: Send + Sync {
    fn graph(&self) -> &Graph;
    fn learn(&mut self, step: usize, answer: &Answer, reply: &[u8]) -> Result<(), Unreadable>;
    fn payload(&self, step: usize, is_undo: bool) -> Result<Vec<u8>, Unreadable>;
    fn data(&self) -> Result<String, Unreadable>;
}

struct Opened<D> {
    definition: Arc<Inner<D>>,
    data: D,
}

impl<D: Serialize + DeserializeOwned + Send + Sync + 'static> Registered for Inner<D> {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn plan(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    fn open(self: Arc<Self>, data: &str) -> Result<Box<dyn Process>, Unreadable> {
        let problem = "its data is not what the definition reads";
        let read = guarded(|| serde_json::from_str(data).map_err(|_| Unreadable(problem.to_owned())));
        Ok(Box::new(Opened { definition: self, data: read? }))
    }
}

impl<D: Serialize + Send + Sync> Process for Opened<D> {
    fn graph(&self) -> &Graph {
        &self.definition.graph
    }

    fn learn(&mut self, step: usize, answer: &Answer, reply: &[u8]) -> Result<(), Unreadable> {
        let Code { on_done, on_rejected, .. } = &self.definition.steps[step];
        let learn = match answer {
            Answer::Done => on_done,
            Answer::Rejected => on_rejected,
            Answer::Dead { .. } => &None,
        };
        let Some(learn) = learn else { return Ok(()) };
        let data = &mut self.data;
        guarded(|| learn(data, reply)).map_err(|problem| self.of_step(step, "its answer", problem))
    }

    fn payload(&self, step: usize, is_undo: bool) -> Result<Vec<u8>, Unreadable> {
        let code = &self.definition.steps[step];
        let make = if is_undo { code.compensation.as_ref() } else { Some(&code.command) };
        let make = make.expect("only a step with a compensation is undone");
        guarded(|| make(&self.data)).map_err(|problem| self.of_step(step, "its command", problem))
    }

    fn data(&self) -> Result<String, Unreadable> {
        let written = guarded(|| to_json(&self.data).map_err(|_| Unreadable(String::new())))
            .ok()
            .and_then(|json| String::from_utf8(json).ok());
        let data = written.ok_or_else(|| Unreadable(format!("its data {NO_JSON}")))?;
        if has_nul(&data) {
            return Err(Unreadable("its data has a NUL in a text, which jsonb does not store".to_owned()));
        }
        Ok(data)
    }
}

impl<D> Opened<D> {
    fn of_step(&self, step: usize, what: &str, problem: Unreadable) -> Unreadable {
        let name = &self.definition.graph.nodes[step].name;
        Unreadable(format!("step \"{name}\", {what}: {}", problem.0))
    }
}

/// Whether a text in this JSON has a NUL, which is written as an escape.
fn has_nul(json: &str) -> bool {
    // After each backslash comes the escaped character, perhaps another backslash.
    let mut rest = json;
    while let Some((_, escaped)) = rest.split_once('\\') {
        if escaped.starts_with("u0000") {
            return true;
        }
        rest = escaped.get(1..).unwrap_or_default();
    }
    false
}

/// A user's code may panic; that must not end a task that serves other instances.
fn guarded<T>(code: impl FnOnce() -> Result<T, Unreadable>) -> Result<T, Unreadable> {
    let caught = catch_unwind(AssertUnwindSafe(code));
    caught.unwrap_or_else(|_| Err(Unreadable("a function of the definition panicked".to_owned())))
}

/// A command as it was sent, without its key.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) subject: Subject,
    pub(crate) payload: Vec<u8>,
}

/// The stored data of a step beside its progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    pub(crate) action: Option<Sent>,
    pub(crate) undo: Option<Sent>,
    /// In how many seconds an answer is late, by the database's clock.
    pub(crate) late_in: Option<f64>,
}

/// Something that waited for its time.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: i64,
    pub(crate) event: Event,
    pub(crate) payload: Vec<u8>,
}

/// The progress of an instance when it was read, and the changes since.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) before: Progress,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Instance {
    pub(crate) id: i64,
    pub(crate) key: Key,
    pub(crate) revision: i64,
    pub(crate) progress: Progress,
    pub(crate) process: Box<dyn Process>,
    pub(crate) commands: Vec<Commands>,
    /// In how many seconds all of it is late.
    pub(crate) late_in: Option<f64>,
    /// The steps whose rows are to be written.
    pub(crate) changed: StepSet,
    pub(crate) messages: Vec<Message>,
    pub(crate) reply_to: Subject,
    /// For a recording, if one is made.
    pub(crate) history: Option<History>,
}

impl Instance {
    pub(crate) fn new(process: Box<dyn Process>, key: Key, reply_to: Subject) -> Self {
        let graph = process.graph();
        let late_in = graph.deadline.map(|deadline| deadline.as_secs_f64());
        let (progress, commands) = (Progress::new(graph), vec![Commands::default(); graph.nodes.len()]);
        Self {
            id: 0,
            key,
            revision: 0,
            progress,
            process,
            commands,
            late_in,
            changed: StepSet::default(),
            messages: Vec::new(),
            reply_to,
            history: None,
        }
    }

    /// Remembers changes from here on.
    pub(crate) fn follow(&mut self) {
        self.history = Some(History { before: self.progress.clone(), events: Vec::new() });
    }

    pub(crate) fn state(&self) -> State {
        self.progress.state(self.process.graph())
    }

    /// Why it stands where it stands, if not everything went well.
    pub(crate) fn reason(&self) -> Option<String> {
        if self.progress.direction == Direction::Backward || self.state() != State::Stuck {
            return self.progress.reason.clone();
        }
        let mut steps = self.progress.steps.iter().zip(&self.process.graph().nodes);
        let (step, node) =
            steps.find(|(step, _)| matches!(step.state, StepState::Rejected | StepState::Failed))?;
        Some(format!("step \"{}\": {}", node.name, step.reason.as_deref().unwrap_or_default()))
    }

    /// After an error nothing of this instance may be written.
    pub(crate) fn apply(&mut self, event: &Event, reply: &[u8]) -> Result<Verdict, Unreadable> {
        let transition = decide(self.process.graph(), &self.progress, event);
        if transition.verdict != Verdict::Applied {
            return Ok(transition.verdict);
        }
        match event {
            Event::Answered(command, answer) if !command.is_undo => {
                self.process.learn(command.step, answer, reply)?;
            }
            // An operator may give the reply that the participant would have sent.
            Event::Skip(command) if !command.is_undo && !reply.is_empty() => {
                self.process.learn(command.step, &Answer::Done, reply)?;
            }
            _ => {}
        }
        for (at, step) in transition.progress.steps.iter().enumerate() {
            if *step != self.progress.steps[at] {
                self.changed.insert(at);
            }
        }
        if let Some(history) = &mut self.history {
            history.events.push(event.clone());
        }
        self.progress = transition.progress;
        for sending in transition.sendings {
            self.send(sending)?;
        }
        for at in 0..self.commands.len() {
            if !self.progress.is_awaited(at) {
                self.commands[at].late_in = None;
            }
        }
        if self.progress.direction == Direction::Backward || self.state() == State::Completed {
            self.late_in = None;
        }
        Ok(Verdict::Applied)
    }

    /// Applies the deadlines that have passed.
    pub(crate) fn apply_deadlines(&mut self) -> Result<(), Unreadable> {
        let is_late = |late_in: Option<f64>| late_in.is_some_and(|seconds| seconds <= 0.0);
        for at in 0..self.commands.len() {
            if is_late(self.commands[at].late_in) {
                self.apply(&Event::StepLate(at), b"")?;
            }
        }
        if is_late(self.late_in) {
            self.apply(&Event::Late, b"")?;
            self.late_in = None;
        }
        Ok(())
    }

    /// Applies waiting answers and requests, as far as their time has come. Returns those that need
    /// not wait any more, with their verdicts.
    pub(crate) fn apply_waiting(&mut self, waiting: &[Waiting]) -> Result<Vec<(i64, Verdict)>, Unreadable> {
        let mut ended: Vec<(i64, Verdict)> = Vec::new();
        loop {
            let before = ended.len();
            for one in waiting {
                if ended.iter().any(|(id, _)| *id == one.id) {
                    continue;
                }
                let verdict = self.apply(&one.event, &one.payload)?;
                if verdict != Verdict::Early {
                    ended.push((one.id, verdict));
                }
            }
            if ended.len() == before {
                break;
            }
        }
        if matches!(self.state(), State::Completed | State::Compensated) {
            let rest = waiting.iter().filter(|one| !ended.iter().any(|(id, _)| *id == one.id));
            let rest: Vec<_> = rest.map(|one| (one.id, Verdict::Late)).collect();
            ended.extend(rest);
        }
        Ok(ended)
    }

    /// In how many seconds an orchestrator has to look again; a deadline may be infinite.
    pub(crate) fn due_in(&self) -> Option<f64> {
        let steps = self.commands.iter().filter_map(|commands| commands.late_in);
        steps.chain(self.late_in).min_by(f64::total_cmp).map(|seconds| seconds.min(1e9))
    }

    fn send(&mut self, sending: Sending) -> Result<(), Unreadable> {
        let Command { step, is_undo, attempt } = sending.command;
        let node = &self.process.graph().nodes[step];
        let commands = &mut self.commands[step];
        commands.late_in = Some((sending.pause + node.deadline).as_secs_f64());
        let subject = if is_undo { node.compensation.as_ref() } else { Some(&node.subject) };
        let stored = if is_undo { &mut commands.undo } else { &mut commands.action };
        let sent = match stored {
            // Made again it might be another message, so the same bytes are sent again.
            Some(sent) => sent,
            None => stored.insert(Sent {
                subject: subject.expect("only a step with a compensation is undone").clone(),
                payload: self.process.payload(step, is_undo)?,
            }),
        };
        let key = command::key(&self.key, &node.name, is_undo, attempt);
        let key = key.map_err(|problem| Unreadable(problem.to_string()))?;
        let mut message =
            Message::bytes(key, sent.subject.clone(), sent.payload.clone()).reply_to(&self.reply_to);
        if attempt > 1 {
            let numbered = message.header(command::ATTEMPT, attempt.to_string());
            message = numbered.map_err(|problem| Unreadable(problem.to_string()))?;
        }
        if !sending.pause.is_zero() {
            message = message.delayed_by(sending.pause);
        }
        self.messages.push(message);
        Ok(())
    }
}
