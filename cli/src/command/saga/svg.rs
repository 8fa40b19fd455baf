//! Sagas as SVG: a column for each layer of steps, from left to right. A step stands one column to
//! the right of the last of those that it comes after, so every arrow leads to the right.

use std::fmt::Write as _;

use oncebox_operator::{SagaDrawing as Drawing, SagaNode as Node};

const BOX: (usize, usize) = (200, 58);
const GAP: (usize, usize) = (50, 26);
const MARGIN: usize = 20;
const TITLE: usize = 30;

/// The longest text; the rest is cut off, so that it stays in its box.
const TEXT_MAX: usize = 28;

pub(super) fn draw(drawing: &Drawing<'_>) -> String {
    let places = drawing.places();
    let (columns, rows) = places
        .iter()
        .fold((0, 0), |(columns, rows), (column, row)| (columns.max(column + 1), rows.max(row + 1)));
    let size = |count: usize, length: usize, gap: usize| count * (length + gap) + 2 * MARGIN;
    let (width, height) =
        (size(columns, BOX.0, GAP.0).saturating_sub(GAP.0), TITLE + size(rows, BOX.1, GAP.1));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    let title = drawing.state.map_or(drawing.title.clone(), |state| format!("{}: {state}", drawing.title));
    let _ = writeln!(
        text,
        "  <text x=\"{MARGIN}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{}</text>",
        MARGIN + 6,
        escaped(&title)
    );
    for (at, node) in drawing.nodes.iter().enumerate() {
        for before in &node.after {
            text += &arrow(corner(places[*before]), corner(places[at]));
        }
    }
    for (node, place) in drawing.nodes.iter().zip(&places) {
        text += &step(node, corner(*place), drawing.state.is_some());
    }
    text + "</svg>\n"
}

/// The upper left one of a box.
fn corner((column, row): (usize, usize)) -> (usize, usize) {
    (MARGIN + column * (BOX.0 + GAP.0), TITLE + MARGIN + row * (BOX.1 + GAP.1))
}

/// From the right side of one box to the left side of another, with a head.
fn arrow(from: (usize, usize), to: (usize, usize)) -> String {
    let (x1, y1) = (from.0 + BOX.0, from.1 + BOX.1 / 2);
    let (x2, y2) = (to.0, to.1 + BOX.1 / 2);
    let bend = GAP.0 / 2;
    format!(
        "  <path d=\"M{x1} {y1} C{} {y1} {} {y2} {x2} {y2} m-7 -4 l7 4 l-7 4\" fill=\"none\" stroke=\"#555\"/>\n",
        x1 + bend,
        x2.saturating_sub(bend)
    )
}

/// A box with three lines: the name, the state or the subject, and the compensation. The pivot's
/// box has a double frame.
fn step(node: &Node<'_>, (x, y): (usize, usize), is_instance: bool) -> String {
    let (width, height) = BOX;
    let fill = if is_instance { fill(node.state()) } else { "#fff" };
    let dashes = if is_instance && node.sent.is_none() { " stroke-dasharray=\"4\"" } else { "" };
    let mut text = format!("  <g>\n    <title>{}</title>\n", escaped(node.name));
    let mut frame = |inset: usize, fill: &str| {
        let _ = writeln!(
            text,
            "    <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{fill}\" stroke=\"#333\"{dashes}/>",
            x + inset,
            y + inset,
            width - 2 * inset,
            height - 2 * inset
        );
    };
    frame(0, fill);
    if node.is_pivot {
        frame(3, "none");
    }
    let second = if is_instance { node.state() } else { node.subject };
    let third = match (is_instance, node.compensation) {
        (false, Some(subject)) => format!("undo: {subject}"),
        (true, _) if node.is_undone() => {
            format!("undo: attempt {}", node.sent.map_or(0, |sent| sent.undo_attempt))
        }
        _ => String::new(),
    };
    for (line, weight, words) in [(18, "bold", node.name), (34, "normal", second), (49, "normal", &*third)] {
        if !words.is_empty() {
            let _ = writeln!(
                text,
                "    <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"{weight}\">{}</text>",
                x + width / 2,
                y + line,
                escaped(&cut(words))
            );
        }
    }
    text + "  </g>\n"
}

fn fill(state: &str) -> &'static str {
    match state {
        "sent" | "undoing" => "#cde",
        "done" => "#cec",
        "undone" | "rejected" => "#eee",
        "pending" => "#fff",
        _ => "#ecc",
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text between two tags.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node<'a>(name: &'a str, after: &[usize]) -> Node<'a> {
        let (after, subject) = (after.to_vec(), "do");
        Node { name, after, is_pivot: false, subject, compensation: Some("undo <it> & all"), sent: None }
    }

    #[test]
    fn texts_are_escaped_and_cut() {
        let long = "x".repeat(100);
        let nodes = vec![node("<a & \"b\">\u{1b}", &[]), node(&long, &[0])];
        let text = draw(&Drawing { title: "1 < 2".to_owned(), state: None, nodes });
        for part in ["1 &lt; 2", "&lt;a &amp; &quot;b&quot;&gt; <", "undo: undo &lt;it&gt; &amp; all"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains(&format!(">{}…<", "x".repeat(TEXT_MAX))), "{text}");
        assert_eq!(text.matches("<path").count(), 1, "one arrow");
    }
}
