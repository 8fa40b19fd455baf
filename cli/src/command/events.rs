//! `oncebox events list | enable | disable`.

use oncebox_operator::EventKind;
use serde_json::json;

use super::{On, Run, action, output};

/// Choose which trouble is told to programs, as messages with the subject oncebox.events.KIND
#[derive(clap::Subcommand)]
pub(crate) enum Events {
    /// List the kinds of events that are sent
    List {
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
    /// Send events of these kinds; a stream must have the subject oncebox.events.>
    Enable(Kinds),
    /// Send no events of these kinds
    Disable(Kinds),
}

#[derive(clap::Args)]
pub(crate) struct Kinds {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    who: action::Who,
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Choice {
    #[arg(value_name = "KIND", num_args = 1.., help = format!("Of: {}", EventKind::ALL.map(EventKind::name).join(", ")))]
    kind: Vec<EventKind>,
    /// All kinds
    #[arg(long, conflicts_with = "kind")]
    all: bool,
}

impl Kinds {
    async fn send(self, on: &On, enabled: bool) -> anyhow::Result<String> {
        let Self { choice, who } = self;
        let kinds = if choice.all { EventKind::ALL.to_vec() } else { choice.kind };
        let changed = on.acting(&who).await?.send_events(&kinds, enabled).await?;
        let action = if enabled { "enabled" } else { "disabled" };
        let names: Vec<&str> = changed.iter().map(|kind| kind.name()).collect();
        Ok(match who.json {
            true => output::json_lines(&[json!({ "action": action, "kinds": names })])?,
            false if names.is_empty() => format!("they were {action} before\n"),
            false => format!("{action} {}\n", names.join(", ")),
        })
    }
}

impl Run for Events {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let text = match self {
            Self::Enable(kinds) => kinds.send(on, true).await?,
            Self::Disable(kinds) => kinds.send(on, false).await?,
            Self::List { json } => {
                let sent = on.operator().await?.events().await?;
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
        };
        output::end(&text)
    }
}
