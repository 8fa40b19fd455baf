//! `oncebox outbox prune` and `oncebox inbox prune`.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use oncebox_connect::{
    config::{ConfigError, OutboxConfig},
    words::counted,
};
use oncebox_operator::{Operator, Swept};
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments of `outbox prune`.
pub(crate) struct OfOutbox {
    retention: Duration,
    run: action::Run,
}

/// The arguments of `inbox prune`.
pub(crate) struct OfInboxes {
    run: action::Run,
}

pub(super) fn of_outbox(options: Vec<Arg>) -> Command {
    command("Delete messages that were settled longer ago than the retention time, as the relays do", options)
}

pub(super) fn of_inboxes(options: Vec<Arg>) -> Command {
    command(
        "Delete keys, dead letters and abandoned claims beyond the retentions of inboxes, as consumers do",
        options,
    )
}

fn command(about: &'static str, options: Vec<Arg>) -> Command {
    let run = action::without_limit();
    Command::new("prune").about(about).args(run).args(options)
}

impl OfOutbox {
    /// Refuses `forever`, which only relays can be given.
    pub(super) fn new(flags: &ArgMatches, config: &OutboxConfig) -> Result<Self, ConfigError> {
        let problem =
            "--retention (ONCEBOX_RETENTION): forever leaves nothing to prune; give a time such as 7d";
        let retention = config.retention().ok_or_else(|| ConfigError(vec![problem.to_owned()]))?;
        Ok(Self { retention, run: action::Run::new(flags) })
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.run.stamp.clone(), &mut tasks).await?;
        let pruned = operator.prune(self.retention, self.run.dry_run).await?;
        self.run.report_of(["message", "messages"], ["prune", "pruned"], pruned, None)
    }
}

impl OfInboxes {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self { run: action::Run::new(flags) }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.run.stamp.clone(), &mut tasks).await?;
        let swept = operator.sweep_inboxes(self.run.dry_run).await?;
        let text = if self.run.json {
            let document = serde_json::json!({
                "action": "prune",
                "inboxes": swept,
                "dry_run": self.run.dry_run,
            });
            output::json_lines(&[document])?
        } else {
            let verb = if self.run.dry_run { "would prune" } else { "pruned" };
            let Swept { keys, dead_letters, kept_letters, claims, unknown_effects, .. } = swept;
            let kept = match kept_letters {
                0 => String::new(),
                count => format!(
                    "; kept: {} that messages of their ordering keys wait behind",
                    counted(count, "dead letter")
                ),
            };
            let unknown = match unknown_effects {
                0 => String::new(),
                count => format!("; effects of unknown outcome: {count}"),
            };
            let (keys, claims) = (counted(keys, "key"), counted(claims, "abandoned claim"));
            format!("{verb} {keys}, {}, {claims}{unknown}{kept}\n", counted(dead_letters, "dead letter"))
        };
        output::print(&text)?;
        Ok(())
    }
}
