//! The content of pictures of sagas: the steps of a definition and, for an instance, how far each
//! step is.

use super::{SagaDefinition, SagaDetails, SagaGraphStep, SagaStep};

/// A graph to draw.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a definition or an instance is made one of")]
pub struct Drawing<'a> {
    /// The key of an instance, or the type and version of a definition.
    pub title: String,
    /// The state of the instance; `None` for a definition.
    pub state: Option<&'a str>,
    /// The steps.
    pub nodes: Vec<Node<'a>>,
}

/// A step.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the same")]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// The steps that it comes after, as places in `Drawing::nodes`.
    pub after: Vec<usize>,
    /// Whether only a way forward is left after it.
    pub is_pivot: bool,
    /// The subject of its command.
    pub subject: &'a str,
    /// The subject of its compensation, if it has one.
    pub compensation: Option<&'a str>,
    /// The step of the instance; `None` when its command was not sent, or there is no instance.
    pub sent: Option<&'a SagaStep>,
}

impl<'a> Drawing<'a> {
    /// Shows a definition.
    #[must_use]
    pub fn of_definition(definition: &'a SagaDefinition) -> Self {
        let title = format!("{} {}", definition.saga_type, definition.version);
        Self { title, state: None, nodes: nodes(&definition.graph, &[]) }
    }

    /// Shows all steps of the definition. Where the definition is not known, it shows the steps
    /// that were sent, as if each came after the one before.
    #[must_use]
    pub fn of_instance(details: &'a SagaDetails) -> Self {
        let (sent, saga) = (&details.progress.steps, &details.progress.saga);
        let nodes = match &details.graph {
            Some(graph) => nodes(graph, sent),
            None => sent.iter().enumerate().map(|(place, step)| Node::of_sent(place, step)).collect(),
        };
        Self { title: saga.key.clone(), state: Some(&saga.state), nodes }
    }

    /// Whether nothing comes after a step.
    #[must_use]
    pub fn is_last(&self, place: usize) -> bool {
        !self.nodes.iter().any(|node| node.after.contains(&place))
    }
}

impl Drawing<'_> {
    /// The column and the row of each step: a step stands one column to the right of the last of
    /// those that it comes after, so every arrow leads to the right.
    #[must_use]
    pub fn places(&self) -> Vec<(usize, usize)> {
        let nodes = &self.nodes;
        // As many rounds as the longest way can have steps. A circle, which no definition has, ends
        // there too.
        let mut columns = vec![0_usize; nodes.len()];
        for _ in 0..nodes.len() {
            for (at, node) in nodes.iter().enumerate() {
                let behind = node.after.iter().map(|before| columns[*before] + 1).max().unwrap_or(0);
                columns[at] = columns[at].max(behind.min(nodes.len() - 1));
            }
        }
        let row = |at: usize| columns[..at].iter().filter(|column| **column == columns[at]).count();
        (0..nodes.len()).map(|at| (columns[at], row(at))).collect()
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

    /// Its state; `pending` before its command is sent.
    #[must_use]
    pub fn state(&self) -> &'a str {
        self.sent.map_or("pending", |sent| &sent.state)
    }

    /// Whether its compensation was sent.
    #[must_use]
    pub fn is_undone(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(after: &[&[usize]], expected: &[(usize, usize)]) {
        let node = |after: &&[usize]| Node {
            name: "a",
            after: after.to_vec(),
            is_pivot: false,
            subject: "do",
            compensation: None,
            sent: None,
        };
        let drawing = Drawing { title: String::new(), state: None, nodes: after.iter().map(node).collect() };
        assert_eq!(drawing.places(), expected, "{after:?}");
    }

    #[test]
    fn a_step_stands_right_of_all_that_it_comes_after() {
        // Two at once, one that joins them, and one that comes after the first alone.
        check(&[&[], &[0], &[0], &[1, 2], &[0]], &[(0, 0), (1, 0), (1, 1), (2, 0), (1, 2)]);
        // Written down before its predecessor.
        check(&[&[1], &[]], &[(1, 0), (0, 0)]);
        // A circle, which no definition has, ends all the same.
        check(&[&[1], &[0]], &[(1, 0), (1, 1)]);
    }
}
