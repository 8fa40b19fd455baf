//! Relays that die between any two steps, and start again with other limits.

use std::time::Duration;

use oncebox_relay::{Config, Relay, RelayError, Values, parts::Worker};
use oncebox_tests::TestEnv;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How often a relay died after: claim, publish, settle, commit.
pub(super) type Steps = [u32; 4];

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deaths(Steps);

impl Deaths {
    pub(super) fn sum(all: Vec<Self>) -> Steps {
        all.iter().fold(Steps::default(), |sum, Deaths(one)| std::array::from_fn(|i| sum[i] + one[i]))
    }
}

pub(super) fn values(env: &TestEnv) -> Values {
    Values::from([
        ("database-url", env.database_url().to_owned()),
        ("nats-url", env.nats_url().to_owned()),
        ("http-listen", "off".to_owned()),
    ])
}

/// Starts relays one after another. Each has its own batch limits, down to 2, and dies at a random
/// step of a random pass.
pub(super) async fn relay_that_dies(values: Values, number: usize, stop: CancellationToken) -> Deaths {
    let limits = ["2", "7", "200", "1000", "3"];
    let mut deaths = Deaths::default();
    for life in number.. {
        let mut values = values.clone();
        values.insert("batch-messages", limits[life % limits.len()].to_owned());
        values.insert("batch-lanes", fastrand::usize(1..=8).to_string());
        let relay = Relay::connect(Config::from_values(&values).unwrap()).await.unwrap();
        let mut worker = relay.worker();
        // Each relay makes few passes: a slow machine makes few in all, and a relay has to die at
        // every step.
        for _ in 0..fastrand::usize(0..5) {
            if stop.is_cancelled() {
                return deaths;
            }
            worker.run_once().await.unwrap();
        }
        // A pass that found every lane taken or empty has no step to die at.
        while !die(&mut worker, life % 4).await.unwrap() {
            if stop.is_cancelled() {
                return deaths;
            }
            sleep(Duration::from_millis(20)).await;
        }
        deaths.0[life % 4] += 1;
    }
    deaths
}

/// Makes a pass up to a step, and drops it there, as if the process had died. Returns false if
/// there is nothing to claim.
async fn die(worker: &mut Worker, step: usize) -> Result<bool, RelayError> {
    let Some(claimed) = worker.claim().await? else { return Ok(false) };
    if step == 0 {
        return Ok(true);
    }
    let published = worker.publish(claimed).await;
    if step == 1 {
        return Ok(true);
    }
    let settled = worker.settle(published).await?;
    if step == 3 {
        settled.commit().await?;
    }
    Ok(true)
}
