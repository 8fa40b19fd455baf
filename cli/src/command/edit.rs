//! `oncebox inbox dead edit` and `oncebox outbox dead edit`.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oncebox_connect::config::{Config, OutboxConfig};
use oncebox_operator::{DiffLine, Edit, EditOf, EditPreview, RowSet};
use serde_json::json;
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments of the command.
pub(crate) struct Edits {
    of: EditOf,
    payload: Option<PathBuf>,
    edit: Edit,
    run: action::Run,
}

/// `edit` of dead letters.
pub(super) fn of_letters(options: Vec<Arg>) -> Command {
    let id = Arg::new("letter").value_name("ID").required(true);
    let id = id.value_parser(clap::value_parser!(i64).range(1..)).help("The letter's id, from the list");
    command("Change a dead letter, and have it handled under a key of its own").arg(id).args(options)
}

/// `edit` of dead messages.
pub(super) fn of_messages() -> Command {
    let key = Arg::new("key").value_name("KEY").required(true).help("The message's key");
    command("Change a dead message, and make it due under a key of its own").arg(key)
}

fn command(about: &'static str) -> Command {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let run = action::run().into_iter().filter(|arg| arg.get_id() != "limit").map(|arg| {
        match arg.get_id().as_str() {
            "note" => arg.required_unless_present("dry-run"),
            "dry-run" => arg.help("Show old and new; change nothing"),
            _ => arg,
        }
    });
    Command::new("edit")
        .about(about)
        .arg(
            text("payload", "FILE", "Its new payload, the bytes of this file")
                .value_parser(clap::value_parser!(PathBuf)),
        )
        .arg(
            text("header", "NAME=VALUE", "A header with its new value; may be given several times")
                .value_parser(super::enqueue::pair)
                .action(ArgAction::Append),
        )
        .arg(
            text("remove-header", "NAME", "A header that goes; may be given several times")
                .action(ArgAction::Append),
        )
        .args(run)
        .arg(action::confirm())
}

impl Edits {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let id = flags.try_get_one::<i64>("letter").ok().flatten();
        let key = || flags.get_one::<String>("key").cloned().unwrap_or_default();
        let headers = flags.get_many::<(String, String)>("header").into_iter().flatten();
        let removed = flags.get_many::<String>("remove-header").into_iter().flatten();
        Self {
            of: id.map_or_else(|| EditOf::Message(key()), |id| EditOf::Letter(*id)),
            payload: flags.get_one::<PathBuf>("payload").cloned(),
            edit: Edit {
                payload: None,
                headers: headers.cloned().collect(),
                removed: removed.cloned().collect(),
            },
            run: action::Run::new(flags),
        }
    }

    pub(super) async fn run(mut self, outbox: &OutboxConfig, config: Option<&Config>) -> anyhow::Result<()> {
        if let Some(path) = &self.payload {
            let read = fs::read(path).with_context(|| format!("read the payload from {}", path.display()))?;
            self.edit.payload = Some(read);
        }
        let Self { of, edit, mut run, .. } = self;
        let mut tasks = JoinSet::new();
        let mut operator = run.connect(outbox, &mut tasks).await?;
        let name = match of {
            EditOf::Letter(_) => "inbox dead edit",
            EditOf::Message(_) => "outbox dead edit",
        };
        let mut rows = run.rows(&operator, name).await?;
        if let Some(rows) = &mut rows {
            operator.find_edit(&of, &edit, rows).await?;
            run.check(rows)?;
        }
        if run.dry_run {
            let preview = operator.preview_edit(&of, &edit, edit.payload.is_some()).await?;
            output::print(&shown(&run, &preview, rows.as_ref())?)?;
            return Ok(());
        }
        let key = operator.edit(config, &of, &edit, rows.as_ref()).await?;
        run.undo = operator.last_discard().await?;
        output::print(&done(&run, &key)?)?;
        Ok(())
    }
}

fn done(run: &action::Run, key: &str) -> anyhow::Result<String> {
    if run.json {
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

fn shown(run: &action::Run, preview: &EditPreview, rows: Option<&RowSet>) -> anyhow::Result<String> {
    let token = run.token(rows);
    if run.json {
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
