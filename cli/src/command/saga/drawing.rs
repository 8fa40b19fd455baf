//! The content of pictures of sagas: the steps of a definition and, for an instance, how far each
//! step is.

use oncebox_operator::{SagaDefinition, SagaDetails, SagaGraphStep, SagaStep};

/// A graph to draw.
pub(super) struct Drawing<'a> {
    /// The key of an instance, or the type and version of a definition.
    pub(super) title: String,
    /// The state of the instance; `None` for a definition.
    pub(super) state: Option<&'a str>,
    pub(super) nodes: Vec<Node<'a>>,
}

/// A step.
pub(super) struct Node<'a> {
    pub(super) name: &'a str,
    /// The steps that it comes after, as places in `Drawing::nodes`.
    pub(super) after: Vec<usize>,
    pub(super) is_pivot: bool,
    /// The subjects of its command and of its compensation.
    pub(super) subject: &'a str,
    pub(super) compensation: Option<&'a str>,
    /// The step of the instance; `None` when its command was not sent, or there is no instance.
    pub(super) sent: Option<&'a SagaStep>,
}

impl<'a> Drawing<'a> {
    pub(super) fn of_definition(definition: &'a SagaDefinition) -> Self {
        let title = format!("{} {}", definition.saga_type, definition.version);
        Self { title, state: None, nodes: nodes(&definition.graph, &[]) }
    }

    /// Shows all steps of the definition. Where the definition is not known, it shows the steps
    /// that were sent, as if each came after the one before.
    pub(super) fn of_instance(details: &'a SagaDetails) -> Self {
        let (sent, saga) = (&details.progress.steps, &details.progress.saga);
        let nodes = match &details.graph {
            Some(graph) => nodes(graph, sent),
            None => sent.iter().enumerate().map(|(place, step)| Node::of_sent(place, step)).collect(),
        };
        Self { title: saga.key.clone(), state: Some(&saga.state), nodes }
    }

    /// Whether nothing comes after a step.
    pub(super) fn is_last(&self, place: usize) -> bool {
        !self.nodes.iter().any(|node| node.after.contains(&place))
    }
}

impl<'a> Node<'a> {
    fn of_sent(place: usize, step: &'a SagaStep) -> Self {
        Self {
            name: &step.step,
            after: place.checked_sub(1).into_iter().collect(),
            is_pivot: false,
            subject: &step.subject,
            compensation: step.undo_subject.as_deref(),
            sent: Some(step),
        }
    }

    pub(super) fn state(&self) -> &'a str {
        self.sent.map_or("pending", |sent| &sent.state)
    }

    /// Whether its compensation was sent.
    pub(super) fn is_undone(&self) -> bool {
        self.sent.is_some_and(|sent| sent.undo_attempt > 0)
    }
}

fn nodes<'a>(graph: &'a [SagaGraphStep], sent: &'a [SagaStep]) -> Vec<Node<'a>> {
    let place = |name: &String| graph.iter().position(|step| step.name == *name);
    let node = |step: &'a SagaGraphStep| Node {
        name: &step.name,
        after: step.after.iter().filter_map(place).collect(),
        is_pivot: step.is_pivot,
        subject: &step.subject,
        compensation: step.compensation.as_deref(),
        sent: sent.iter().find(|sent| sent.step == step.name),
    };
    graph.iter().map(node).collect()
}
