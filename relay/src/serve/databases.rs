//! The databases that a process serves, as HTTP and systemd see them: one without a name, or
//! several with theirs. A scrape reads the gauges of each.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use super::http::Probed;
use crate::{postgres::Store, telemetry::Metrics};

/// Databases that a scrape asks at once.
const TOGETHER_MAX: usize = 32;
/// Databases that one line names.
const NAMED_MAX: usize = 5;

/// All that a process serves. Clones share the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Databases(Arc<RwLock<Vec<Arc<Database>>>>);

/// One of them, served or not.
#[derive(Debug)]
pub(crate) struct Database {
    /// `None` for the only one of a process.
    name: Option<String>,
    pub(crate) metrics: Metrics,
    registry: Registry,
    /// It is stuck after this time, and only a restart of the process may help.
    stuck_after: Duration,
    state: Mutex<State>,
}

/// Whether a relay serves a database.
#[derive(Debug)]
enum State {
    /// No; why not.
    Down(String),
    Served(Gauges),
    /// It sleeps, and a scrape must not wake the database.
    Asleep,
}

impl Database {
    pub(crate) fn new(name: Option<String>, metrics: Metrics, stuck_after: Duration) -> Self {
        let registry = metrics.registry(name.as_deref());
        let state = Mutex::new(State::Down("its relay starts".to_owned()));
        Self { name, metrics, registry, stuck_after, state }
    }

    /// Notes that a relay serves it from here on.
    pub(crate) fn served(&self, gauges: Gauges) {
        self.metrics.serving.set(1);
        self.metrics.asleep.set(0);
        self.enter(State::Served(gauges));
    }

    /// Notes that its relay sleeps: it has no work, and needs no connection.
    pub(crate) fn asleep(&self) {
        self.metrics.asleep.set(1);
        self.enter(State::Asleep);
    }

    /// Notes that no relay serves it, and why.
    pub(crate) fn down(&self, why: String) {
        self.metrics.serving.set(0);
        self.metrics.asleep.set(0);
        self.metrics.nats_connected.set(0);
        self.enter(State::Down(why));
    }

    fn enter(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn gauges(&self) -> Option<Gauges> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Down(_) | State::Asleep => None,
            State::Served(gauges) => Some(gauges.clone()),
        }
    }

    fn not_ready(&self) -> Option<String> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Down(why) => Some(why.clone()),
            State::Served(_) => self.metrics.not_ready(),
            State::Asleep => None,
        }
    }

    fn named(&self, problem: String) -> String {
        self.name.as_ref().map(|name| format!("{name}: {problem}")).unwrap_or(problem)
    }

    /// The metrics as text, with fresh gauges.
    async fn scrape(&self) -> Result<String, std::fmt::Error> {
        if let Some(gauges) = self.gauges() {
            gauges.refresh().await;
        }
        self.metrics.observe_now();
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Databases {
    pub(crate) fn add(&self, database: Arc<Database>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(database);
    }

    pub(crate) fn remove(&self, database: &Arc<Database>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !Arc::ptr_eq(other, database));
    }

    fn all(&self) -> Vec<Arc<Database>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Probed for Databases {
    fn stuck(&self) -> Option<String> {
        let problem = |database: &Arc<Database>| {
            let stuck = database.metrics.health.stuck(database.stuck_after)?;
            Some(database.named(stuck))
        };
        self.all().iter().find_map(problem)
    }

    /// Which databases no relay works for, and why; and whether there are none but those.
    fn not_ready(&self) -> Option<(String, bool)> {
        let all = self.all();
        let problems = all.iter().filter_map(|database| Some(database.named(database.not_ready()?)));
        let problems: Vec<String> = problems.collect();
        let none_is = !problems.is_empty() && problems.len() == all.len();
        match &problems[..] {
            [] => None,
            [only] if all.len() == 1 => Some((only.clone(), none_is)),
            _ => {
                let more = problems.len().saturating_sub(NAMED_MAX);
                let mut text = format!("{} of {} databases: ", problems.len(), all.len());
                text += &problems[..problems.len() - more].join("; ");
                if more > 0 {
                    let _ = write!(text, "; and {more} more");
                }
                Some((text, none_is))
            }
        }
    }

    async fn scrape(&self) -> Result<String, std::fmt::Error> {
        let scrapes = self.all().into_iter().map(|database| async move { database.scrape().await });
        let texts: Vec<_> = stream::iter(scrapes).buffered(TOGETHER_MAX).collect().await;
        Ok(merged(&texts.into_iter().collect::<Result<Vec<_>, _>>()?))
    }
}

/// One text of several that have the same families in the same order: of each family the head, then
/// the samples of all.
fn merged(texts: &[String]) -> String {
    let [first, others @ ..] = texts else { return "# EOF\n".to_owned() };
    if others.is_empty() {
        return first.clone();
    }
    let mut rests: Vec<_> = texts.iter().map(|text| text.lines().peekable()).collect();
    let mut merged = String::with_capacity(texts.iter().map(String::len).sum());
    let is_head = |line: &&str| line.starts_with('#');
    loop {
        for (number, rest) in rests.iter_mut().enumerate() {
            while let Some(head) = rest.next_if(is_head) {
                if number == 0 {
                    merged += head;
                    merged.push('\n');
                }
            }
        }
        for rest in &mut rests {
            while let Some(sample) = rest.next_if(|line| !is_head(line)) {
                merged += sample;
                merged.push('\n');
            }
        }
        if rests.iter_mut().all(|rest| rest.peek().is_none()) {
            return merged;
        }
    }
}

/// A scrape waits this time for the database; then the gauges have their last values.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Scrapes within this time share a reading.
const FRESH: Duration = Duration::from_secs(1);
/// The server ends each of its statements before that.
const READ_TIMEOUT: Duration = Duration::from_secs(70);

/// When the gauges were last asked for, successfully or not.
type Asked = Option<Instant>;

/// Asks for readings.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    /// One request stands for all.
    want: mpsc::Sender<()>,
    asked: watch::Receiver<Asked>,
}

/// Makes readings.
#[derive(Debug)]
pub(crate) struct Reader {
    wanted: mpsc::Receiver<()>,
    answered: watch::Sender<Asked>,
}

pub(crate) fn gauges() -> (Gauges, Reader) {
    let (want, wanted) = mpsc::channel(1);
    let (answered, asked) = watch::channel(None);
    (Gauges { want, asked }, Reader { wanted, answered })
}

impl Gauges {
    /// Afterwards the gauges are those of the last second, or the last ones known when PostgreSQL
    /// does not answer in time.
    pub(super) async fn refresh(&self) {
        let mut asked = self.asked.clone();
        if !is_fresh(*asked.borrow_and_update()) {
            // Full: another scrape has asked already.
            let _ = self.want.try_send(());
            let _ = timeout(SCRAPE_TIMEOUT, asked.changed()).await;
        }
    }
}

impl Reader {
    /// Reads the gauges of the database when they are wanted, one reading at a time and at most one
    /// a second. A reading goes on when the client that waits for it gives up. While PostgreSQL
    /// does not answer they keep their last values.
    pub(crate) async fn run(mut self, store: Arc<Store>, metrics: Metrics) {
        while self.wanted.recv().await.is_some() {
            if !is_fresh(*self.answered.borrow()) {
                match store.in_turn(READ_TIMEOUT, store.lag()).await {
                    Ok(Ok(standing)) => metrics.observe(&standing),
                    Ok(Err(error)) => tracing::debug!(%error, "read the lag"),
                    Err(_) => tracing::debug!("reading the lag took too long"),
                }
            }
            self.answered.send_replace(Some(Instant::now()));
        }
        // This relay serves no HTTP.
        std::future::pending().await
    }
}

fn is_fresh(asked: Asked) -> bool {
    asked.is_some_and(|at| at.elapsed() < FRESH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(name: &str) -> Arc<Database> {
        Arc::new(Database::new(Some(name.to_owned()), Metrics::new(), Duration::from_secs(180)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_has_each_family_once_with_the_samples_of_all_databases() {
        let databases = Databases::default();
        assert_eq!(databases.scrape().await.unwrap(), "# EOF\n");
        let (one, other) = (database("one"), database("other"));
        one.metrics.published.inc_by(7);
        databases.add(Arc::clone(&one));
        databases.add(other);
        let text = databases.scrape().await.unwrap();
        assert_eq!(text.matches("# TYPE oncebox_published counter").count(), 1);
        let (a, b) = (
            "oncebox_published_total{database=\"one\"} 7\n",
            "oncebox_published_total{database=\"other\"} 0\n",
        );
        assert!(text.contains(&format!("{a}{b}")), "{text}");
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
        databases.remove(&one);
        assert!(!databases.scrape().await.unwrap().contains("\"one\""));
    }

    #[tokio::test(start_paused = true)]
    async fn one_database_that_is_down_makes_not_all_unready() {
        let databases = Databases::default();
        let (one, other) = (database("one"), database("other"));
        databases.add(Arc::clone(&one));
        databases.add(Arc::clone(&other));
        let (text, none_is) = databases.not_ready().unwrap();
        assert!(none_is && text.contains("2 of 2 databases: one: its relay starts; other: "), "{text}");
        one.served(gauges().0);
        one.metrics.nats_connected.set(1);
        other.down("PostgreSQL is gone".to_owned());
        let (text, none_is) = databases.not_ready().unwrap();
        assert!(!none_is && text == "1 of 2 databases: other: PostgreSQL is gone", "{text}");
    }
}
