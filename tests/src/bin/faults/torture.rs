//! Everything at once, for as long as you want: kills, suspensions, cuts, full streams, restores,
//! while the ring of segments turns and retention empties it. A program without code of ours
//! judges.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use oncebox_tests::{Stop, program_file};
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumer, network, power_loss,
    scenarios::{ABSENCE, CALM},
    stage::{STREAM, Stage, stream_config},
};

/// Relays forget older messages, and empty their segments. Longer than all faults in a row last: a
/// loss must be found sooner.
pub(crate) const OPTIONS: &[(&str, &str)] = &[("ONCEBOX_RETENTION", "3m")];
const RETENTION_SECONDS: f64 = 180.0;
const TURN: Duration = Duration::from_secs(4);
const TROUBLE: Duration = Duration::from_secs(5);
const JUDGE_MAX: Duration = Duration::from_secs(600);
/// So much room a stream has until it is full.
const ROOM: u64 = 200_000;

/// Faults at random for that long; returns how often each happened.
pub(crate) async fn run(stage: &mut Stage<'_>, duration: Duration) -> Result<String> {
    let until = Instant::now() + duration;
    let stop = CancellationToken::new();
    let mut turning = JoinSet::new();
    turning.spawn(turn(stage.database_url(), stop.clone()));
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    while Instant::now() < until {
        let fault = one(stage, fastrand::u8(..8)).await?;
        *faults.entry(fault).or_default() += 1;
        stage.producing.rush(false);
        stage.delivering().await.with_context(|| format!("after {fault}"))?;
        sleep(CALM).await;
    }
    stop.cancel();
    let (turns, emptied) = turning.join_all().await.into_iter().next().context("the ring turns")?;
    let minutes = duration.as_secs() / 60;
    ensure!(turns > 0, "the ring never turned");
    let faults: Vec<String> = faults.iter().map(|(fault, times)| format!("{times} times {fault}")).collect();
    Ok(format!("{minutes} minutes: {}; {turns} turns, {emptied} segments emptied", faults.join(", ")))
}

async fn one(stage: &mut Stage<'_>, fault: u8) -> Result<&'static str> {
    let relay = fastrand::usize(..stage.relays.len());
    stage.mid_batch().await?;
    Ok(match fault {
        0 => {
            stage.relays[relay].kill().await?;
            sleep(ABSENCE).await;
            stage.relays[relay].restart().await?;
            // One that finds no server at its start ends with an error.
            stage.running().await?;
            "a relay killed"
        }
        1 => {
            stage.relays[relay].suspend(true)?;
            stage.producing.rush(false);
            // Sometimes longer than PostgreSQL waits for it.
            sleep(Duration::from_secs(fastrand::u64(1..25))).await;
            stage.relays[relay].suspend(false)?;
            "a relay suspended"
        }
        2 => {
            let how = fastrand::choice([Stop::Fast, Stop::Immediate, Stop::Kill]).unwrap_or(Stop::Kill);
            stage.postgres.restart(how).await?;
            "PostgreSQL stopped or killed"
        }
        3 => {
            stage.broker.one().kill().await;
            sleep(ABSENCE).await;
            stage.broker.one().resume().await?;
            "nats-server killed"
        }
        4 => {
            stage.producing.rush(false);
            network::trouble(&stage.lines, TROUBLE).await;
            "5 s of cuts and stalls"
        }
        5 => {
            fill(stage).await?;
            "a full stream"
        }
        6 => {
            stage.kill_consumer().await?;
            "a consumer killed"
        }
        _ => {
            power_loss::lose(stage, false).await?;
            "nats-server restored from an older copy"
        }
    })
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

/// Turns the ring, and empties old segments, as relays do; returns how often. PostgreSQL may be
/// away.
async fn turn(database_url: String, stop: CancellationToken) -> (usize, usize) {
    let (mut turns, mut emptied) = (0, 0);
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(TURN) => {}
        }
        if let Ok((turned, number)) = turn_once(&database_url).await {
            turns += usize::from(turned);
            emptied += number;
        }
    }
    (turns, emptied)
}

async fn turn_once(database_url: &str) -> Result<(bool, usize)> {
    let mut client = oncebox_tests::pool(database_url, 1, CALM)?.get().await?;
    let transaction = client.transaction().await?;
    transaction.execute("SELECT FROM oncebox.maintenance FOR UPDATE", &[]).await?;
    transaction.execute("SELECT oncebox.drain_segments()", &[]).await?;
    let emptied =
        transaction.query("SELECT * FROM oncebox.empty_segment($1)", &[&RETENTION_SECONDS]).await?.len();
    let now = "SELECT pg_sequence_last_value('oncebox.turn')";
    let before: i64 = transaction.query_one(now, &[]).await?.get(0);
    transaction.execute("SELECT oncebox.end_turn(0, 200, 0)", &[]).await?;
    let after: i64 = transaction.query_one(now, &[]).await?.get(0);
    transaction.commit().await?;
    Ok((after > before, emptied))
}

/// Has the judge look, which prints its verdict.
pub(crate) async fn judge(stage: &Stage<'_>) -> Result<()> {
    let (database_url, nats_url) = (stage.database_url(), stage.broker.url());
    let ledger = "SELECT key, entity::text, place FROM placed";
    let arguments = [
        ["--producers", &database_url],
        ["--ledger", ledger],
        ["--nats", &nats_url],
        ["--stream", STREAM],
        ["--subject", consumer::SUBJECTS],
        ["--effects", "SELECT key FROM effect ORDER BY id"],
    ];
    let mut judge = Command::new(program_file("judge")?);
    let judging = judge.args(arguments.concat()).kill_on_drop(true).status();
    let status = timeout(JUDGE_MAX, judging).await.context("the judge takes too long")??;
    ensure!(status.success(), "the judge says no: {status}");
    Ok(())
}
