//! Lets a relay work only where its outbox lives: the loop around `delivery/home`.
//!
//! It stands between the connections to NATS and the checks of streams: without a connection no
//! worker claims, and nothing is sent. While it is open it answers relays that ask, and looks again
//! now and then, since the database may be replaced under a running relay. Until it has looked, the
//! claims themselves find nothing in a copy (`claim.sql`).

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{error, info};

use super::checks::note_failure;
use crate::{
    delivery::home::{Heard, Noted, Verdict, Why, judge},
    error::{RelayError, StoreError},
    nats::{
        Connection, Connections,
        connection::SUSPENDED,
        home::{Answer, Caller, answer, ask, listen},
    },
    postgres::{Leader, Store, home::Home},
    telemetry::Metrics,
};

/// The pause while nothing is sent.
const SILENT: Duration = Duration::from_secs(1);
/// The pause between looks at the database while all is well.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause between notes that this process runs, however slow the database is.
const TICK: Duration = Duration::from_secs(1);
/// The leader asks so often whether another database has the same outbox.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The time for an answer: the other relay waits no longer.
const ANSWER_MAX: Duration = Duration::from_millis(800);
/// A relay of another database that has asked may serve it after this time.
const ASKED: Duration = Duration::from_secs(2);

/// Where workers find the connection while the gate is open.
type Opened = watch::Sender<Option<Arc<Connection>>>;

/// The gate of one relay.
#[derive(Debug)]
pub(crate) struct Gate {
    store: Arc<Store>,
    address: String,
    retention: Option<Duration>,
    dead_blocks: bool,
    metrics: Metrics,
    leader: watch::Receiver<Leader>,
}

/// The time of the questions before the gate is open.
#[derive(Debug)]
struct Asking {
    begun: Instant,
    quiet: Option<Instant>,
}

impl Gate {
    pub(crate) fn new(
        store: Arc<Store>,
        address: String,
        (retention, dead_blocks): (Option<Duration>, bool),
        metrics: Metrics,
        leader: watch::Receiver<Leader>,
    ) -> Self {
        Self { store, address, retention, dead_blocks, metrics, leader }
    }

    /// Hands each connection on once this database is known as the outbox's home, and takes it back
    /// when it is no more.
    pub(crate) async fn run(self, mut new: Connections, opened: Opened) {
        loop {
            let connection = new.borrow_and_update().clone();
            let keeping = async {
                match &connection {
                    Some(connection) => self.keep(connection, &opened).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = keeping => {}
                changed = new.changed() => if changed.is_err() {
                    return;
                },
            }
            opened.send_replace(None);
        }
    }

    /// Opens the gate when it may, and returns when it must be closed.
    async fn keep(&self, connection: &Arc<Connection>, opened: &Opened) {
        tokio::select! {
            // After a suspension both may be ready.
            biased;
            () = suspended(connection, opened) => {}
            () = self.serve(connection, opened) => {}
        }
    }

    async fn serve(&self, connection: &Arc<Connection>, opened: &Opened) {
        let (mut asking, mut failures) = (Asking { begun: Instant::now(), quiet: None }, 0);
        let own = loop {
            let pause = match self.enter(connection, &mut asking).await {
                Ok(own) => {
                    if self.metrics.health.postgres_away(false) {
                        info!("PostgreSQL is back");
                    }
                    failures = 0;
                    match own {
                        Some(own) => break own,
                        None => SILENT,
                    }
                }
                Err(error) => {
                    let what = "the question where the outbox lives";
                    let pace = note_failure(&self.metrics, &RelayError::store(error), what);
                    failures += 1;
                    pace.delay(failures - 1)
                }
            };
            sleep(pause).await;
        };
        self.tell(None);
        connection.note_awake();
        opened.send_replace(Some(Arc::clone(connection)));
        self.stay(connection, own).await;
    }

    /// One look, and one question; who this relay is, if it may work.
    async fn enter(
        &self,
        connection: &Connection,
        asking: &mut Asking,
    ) -> Result<Option<(String, Caller)>, StoreError> {
        let Some(home) = self.look().await? else { return Ok(None) };
        let heard = match &home.token {
            Some(token) if home.look.noted != Noted::Copy => {
                self.ask(connection, token, &self.caller(home.since)).await?
            }
            _ => Heard::Nothing,
        };
        asking.quiet =
            asking.quiet.filter(|_| heard == Heard::Nobody).or((heard == Heard::Nobody).then(Instant::now));
        let quiet = asking.quiet.map_or(Duration::ZERO, |quiet| quiet.elapsed());
        match self.judge(&home, &heard, asking.begun.elapsed(), quiet).await? {
            Verdict::Home => {}
            Verdict::Wait => {
                if home.look.noted == Noted::Moved {
                    self.tell(Some(&Why::Asking(home.look.place)));
                }
                return Ok(None);
            }
            Verdict::Silent(why) => {
                self.tell(Some(&why));
                return Ok(None);
            }
        }
        self.store.note_home(&self.address, home.look.noted).await?;
        // The note gives a new home its token; and it may be that of another database by now.
        let Some(home) = self.look().await?.filter(|home| home.look.noted == Noted::Here) else {
            return Ok(None);
        };
        let caller = self.caller(home.since);
        Ok(home.token.map(|token| (token, caller)))
    }

    async fn judge(
        &self,
        home: &Home,
        heard: &Heard,
        asked: Duration,
        quiet: Duration,
    ) -> Result<Verdict, StoreError> {
        let verdict = judge(&home.look, heard, asked, quiet);
        if let (Verdict::Silent(Why::Rival(address)), Heard::Another { .. }) = (&verdict, heard) {
            self.store.note_rival(address).await?;
        }
        Ok(verdict)
    }

    /// Asks with an id that this relay has just written into its database.
    async fn ask(&self, connection: &Connection, token: &str, own: &Caller) -> Result<Heard, StoreError> {
        self.store.register(self.retention, self.dead_blocks).await?;
        Ok(ask(connection, token, own).await)
    }

    async fn look(&self) -> Result<Option<Home>, StoreError> {
        let _permit = self.store.permit().await;
        self.store.look_home(&self.address).await
    }

    fn caller(&self, since: (i64, i64)) -> Caller {
        Caller { id: self.store.relay().to_owned(), since, address: self.address.clone() }
    }

    /// Answers those that ask, and looks now and then; returns when this database is no home any
    /// more.
    async fn stay(&self, connection: &Connection, (token, mut own): (String, Caller)) {
        let mut questions = match listen(connection, &token).await {
            Some(questions) => questions.boxed(),
            None => stream::pending().boxed(),
        };
        let mut next_ask = Instant::now() + ASKED;
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            let next = next_ask.min(next_look);
            tokio::select! {
                Some(question) = questions.next() => {
                    let Some(caller) = Caller::asking(&question).filter(|caller| caller.id != own.id) else { continue };
                    let (says, noted) = self.answer(&caller).await;
                    // An operator may have said meanwhile that the original is here.
                    own.since.0 = noted.unwrap_or(own.since.0);
                    answer(connection, &question, &own, says).await;
                    if says == Answer::Other {
                        next_ask = next_ask.min(Instant::now() + ASKED);
                    }
                }
                () = sleep_until(next) => {
                    let begun = Instant::now();
                    let asks = next_ask <= begun && self.leads();
                    let heard = if asks { self.ask(connection, &token, &own).await } else { Ok(Heard::Nothing) };
                    let heard = heard.unwrap_or(Heard::Nothing);
                    let seen = self.look().await;
                    if next_ask <= begun {
                        next_ask = Instant::now() + ASK_EVERY;
                    }
                    // An outage of PostgreSQL is for the workers to report.
                    let Ok(Some(home)) = seen else {
                        next_look = Instant::now() + SILENT;
                        continue;
                    };
                    next_look = Instant::now() + LOOK_EVERY;
                    if home.token.as_ref() != Some(&token) {
                        return;
                    }
                    own.since.0 = home.since.0;
                    let Ok(verdict) = self.judge(&home, &heard, Duration::MAX, Duration::ZERO).await else { continue };
                    if verdict != Verdict::Home && (home.look.noted, verdict) != (Noted::Here, Verdict::Wait) {
                        return;
                    }
                }
            }
        }
    }

    /// The leader looks for the other relay in its database, and since when this is the home.
    async fn answer(&self, caller: &Caller) -> (Answer, Option<i64>) {
        let looking = async {
            if !self.leads() {
                return None;
            }
            let is_ours = self.store.knows_relay(&caller.id).await.ok()?;
            Some((is_ours, self.look().await.ok()??.since.0))
        };
        match timeout(ANSWER_MAX, looking).await {
            Ok(Some((true, noted))) => (Answer::Ours, Some(noted)),
            Ok(Some((false, noted))) => (Answer::Other, Some(noted)),
            Ok(None) | Err(_) => (Answer::Busy, None),
        }
    }

    fn leads(&self) -> bool {
        matches!(*self.leader.borrow(), Leader::This)
    }

    /// Why nothing is sent is logged once.
    fn tell(&self, why: Option<&Why>) {
        self.metrics.silent.set(i64::from(why.is_some()));
        let is_asking = matches!(why, Some(Why::Asking(_)));
        let why = why.map(Why::explained);
        let is_news = self.metrics.health.note_silence(why.clone());
        match why {
            Some(why) if is_news && is_asking => info!("{why}"),
            Some(why) if is_news => error!("{why}"),
            None if is_news => info!("this database is the home of its outbox: messages are sent"),
            _ => {}
        }
    }
}

/// Returns when this process was suspended. While the gate is open, workers read the notes.
async fn suspended(connection: &Connection, opened: &Opened) {
    let mut noted = Instant::now();
    while noted.elapsed() < SUSPENDED {
        noted = Instant::now();
        if opened.borrow().is_some() {
            connection.note_awake();
        }
        sleep(TICK).await;
    }
}
