//! A fault of torture and soak.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use oncebox_tests::Stop;
use tokio::time::sleep;

use crate::{
    network, power_loss,
    scenarios::ABSENCE,
    stage::{STREAM, Stage, stream_config},
};

const TROUBLE: Duration = Duration::from_secs(5);
/// So much room a stream has until it is full.
const ROOM: u64 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    RelayKilled,
    RelaySuspended,
    PostgresStopped,
    NatsKilled,
    Network,
    StreamFull,
    ConsumerKilled,
    PowerLoss,
}

impl Fault {
    pub(crate) const ALL: [Self; 8] = [
        Self::RelayKilled,
        Self::RelaySuspended,
        Self::PostgresStopped,
        Self::NatsKilled,
        Self::Network,
        Self::StreamFull,
        Self::ConsumerKilled,
        Self::PowerLoss,
    ];

    /// Happens in the middle of a batch. A suspended relay goes on within `suspended_max` seconds.
    pub(crate) async fn happen(self, stage: &mut Stage<'_>, suspended_max: u64) -> Result<()> {
        let relay = fastrand::usize(..stage.relays.len());
        stage.mid_batch().await?;
        match self {
            Self::RelayKilled => {
                stage.relays[relay].kill().await?;
                sleep(ABSENCE).await;
                stage.relays[relay].restart().await?;
                // One that finds no server at its start ends with an error.
                stage.running().await?;
            }
            Self::RelaySuspended => {
                stage.relays[relay].suspend(true)?;
                stage.producing.rush(false);
                sleep(Duration::from_secs(fastrand::u64(1..suspended_max))).await;
                stage.relays[relay].suspend(false)?;
            }
            Self::PostgresStopped => {
                let how = fastrand::choice([Stop::Fast, Stop::Immediate, Stop::Kill]).unwrap_or(Stop::Kill);
                stage.postgres.restart(how).await?;
            }
            Self::NatsKilled => {
                stage.broker.one().kill().await;
                sleep(ABSENCE).await;
                stage.broker.one().resume().await?;
            }
            Self::Network => {
                stage.producing.rush(false);
                network::trouble(&stage.lines, TROUBLE).await;
            }
            Self::StreamFull => fill(stage).await?,
            Self::ConsumerKilled => stage.kill_consumer().await?,
            Self::PowerLoss => {
                let begun = SystemTime::now();
                power_loss::lose(stage, false).await?;
                stage.restored.push((begun, SystemTime::now()));
            }
        }
        stage.producing.rush(false);
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RelayKilled => "a relay killed",
            Self::RelaySuspended => "a relay suspended",
            Self::PostgresStopped => "PostgreSQL stopped or killed",
            Self::NatsKilled => "nats-server killed",
            Self::Network => "5 s of cuts and stalls",
            Self::StreamFull => "a full stream",
            Self::ConsumerKilled => "a consumer killed",
            Self::PowerLoss => "nats-server restored from an older copy",
        })
    }
}

/// How often each fault happened, in words.
pub(crate) fn told(faults: &[Fault]) -> String {
    let times = |fault: Fault| faults.iter().filter(|other| **other == fault).count();
    let happened = Fault::ALL.into_iter().filter(|fault| times(*fault) > 0);
    let parts: Vec<String> = happened.map(|fault| format!("{} times {fault}", times(fault))).collect();
    parts.join(", ")
}

/// The stream takes a little more, then nothing for a while.
async fn fill(stage: &Stage<'_>) -> Result<()> {
    let jetstream = stage.broker.jetstream().await?;
    let held = jetstream.get_stream(STREAM).await?.cached_info().state.bytes;
    jetstream.update_stream(stream_config(i64::try_from(held + ROOM)?)).await?;
    sleep(TROUBLE).await;
    stage.producing.rush(false);
    jetstream.update_stream(stream_config(0)).await?;
    Ok(())
}
