//! A saga as a flowchart for Mermaid: the steps of its definition, each with its state and its
//! compensation; those that were sent, in that order, where the definition is not known.

use oncebox_relay::{SagaDetails, SagaGraphStep, SagaStep};

const CLASSES: &str = "  classDef pending fill:#fff,stroke-dasharray:4
  classDef sent,running,undoing,compensating fill:#cde
  classDef done,completed fill:#cec
  classDef undone,compensated,rejected fill:#eee
  classDef failed,undo_failed,stuck,quarantined,abandoned fill:#ecc
";

pub(super) fn draw(details: &SagaDetails) -> String {
    let (sent, saga) = (&details.progress.steps, &details.progress.saga);
    let nodes: Vec<Node<'_>> = match &details.graph {
        Some(graph) => graph.iter().map(|step| Node::of_graph(step, sent)).collect(),
        None => (0..sent.len()).map(|place| Node::of_sent(sent, place)).collect(),
    };
    let number = |name: &str| nodes.iter().position(|node| node.name == name);
    let mut text = String::from("flowchart LR\n");
    for (at, node) in nodes.iter().enumerate() {
        let (state, class) = (node.state(), node.state().replace('-', "_"));
        let [open, close] = if node.is_pivot { ["{{", "}}"] } else { ["[", "]"] };
        text += &format!("  s{at}{open}\"{}<br/>{state}\"{close}:::{class}\n", node.name);
        for before in node.after.iter().filter_map(|before| number(before)) {
            text += &format!("  s{before} --> s{at}\n");
        }
        if node.sent.is_some_and(|sent| sent.undo_attempt > 0) {
            text += &format!("  s{at} -.-> u{at}([\"{}:undo\"]):::{class}\n", node.name);
        }
    }
    text += &format!("  ended([\"{0}\"]):::{0}\n", saga.state);
    for (at, node) in nodes.iter().enumerate() {
        if !nodes.iter().any(|other| other.after.contains(&node.name)) {
            text += &format!("  s{at} --> ended\n");
        }
    }
    text + CLASSES
}

struct Node<'a> {
    name: &'a str,
    after: Vec<&'a str>,
    is_pivot: bool,
    sent: Option<&'a SagaStep>,
}

impl<'a> Node<'a> {
    fn of_graph(step: &'a SagaGraphStep, sent: &'a [SagaStep]) -> Self {
        Self {
            name: &step.name,
            after: step.after.iter().map(String::as_str).collect(),
            is_pivot: step.is_pivot,
            sent: sent.iter().find(|sent| sent.step == step.name),
        }
    }

    /// One after the other.
    fn of_sent(sent: &'a [SagaStep], place: usize) -> Self {
        let before = place.checked_sub(1).map(|place| sent[place].step.as_str());
        Self {
            name: &sent[place].step,
            after: before.into_iter().collect(),
            is_pivot: false,
            sent: Some(&sent[place]),
        }
    }

    fn state(&self) -> &'a str {
        self.sent.map_or("pending", |sent| &sent.state)
    }
}
