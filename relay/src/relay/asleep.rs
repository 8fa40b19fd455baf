//! A relay that sleeps: it has no connection to its database, and wakes by a hint, a question or
//! its time.

use std::{collections::HashSet, sync::Arc, time::Duration};

use oncebox_schema::wake_subject;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    backoff::AWAY,
    nats::{
        Server,
        home::Caller,
        wake::{Ears, Heard},
    },
    pass::bounded,
    postgres::{Store, look::Standstill},
    serve::Database,
    telemetry::Metrics,
};

const ROUNDED: Duration = Duration::from_millis(500);

/// A relay between two times in which it serves. It listens from before its drain on, so that a
/// hint is heard whenever the last look did not see the message.
#[derive(Debug)]
pub(crate) struct Asleep {
    server: Server,
    metrics: Metrics,
    subject: String,
    token: Option<String>,
    ears: Option<Ears>,
    own: Caller,
    known: HashSet<String>,
    wakes: Instant,
}

impl Asleep {
    /// Begins to listen, while the relay still works.
    pub(super) async fn listen(
        store: &Arc<Store>,
        server: Server,
        metrics: Metrics,
        address: String,
        database: &str,
    ) -> Self {
        let home = bounded(store.look_home(&address)).await;
        let token = home.ok().flatten().and_then(|home| home.token);
        let subject = wake_subject(database, store.schema().as_str());
        let ears = Ears::open(&server, &metrics, &subject, token.as_deref()).await;
        let ears = ears.inspect_err(|error| debug!(error, "listen for hints")).ok();
        // Of an answer "not known" only the id is read.
        let own = Caller { id: store.relay().to_owned(), since: (0, 0), address };
        Self { server, metrics, subject, token, ears, own, known: HashSet::new(), wakes: Instant::now() }
    }

    /// Looks for the last time, after the drain, and notes how long the relay sleeps. If there is
    /// work, or PostgreSQL does not answer, it does not sleep at all.
    pub(super) async fn settle(
        mut self,
        store: &Arc<Store>,
        idle: &Standstill,
        (after, at_most): (Duration, Duration),
    ) -> Self {
        self.metrics.health.note_slept(Some(store.relay()));
        let settled = async {
            let now = store.look_for_work().await?;
            let span = now.sleep(after, at_most).filter(|_| now.ids == idle.ids).unwrap_or_default();
            let known = if span.is_zero() { HashSet::new() } else { store.fall_asleep(span).await? };
            Ok((span, known))
        };
        match bounded(settled).await {
            Ok((span, known)) => {
                self.wakes = Instant::now() + span;
                self.known = known;
            }
            Err(error) => debug!(%error, "the relay does not sleep"),
        }
        self
    }

    /// Sleeps until there may be work, or `stop`.
    pub(crate) async fn until_woken(mut self, database: &Database, stop: &CancellationToken) {
        if self.wakes > Instant::now() {
            self.sleep(database, stop).await;
        }
        if let Some(ears) = self.ears.take() {
            ears.close().await;
        }
    }

    async fn sleep(&mut self, database: &Database, stop: &CancellationToken) {
        let (begun, wakes) = (Instant::now(), self.wakes);
        database.asleep();
        let span = humantime::format_duration(Duration::from_secs((wakes - begun + ROUNDED).as_secs()));
        info!(
            subject = self.subject,
            "the relay sleeps, for {span} at most; a message on this subject of NATS wakes it"
        );
        let why = tokio::select! {
            why = self.hear() => why,
            () = sleep_until(wakes) => "it is time",
            () = stop.cancelled() => return,
        };
        info!(slept_seconds = begun.elapsed().as_secs(), why, "the relay wakes");
    }

    /// Why the relay wakes before its time. Without NATS, or its permission, it does not.
    async fn hear(&mut self) -> &'static str {
        let mut failures = 0;
        loop {
            let heard = match &mut self.ears {
                Some(ears) => {
                    self.metrics.nats_connected.set(1);
                    failures = 0;
                    ears.hear(&self.own, &self.known).await
                }
                None => Heard::Over,
            };
            match heard {
                Heard::Hint => return "a hint",
                Heard::Question => return "another relay asks who serves this outbox",
                Heard::Denied => {
                    if self.metrics.health.note_deaf() {
                        warn!(
                            subject = self.subject,
                            "NATS does not let the relay's user subscribe to this subject: no hint wakes the relay before \
                             its time; grant it, or set a shorter sleep_at_most"
                        );
                    }
                }
                Heard::Over => {
                    self.ears = None;
                    self.metrics.nats_connected.set(0);
                    sleep(AWAY.delay(failures)).await;
                    failures = failures.saturating_add(1);
                    let token = self.token.as_deref();
                    let opened = Ears::open(&self.server, &self.metrics, &self.subject, token).await;
                    self.ears = opened.inspect_err(|error| debug!(error, "listen for hints")).ok();
                }
            }
        }
    }
}
