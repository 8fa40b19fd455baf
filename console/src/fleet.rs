//! The databases of a console, and how pages ask them: a few at a time, each question within a
//! limit.

use std::{
    borrow::BorrowMut,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use oncebox_connect::error::RelayError;
use oncebox_operator::{Operator, Stamp};
use tokio::{
    sync::{Semaphore, SemaphorePermit, broadcast, watch},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    problem::Problem,
    sampler::{self, Sample},
    settings::Member,
};

/// Questions of pages to one database at a time.
const QUESTIONS_MAX: usize = 4;
/// Connections that are kept for the next question.
const IDLE_MAX: usize = 2;
/// How long a page waits for its turn, and then for an answer.
const TURN_MAX: Duration = Duration::from_secs(2);
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A page that has missed more changes than this asks for all.
const CHANGES_MAX: usize = 1_024;

const KEEPS: &str = "a turn has its session until it ends";

/// A database.
pub(crate) struct Database {
    pub(crate) member: Arc<Member>,
    samples: watch::Receiver<Arc<Sample>>,
    turns: Semaphore,
    /// One at a time: each reads the log of its time.
    pub(crate) proofs: Semaphore,
    idle: Mutex<Vec<Operator>>,
}

/// A turn to ask a database.
pub(crate) struct Turn<'a> {
    session: Option<Operator>,
    database: &'a Database,
    is_looking: bool,
    _turn: SemaphorePermit<'a>,
}

/// All databases, in the order of the file.
pub(crate) struct Fleet {
    pub(crate) databases: Vec<Database>,
    pub(crate) changes: broadcast::Sender<Arc<str>>,
    /// When a page was last open.
    seen: watch::Sender<Instant>,
}

impl Fleet {
    /// Begins to look at all of them.
    pub(crate) fn new(members: Vec<Member>, tasks: &mut JoinSet<()>) -> Self {
        let ((changes, _), (seen, _)) = (broadcast::channel(CHANGES_MAX), watch::channel(Instant::now()));
        let databases = members.into_iter().map(|member| {
            let member = Arc::new(member);
            let (sender, samples) = watch::channel(Arc::default());
            tasks.spawn(sampler::run(Arc::clone(&member), sender, changes.clone(), seen.subscribe()));
            Database {
                member,
                samples,
                turns: Semaphore::new(QUESTIONS_MAX),
                proofs: Semaphore::new(1),
                idle: Mutex::default(),
            }
        });
        Self { databases: databases.collect(), changes, seen }
    }

    /// A page is open.
    pub(crate) fn is_seen(&self) {
        self.seen.send_replace(Instant::now());
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Database, Problem> {
        let found = self.databases.iter().find(|database| database.name() == name);
        found.ok_or_else(|| Problem::NotFound(format!("there is no database {name:?}")))
    }
}

impl Database {
    pub(crate) fn name(&self) -> &str {
        &self.member.name
    }

    pub(crate) fn sample(&self) -> Arc<Sample> {
        Arc::clone(&self.samples.borrow())
    }

    /// A connection for one page. A database that does not answer its sampler is not asked.
    pub(crate) async fn turn(&self) -> Result<Turn<'_>, Problem> {
        if let Some(problem) = &self.sample().problem {
            return Err(Problem::Away(format!("{}: {problem}", self.name())));
        }
        let busy = |_| Problem::Away(format!("{}: too many questions at a time; try again", self.name()));
        let turn = timeout(TURN_MAX, self.turns.acquire()).await.map_err(busy)?;
        let turn = turn.map_err(|_| Problem::Away(format!("{}: the console ends", self.name())))?;
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = match kept {
            Some(session) => session,
            None => self.answer(Operator::connect(&self.member.outbox, Stamp::default())).await?,
        };
        Ok(Turn { session: Some(session), database: self, is_looking: false, _turn: turn })
    }

    /// Asks for the contents of a page.
    pub(crate) async fn look<T>(
        &self,
        question: impl AsyncFnOnce(&mut Operator) -> Result<T, RelayError>,
    ) -> Result<T, Problem> {
        let mut turn = self.turn().await?;
        let answer = self.answer(question(turn.look().await?)).await?;
        turn.keep().await;
        Ok(answer)
    }

    /// Waits for an answer, but no longer than that.
    pub(crate) async fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, RelayError>>,
    ) -> Result<T, Problem> {
        let slow = |_| {
            let seconds = ANSWER_MAX.as_secs();
            Problem::Away(format!("{}: no answer within {seconds} seconds; ask for less", self.name()))
        };
        let answered = timeout(ANSWER_MAX, question).await.map_err(slow)?;
        answered.map_err(|error| Problem::of(self.name(), &error))
    }
}

impl<'a> Turn<'a> {
    /// Begins to read lists: PostgreSQL changes nothing, and gives each statement up after five
    /// seconds.
    pub(crate) async fn look(&mut self) -> Result<&mut Operator, Problem> {
        let database = self.database;
        database.answer(self.operator().begin_look()).await?;
        self.is_looking = true;
        Ok(self.operator())
    }

    /// For a question that has its own transaction.
    pub(crate) fn operator(&mut self) -> &mut Operator {
        self.session.as_mut().expect(KEEPS)
    }

    /// All has gone well: the connection is kept for the next page. Else it is closed, with all
    /// that it was doing.
    pub(crate) async fn keep(mut self) {
        let Some(session) = self.session.take() else { return };
        if !self.is_looking || self.database.answer(session.end_look()).await.is_ok() {
            let mut idle = self.database.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(session);
            }
        }
    }
}

impl std::borrow::Borrow<Operator> for Turn<'_> {
    fn borrow(&self) -> &Operator {
        self.session.as_ref().expect(KEEPS)
    }
}

impl BorrowMut<Operator> for Turn<'_> {
    fn borrow_mut(&mut self) -> &mut Operator {
        self.operator()
    }
}
