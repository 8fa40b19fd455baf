//! Everything at once, for as long as you want: kills, suspensions, cuts, full streams, restores,
//! while the ring of segments turns and retention empties it, and some payloads lie in a bucket.
//! The same relays serve a database whose orders go through every mode of the inbox and through
//! sagas, and one that is restored from backups. A program without code of ours judges; and when
//! all is calm, nothing may raise an alarm.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

use crate::{
    acting::{self, Act},
    calm,
    company::Company,
    fault::{Fault, told},
    scenarios::CALM,
    stage::Stage,
    turning::Ring,
};

/// Relays forget older messages, and empty their segments. Longer than all faults in a row last: a
/// loss must be found sooner.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("ONCEBOX_RETENTION", "3m"),
    ("ONCEBOX_OBJECT_STORE", "payloads"),
    ("ONCEBOX_LARGE_PAYLOAD_BYTES", "65536"),
];
/// Seven turns last longer than the retention, and half a minute for messages that are settled
/// late: else the ring is full, and waits, which `status` finds.
const RING: Ring = Ring { turn: Duration::from_secs(30), retention: Duration::from_secs(180) };
/// Sometimes longer than PostgreSQL waits for a relay.
const SUSPENDED_MAX: u64 = 25;

/// Faults at random for that long, and until each has happened; returns how often each did.
pub(crate) async fn run(stage: &mut Stage<'_>, duration: Duration) -> Result<String> {
    let until = Instant::now() + duration;
    let company = Company::start(stage, RING, duration).await?;
    let (mut faults, mut together) = (Vec::new(), BTreeSet::new());
    while Instant::now() < until || faults.len() < Fault::ALL.len() {
        let fault = next(&faults)?;
        together.extend(company.acting.now().map(|act| (fault, act)));
        fault.happen(stage, SUSPENDED_MAX).await?;
        together.extend(company.acting.now().map(|act| (fault, act)));
        faults.push(fault);
        stage.delivering().await.with_context(|| format!("after {fault}"))?;
        catch_up(stage).await?;
        sleep(CALM).await;
    }
    stage.say.say(told_together(&together));
    let (done, _) = company.stop(stage).await?;
    stage.alarms = calm::judge(stage).await?;
    Ok(format!("{} minutes: {}; {done}", duration.as_secs() / 60, told(&faults)))
}

/// Waits until relays and consumer are nearly where the producers are, who hurry in each fault: for
/// an hour's backlog an operator's command takes minutes, and the count at the end hours.
async fn catch_up(stage: &mut Stage<'_>) -> Result<()> {
    const BEHIND_MAX: i64 = 20_000;
    const CATCH_UP_MAX: Duration = Duration::from_secs(300);
    let until = Instant::now() + CATCH_UP_MAX;
    let behind = "SELECT (SELECT count(*) FROM placed) - (SELECT count(*) FROM effect)";
    while stage.connection().await?.query_one(behind, &[]).await?.get::<_, i64>(0) > BEHIND_MAX {
        if Instant::now() > until {
            stage.say.say(format_args!("more than {BEHIND_MAX} messages are behind after {CATCH_UP_MAX:?}"));
            break;
        }
        sleep(CALM).await;
    }
    Ok(())
}

/// One that happened least often.
fn next(faults: &[Fault]) -> Result<Fault> {
    let times = |fault: &Fault| faults.iter().filter(|other| *other == fault).count();
    let least = Fault::ALL.iter().map(times).min().unwrap_or(0);
    let rare = Fault::ALL.into_iter().filter(|fault| times(fault) == least);
    fastrand::choice(rare.collect::<Vec<_>>()).context("there are faults")
}

/// The acts that each fault met.
fn told_together(together: &BTreeSet<(Fault, Act)>) -> String {
    let of = |fault: Fault| {
        let met = acting::ALL.iter().filter(|(act, _)| together.contains(&(fault, *act)));
        let names: Vec<&str> = met.map(|(_, name)| *name).collect();
        format!("{fault}: {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    };
    let (seen, all) = (together.len(), Fault::ALL.len() * acting::ALL.len());
    let lines: Vec<String> = Fault::ALL.into_iter().map(of).collect();
    format!("{seen} of {all} pairs of a fault and messages that are\n  {}", lines.join("\n  "))
}
