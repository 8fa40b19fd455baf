//! The options that the commands which change something share.

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_operator::{Operator, Stamp};
use serde_json::json;

use super::output;

/// How to act.
pub(crate) struct Run {
    pub(super) stamp: Stamp,
    pub(super) dry_run: bool,
    pub(super) json: bool,
}

pub(super) fn json() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON, a document per line")
}

pub(super) fn run() -> [Arg; 5] {
    let limit = Arg::new("limit").long("limit").value_name("N");
    let by = Arg::new("by").long("by").value_name("NAME").value_parser(bounded(255));
    let note = Arg::new("note").long("note").value_name("TEXT").value_parser(bounded(1000));
    [
        limit.value_parser(clap::value_parser!(u64).range(1..)).help("Stop after so many messages"),
        Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Only count; change nothing"),
        by.help("Who acts, for the audit table, beside the database's user"),
        note.help("Why, for the audit table"),
        json(),
    ]
}

/// A text of so many bytes.
pub(super) fn bounded(most: usize) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text: &str| match text.len() {
        length if (1..=most).contains(&length) => Ok(text.to_owned()),
        length => Err(format!("{length} bytes; the limit is 1 to {most} bytes")),
    }
}

impl Run {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned();
        Self {
            stamp: Stamp { operator: text("by"), note: text("note") },
            dry_run: flags.get_flag("dry-run"),
            json: flags.get_flag("json"),
        }
    }

    /// Says how many were changed, or would be.
    pub(super) fn report(&self, action: &str, past: &str, count: u64) -> anyhow::Result<()> {
        self.report_of("message", action, past, count)
    }

    /// Says the same of other things than messages; the caller names them.
    pub(super) fn report_of(&self, what: &str, action: &str, past: &str, count: u64) -> anyhow::Result<()> {
        let text = if self.json {
            let document = json!({ "action": action, format!("{what}s"): count, "dry_run": self.dry_run });
            output::json_lines(&[document])?
        } else {
            let verb = if self.dry_run { format!("would {action}") } else { past.to_owned() };
            format!("{verb} {count} {what}{}\n", if count == 1 { "" } else { "s" })
        };
        output::print(&text)?;
        Ok(())
    }
}

/// The error of a command that found nothing; where a key was given, it says how that one stands.
pub(super) async fn nothing(operator: &mut Operator, sought: &str, key: Option<&str>) -> anyhow::Error {
    let Some(key) = key else { return anyhow!("no {sought} is selected; nothing was done") };
    let trace = match operator.trace(key, 1).await {
        Ok(trace) => trace,
        Err(error) => return error.into(),
    };
    let Some(message) = trace.messages.iter().find(|message| message.key == key) else {
        return anyhow!("no {sought} is selected: no message has the key {key:?}");
    };
    let replay =
        message.replay.as_ref().map(|replay| format!(", its replay {} is {}", replay.number, replay.state));
    let (state, replay) = (message.state, replay.unwrap_or_default());
    anyhow!(
        "no {sought} is selected: the message with the key {key:?} is {state}{replay}; see `oncebox trace {key}`"
    )
}
