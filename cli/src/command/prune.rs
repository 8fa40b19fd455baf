//! `oncebox outbox prune` and `oncebox inbox prune`.

use std::time::Duration;

use oncebox_connect::{
    config::{ConfigError, OutboxConfig},
    words::counted,
};
use oncebox_operator::Swept;

use super::{On, Run, action, output};

/// Delete messages that were settled longer ago than the retention time, as the relays do
#[derive(clap::Args)]
pub(crate) struct OfOutbox {
    #[command(flatten)]
    run: action::Run,
    #[arg(skip)]
    retention: Duration,
}

/// Delete keys, dead letters and abandoned claims beyond the retentions of inboxes, as consumers do
#[derive(clap::Args)]
pub(crate) struct OfInboxes {
    #[command(flatten)]
    run: action::Run,
}

impl OfOutbox {
    /// Refuses `forever`, which only relays can be given.
    pub(super) fn of(self, config: &OutboxConfig) -> Result<Self, ConfigError> {
        let problem =
            "--retention (ONCEBOX_RETENTION): forever leaves nothing to prune; give a time such as 7d";
        let retention = config.retention().ok_or_else(|| ConfigError(vec![problem.to_owned()]))?;
        Ok(Self { retention, ..self })
    }
}

impl Run for OfOutbox {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut operator = on.acting(&self.run.who).await?;
        let pruned = operator.prune(self.retention, self.run.dry_run).await?;
        self.run.report_of(["message", "messages"], ["prune", "pruned"], pruned, None)
    }
}

impl Run for OfInboxes {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let dry_run = self.run.dry_run;
        let swept = on.acting(&self.run.who).await?.sweep_inboxes(dry_run).await?;
        if self.run.who.json {
            let document = serde_json::json!({ "action": "prune", "inboxes": swept, "dry_run": dry_run });
            return output::end(&output::json_lines(&[document])?);
        }
        let verb = if dry_run { "would prune" } else { "pruned" };
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
        let letters = counted(dead_letters, "dead letter");
        output::end(&format!("{verb} {keys}, {letters}, {claims}{unknown}{kept}\n"))
    }
}
