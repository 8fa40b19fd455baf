//! Sagas as flowcharts for Mermaid: the steps of a definition with their commands, or those of an
//! instance, each with its state.

use oncebox_operator::SagaDrawing as Drawing;

const CLASSES: &str = "  classDef pending fill:#fff,stroke-dasharray:4
  classDef sent,running,undoing,compensating fill:#cde
  classDef done,completed fill:#cec
  classDef undone,compensated,rejected fill:#eee
  classDef failed,undo_failed,stuck,quarantined,abandoned fill:#ecc
";

pub(super) fn draw(drawing: &Drawing<'_>) -> String {
    match drawing.state {
        Some(state) => instance(drawing, state),
        None => definition(drawing),
    }
}

/// The drawing of `Graph::mermaid` of the crate `saga`.
fn definition(drawing: &Drawing<'_>) -> String {
    let mut text = format!("flowchart LR\n  start([\"{}\"])\n", drawing.title);
    for (at, node) in drawing.nodes.iter().enumerate() {
        let [open, close] = brackets(node.is_pivot);
        text += &format!("  s{at}{open}\"{}<br/>{}\"{close}\n", node.name, node.subject);
        if let Some(subject) = node.compensation {
            text += &format!("  s{at} -.-> u{at}([\"{subject}\"])\n");
        }
    }
    for (at, node) in drawing.nodes.iter().enumerate() {
        if node.after.is_empty() {
            text += &format!("  start --> s{at}\n");
        }
        for before in &node.after {
            text += &format!("  s{before} --> s{at}\n");
        }
    }
    text
}

fn instance(drawing: &Drawing<'_>, ended: &str) -> String {
    let mut text = String::from("flowchart LR\n");
    for (at, node) in drawing.nodes.iter().enumerate() {
        let (state, class) = (node.state(), node.state().replace('-', "_"));
        let [open, close] = brackets(node.is_pivot);
        text += &format!("  s{at}{open}\"{}<br/>{state}\"{close}:::{class}\n", node.name);
        for before in &node.after {
            text += &format!("  s{before} --> s{at}\n");
        }
        if node.is_undone() {
            text += &format!("  s{at} -.-> u{at}([\"{}:undo\"]):::{class}\n", node.name);
        }
    }
    text += &format!("  ended([\"{ended}\"]):::{ended}\n");
    for at in (0..drawing.nodes.len()).filter(|at| drawing.is_last(*at)) {
        text += &format!("  s{at} --> ended\n");
    }
    text + CLASSES
}

/// The pivot is a hexagon.
fn brackets(is_pivot: bool) -> [&'static str; 2] {
    if is_pivot { ["{{", "}}"] } else { ["[", "]"] }
}
