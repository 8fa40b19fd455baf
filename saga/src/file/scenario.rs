//! Scenarios: a saga and the answers that come, run through the decisions of production.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value as Json, value::to_raw_value};
use toml::de::DeValue;

use super::{
    SagaFile,
    reader::{FileMistake, Reader, Section, Value},
    template::Document,
};
use crate::{
    instance::{Instance, Registered as _, Waiting},
    progress::{Answer, Command, Event, Verdict},
};

const ANSWERS: &str = "done, rejected, dead, late, deadline, retry or skip";
const STATES: &str = "completed, compensated, stuck, quarantined, running or compensating";
/// Of one answer; more prove nothing.
const TIMES_MAX: u32 = 100;

/// The scenarios of a file; docs/saga-files.md has the format.
#[derive(Debug)]
pub struct Scenarios(Vec<Scenario>);

#[derive(Debug)]
struct Scenario {
    name: String,
    data: Json,
    answers: Vec<Incoming>,
    sends: Option<Vec<String>>,
    ends: String,
}

#[derive(Debug)]
struct Incoming {
    line: usize,
    step: Option<String>,
    is_undo: bool,
    attempt: Option<u32>,
    kind: String,
    reply: Json,
    times: u32,
}

/// A scenario that was run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The commands and answers, a line for each.
    pub path: Vec<String>,
    /// The state that the saga is in at the end.
    pub ended: String,
    /// The difference from the scenario's expectation.
    pub problem: Option<String>,
}

impl Scenarios {
    /// Reads a file of scenarios for this saga.
    ///
    /// # Errors
    /// All mistakes, in the order of their lines.
    pub fn parse(text: &str, saga: &SagaFile) -> Result<Self, Vec<FileMistake>> {
        Reader::read(text, |reader, file| {
            reader.knows(file, &["scenario"]);
            let sections = reader.sections(file, "scenario");
            if sections.is_empty() {
                reader.note_with(file.line, "there is nothing to run", "write each scenario as [[scenario]]");
            }
            Some(Self(sections.into_iter().filter_map(|one| Scenario::read(reader, one, saga)).collect()))
        })
    }

    /// Runs all.
    #[must_use]
    pub fn run(&self, saga: &SagaFile) -> Vec<Outcome> {
        self.0.iter().map(|scenario| scenario.run(saga)).collect()
    }
}

impl Scenario {
    fn read(reader: &mut Reader<'_>, mut section: Section<'_>, saga: &SagaFile) -> Option<Self> {
        let name = reader.needed(&section, "name", "\"the card is declined\"")?;
        section.name = format!("scenario {name:?}");
        reader.knows(&section, &["name", "data", "answers", "sends", "ends"]);
        let data = match section.get("data") {
            Some(value) => reader.json(value)?,
            None => Json::Object(serde_json::Map::new()),
        };
        let raw = to_raw_value(&data).ok()?;
        if let Err(problem) = saga.data.check(&raw) {
            reader.note(section.line, format!("{}: data: {problem}", section.name));
        }
        let mut answers = Vec::new();
        if let Some(value) = section.get("answers") {
            let line = reader.line(&value.span());
            match value.get_ref() {
                DeValue::Array(array) => {
                    answers.extend(array.iter().filter_map(|one| Incoming::read(reader, one, saga)));
                }
                _ => reader.note(line, format!("{}: answers is a list", section.name)),
            }
        }
        let ends = reader.needed(&section, "ends", "\"compensated\"")?;
        if !STATES.replace(" or", ",").split(", ").any(|state| state == ends) {
            reader.note(section.line, format!("{}: ends is {STATES}", section.name));
        }
        Some(Self { data, answers, sends: reader.texts(&section, "sends"), ends, name })
    }

    fn run(&self, saga: &SagaFile) -> Outcome {
        let mut run = Run { path: Vec::new(), sent: Vec::new(), waiting: Vec::new() };
        let ended = run.lead(self, saga).unwrap_or_else(|problem| {
            run.path.push(format!("!! {problem}"));
            "quarantined".to_owned()
        });
        let mut problem = (ended != self.ends).then(|| format!("it is {ended}, not {}", self.ends));
        if let Some(sends) = self.sends.as_ref().filter(|sends| **sends != run.sent) {
            problem
                .get_or_insert_with(|| format!("it sends {}, not {}", run.sent.join(", "), sends.join(", ")));
        }
        Outcome { name: self.name.clone(), path: run.path, ended, problem }
    }
}

impl Incoming {
    fn read(reader: &mut Reader<'_>, value: &Value<'_>, saga: &SagaFile) -> Option<Self> {
        let section = reader.section(value, "an answer".to_owned())?;
        reader.knows(&section, &["step", "undo", "attempt", "answer", "reply", "times"]);
        let kind = reader.needed(&section, "answer", "\"done\"")?;
        if !ANSWERS.replace(" or", ",").split(", ").any(|known| known == kind) {
            reader.note(section.line, format!("answer is {ANSWERS}"));
        }
        let step = reader.text(&section, "step");
        match &step {
            None if kind != "deadline" => {
                reader.note_with(section.line, "an answer needs step", "step = \"pay\"");
            }
            Some(step) if saga.graph().step(step).is_none() => {
                reader.note(section.line, format!("the saga has no step {step:?}"));
            }
            _ => {}
        }
        let times = reader.count(&section, "times").unwrap_or(1);
        if !(1..=TIMES_MAX).contains(&times) {
            reader.note(section.line, format!("times is 1 to {TIMES_MAX}"));
        }
        let reply = match section.get("reply") {
            Some(value) => reader.json(value)?,
            None => Json::Null,
        };
        Some(Self {
            line: section.line,
            step,
            is_undo: reader.truth(&section, "undo").unwrap_or(false),
            attempt: reader.count(&section, "attempt"),
            kind,
            reply,
            times,
        })
    }
}

/// A scenario under way.
struct Run {
    path: Vec<String>,
    /// The names of the commands, as operators see them.
    sent: Vec<String>,
    waiting: Vec<Waiting>,
}

impl Run {
    /// Returns the state at the end.
    fn lead(&mut self, scenario: &Scenario, saga: &SagaFile) -> Result<String, String> {
        let data = to_raw_value(&scenario.data).map_err(|problem| problem.to_string())?;
        let document = Document { data, replies: BTreeMap::new(), refusals: BTreeMap::new() };
        let text = serde_json::to_string(&document).map_err(|problem| problem.to_string())?;
        let process = Arc::clone(&saga.inner).open(&text).map_err(|problem| problem.0)?;
        let key = "saga".parse().map_err(|_| "the key")?;
        let reply_to = "sagas.replies".parse().map_err(|_| "the subject")?;
        let mut instance = Instance::new(process, key, reply_to);
        self.apply(&mut instance, &Event::Started, b"")?;
        for incoming in &scenario.answers {
            for _ in 0..incoming.times {
                self.take(&mut instance, incoming)?;
            }
        }
        Ok(instance.state().as_str().to_owned())
    }

    fn take(&mut self, instance: &mut Instance, incoming: &Incoming) -> Result<(), String> {
        let Some(step) = &incoming.step else {
            self.path.push("<- the deadline of the saga passes".to_owned());
            return self.apply(instance, &Event::Late, b"").map(drop);
        };
        let graph = instance.process.graph();
        let at = graph.step(step).ok_or("no such step")?;
        let progress = &instance.progress.steps[at];
        let newest = if incoming.is_undo { progress.undo_attempt } else { progress.attempt };
        let attempt = incoming.attempt.unwrap_or(newest.max(1));
        let command = Command { step: at, is_undo: incoming.is_undo, attempt };
        let scope = graph.nodes[at].scope(incoming.is_undo).to_owned();
        let event = match incoming.kind.as_str() {
            "done" => Event::Answered(command, Answer::Done),
            "rejected" => Event::Answered(command, Answer::Rejected),
            "dead" => Event::Answered(command, Answer::Dead { scope, reason: "scenario".to_owned() }),
            "late" => Event::StepLate(at),
            "retry" => Event::Retry(command),
            _ => Event::Skip(command),
        };
        let undo = if incoming.is_undo { ":undo" } else { "" };
        let reply = if incoming.reply.is_null() { String::new() } else { format!(" {}", incoming.reply) };
        self.path.push(format!("<- {step}{undo} {}{reply}", incoming.kind));
        let payload =
            if incoming.reply.is_null() { Vec::new() } else { incoming.reply.to_string().into_bytes() };
        if self.apply(instance, &event, &payload)? == Verdict::Early {
            let id = i64::try_from(incoming.line).unwrap_or(0) * i64::from(TIMES_MAX)
                + i64::try_from(self.waiting.len()).unwrap_or(0);
            self.waiting.push(Waiting { id, event, payload });
        }
        Ok(())
    }

    fn apply(&mut self, instance: &mut Instance, event: &Event, reply: &[u8]) -> Result<Verdict, String> {
        let before = instance.state();
        let verdict = instance.apply(event, reply).map_err(|problem| problem.0)?;
        match verdict {
            Verdict::Applied => {
                let ended = instance.apply_waiting(&self.waiting).map_err(|problem| problem.0)?;
                self.waiting.retain(|one| !ended.iter().any(|(id, _)| *id == one.id));
            }
            Verdict::Early => self.path.push("   it waits: its command was not sent yet".to_owned()),
            _ => self.path.push("   it changes nothing".to_owned()),
        }
        for message in std::mem::take(&mut instance.messages) {
            let name = message.key().as_str().trim_start_matches("saga:").to_owned();
            let payload = String::from_utf8_lossy(message.payload());
            self.path.push(format!("-> {name} {} {payload}", message.subject()));
            self.sent.push(name);
        }
        if instance.state() != before {
            self.path.push(format!("== {}", instance.state().as_str()));
        }
        Ok(verdict)
    }
}
