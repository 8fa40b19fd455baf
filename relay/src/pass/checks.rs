//! When streams are checked for losses: the loop around `recovery`.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    recovery::{Problem, Recovery},
    runner::pace,
};
use crate::{
    backoff::Backoff,
    error::{RelayError, error_chain},
    nats::{Connection, Connections, places::Places},
    telemetry::Metrics,
};

const CHECK_EVERY: Duration = Duration::from_secs(30);
/// A stream that was out of reach gets nothing before it is checked, so it is looked for often.
const DOUBT_EVERY: Duration = Duration::from_millis(250);
/// A check that takes longer is given up: delivery goes on, and the next one is made in time. One
/// that has seen a loss noted meanwhile is made again at once: the other lanes may have lost
/// something, too, and newer messages must not overtake that.
const CHECK_MAX: Duration = Duration::from_secs(20);
/// So often in a row at most, which takes ten minutes; then delivery goes on.
const AGAIN_MAX: u32 = 30;
/// After this number of connections in a row that ended during their first check, the check itself
/// may end them, as when an answer is larger than the server lets wait. The relay hands the next
/// one on before it checks it, since otherwise it would never deliver anything.
const ENDED_MAX: u32 = 5;

impl Recovery {
    /// Hands each new connection on once its streams are checked, and checks them now and then.
    pub(crate) async fn run(mut self, mut new: Connections, checked: watch::Sender<Option<Arc<Connection>>>) {
        let mut ended = 0;
        loop {
            self.connection.clone_from(&new.borrow_and_update());
            tokio::select! {
                () = self.keep_checking(&checked, &mut ended) => {}
                changed = new.changed() => if changed.is_err() {
                    return;
                },
            }
            checked.send_replace(None);
        }
    }

    /// Hands the connection on once its streams are checked, and checks them now and then; `ended`
    /// counts the connections that have ended meanwhile.
    async fn keep_checking(&mut self, checked: &watch::Sender<Option<Arc<Connection>>>, ended: &mut u32) {
        let Some(connection) = self.connection.clone() else { return std::future::pending().await };
        connection.places.are_checked();
        if *ended < ENDED_MAX {
            *ended += 1;
            if self.check_until_done().await {
                *ended = 0;
            }
        } else {
            self.report(format!("each of {ended} connections to NATS has ended during the check"));
        }
        checked.send_replace(Some(Arc::clone(&connection)));
        loop {
            pause(&connection.places).await;
            if self.check_until_done().await {
                *ended = 0;
            }
        }
    }

    /// Whether all streams could be checked. While PostgreSQL is away nothing is delivered anyway.
    async fn check_until_done(&mut self) -> bool {
        let (mut failures, mut again) = (0, 0);
        loop {
            let noted = self.noted;
            let problem = match timeout(CHECK_MAX, self.check()).await {
                Ok(Ok(_)) => None,
                Ok(Err(Problem::Nats(problem))) => Some(problem),
                Ok(Err(Problem::Postgres(error))) => {
                    let pace =
                        note_failure(&self.metrics, &RelayError::store(error), "a check of the streams");
                    sleep(pace.delay(failures)).await;
                    failures = failures.saturating_add(1);
                    continue;
                }
                Err(_) if self.noted > noted && again < AGAIN_MAX => {
                    again += 1;
                    continue;
                }
                Err(_) => {
                    self.connection.iter().for_each(|connection| connection.places.trust_all());
                    Some(format!("the check took longer than {CHECK_MAX:?}"))
                }
            };
            if self.metrics.health.postgres_away(false) {
                info!("PostgreSQL is back");
            }
            let is_done = problem.is_none();
            problem.into_iter().for_each(|problem| self.report(problem));
            return is_done;
        }
    }

    pub(super) fn report(&mut self, problem: String) {
        let is_over = self.connection.as_ref().is_none_or(|connection| connection.over.is_cancelled());
        if !is_over && self.said.as_ref() != Some(&problem) {
            warn!(
                problem,
                "it cannot be checked whether a stream still has all that it acknowledged; delivery goes on"
            );
            self.said = Some(problem);
        }
    }
}

/// PostgreSQL has failed something before any pass; returns the pace of the next tries.
pub(super) fn note_failure(metrics: &Metrics, error: &RelayError, what: &str) -> Backoff {
    metrics.postgres_errors.inc();
    if metrics.health.postgres_away(true) {
        warn!(error = %error_chain(error), "PostgreSQL failed {what}; it is tried again until it succeeds");
    }
    pace(error)
}

/// Until the next check.
async fn pause(places: &Places) {
    let doubting = async {
        while !places.are_in_doubt() {
            places.doubting.notified().await;
        }
        sleep(DOUBT_EVERY).await;
    };
    let _ = timeout(CHECK_EVERY, doubting).await;
}
