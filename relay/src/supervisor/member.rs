//! The relay of one of several databases: it starts, and starts again however it ends. Two names in
//! a file may mean the same database, and its messages would go to either's NATS by chance: only
//! one of them is served.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use crate::{
    backoff::Backoff,
    config::Config,
    error::{RelayError, error_chain},
    pass::Common,
    postgres::Peers,
    relay::{Place, Relay},
    serve::{Database, databases::gauges},
};

const AGAIN: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30) };
/// A relay that has worked for this time is not the one that failed before.
const WORKED: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The relay of one database.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) database: Arc<Database>,
    pub(super) common: Common,
    pub(super) peers: Peers,
    pub(super) served: Served,
    pub(super) starts: Arc<Semaphore>,
    /// How often in a row it has failed.
    pub(super) failures: u32,
}

/// How a relay has ended that did not fail.
enum Ended {
    Stopped,
    /// It has slept, and there may be work.
    Woken,
}

impl Member {
    /// Runs until `stop`, then drains.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut said = None;
        loop {
            if self.failures > 0 {
                tokio::select! {
                    () = sleep(AGAIN.delay(self.failures - 1)) => {}
                    () = stop.cancelled() => {}
                }
            }
            if stop.is_cancelled() {
                return;
            }
            let begun = Instant::now();
            let problem = match Box::pin(self.run_once(&stop)).await {
                Ok(Ended::Woken) => {
                    (self.failures, said) = (0, None);
                    continue;
                }
                Ok(Ended::Stopped) => return,
                Err(problem) => problem,
            };
            self.database.down(problem.clone());
            if begun.elapsed() > WORKED {
                (self.failures, said) = (0, None);
            }
            self.failures = self.failures.saturating_add(1);
            if said.as_ref() == Some(&problem) {
                debug!(problem, "the relay of this database failed again");
            } else {
                error!(problem, "no relay serves this database; it is tried again until it does");
                said = Some(problem);
            }
        }
    }

    /// Starts the relay and runs it; an error is its end before `stop`.
    async fn run_once(&self, stop: &CancellationToken) -> Result<Ended, String> {
        let starting = async {
            let _permit = self.starts.acquire().await;
            let (config, metrics) = (self.config.clone(), self.database.metrics.clone());
            // Each step of it has a bound, and not all of them together: a server may be far away.
            let relay = Relay::connect_as(config, metrics, Some(&self.common)).await?;
            let relay = relay.among(&self.peers, &self.name);
            let place = relay.place().await?;
            Ok((relay, place))
        };
        let started = tokio::select! {
            started = starting => started,
            () = stop.cancelled() => return Ok(Ended::Stopped),
        };
        let (relay, place) = match started {
            Ok(started) => started,
            Err::<_, RelayError>(error) => return Err(error_chain(&error)),
        };
        let _serving = place.map(|place| self.served.enter(place, &self.name)).transpose()?;
        let (gauges, reader) = gauges();
        self.database.served(gauges);
        let ended = tokio::select! {
            ended = relay.deliver(reader, CancellationToken::new(), stop.cancelled()) => ended,
            // Its tasks are ended, and its transactions with their connections.
            problem = self.stuck() => return Err(problem),
        };
        match ended {
            Err(error) if !stop.is_cancelled() => Err(error_chain(&error)),
            Ok(Some(asleep)) if !stop.is_cancelled() => {
                asleep.until_woken(&self.database, stop).await;
                Ok(Ended::Woken)
            }
            _ => {
                info!("the relay of this database has ended");
                Ok(Ended::Stopped)
            }
        }
    }

    /// Resolves when a worker hangs.
    async fn stuck(&self) -> String {
        loop {
            sleep(LOOK_EVERY).await;
            if let Some(problem) = self.database.metrics.health.stuck(self.config.stuck_after) {
                return problem;
            }
        }
    }
}

/// The databases that are served, with their names. Clones share the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(Arc<Mutex<HashMap<Place, String>>>);

/// While it lives, no other relay of this process serves this database.
#[derive(Debug)]
pub(super) struct Serving {
    served: Served,
    place: Place,
}

impl Served {
    /// Begins to serve a database under a name.
    ///
    /// # Errors
    /// It is served already; the text names both names.
    pub(super) fn enter(&self, place: Place, name: &str) -> Result<Serving, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = all.get(&place) {
            return Err(format!(
                "{name} is the same database as {other}, with the same schema: its messages would go to the NATS of one or \
                 the other; take one of the two out of the configuration file"
            ));
        }
        all.insert(place.clone(), name.to_owned());
        Ok(Serving { served: self.clone(), place })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.served.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place);
    }
}
