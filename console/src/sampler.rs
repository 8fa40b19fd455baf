//! The one task that looks at a database, for any number of open pages.
//!
//! It has three loops, so that a server which hangs holds up only the answers of its own: the
//! status, the survey of NATS that is added to it, and the doctor. Pages read the last answers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use oncebox_connect::{config::Config, error::error_chain};
use oncebox_operator::{Examination, Operator, Stamp, Status, Survey, Time, examine, within};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tokio::{
    sync::{broadcast, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    history::{History, Point},
    settings::Member,
};

/// Between the ends of two looks; a look itself takes a second, for the rates.
const PAUSE: Duration = Duration::from_secs(1);
/// The same, when no page has been open for this time.
const IDLE_PAUSE: Duration = Duration::from_secs(8);
const ATTENTION: Duration = Duration::from_secs(60);
/// After a look that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(3);
const LOOK_MAX: Duration = Duration::from_secs(8);
const NATS_PAUSE: Duration = Duration::from_secs(10);
const DOCTOR_PAUSE: Duration = Duration::from_secs(60);
const DOCTOR_MAX: Duration = Duration::from_secs(120);
/// A status that is older is not true any more.
const FRESH: Duration = Duration::from_secs(20);
/// One that is younger says why a message is not there: that of an open page.
const RECENT: Duration = Duration::from_secs(4);

/// The last answers of a database.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Sample {
    /// The last status that was read.
    #[serde(serialize_with = "shared")]
    #[schemars(with = "Option<Status>")]
    pub(crate) status: Option<Arc<Status>>,
    /// Why none could be read since.
    pub(crate) problem: Option<String>,
    /// How old the status is.
    #[serde(rename = "seconds_ago", serialize_with = "seconds_ago")]
    #[schemars(with = "Option<f64>")]
    pub(crate) looked_at: Option<Instant>,
    /// The last hour.
    pub(crate) history: Vec<Point>,
    /// The last findings of the doctor; `None` where NATS is not configured.
    #[serde(serialize_with = "shared")]
    #[schemars(with = "Option<Examination>")]
    pub(crate) examination: Option<Arc<Examination>>,
}

impl Sample {
    /// The status of the last seconds.
    pub(crate) fn recent_status(&self) -> Option<&Status> {
        self.status.as_deref().filter(|_| self.looked_at.is_some_and(|at| at.elapsed() < RECENT))
    }

    /// Whether the database has answered lately.
    pub(crate) fn is_fresh(&self) -> bool {
        self.looked_at.is_some_and(|looked_at| looked_at.elapsed() < FRESH)
    }
}

fn shared<T: Serialize, S: Serializer>(value: &Option<Arc<T>>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_deref().serialize(serializer)
}

fn seconds_ago<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.elapsed().as_secs_f64()).serialize(serializer)
}

/// The answer of NATS, until there is another one.
type Answer = Mutex<Option<Result<Survey, String>>>;

/// Looks until it is dropped. `changes` is told the name of a database of which there is news.
pub(crate) async fn run(
    member: Arc<Member>,
    samples: watch::Sender<Arc<Sample>>,
    changes: broadcast::Sender<Arc<str>>,
    seen: watch::Receiver<Instant>,
) {
    let name: Arc<str> = member.name.as_str().into();
    let publish = |change: &dyn Fn(&mut Sample)| {
        samples.send_modify(|sample| change(Arc::make_mut(sample)));
        // No page is open.
        let _ = changes.send(Arc::clone(&name));
    };
    let answer = Answer::default();
    let config = member.config.as_ref();
    tokio::join!(
        statuses(&member, &answer, &publish, seen),
        surveys(config, &answer, &samples),
        examinations(config, &publish)
    );
}

type Publish<'a> = &'a (dyn Fn(&dyn Fn(&mut Sample)) + Sync);

async fn statuses(
    member: &Member,
    answer: &Answer,
    publish: Publish<'_>,
    mut seen: watch::Receiver<Instant>,
) {
    let (mut session, mut history) = (None, History::default());
    loop {
        let target = member.outbox.postgres_target();
        match Box::pin(within(LOOK_MAX, target, look(member, &mut session))).await {
            Ok(mut status) => {
                let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let (Some(config), Some(answer)) = (&member.config, answer) {
                    status.add_survey(config, answer);
                }
                history.add(point(&status));
                let (status, points) = (Arc::new(status), history.points());
                publish(&|sample| {
                    let examination = sample.examination.take();
                    *sample = Sample {
                        status: Some(Arc::clone(&status)),
                        problem: None,
                        looked_at: Some(Instant::now()),
                        history: points.clone(),
                        examination,
                    };
                });
                pause(&mut seen).await;
            }
            Err(error) => {
                session = None;
                let problem = error_chain(&error);
                publish(&|sample| sample.problem = Some(problem.clone()));
                sleep(FAILED_PAUSE).await;
            }
        }
    }
}

/// Waits for the next look: longer while no page is open, until a user opens one.
async fn pause(seen: &mut watch::Receiver<Instant>) {
    sleep(PAUSE).await;
    if seen.borrow_and_update().elapsed() > ATTENTION {
        // The sender lives as long as the console.
        let _ = timeout(IDLE_PAUSE, seen.changed()).await;
    }
}

/// On the connection of the last look, if that went well.
async fn look(
    member: &Member,
    session: &mut Option<Operator>,
) -> Result<Status, oncebox_connect::error::RelayError> {
    let mut operator = match session.take() {
        Some(kept) => kept,
        None => Operator::connect(&member.outbox, Stamp::default()).await?,
    };
    let status = operator.status().await?;
    *session = Some(operator);
    Ok(status)
}

async fn surveys(config: Option<&Config>, answer: &Answer, samples: &watch::Sender<Arc<Sample>>) {
    let Some(config) = config else { return };
    let mut seen = samples.subscribe();
    loop {
        let status = samples.borrow().status.clone();
        let Some(status) = status else {
            // The subjects to ask for are those of the first status.
            if seen.changed().await.is_err() {
                return;
            }
            continue;
        };
        let new = status.ask_nats(config).await;
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        sleep(NATS_PAUSE).await;
    }
}

async fn examinations(config: Option<&Config>, publish: Publish<'_>) {
    let Some(config) = config else { return };
    loop {
        if let Ok(examination) = timeout(DOCTOR_MAX, examine(config)).await {
            let examination = Arc::new(examination);
            publish(&|sample| sample.examination = Some(Arc::clone(&examination)));
        }
        // Those of many databases do not come all at once.
        sleep(DOCTOR_PAUSE.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    }
}

fn point(status: &Status) -> Point {
    Point {
        at: status.at.unwrap_or(Time(std::time::UNIX_EPOCH)),
        lag_seconds: status.lag_seconds,
        backlog_messages: status.backlog_messages,
        enqueued_per_second: status.rates.enqueued_per_second,
        settled_per_second: status.rates.settled_per_second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_s_pages_are_looked_after_less_often() {
        let (sender, mut seen) = watch::channel(Instant::now());
        let mut passed = async || {
            let began = Instant::now();
            pause(&mut seen).await;
            began.elapsed()
        };
        assert_eq!(passed().await, PAUSE);
        tokio::time::advance(ATTENTION).await;
        assert_eq!(passed().await, PAUSE + IDLE_PAUSE);
        let (idle, ()) = tokio::join!(passed(), async {
            sleep(PAUSE * 2).await;
            sender.send_replace(Instant::now());
        });
        assert_eq!(idle, PAUSE * 2, "somebody opens a page");
    }
}
