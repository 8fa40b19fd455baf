//! The changes of sagas, as a recording has them for the checker in `model/`. They have the ids of
//! sagas and the names of steps, and neither keys nor data.

use oncebox_schema::Recording;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    command::Address,
    graph::{Graph, Node},
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
    steps: Vec<Node>,
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
        Self {
            fingerprint: graph.fingerprint().to_owned(),
            name: graph.name().to_owned(),
            version: graph.version(),
            steps: graph.nodes.clone(),
        }
    }

    /// The graph, without deadlines and pauses.
    #[must_use]
    pub fn graph(&self) -> Graph {
        Graph::drawn(&self.name, self.version, &self.fingerprint, self.steps.clone())
    }
}
