//! Everything at once, for as long as you want: kills, suspensions, cuts, full streams, restores,
//! while the ring of segments turns and retention empties it, and some payloads lie in a bucket. A
//! program without code of ours judges; and when all is calm, nothing may raise an alarm.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

use crate::{
    acting::Acting,
    calm,
    fault::{Fault, told},
    scenarios::CALM,
    stage::Stage,
    turning::{Ring, Turning},
};

/// Relays forget older messages, and empty their segments. Longer than all faults in a row last: a
/// loss must be found sooner.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("ONCEBOX_RETENTION", "3m"),
    ("ONCEBOX_OBJECT_STORE", "payloads"),
    ("ONCEBOX_LARGE_PAYLOAD_BYTES", "65536"),
];
const RING: Ring = Ring { turn: Duration::from_secs(4), retention: Duration::from_secs(180) };
/// Sometimes longer than PostgreSQL waits for a relay.
const SUSPENDED_MAX: u64 = 25;

/// Faults at random for that long; returns how often each happened.
pub(crate) async fn run(stage: &mut Stage<'_>, duration: Duration) -> Result<String> {
    let until = Instant::now() + duration;
    let turning = Turning::start(stage.database_url(), RING);
    let acting = Acting::start(stage.actor());
    let mut faults = Vec::new();
    while Instant::now() < until {
        let fault = fastrand::choice(Fault::ALL).context("there are faults")?;
        fault.happen(stage, SUSPENDED_MAX).await?;
        faults.push(fault);
        stage.delivering().await.with_context(|| format!("after {fault}"))?;
        sleep(CALM).await;
    }
    let acts = acting.stop().await?;
    let (turns, emptied) = turning.stop().await?;
    stage.alarms = calm::judge(stage).await?;
    let minutes = duration.as_secs() / 60;
    Ok(format!("{minutes} minutes: {}; {acts}; {turns} turns, {emptied} segments emptied", told(&faults)))
}
