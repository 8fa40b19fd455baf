//! Old and new of an edit.

use maud::{Markup, html};
use oncebox_operator::{DiffLine, EditPreview};

/// The message as it would be.
pub(crate) fn show(preview: &EditPreview) -> Markup {
    let [before, after] = preview.payload_bytes;
    let [old, new] = &preview.payload_sha256;
    html! {
        dl {
            dt { "Its key becomes" } dd { code { (preview.key) } }
            @if old != new {
                dt { "Payload" } dd { (before) " bytes become " (after) }
                dt { "SHA-256" } dd { code.long { (old) } " becomes " code.long { (new) } }
            }
        }
        @for (title, lines) in [("Headers", &preview.headers), ("Payload", &preview.payload)] {
            @if !lines.is_empty() { h2 { (title) } (difference(lines)) }
        }
    }
}

fn difference(lines: &[DiffLine]) -> Markup {
    html! { pre.diff tabindex="0" { @for line in lines { @match line {
        DiffLine::Same(line) => { "  " (line) "\n" },
        DiffLine::Old(line) => del { "- " (line) "\n" },
        DiffLine::New(line) => ins { "+ " (line) "\n" },
        DiffLine::LeftOut(lines) => { "  ... " (lines) " more lines\n" },
    } } } }
}
