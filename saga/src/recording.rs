//! The changes of sagas, as a recording has them for the checker in `model/`. They have the ids of
//! sagas and the names of steps, and neither keys nor data.

use std::time::Duration;

use oncebox_schema::Recording;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    command::Address,
    graph::{Graph, Node, StepSet},
    instance::{History, Instance},
    progress::{Command, Event, Progress},
};

/// A change of a saga that a transaction is about to write.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "public only for the specification, by `rules`")]
pub struct Change {
    pub saga: i64,
    /// The fingerprint of its graph.
    pub graph: String,
    /// The revision that was read; 0 when the saga begins.
    pub revision: i64,
    pub before: Progress,
    pub events: Vec<Event>,
    pub after: Progress,
    /// The commands that go out with it.
    pub sent: Vec<Command>,
}

/// A graph, as far as decisions depend on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drawing {
    fingerprint: String,
    name: String,
    version: u16,
    steps: Vec<Drawn>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Drawn {
    name: String,
    scope: String,
    undo_scope: String,
    subject: String,
    compensation: Option<String>,
    is_pivot: bool,
    attempts: u32,
    after: Vec<usize>,
    descendants: Vec<usize>,
}

impl Change {
    fn of(instance: &Instance, history: &History) -> Self {
        let graph = instance.process.graph();
        let command = |address: Address| {
            let Address { step, is_undo, attempt, .. } = address;
            graph.step(&step).map(|step| Command { step, is_undo, attempt })
        };
        let sent = instance.messages.iter().filter_map(|message| Address::parse(message.key()));
        Self {
            saga: instance.id,
            graph: graph.fingerprint().to_owned(),
            revision: instance.revision,
            before: history.before.clone(),
            events: history.events.clone(),
            after: instance.progress.clone(),
            sent: sent.filter_map(command).collect(),
        }
    }
}

/// The change of an instance is about to be written.
pub(crate) fn changing(recording: Option<&Recording>, instance: &Instance) {
    let Some((recording, history)) = recording.zip(instance.history.as_ref()) else { return };
    recording.write("changing", json!(Change::of(instance, history)));
}

/// A saga is about to be put in quarantine.
pub(crate) fn quarantining(recording: Option<&Recording>, saga: i64) {
    let Some(recording) = recording else { return };
    recording.write("quarantining", json!({ "saga": saga }));
}

impl Drawing {
    pub(crate) fn of(graph: &Graph) -> Self {
        let drawn = |node: &Node| Drawn {
            name: node.name.clone(),
            scope: node.scope.clone(),
            undo_scope: node.undo_scope.clone(),
            subject: node.subject.as_str().to_owned(),
            compensation: node.compensation.as_ref().map(|subject| subject.as_str().to_owned()),
            is_pivot: node.is_pivot,
            attempts: node.attempts,
            after: node.after.iter().collect(),
            descendants: node.descendants.iter().collect(),
        };
        Self {
            fingerprint: graph.fingerprint().to_owned(),
            name: graph.name().to_owned(),
            version: graph.version(),
            steps: graph.nodes.iter().map(drawn).collect(),
        }
    }

    /// The graph, without deadlines and pauses; `None` if a subject is none.
    #[must_use]
    pub fn graph(&self) -> Option<Graph> {
        let set = |steps: &[usize]| {
            let mut set = StepSet::default();
            steps.iter().for_each(|step| set.insert(*step));
            set
        };
        let node = |drawn: &Drawn| {
            let compensation = drawn.compensation.as_ref().map(|subject| subject.parse()).transpose();
            Some(Node {
                name: drawn.name.clone(),
                subject: drawn.subject.parse().ok()?,
                scope: drawn.scope.clone(),
                compensation: compensation.ok()?,
                undo_scope: drawn.undo_scope.clone(),
                is_pivot: drawn.is_pivot,
                is_forward_only: false,
                deadline: Duration::ZERO,
                attempts: drawn.attempts,
                pause: Duration::ZERO,
                after: set(&drawn.after),
                descendants: set(&drawn.descendants),
            })
        };
        let nodes = self.steps.iter().map(node).collect::<Option<Vec<Node>>>()?;
        Some(Graph::drawn(&self.name, self.version, &self.fingerprint, nodes))
    }
}
