//! A load that stays the same for an hour, with faults and turns of the ring. In the end the judge
//! counts, and all figures have to be flat.

mod figures;
mod plan;
mod process;
mod sample;
mod sampler;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    calm,
    company::Company,
    evidence,
    fault::{Fault, told},
    judging,
    report::Teller,
    stage::Stage,
};
use plan::Plan;
use sample::Sample;
use sampler::Sampler;

/// In turns, so that each third of the time has about the same ones.
const FAULTS: [Fault; 5] = [
    Fault::RelayKilled,
    Fault::NatsKilled,
    Fault::ConsumerKilled,
    Fault::PostgresStopped,
    Fault::RelaySuspended,
];
/// Seconds.
const SUSPENDED_MAX: u64 = 6;
const TICK: Duration = Duration::from_millis(200);
/// A server that is away gives no sample.
const SAMPLE_MAX: Duration = Duration::from_secs(10);
/// A multiple of the time that the load takes by its rate.
const LATE_MAX: u32 = 3;

/// True when everything is right and all figures are flat.
pub(crate) async fn run(messages: u64) -> Result<bool> {
    let say = Teller::new("soak", Instant::now());
    let plan = Plan::of(messages);
    let mut stage = Stage::start(plan.setup(), &say).await.context("set the stage")?;
    let played = play(&mut stage, &plan).await;
    if !matches!(played, Ok(true)) {
        evidence::print(&stage).await;
    }
    played
}

async fn play(stage: &mut Stage<'_>, plan: &Plan) -> Result<bool> {
    let mut sampler = Sampler::start(stage).await?;
    let company = Company::start(stage, plan.ring, LATE_MAX * plan.length()).await?;
    let (samples, faults) = endure(stage, plan, &mut sampler).await?;
    let (done, emptied) = company.stop(stage).await?;
    stage.say.say(format_args!("{}; {done}; waiting for the rest", told(&faults)));
    let alarms = calm::judge(stage).await?;
    let absorbed = stage.rest().await?;
    stage.say.say(format_args!("{absorbed} duplicates absorbed; the judge looks"));
    let judged = judging::judge(stage).await;
    let are_flat = figures::print(&samples, plan.warm_up)?;
    judged?;
    ensure!(emptied > 0, "no segment was emptied");
    ensure!(alarms.is_empty(), "{} false alarms", alarms.len());
    Ok(are_flat)
}

/// Has faults happen, and takes samples, until all messages are committed.
async fn endure(
    stage: &mut Stage<'_>,
    plan: &Plan,
    sampler: &mut Sampler,
) -> Result<(Vec<Sample>, Vec<Fault>)> {
    let (mut samples, mut faults) = (Vec::new(), Vec::new());
    let started = Instant::now();
    let (mut sample_due, mut fault_due) = (started + plan.sample_every, started + plan.fault_every / 2);
    while stage.producing.committed() < plan.steady.messages {
        let error = stage.producing.last_error();
        ensure!(
            started.elapsed() < LATE_MAX * plan.length(),
            "the producers are late; their last error: {error:?}"
        );
        if Instant::now() >= sample_due {
            match timeout(SAMPLE_MAX, sampler.take(stage)).await {
                Ok(Ok(sample)) => {
                    stage.say.say(&sample);
                    samples.push(sample);
                }
                Ok(Err(error)) => stage.say.say(format_args!("no sample: {error:#}")),
                Err(_) => stage.say.say(format_args!("no sample within {SAMPLE_MAX:?}")),
            }
            sample_due = Instant::now() + plan.sample_every;
        } else if Instant::now() >= fault_due {
            let fault = FAULTS[faults.len() % (FAULTS.len() - usize::from(!plan.suspends))];
            fault.happen(stage, SUSPENDED_MAX).await?;
            faults.push(fault);
            stage.delivering().await.with_context(|| format!("after {fault}"))?;
            fault_due = Instant::now() + plan.fault_every;
        } else {
            sleep(TICK).await;
        }
    }
    Ok((samples, faults))
}
