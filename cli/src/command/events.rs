//! `oncebox events list | enable | disable`.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{EventKind, Operator, Stamp};
use serde_json::json;
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments of the command.
pub(crate) enum Events {
    List { json: bool },
    Send { kinds: Vec<EventKind>, enabled: bool, run: action::Run },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> clap::Command {
    let kinds = || {
        let names = EventKind::ALL.map(EventKind::name).join(", ");
        let kinds = Arg::new("kind").value_name("KIND").action(ArgAction::Append).num_args(1..);
        let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("All kinds");
        let kinds = kinds.value_parser(clap::value_parser!(EventKind)).help(format!("Of: {names}"));
        [kinds, all.conflicts_with("kind")]
    };
    let changes = |name, about| {
        let run = action::who();
        let group = ArgGroup::new("kinds").args(["kind", "all"]).required(true);
        clap::Command::new(name).about(about).args(kinds()).group(group).args(run).args(connection())
    };
    clap::Command::new("events")
        .about("Choose which trouble is told to programs, as messages with the subject oncebox.events.KIND")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            clap::Command::new("list")
                .about("List the kinds of events that are sent")
                .arg(action::json())
                .args(connection()),
        )
        .subcommand(changes(
            "enable",
            "Send events of these kinds; a stream must have the subject oncebox.events.>",
        ))
        .subcommand(changes("disable", "Send no events of these kinds"))
}

impl Events {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let json = flags.get_flag("json");
        if name == "list" {
            return Self::List { json };
        }
        let kinds: Vec<EventKind> = flags.get_many("kind").into_iter().flatten().copied().collect();
        let kinds = if kinds.is_empty() { EventKind::ALL.to_vec() } else { kinds };
        let run = action::Run::new(flags);
        Self::Send { kinds, enabled: name == "enable", run }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let text = match self {
            Self::List { json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let sent = operator.events().await?;
                let states = EventKind::ALL.map(|kind| (kind, sent.contains(&kind)));
                if json {
                    let rows = states.map(|(kind, sent)| json!({ "kind": kind, "sent": sent }));
                    output::json_lines(&rows)?
                } else {
                    let word = |sent| if sent { "sent" } else { "not sent" }.to_owned();
                    let rows = states.map(|(kind, sent)| [kind.to_string(), word(sent)]);
                    output::table(["KIND", "EVENTS"], &rows)
                }
            }
            Self::Send { kinds, enabled, run } => {
                let operator = Operator::connect(config, run.stamp, &mut tasks).await?;
                let changed = operator.send_events(&kinds, enabled).await?;
                let action = if enabled { "enabled" } else { "disabled" };
                let names: Vec<&str> = changed.iter().map(|kind| kind.name()).collect();
                match run.json {
                    true => output::json_lines(&[json!({ "action": action, "kinds": names })])?,
                    false if names.is_empty() => format!("they were {action} before\n"),
                    false => format!("{action} {}\n", names.join(", ")),
                }
            }
        };
        output::print(&text)?;
        Ok(())
    }
}
