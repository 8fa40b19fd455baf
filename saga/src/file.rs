//! Sagas that a file defines: the same graph, the same decisions and the same tables as those of
//! [`Definition`](crate::Definition)s in Rust, with payloads made of data and replies by JSON
//! Pointers.

mod fields;
mod reader;
mod scenario;
mod step;
mod template;

use std::sync::Arc;

use serde_json::{json, value::RawValue};
use sha2::{Digest, Sha256};

use self::{
    fields::Fields,
    reader::{Reader, Section},
    step::StepOfFile,
    template::{Document, Source, Template},
};
pub use self::{
    reader::FileMistake,
    scenario::{Outcome, Scenarios},
};
use crate::{
    definition::{Code, Inner, Make, Unreadable},
    graph::{Graph, Node, checked},
    instance::Registered,
};

const KNOWN: [&str; 5] = ["name", "version", "deadline", "data", "step"];

/// A saga as a file defines it; docs/saga-files.md has the format. Cheap to clone.
///
/// ```
/// use oncebox_saga::SagaFile;
///
/// let file = SagaFile::parse(r#"
///     name = "order"
///     version = 1
///     data = { "/order" = "integer", "/cents" = "integer" }
///     [[step]]
///     name = "pay"
///     subject = "payment.charge"
///     scope = "payment-service:charge"
///     payload = { order = { from = "/data/order" }, cents = { from = "/data/cents" } }
///     reply = { "/id" = "string" }
///     [step.compensation]
///     subject = "payment.refund"
///     payload = { id = { from = "/replies/pay/id", default = "" } }
/// "#).unwrap();
/// assert!(file.graph().mermaid().contains("pay"));
/// let mistakes = SagaFile::parse("name = \"order\"").unwrap_err();
/// assert!(mistakes.iter().any(|one| one.to_string().contains("needs version")));
/// ```
#[derive(Clone)]
pub struct SagaFile {
    inner: Arc<Inner<Document>>,
    data: Fields,
}

impl std::fmt::Debug for SagaFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SagaFile").field("graph", &self.inner.graph).finish_non_exhaustive()
    }
}

impl SagaFile {
    /// The JSON Schema (2020-12) of the format, for editors.
    pub const SCHEMA: &str = include_str!("file/schema.json");

    /// Reads a file.
    ///
    /// # Errors
    /// All mistakes, in the order of their lines. A file with one is refused as a whole.
    pub fn parse(text: &str) -> Result<Self, Vec<FileMistake>> {
        Reader::read(text, |reader, file| Self::read(reader, file, text))
    }

    fn read(reader: &mut Reader<'_>, file: &Section<'_>, text: &str) -> Option<Self> {
        reader.knows(file, &KNOWN);
        let name = reader.needed(file, "name", "\"order\"");
        if file.get("version").is_none() {
            reader.note_with(file.line, "the file needs version", "version = 1");
        }
        let version = reader.count(file, "version");
        let version = version.and_then(|version| u16::try_from(version).ok().filter(|number| *number > 0));
        if let (None, Some(value)) = (version, file.get("version")) {
            let line = reader.line(&value.span());
            reader.note(line, "the file: version is 1 to 65535");
        }
        let deadline = reader.duration(file, "deadline");
        let data = match file.get("data") {
            Some(value) => Fields::read(reader, value, "data".to_owned()),
            None => Fields::default(),
        };
        let steps = step::read_all(reader, file);
        let (name, version) = (name?, version?);
        if reader.has_mistakes() {
            return None;
        }
        let drafts: Vec<_> = steps.iter().map(|step| step.draft.clone()).collect();
        let graph = match checked(&name, version, &drafts, deadline) {
            Ok(graph) => graph,
            Err(invalid) => {
                for mistake in invalid.mistakes {
                    let step = steps.iter().rfind(|step| mistake.step() == Some(&step.draft.name));
                    reader.note(step.map_or(file.line, |step| step.line), mistake.to_string());
                }
                return None;
            }
        };
        check_sources(reader, &graph, &steps, &data);
        let needs = steps.iter().map(StepOfFile::needs).collect();
        let graph = graph.of_file(fingerprint(text)?, needs);
        let plan = plan(&graph, &data, &steps);
        let steps = steps.into_iter().map(code).collect();
        Some(Self { inner: Arc::new(Inner { graph, steps, plan: Some(plan) }), data })
    }

    /// The shape of the saga.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    pub(crate) fn registered(&self) -> Arc<dyn Registered> {
        Arc::clone(&self.inner) as Arc<dyn Registered>
    }
}

/// Differs between files that differ in more than blanks, comments and order.
fn fingerprint(text: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).ok()?;
    let digest = Sha256::digest(format!("oncebox saga file 1\n{}", json!(table)));
    Some(digest[..16].iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

/// Notes values of payloads that are not there when they are needed.
fn check_sources(reader: &mut Reader<'_>, graph: &Graph, steps: &[StepOfFile], data: &Fields) {
    for (at, step) in steps.iter().enumerate() {
        let payloads = [(Some(&step.payload), false), (step.undo.as_ref(), true)];
        for (template, is_undo) in payloads {
            for source in template.into_iter().flat_map(Template::sources) {
                if let Some((problem, remedy)) = doubt(source, (at, is_undo), graph, steps, data) {
                    let what = if is_undo { "compensation" } else { "payload" };
                    let name = &step.draft.name;
                    let text = format!("step {name:?}: {what}: {}: {problem}", source.pointer);
                    reader.note_with(source.line, text, remedy);
                }
            }
        }
    }
}

/// Why a payload may find nothing where it looks, if so, and the remedy.
fn doubt(
    source: &Source,
    (at, is_undo): (usize, bool),
    graph: &Graph,
    steps: &[StepOfFile],
    data: &Fields,
) -> Option<(String, String)> {
    let of = |place: String| move |(doubt, remedy)| (format!("in {place}, {doubt}"), remedy);
    let doubt = match source.pointer.0.as_slice() {
        [first, rest @ ..] if first == "data" => data.doubt(rest).map(of("data".to_owned())),
        [first, name, rest @ ..] if first == "replies" => {
            let Some(earlier) = graph.step(name) else {
                return Some((format!("there is no step {name:?}"), "name a step of this file".to_owned()));
            };
            if earlier == at && is_undo {
                let why = "the step is undone also when its reply never came";
                Some((why.to_owned(), "give a default".to_owned()))
            } else if !graph.nodes[earlier].descendants.contains(at) {
                let why = format!("step {name:?} does not come before this one");
                Some((why, "say after, or give a default".to_owned()))
            } else {
                steps[earlier].reply.doubt(rest).map(of(format!("the reply of {name:?}")))
            }
        }
        _ => {
            let why = "it is no place of a saga";
            return Some((why.to_owned(), "write \"/data/..\" or \"/replies/STEP/..\"".to_owned()));
        }
    };
    doubt.filter(|_| source.default.is_none())
}

/// The plan by which `start_saga` in SQL sends the first commands.
fn plan(graph: &Graph, data: &Fields, steps: &[StepOfFile]) -> String {
    let is_first = |node: &Node| node.after.iter().next().is_none();
    let first = graph.nodes.iter().zip(steps).filter(|(node, _)| is_first(node)).map(|(node, step)| {
        json!({
            "step": node.name,
            "subject": node.subject.as_str(),
            "late_in": node.deadline.as_secs_f64(),
            "payload": step.payload.plan(),
        })
    });
    let plan = json!({
        "data": data,
        "late_in": graph.deadline.map(|time| time.as_secs_f64()),
        "longest_step": graph.steps().map(str::len).max(),
        "first": first.collect::<Vec<_>>(),
    });
    plan.to_string()
}

fn code(step: StepOfFile) -> Code<Document> {
    let StepOfFile { payload, undo, reply, draft, .. } = step;
    let made = |template: Template| -> Make<Document> {
        Box::new(move |document| Ok(template.render(document)?.into_bytes()))
    };
    let (done, refused) = (draft.name.clone(), draft.name);
    Code {
        command: made(payload),
        compensation: undo.map(made),
        on_done: Some(Box::new(move |document, answer| {
            let answer = json_of(answer).ok_or_else(|| Unreadable("it is not JSON".to_owned()))?;
            reply.check(&answer).map_err(Unreadable)?;
            document.replies.insert(done.clone(), answer);
            Ok(())
        })),
        on_rejected: Some(Box::new(move |document, answer| {
            document.refusals.extend(json_of(answer).map(|answer| (refused.clone(), answer)));
            Ok(())
        })),
    }
}

/// The JSON of an answer; participants that have nothing to say may send nothing.
fn json_of(answer: &[u8]) -> Option<Box<RawValue>> {
    serde_json::from_slice(if answer.is_empty() { b"null" } else { answer }).ok()
}

#[cfg(test)]
mod tests;
