//! `oncebox prune`.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_relay::{ConfigError, Operator, OutboxConfig, Swept};
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments of the command.
pub(crate) struct Prune {
    run: action::Run,
    is_of_inboxes: bool,
}

pub(super) fn command(options: Vec<Arg>) -> clap::Command {
    let run = action::run().into_iter().filter(|arg| arg.get_id() != "limit");
    let inboxes = Arg::new("inboxes").long("inboxes").action(ArgAction::SetTrue).conflicts_with("retention");
    clap::Command::new("prune")
        .about("Delete messages that were settled longer ago than the retention time, as the relays do")
        .arg(inboxes.help(
            "Instead: keys, dead letters and abandoned claims beyond the retentions of inboxes, as consumers do",
        ))
        .args(run)
        .args(options)
}

impl Prune {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self { run: action::Run::new(flags), is_of_inboxes: flags.get_flag("inboxes") }
    }

    /// Refuses `forever`, which only relays can be given.
    pub(super) fn check(&self, config: &OutboxConfig) -> Result<(), ConfigError> {
        if self.is_of_inboxes {
            return Ok(());
        }
        Self::retention(config).map(drop)
    }

    fn retention(config: &OutboxConfig) -> Result<Duration, ConfigError> {
        let problem =
            "--retention (ONCEBOX_RETENTION): forever leaves nothing to prune; give a time such as 7d";
        config.retention().ok_or_else(|| ConfigError(vec![problem.to_owned()]))
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.run.stamp.clone(), &mut tasks).await?;
        if self.is_of_inboxes {
            let swept = operator.sweep_inboxes(self.run.dry_run).await?;
            return self.report(swept);
        }
        let pruned = operator.prune(Self::retention(config)?, self.run.dry_run).await?;
        self.run.report("prune", "pruned", pruned)
    }

    fn report(&self, swept: Swept) -> anyhow::Result<()> {
        let text = if self.run.json {
            let document = serde_json::json!({
                "action": "prune",
                "inboxes": swept,
                "dry_run": self.run.dry_run,
            });
            output::json_lines(&[document])?
        } else {
            let verb = if self.run.dry_run { "would prune" } else { "pruned" };
            let Swept { keys, dead_letters, claims, unknown_effects, .. } = swept;
            let unknown = match unknown_effects {
                0 => String::new(),
                count => format!("; effects of unknown outcome: {count}"),
            };
            format!("{verb} {keys} keys, {dead_letters} dead letters, {claims} abandoned claims{unknown}\n")
        };
        output::print(&text)?;
        Ok(())
    }
}
