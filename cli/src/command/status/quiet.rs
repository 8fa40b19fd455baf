//! `oncebox status --until-quiet`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use oncebox_operator::Unrest;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::command::{On, output};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

// Waits until all messages are done, and names those that are not.
#[derive(Clone, clap::Args)]
pub(super) struct UntilQuiet {
    /// Wait so long for all messages to be relayed and handled; name those that are not, or were
    /// given up
    #[arg(id = "until-quiet", long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600), conflicts_with_all = ["watch", "all"])]
    seconds: Option<u32>,
    /// Wait for this consumer to begin; may be given several times
    #[arg(long = "consumer", value_name = "STREAM/NAME", requires = "until-quiet")]
    consumers: Vec<String>,
}

impl UntilQuiet {
    pub(super) fn within(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(super) async fn run(&self, on: &On, within: Duration, json: bool) -> anyhow::Result<u8> {
        let config = on.config.as_deref();
        let config = config.context("--until-quiet asks the consumers too: set NATS_URL, or --nats-url")?;
        let mut operator = on.operator().await?;
        let deadline = Instant::now() + within;
        loop {
            let found = operator.unrest(config, &self.consumers).await?;
            let is_over = Instant::now() >= deadline;
            match found {
                Ok(unrest) if is_over || unrest.waiting.is_empty() => {
                    output::print(&text(&unrest, json))?;
                    let is_well = unrest.waiting.is_empty() && unrest.given_up.is_empty();
                    return Ok(if is_well { 0 } else { crate::FAILED });
                }
                Err(problem) if is_over => bail!("{problem}"),
                // NATS may be about to start.
                Ok(_) | Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

fn text(unrest: &Unrest, json: bool) -> String {
    let Unrest { waiting, given_up, .. } = unrest;
    if json {
        return format!("{}\n", json!({ "waiting": waiting, "given_up": given_up }));
    }
    let mut text = if waiting.is_empty() { "quiet\n" } else { "not quiet yet\n" }.to_owned();
    for line in waiting.iter().chain(given_up) {
        text += &output::clean(&format!("- {line}\n"));
    }
    text
}
