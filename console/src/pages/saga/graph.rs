//! A saga's graph: a column for each layer of steps, from left to right. A step that remains has a
//! dashed frame, the pivot a double one.

use maud::{Markup, html};
use oncebox_operator::{SagaDrawing, SagaNode};

const BOX: (usize, usize) = (190, 58);
const GAP: (usize, usize) = (46, 22);
const MARGIN: usize = 8;
/// The longest text; the rest is cut off, so that it stays in its box.
const TEXT_MAX: usize = 25;

pub(super) fn draw(drawing: &SagaDrawing<'_>) -> Markup {
    let places = drawing.places();
    let columns = places.iter().map(|(column, _)| column + 1).max().unwrap_or(0);
    let rows = places.iter().map(|(_, row)| row + 1).max().unwrap_or(0);
    let size = |count: usize, length: usize, gap: usize| count * (length + gap) + 2 * MARGIN;
    let (width, height) = (size(columns, BOX.0, GAP.0), size(rows, BOX.1, GAP.1));
    let steps: Vec<String> =
        drawing.nodes.iter().map(|node| format!("{} is {}", node.name, state(node))).collect();
    let label = format!("Steps: {}", steps.join(", "));
    html! {
        div.scroll tabindex="0" {
            svg.graph viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) role="img" aria-label=(label) {
                @for (node, place) in drawing.nodes.iter().zip(&places) {
                    @for before in &node.after { path d=(arrow(corner(places[*before]), corner(*place))) {} }
                }
                @for (node, place) in drawing.nodes.iter().zip(&places) { (step(node, corner(*place))) }
            }
        }
    }
}

fn state<'a>(node: &SagaNode<'a>) -> &'a str {
    if node.sent.is_none() { "remaining" } else { node.state() }
}

/// The upper left one of a box.
fn corner((column, row): (usize, usize)) -> (usize, usize) {
    (MARGIN + column * (BOX.0 + GAP.0), MARGIN + row * (BOX.1 + GAP.1))
}

/// From the right side of one box to the left side of another, with a head.
fn arrow(from: (usize, usize), to: (usize, usize)) -> String {
    let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
    let bend = GAP.0 / 2;
    format!("M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}m-6-4l6 4l-6 4", x1 + bend, x2.saturating_sub(bend))
}

fn step(node: &SagaNode<'_>, (x, y): (usize, usize)) -> Markup {
    let (width, height) = BOX;
    let class = match state(node) {
        "done" => "good",
        "sent" => "calm",
        "undoing" => "warn",
        "failed" | "undo-failed" => "bad",
        "remaining" => "rest",
        _ => "gone",
    };
    let third = match (node.is_undone(), node.compensation) {
        (true, _) => format!("undo: attempt {}", node.sent.map_or(0, |sent| sent.undo_attempt)),
        (false, Some(subject)) => format!("undo: {subject}"),
        (false, None) => String::new(),
    };
    let lines = [(18, "name", node.name), (34, "", state(node)), (49, "", third.as_str())];
    html! {
        g {
            title { (node.name) ": " (state(node)) }
            rect.(class) x=(x) y=(y) width=(width) height=(height) rx="6" {}
            @if node.is_pivot { rect.inner.(class) x=(x + 3) y=(y + 3) width=(width - 6) height=(height - 6) rx="4" {} }
            @for (line, class, text) in lines {
                text class=[(!class.is_empty()).then_some(class)] x=(x + width / 2) y=(y + line) text-anchor="middle" { (cut(text)) }
            }
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
