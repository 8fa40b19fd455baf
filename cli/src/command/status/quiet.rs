//! `oncebox status --until-quiet`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::{Config, OutboxConfig};
use oncebox_operator::{Operator, Stamp, Unrest};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::command::output;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until all messages are done, and names those that are not.
#[derive(Clone)]
pub(super) struct UntilQuiet {
    within: Duration,
    consumers: Vec<String>,
}

pub(super) fn arguments() -> [Arg; 2] {
    let within = Arg::new("until-quiet").long("until-quiet").value_name("SECONDS");
    let consumer = Arg::new("consumer").long("consumer").value_name("STREAM/NAME");
    [
        within
            .value_parser(clap::value_parser!(u32).range(1..=3600))
            .conflicts_with_all(["watch", "all"])
            .help("Wait so long for all messages to be relayed and handled; name those that are not, or were given up"),
        consumer
            .action(ArgAction::Append)
            .requires("until-quiet")
            .help("Wait for this consumer to begin; may be given several times"),
    ]
}

impl UntilQuiet {
    pub(super) fn new(flags: &ArgMatches) -> Option<Self> {
        let seconds = flags.get_one::<u32>("until-quiet")?;
        let consumers = flags.get_many::<String>("consumer").into_iter().flatten().cloned().collect();
        Some(Self { within: Duration::from_secs((*seconds).into()), consumers })
    }

    /// Returns the exit code.
    pub(super) async fn run(
        &self,
        outbox: &OutboxConfig,
        config: Option<&Config>,
        json: bool,
    ) -> anyhow::Result<u8> {
        let config = config.context("--until-quiet asks the consumers too: set NATS_URL, or --nats-url")?;
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(outbox, Stamp::default(), &mut tasks).await?;
        let deadline = Instant::now() + self.within;
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
