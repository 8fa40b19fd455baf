//! Orders in the second database, handled by processes in every mode of the inbox: a transaction
//! each, in batches, under leases with a gateway outside, and by sagas. The program `chaos` harms
//! these processes, and counts each order, effect, payment and saga in the end.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use oncebox_tests::{Program, within};

use crate::{
    fleet::{BESIDE, url_of},
    stage::Stage,
};

const SET_WITHIN: Duration = Duration::from_secs(60);
/// It takes five minutes at most for the rest of its orders, and two for counting, twice.
const COUNTED_WITHIN: Duration = Duration::from_secs(12 * 60);

#[derive(Debug)]
pub(crate) struct Beside(Program);

impl Beside {
    /// Starts the orders, and the harm to their processes.
    pub(crate) async fn start(stage: &Stage<'_>, duration: Duration) -> Result<Self> {
        let seconds = duration.as_secs().max(1).to_string();
        let database_url = url_of(&stage.database_url(), BESIDE);
        let nats_url = stage.broker.url();
        let arguments = ["--seconds", &seconds, "--beside", &database_url, &nats_url];
        let path = std::env::var_os("PATH").unwrap_or_default().to_string_lossy().into_owned();
        let mut chaos = Program::start("chaos", &arguments, &[("PATH", path)]).await?;
        // It looks for the servers once, so no fault may happen before.
        within("the orders beside begin", SET_WITHIN, async || {
            chaos.check()?;
            Ok(chaos.log().contains("the stage is set").then_some(()))
        })
        .await?;
        Ok(Self(chaos))
    }

    /// Ends the harm, waits until all orders are handled, and returns the counts.
    ///
    /// # Errors
    /// Something was lost or doubled.
    pub(crate) async fn stop(mut self) -> Result<String> {
        let ended = match self.0.check() {
            Ok(()) => self.0.stop_within(COUNTED_WITHIN).await,
            // Its time was over before.
            Err(ended) => Err(ended),
        };
        let log = self.0.log();
        let is_said = |line: &&str| line.starts_with("exactly once");
        let Some(verdict) = log.lines().find(is_said) else {
            let wrong: Vec<&str> = log.lines().filter(|line| line.starts_with("WRONG")).collect();
            ended.with_context(|| format!("the orders beside: {wrong:?}"))?;
            bail!("the orders beside were not counted");
        };
        Ok(verdict.to_owned())
    }
}
