//! The shape of a definition: which step comes after which, where it can still be undone, and the
//! mistakes that a shape can have. Pure.

mod mistake;
mod set;

use std::{fmt::Write as _, time::Duration};

use oncebox_schema::{Key, Subject};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::command::Address;
pub use mistake::{InvalidDefinition, Mistake};
pub(crate) use set::{STEPS_MAX, StepSet};

const DEADLINE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
const ATTEMPTS_MAX: u32 = 1000;
/// The limit of an inbox's scope.
const SCOPE_BYTES_MAX: usize = 255;

/// A step as it was written down, before anything is checked.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) subject: String,
    /// The scope of the participant's inbox.
    pub(crate) scope: String,
    pub(crate) undo: Undo,
    /// The scope of the inbox that takes the compensation, if it is another.
    pub(crate) undo_scope: Option<String>,
    pub(crate) after: Vec<String>,
    pub(crate) is_pivot: bool,
    pub(crate) deadline: Duration,
    pub(crate) attempts: u32,
    pub(crate) pause: Duration,
}

/// The compensation of a step, as the definition has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    Unsaid,
    NotNeeded,
    Subject(String),
}

/// The shape of a definition. An instance keeps it to its end, and a change needs a new version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    name: String,
    version: u16,
    fingerprint: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) deadline: Option<Duration>,
}

/// A step of a [`Graph`], checked. A recording has the parts that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) subject: Subject,
    pub(crate) scope: String,
    pub(crate) compensation: Option<Subject>,
    pub(crate) undo_scope: String,
    pub(crate) is_pivot: bool,
    /// It comes after the pivot.
    #[serde(skip)]
    pub(crate) is_forward_only: bool,
    #[serde(skip)]
    pub(crate) deadline: Duration,
    pub(crate) attempts: u32,
    #[serde(skip)]
    pub(crate) pause: Duration,
    /// The steps that it comes directly after.
    pub(crate) after: StepSet,
    /// All that comes after it, at any distance.
    pub(crate) descendants: StepSet,
    /// Of a file: the fields of earlier replies that its commands cannot do without.
    #[serde(skip)]
    pub(crate) needs: Vec<Need>,
}

/// A field of the reply of an earlier step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Need {
    pub(crate) step: String,
    /// As a JSON Pointer, and its parts.
    pub(crate) field: String,
    pub(crate) path: Vec<String>,
}

impl Node {
    /// The scope of the inbox that takes its commands, or those that undo it.
    pub(crate) fn scope(&self, is_undo: bool) -> &str {
        if is_undo { &self.undo_scope } else { &self.scope }
    }
}

/// A step, as operators see it.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    after: Vec<&'a str>,
    is_pivot: bool,
    subject: &'a str,
    compensation: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    needs: &'a [Need],
}

impl Graph {
    /// The name of the definition, which is the type of its instances.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the definition.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Differs between shapes: names, order, subjects, compensations and the pivot; not deadlines,
    /// attempts and scopes, which may change under a version.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The graph of a recording.
    pub(crate) fn drawn(name: &str, version: u16, fingerprint: &str, nodes: Vec<Node>) -> Self {
        let (name, fingerprint) = (name.to_owned(), fingerprint.to_owned());
        Self { name, version, fingerprint, nodes, deadline: None }
    }

    /// The graph of a file, in which more than the shape belongs to the version.
    pub(crate) fn of_file(mut self, fingerprint: String, needs: Vec<Vec<Need>>) -> Self {
        self.fingerprint = fingerprint;
        self.nodes.iter_mut().zip(needs).for_each(|(node, needs)| node.needs = needs);
        self
    }

    /// The names of the steps, in the order of the definition.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    pub(crate) fn step(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// The scope of the participant's inbox that takes a command, which is named by the part of its
    /// key after the saga's key: `pay`, `pay:undo`, `pay:#2`. `None` when no step sends it.
    #[must_use]
    pub fn scope(&self, command: &str) -> Option<&str> {
        let address = Address::parse(&format!("saga:{command}").parse().ok()?)?;
        if address.saga.as_str() != "saga" {
            return None;
        }
        Some(self.nodes[self.step(&address.step)?].scope(address.is_undo))
    }

    /// The graph as Mermaid draws it. Keep this text in a file beside the definition, and compare
    /// it in a test: a change by mistake is seen there, before it meets an instance.
    ///
    /// A solid arrow leads to the next step; a dotted one to the compensation. The pivot is a
    /// hexagon.
    #[must_use]
    pub fn mermaid(&self) -> String {
        let mut text = format!("flowchart LR\n  start([\"{} {}\"])\n", self.name, self.version);
        for (at, node) in self.nodes.iter().enumerate() {
            let (open, close) = if node.is_pivot { ("{{", "}}") } else { ("[", "]") };
            let _ = writeln!(text, "  s{at}{open}\"{}<br/>{}\"{close}", node.name, node.subject);
            if let Some(subject) = &node.compensation {
                let _ = writeln!(text, "  s{at} -.-> u{at}([\"{subject}\"])");
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if node.after == StepSet::default() {
                let _ = writeln!(text, "  start --> s{at}");
            }
            for before in node.after.iter() {
                let _ = writeln!(text, "  s{before} --> s{at}");
            }
        }
        text
    }

    /// The steps as JSON, for those who have no definition at hand: an array of objects with name,
    /// after (names), is_pivot, subject and compensation (a subject or null); of a file also needs,
    /// the fields of the replies of earlier steps that its commands cannot do without.
    #[must_use]
    pub fn json(&self) -> String {
        let shown: Vec<Shown<'_>> = self.nodes.iter().map(|node| self.shown(node)).collect();
        serde_json::to_string(&shown).expect("names and subjects are text")
    }

    fn shown<'a>(&'a self, node: &'a Node) -> Shown<'a> {
        Shown {
            name: &node.name,
            after: node.after.iter().map(|step| self.nodes[step].name.as_str()).collect(),
            is_pivot: node.is_pivot,
            subject: node.subject.as_str(),
            compensation: node.compensation.as_ref().map(Subject::as_str),
            needs: &node.needs,
        }
    }
}

/// The graph of these steps, if nothing is wrong with them.
pub(crate) fn checked(
    name: &str,
    version: u16,
    drafts: &[Draft],
    deadline: Option<Duration>,
) -> Result<Graph, InvalidDefinition> {
    let mut mistakes = Vec::new();
    if !is_step_name(name) {
        mistakes.push(Mistake::Name);
    }
    if !(1..=STEPS_MAX).contains(&drafts.len()) {
        mistakes.push(Mistake::StepCount(drafts.len()));
    }
    if deadline.is_some_and(|deadline| !is_deadline(deadline)) {
        mistakes.push(Mistake::OverallDeadline);
    }
    let mut nodes: Vec<Node> = Vec::new();
    if mistakes.is_empty() {
        nodes = drafts.iter().enumerate().filter_map(|(at, _)| node(drafts, at, &mut mistakes)).collect();
    }
    if mistakes.is_empty() {
        order(&mut nodes, &mut mistakes);
    }
    if mistakes.is_empty() {
        place_pivot(&mut nodes, drafts, &mut mistakes);
    }
    if !mistakes.is_empty() {
        return Err(InvalidDefinition { name: name.to_owned(), version, mistakes });
    }
    let mut graph = Graph { name: name.to_owned(), version, fingerprint: String::new(), nodes, deadline };
    let text = format!("oncebox saga 1\n{name}\n{version}\n{}", graph.json());
    let digest = Sha256::digest(text.as_bytes());
    graph.fingerprint = digest[..16].iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    Ok(graph)
}

/// The checks of a step by itself.
fn node(drafts: &[Draft], at: usize, mistakes: &mut Vec<Mistake>) -> Option<Node> {
    let draft = &drafts[at];
    let step = || draft.name.clone();
    let before = mistakes.len();
    if !is_step_name(&draft.name) {
        mistakes.push(Mistake::StepName(step()));
    }
    if drafts[..at].iter().any(|other| other.name == draft.name) {
        mistakes.push(Mistake::Duplicate(step()));
    }
    if !is_deadline(draft.deadline) {
        mistakes.push(Mistake::Deadline(step()));
    }
    if !(1..=ATTEMPTS_MAX).contains(&draft.attempts) || draft.pause > DEADLINE_MAX {
        mistakes.push(Mistake::Attempts(step()));
    }
    let scopes = [Some(&draft.scope), draft.undo_scope.as_ref()];
    for scope in scopes.into_iter().flatten().filter(|scope| !is_scope(scope)) {
        mistakes.push(Mistake::Scope { step: step(), scope: scope.clone() });
    }
    let mut after = StepSet::default();
    for name in &draft.after {
        match drafts.iter().position(|other| other.name == *name) {
            Some(found) => after.insert(found),
            None => mistakes.push(Mistake::Undefined { step: step(), after: name.clone() }),
        }
    }
    let mut subject = |text: &str| {
        let parsed = text.parse::<Subject>();
        parsed.map_err(|problem| {
            let (subject, problem) = (text.to_owned(), problem.to_string());
            mistakes.push(Mistake::Subject { step: step(), subject, problem });
        })
    };
    let command = subject(&draft.subject);
    let compensation = match &draft.undo {
        Undo::Subject(text) => subject(text).map(Some),
        Undo::Unsaid | Undo::NotNeeded => Ok(None),
    };
    let (Ok(subject), Ok(compensation)) = (command, compensation) else { return None };
    (mistakes.len() == before).then(|| Node {
        name: step(),
        subject,
        // A header, which brings the scope of a death, has no blanks at its ends.
        scope: draft.scope.trim().to_owned(),
        compensation,
        undo_scope: draft.undo_scope.as_ref().unwrap_or(&draft.scope).trim().to_owned(),
        is_pivot: draft.is_pivot,
        is_forward_only: false,
        deadline: draft.deadline,
        attempts: draft.attempts,
        pause: draft.pause,
        after,
        descendants: StepSet::default(),
        needs: Vec::new(),
    })
}

/// Finds the steps after each step, or that steps wait for one another.
fn order(nodes: &mut [Node], mistakes: &mut Vec<Mistake>) {
    // All that comes before a step, at any distance: as many rounds as the longest way has steps.
    let mut before: Vec<StepSet> = nodes.iter().map(|node| node.after).collect();
    for _ in 0..nodes.len() {
        for at in 0..nodes.len() {
            before[at].0 |= before[at].iter().fold(0, |all, step| all | before[step].0);
        }
    }
    let is_in_cycle = |step: usize| before[step].contains(step);
    let cycle: Vec<String> =
        (0..nodes.len()).filter(|step| is_in_cycle(*step)).map(|step| nodes[step].name.clone()).collect();
    if !cycle.is_empty() {
        mistakes.push(Mistake::Cycle(cycle));
    }
    for (at, node) in nodes.iter().enumerate() {
        if !is_in_cycle(at) && before[at].iter().any(is_in_cycle) {
            mistakes.push(Mistake::Unreachable(node.name.clone()));
        }
    }
    for (at, earlier) in before.iter().enumerate() {
        for step in earlier.iter() {
            nodes[step].descendants.insert(at);
        }
    }
}

/// Finds the side of the pivot of each step, and that each step says how it is undone.
fn place_pivot(nodes: &mut [Node], drafts: &[Draft], mistakes: &mut Vec<Mistake>) {
    let pivots: Vec<usize> = (0..nodes.len()).filter(|step| nodes[*step].is_pivot).collect();
    if let [first, second, ..] = pivots[..] {
        mistakes.push(Mistake::TwoPivots(nodes[first].name.clone(), nodes[second].name.clone()));
        return;
    }
    if let [pivot] = pivots[..] {
        for step in 0..nodes.len() {
            nodes[step].is_forward_only = nodes[pivot].descendants.contains(step);
            let is_before = nodes[step].descendants.contains(pivot);
            if step != pivot && !is_before && !nodes[step].is_forward_only {
                let (step, pivot) = (nodes[step].name.clone(), nodes[pivot].name.clone());
                mistakes.push(Mistake::BesidePivot { step, pivot });
            }
        }
    }
    for (node, draft) in nodes.iter().zip(drafts) {
        if node.is_forward_only && node.compensation.is_some() {
            mistakes.push(Mistake::CompensationAfterPivot(node.name.clone()));
        }
        if draft.undo == Undo::Unsaid && !node.is_forward_only && !node.is_pivot {
            mistakes.push(Mistake::Unsaid(node.name.clone()));
        }
    }
}

fn is_step_name(name: &str) -> bool {
    Key::root("k").and_then(|key| key.step(name)).is_ok()
}

fn is_scope(text: &str) -> bool {
    (1..=SCOPE_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn is_deadline(time: Duration) -> bool {
    (Duration::from_millis(1)..=DEADLINE_MAX).contains(&time)
}

#[cfg(test)]
pub(crate) mod tests;
