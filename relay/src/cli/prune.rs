//! `oncebox prune`.

use std::time::Duration;

use clap::{Arg, ArgMatches};
use oncebox_relay::{Config, ConfigError, Operator};
use tokio::task::JoinSet;

use super::operator;

/// What was asked for.
pub(crate) struct Prune(operator::Run);

pub(super) fn command(options: Vec<Arg>) -> clap::Command {
    let run = operator::run().into_iter().filter(|arg| arg.get_id() != "limit");
    clap::Command::new("prune")
        .about("Delete messages that were settled longer ago than the retention time, as the relays do")
        .args(run)
        .args(options)
}

impl Prune {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self(operator::Run::new(flags))
    }

    /// `forever` is for relays.
    pub(super) fn check(config: &Config) -> Result<Duration, ConfigError> {
        let problem =
            "--retention (ONCEBOX_RETENTION): forever leaves nothing to prune; give a time such as 7d";
        config.retention().ok_or_else(|| ConfigError(vec![problem.to_owned()]))
    }

    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let retention = Self::check(config)?;
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.0.stamp.clone(), &mut tasks).await?;
        let pruned = operator.prune(retention, self.0.dry_run).await?;
        self.0.report("prune", "pruned", pruned)
    }
}
