//! The options of `oncebox inbox dead edit` and `oncebox outbox dead edit` alone.

use clap::Command;
use oncebox_operator::{DiffLine, EditPreview, RowSet};
use serde_json::json;

use super::{action, output};

/// An edit needs a reason, and its dry run shows more than a number.
pub(super) fn with_reason(command: Command) -> Command {
    command
        .mut_arg("note", |note| note.required_unless_present("dry-run"))
        .mut_arg("dry-run", |dry_run| dry_run.help("Show old and new; change nothing"))
}

pub(super) fn done(run: &action::Run, key: &str) -> anyhow::Result<String> {
    if run.who.json {
        let mut document = json!({ "action": "edit", "key": key, "dry_run": false });
        if let Some(undo) = run.undo {
            document["undo"] = undo.into();
        }
        return Ok(output::json_lines(&[document])?);
    }
    let undo =
        run.undo.map(|id| format!("to take it back until it is sent, within a day: oncebox undo {id}\n"));
    Ok(format!("edited; its key is {key}\n{}", undo.unwrap_or_default()))
}

pub(super) fn shown(
    run: &action::Run,
    preview: &EditPreview,
    rows: Option<&RowSet>,
) -> anyhow::Result<String> {
    let token = run.token(rows);
    if run.who.json {
        let mut document = json!({ "action": "edit", "dry_run": true, "edit": preview });
        if let Some(token) = token {
            document["confirm"] = token.into();
        }
        return Ok(output::json_lines(&[document])?);
    }
    let [old, new] = &preview.payload_sha256;
    let payload = match old == new {
        true => "payload: as it is\n".to_owned(),
        false => {
            let [before, after] = preview.payload_bytes;
            format!("payload: {before} bytes, SHA-256 {old}\n     to: {after} bytes, SHA-256 {new}\n")
        }
    };
    let lines = preview.headers.iter().chain(&preview.payload).map(|line| match line {
        DiffLine::Same(line) => format!("  {line}\n"),
        DiffLine::Old(line) => format!("- {line}\n"),
        DiffLine::New(line) => format!("+ {line}\n"),
        DiffLine::LeftOut(lines) => format!("  ... {lines} more lines\n"),
    });
    let lines = output::clean(&lines.collect::<String>());
    let confirm = token.map(|token| format!("to edit this message so, and no other: --confirm {token}\n"));
    Ok(format!("would become {}\n{payload}{lines}{}", preview.key, confirm.unwrap_or_default()))
}
