//! Canaries: `run` around `run_once`.
//!
//! An operator's command, or the console, writes a canary into the database and may end. The leader
//! takes its steps, since of all processes only relays are always there, and have both servers. Two
//! relays that both take themselves for the leader are no danger: a step begins with the lock of
//! its canary. Rules and verdicts are those of `0026_canary.sql`.
//!
//! | event | consequence |
//! |---|---|
//! | the relay dies before the commit of a step | nothing is changed, and the next leader takes the step; a letter that was published already meets a dead key, and is answered so |
//! | the answer to a commit is lost | the next step reads the truth |
//! | NATS is away, or refuses the letter | the transaction is rolled back, the fault noted, and the step tried again; after the time of a verdict the canary stops |
//! | a copy of the database stays silent | it has no connection to NATS, and takes no step |

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::bounded;
use crate::{
    backoff::Backoff,
    error::{RelayError, StoreError, error_chain},
    nats::{Connection, Connections},
    postgres::{Leader, Store, canary::Step},
};

/// The pause between looks while no canary is running, jittered by half.
const IDLE: Backoff = Backoff { first: Duration::from_secs(5), max: Duration::from_secs(5) };
/// The same while one waits for verdicts.
const LOOK: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(1) };
/// Rows that one canary retries before the next one has its turn.
const ROWS: usize = 100;

/// Takes the steps of canaries.
#[derive(Debug)]
pub struct Canaries {
    store: Arc<Store>,
    connections: Connections,
    /// A canary was running at the last look.
    any: bool,
}

impl Canaries {
    pub(crate) fn new(store: Arc<Store>, connections: Connections) -> Self {
        Self { store, connections, any: false }
    }

    /// Takes steps until shutdown, while this relay leads. The workers report an outage of
    /// PostgreSQL.
    pub(crate) async fn run(mut self, leader: watch::Receiver<Leader>, shutdown: CancellationToken) {
        let mut more = false;
        loop {
            let pause = match (more, self.any) {
                (true, _) => Duration::ZERO,
                (false, true) => LOOK.delay(0),
                (false, false) => IDLE.delay(0),
            };
            if shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
            more = false;
            if matches!(*leader.borrow(), Leader::Another(_)) {
                continue;
            }
            match self.run_once(&shutdown).await {
                Ok(moved) => more = moved,
                Err(error) => {
                    debug!(error = %error_chain(&error), "the step of a canary failed; it is tried again")
                }
            }
        }
    }

    /// A bounded number of steps of each canary, each in a transaction of its own. Returns whether
    /// there is more to do at once.
    ///
    /// # Errors
    /// PostgreSQL refused or went away; no step is half done. A canary that fails stops no other.
    pub async fn run_once(&mut self, shutdown: &CancellationToken) -> Result<bool, RelayError> {
        let store = Arc::clone(&self.store);
        let permit = store.permit().await;
        let running = bounded(self.store.running_canaries()).await?;
        drop(permit);
        self.any = !running.is_empty();
        let mut more = Ok(false);
        for canary in running {
            match self.take_steps(canary, shutdown).await {
                Ok(moved) => more = more.map(|more| more || moved),
                Err(error) => more = Err(error),
            }
        }
        more
    }

    async fn take_steps(&self, canary: i64, shutdown: &CancellationToken) -> Result<bool, RelayError> {
        for _ in 0..ROWS {
            if shutdown.is_cancelled() || !bounded(self.step(canary)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One step; whether there may be another one at once.
    async fn step(&self, canary: i64) -> Result<bool, StoreError> {
        // The same connection for the whole step, or none.
        let Some(connection) = self.connections.borrow().clone().filter(|found| found.is_awake()) else {
            return Ok(false);
        };
        let (session, letter) = match self.store.take_canary_step(canary).await? {
            Step::Idle => return Ok(false),
            Step::Done => return Ok(true),
            Step::Publish(session, letter) => (session, letter),
        };
        let connection: &Connection = &connection;
        let Err(problem) = session.keep_alive(letter.publish(connection)).await else {
            session.commit().await?;
            return Ok(true);
        };
        session.rollback().await?;
        let reason = error_chain(&*problem).to_string();
        if self.store.note_canary_fault(canary, &reason).await? {
            warn!(canary, reason, "the relay could not retry a dead letter of a canary; it is tried again");
        }
        Ok(false)
    }
}
