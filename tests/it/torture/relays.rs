//! Relays that die between any two steps, and come back with other limits.

use oncebox_relay::{Config, Relay, RelayError, Values, Worker};
use oncebox_tests::TestEnv;
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

/// Each life has batch limits of its own, down to 2, and ends at a random step of a random pass.
pub(super) async fn relay_that_dies(values: Values, number: usize, stop: CancellationToken) -> Deaths {
    let limits = ["2", "7", "200", "1000", "3"];
    let mut deaths = Deaths::default();
    for life in number.. {
        let mut values = values.clone();
        values.insert("batch-messages", limits[life % limits.len()].to_owned());
        values.insert("batch-lanes", fastrand::usize(1..=8).to_string());
        let relay = Relay::connect(Config::from_values(&values).unwrap()).await.unwrap();
        let mut worker = relay.worker();
        for _ in 0..fastrand::usize(1..20) {
            if stop.is_cancelled() {
                return deaths;
            }
            worker.run_once().await.unwrap();
        }
        if let Some(step) = die(&mut worker, life % 4).await.unwrap() {
            deaths.0[step] += 1;
        }
    }
    deaths
}

/// Makes a pass up to a step; what is dropped there is as if the process had died.
async fn die(worker: &mut Worker, step: usize) -> Result<Option<usize>, RelayError> {
    let Some(claimed) = worker.claim().await? else { return Ok(None) };
    if step == 0 {
        return Ok(Some(step));
    }
    let published = worker.publish(claimed).await;
    if step == 1 {
        return Ok(Some(step));
    }
    let settled = worker.settle(published).await?;
    if step == 3 {
        settled.commit().await?;
    }
    Ok(Some(step))
}
