//! The steps of a file.

use std::time::Duration;

use super::{
    fields::Fields,
    reader::{Reader, Section},
    template::{Pointer, Source, Template},
};
use crate::graph::{Draft, Need, Undo};

pub(super) const KNOWN: [&str; 13] = [
    "name",
    "subject",
    "scope",
    "payload",
    "reply",
    "compensation",
    "no_compensation",
    "pivot",
    "parallel",
    "after",
    "deadline",
    "attempts",
    "pause",
];
const DEADLINE: Duration = Duration::from_secs(3600);

/// A step with its place in the file.
pub(super) struct StepOfFile {
    pub(super) draft: Draft,
    pub(super) line: usize,
    pub(super) payload: Template,
    pub(super) undo: Option<Template>,
    pub(super) reply: Fields,
}

impl StepOfFile {
    /// The fields of earlier replies without which it has no command, or no compensation.
    pub(super) fn needs(&self) -> Vec<Need> {
        let sources =
            [Some(&self.payload), self.undo.as_ref()].into_iter().flatten().flat_map(Template::sources);
        let need = |source: &Source| match source.pointer.0.as_slice() {
            [first, step, path @ ..] if first == "replies" && source.default.is_none() => Some(Need {
                step: step.clone(),
                field: Pointer(path.to_vec()).to_string(),
                path: path.to_vec(),
            }),
            _ => None,
        };
        sources.filter_map(need).collect()
    }
}

/// The steps before the one that is read: which it comes after, unless it says.
#[derive(Default)]
struct Stages {
    last: Vec<String>,
    this: Vec<String>,
}

/// Reads all steps.
pub(super) fn read_all(reader: &mut Reader<'_>, file: &Section<'_>) -> Vec<StepOfFile> {
    let mut stages = Stages::default();
    let sections = reader.sections(file, "step");
    if sections.is_empty() {
        reader.note_with(file.line, "a saga needs steps", "write each as [[step]]");
    }
    sections.into_iter().filter_map(|section| read(reader, section, &mut stages)).collect()
}

fn read(reader: &mut Reader<'_>, mut section: Section<'_>, stages: &mut Stages) -> Option<StepOfFile> {
    let name = reader.needed(&section, "name", "\"pay\"").unwrap_or_default();
    section.name = format!("step {name:?}");
    reader.knows(&section, &KNOWN);
    let subject = reader.needed(&section, "subject", "\"payment.charge\"");
    let scope = reader.needed(&section, "scope", "\"payment-service:charge\", the participant's inbox");
    let after = place(reader, &section, &name, stages);
    let payload = payload(reader, &section);
    let (undo, undo_scope, undo_payload) = compensation(reader, &section);
    let draft = Draft {
        undo,
        undo_scope,
        after,
        is_pivot: reader.truth(&section, "pivot").unwrap_or(false),
        deadline: reader.duration(&section, "deadline").unwrap_or(DEADLINE),
        attempts: reader.count(&section, "attempts").unwrap_or(1),
        pause: reader.duration(&section, "pause").unwrap_or_default(),
        subject: subject?,
        scope: scope?,
        name,
    };
    let reply = match section.get("reply") {
        Some(value) => Fields::read(reader, value, format!("{}: reply", section.name)),
        None => Fields::default(),
    };
    Some(StepOfFile { draft, line: section.line, payload: payload?, undo: undo_payload, reply })
}

/// The steps that this one comes directly after.
fn place(reader: &mut Reader<'_>, section: &Section<'_>, name: &str, stages: &mut Stages) -> Vec<String> {
    let is_parallel = reader.truth(section, "parallel").unwrap_or(false);
    if is_parallel && stages.this.is_empty() {
        let name = &section.name;
        reader.note(
            section.line,
            format!("{name} is the first: parallel means at once with the step before it"),
        );
    }
    if !is_parallel {
        stages.last = std::mem::take(&mut stages.this);
    }
    stages.this.push(name.to_owned());
    match reader.texts(section, "after") {
        Some(_) if is_parallel => {
            let name = &section.name;
            reader.note_with(
                section.line,
                format!("{name} says parallel and after"),
                "keep after, which says both",
            );
            Vec::new()
        }
        Some(after) => after,
        None => stages.last.clone(),
    }
}

fn payload(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<Template> {
    match section.get("payload") {
        Some(value) => Template::read(reader, value),
        None => {
            let name = &section.name;
            let all = "payload = { from = \"/data\" } sends all data of the saga";
            reader.note(section.line, format!("{name} needs a payload; {all}"));
            None
        }
    }
}

fn compensation(reader: &mut Reader<'_>, step: &Section<'_>) -> (Undo, Option<String>, Option<Template>) {
    let is_unneeded = reader.truth(step, "no_compensation").unwrap_or(false);
    let Some(value) = step.get("compensation") else {
        return (if is_unneeded { Undo::NotNeeded } else { Undo::Unsaid }, None, None);
    };
    if is_unneeded {
        let name = &step.name;
        reader.note_with(
            step.line,
            format!("{name} has a compensation and no_compensation"),
            "remove one of them",
        );
    }
    let Some(section) = reader.section(value, format!("{}: compensation", step.name)) else {
        return (Undo::NotNeeded, None, None);
    };
    reader.knows(&section, &["subject", "scope", "payload"]);
    let subject = reader.needed(&section, "subject", "\"payment.refund\"");
    let scope = reader.text(&section, "scope");
    let payload = payload(reader, &section);
    (subject.map_or(Undo::NotNeeded, Undo::Subject), scope, payload)
}
