//! The orchestrator: how you build it, start a saga, and run it.

mod answers;
mod engine;
mod set;
mod timers;
pub(crate) mod watched;

use std::{collections::HashMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Handler};
use oncebox_outbox::{InTransaction, Outbox};
use oncebox_schema::{Key, Recording, SchemaName, Subject, check_version, to_json};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    Counts, Definition, Error, SagaFile,
    definition::Inner,
    error::{NO_JSON, failed},
    instance::Registered,
    likeness::likeness,
    recording::Drawing,
    store::{Beginning, Opening, Store, Unregistered},
};
use answers::{DeadLetters, Replies};
use engine::Engine;
pub use timers::Timers;

const BUSINESS_ID: &str = "the business id";
/// How long one answer may take, which takes milliseconds. A process that is suspended in the midst
/// of one keeps its saga, and the answer, five seconds longer at most.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The most answers, of different sagas, that one transaction takes.
const ANSWERS_MAX: usize = 64;
const RETENTION_MIN: Duration = Duration::from_secs(1);

/// Starts sagas, and leads them on as their participants answer. Cheap to clone.
///
/// Any number of processes may run it: each answer and each deadline is one transaction of one of
/// them, which holds the instance's row. All of them are built with the same definitions.
#[derive(Clone)]
pub struct Orchestrator {
    engine: Arc<Engine>,
    is_pooled: bool,
    leaves_missing: bool,
    retention: Option<Duration>,
    trace_file: Option<PathBuf>,
}

impl fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orchestrator").field("opening", &self.engine.opening).finish_non_exhaustive()
    }
}

/// Sets up an [`Orchestrator`]; see [`Orchestrator::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct OrchestratorBuilder {
    schema: SchemaName,
    scope: String,
    reply_to: Subject,
    definitions: Vec<Arc<dyn Registered>>,
    retention: Option<Duration>,
    is_pooled: bool,
    leaves_missing: bool,
    trace_file: Option<PathBuf>,
}

impl fmt::Debug for OrchestratorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrchestratorBuilder").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// A saga that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// Its id in the table `saga`.
    pub id: i64,
    /// Its key, from which those of its commands are derived.
    pub key: Key,
    /// Whether it was started now; `false` when it is there already, with the same data.
    pub is_new: bool,
}

impl Orchestrator {
    /// An orchestrator whose participants answer to this subject.
    pub fn builder(reply_to: Subject) -> OrchestratorBuilder {
        OrchestratorBuilder {
            schema: SchemaName::default(),
            scope: "saga".to_owned(),
            reply_to,
            definitions: Vec::new(),
            retention: None,
            is_pooled: false,
            leaves_missing: false,
            trace_file: None,
        }
    }

    /// Starts a saga in the caller's transaction: it exists, and its first commands are sent, when
    /// and only when that commits.
    ///
    /// The business id, such as the order's number, is 1 to 128 bytes of visible ASCII, and names
    /// one saga of its type: started again with the same data it is the same saga, which makes a
    /// retried request harmless. The order of elements in the data does not count, since a
    /// `HashSet` has another order each time. The saga's key is `BUSINESS-ID:TYPE`.
    ///
    /// Waits while another open transaction starts a saga of the same type and business id.
    ///
    /// # Errors
    /// Other data under the same business id, a definition that is not registered, data that its
    /// own definition cannot read back; or PostgreSQL refused. [`Error::AlreadySent`]: the business
    /// id belonged to a saga which retention has deleted. Roll the transaction back then.
    pub async fn start<D: Serialize + DeserializeOwned + Send + Sync + 'static>(
        &self,
        transaction: &impl InTransaction,
        definition: &Definition<D>,
        business_id: &str,
        data: &D,
    ) -> Result<Started, Error> {
        let root = Key::root(business_id).and_then(|root| root.step(definition.graph().name()));
        let key = root.map_err(|problem| Error::Invalid(format!("{BUSINESS_ID}: {problem}")))?;
        self.start_under(transaction, definition, &key, business_id, data).await
    }

    /// [`Orchestrator::start`] with a key of the caller's, such as the HTTP request's, so that the
    /// saga stands in one line with it. No other saga may have it.
    ///
    /// # Errors
    /// As [`Orchestrator::start`], and when another saga has the key, or it is too long.
    pub async fn start_under<D: Serialize + DeserializeOwned + Send + Sync + 'static>(
        &self,
        transaction: &impl InTransaction,
        definition: &Definition<D>,
        key: &Key,
        business_id: &str,
        data: &D,
    ) -> Result<Started, Error> {
        Key::root(business_id).map_err(|problem| Error::Invalid(format!("{BUSINESS_ID}: {problem}")))?;
        let no_json = || Error::Invalid(format!("saga \"{key}\": its data {NO_JSON}"));
        let data = to_json(data).ok().and_then(|json| String::from_utf8(json).ok()).ok_or_else(no_json)?;
        let inner: Arc<Inner<D>> = Arc::clone(&definition.inner);
        let likeness = likeness(&data).map_err(|_| no_json())?;
        let scope = &self.engine.opening.scope;
        let beginning = Beginning { business_id, data: &data, likeness: &likeness, scope };
        let started = self.engine.start(transaction, inner, key, &beginning).await?;
        if started.is_new {
            self.engine.counters.add(|counts| counts.started += 1);
        }
        Ok(started)
    }

    /// Checks that the database has the schema that this crate works with, and that each saga in
    /// flight finds the definition that it began with; then writes the graphs down for operators.
    /// For a program's start; [`Orchestrator::run`] does it too.
    ///
    /// Types that this orchestrator has not, and versions that are newer than its own, are those of
    /// other processes, as in a rolling deployment: it leaves them alone, and logs a warning.
    ///
    /// # Errors
    /// [`Error::InFlight`] names the types and versions that are missing.
    pub async fn check(&self, client: &Client) -> Result<(), Error> {
        check_version(client, &self.engine.schema).await?;
        let Engine { store, opening, .. } = &*self.engine;
        let unregistered =
            store.unregistered(client, opening).await.map_err(failed("look for sagas in flight"))?;
        let told = |is_missing: bool| -> Vec<String> {
            let told = unregistered.iter().filter(|one| one.is_missing == is_missing);
            told.map(|Unregistered { name, version, sagas, .. }| {
                format!("\"{name}\" version {version} ({sagas} in flight)")
            })
            .collect()
        };
        let (missing, of_others) = (told(true), told(false));
        if !missing.is_empty() && !self.leaves_missing {
            return Err(Error::InFlight(missing));
        }
        let left: Vec<String> = missing.into_iter().chain(of_others).collect();
        if !left.is_empty() {
            warn!("sagas wait for a process that has their definitions: {}", left.join(", "));
        }
        self.register(client).await
    }

    /// Writes the graphs down for operators, and the plans by which SQL starts sagas of a
    /// [file](SagaFile).
    ///
    /// # Errors
    /// Sagas are in flight that began with another file under this name and version.
    pub async fn register(&self, client: &Client) -> Result<(), Error> {
        check_version(client, &self.engine.schema).await?;
        let written = self.engine.store.register(client, &self.engine.opening).await;
        written.map_err(failed("write the definitions down"))
    }

    /// Runs until `shutdown` is cancelled: takes answers from `replies`, which consumes the subject
    /// that this orchestrator was built with, and dead letters of participants from
    /// `dead_letters`, and watches deadlines. `pool` should have as many connections as both
    /// consumers have workers, and one more.
    ///
    /// Dead letters are those that participants publish with
    /// [`dead_letter_subject`](Consumer::dead_letter_subject); others there are left alone. Without
    /// them a command that dies is noticed at its deadline.
    ///
    /// Deadlines are watched once the answers are taken that waited at the start, and after a
    /// minute in any case: steps that participants did while no process led are not undone.
    ///
    /// # Errors
    /// A saga in flight has no definition here, or a consumer cannot start, or ended.
    pub async fn run(
        &self,
        pool: Pool,
        replies: Consumer,
        dead_letters: Option<Consumer>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let client = pool.get().await;
        let client = client.map_err(|problem| Error::Invalid(format!("no connection: {problem}")))?;
        self.check(&client).await?;
        let led = self.engine.store.lead(&**client, &self.engine.opening).await;
        led.map_err(failed("say who leads"))?;
        drop(client);
        let replies_inbox = self.inbox(&pool, "replies", None)?;
        let letters_inbox = self.inbox(&pool, "dead-letters", Some(DeadLetters::key()))?;
        // The first that ends takes the others along.
        let ends = shutdown.child_token();
        let behind = replies.clone();
        let answers = async {
            let ended = replies.batch(ANSWERS_MAX).run(replies_inbox, self.replies(), ends.clone()).await;
            ends.cancel();
            ended.map_err(Error::from)
        };
        let deaths = async {
            let Some(letters) = dead_letters else { return Ok(()) };
            let ended = letters.run(letters_inbox, self.dead_letters(), ends.clone()).await;
            ends.cancel();
            ended.map_err(Error::from)
        };
        let timers = async {
            let timers = self.timers(pool);
            self.engine.counters.caught_up.wait(&behind, &ends).await;
            timers.run(ends.clone()).await;
        };
        let (answers, deaths, ()) = futures_util::join!(answers, deaths, timers);
        answers.and(deaths)
    }

    /// The handler of answers, for an inbox and a consumer of your own.
    #[must_use]
    pub fn replies(&self) -> impl Handler<Reply = ()> + use<> {
        Replies::new(Arc::clone(&self.engine))
    }

    /// The handler of participants' dead letters, for an inbox and a consumer of your own. Its
    /// inbox takes keys from `KeySource::client_header("Nats-Msg-Id")`, since a second death of a
    /// command has the same key as the first.
    #[must_use]
    pub fn dead_letters(&self) -> impl Handler<Reply = ()> + use<> {
        DeadLetters::new(Arc::clone(&self.engine))
    }

    /// The loop that watches deadlines.
    #[must_use]
    pub fn timers(&self, pool: Pool) -> Timers {
        Timers::new(Arc::clone(&self.engine), pool, self.retention)
    }

    /// The counts of this orchestrator and its clones.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.engine.counters.snapshot()
    }
}

impl OrchestratorBuilder {
    /// A definition that sagas are started with, or that sagas in flight began with.
    pub fn definition<D: Serialize + DeserializeOwned + Send + Sync + 'static>(
        mut self,
        definition: &Definition<D>,
    ) -> Self {
        self.definitions.push(Arc::clone(&definition.inner) as Arc<dyn Registered>);
        self
    }

    /// A saga that a file defines; `start_saga` in SQL starts it, in any language.
    pub fn file(mut self, file: &SagaFile) -> Self {
        self.definitions.push(file.registered());
        self
    }

    /// Sagas in flight without a definition here wait until a process has it, with a warning in the
    /// log. Default: [`Orchestrator::run`] fails.
    pub fn leave_missing(mut self) -> Self {
        self.leaves_missing = true;
        self
    }

    /// The PostgreSQL schema that Oncebox is installed in. Default: `oncebox`.
    pub fn schema(mut self, name: SchemaName) -> Self {
        self.schema = name;
        self
    }

    /// The name of this orchestrator, under which its sagas are stored, and the prefix of the
    /// scopes of its inboxes: `SCOPE:replies` and `SCOPE:dead-letters`. All processes of one
    /// orchestrator share it; another orchestrator in the same database has another, and another
    /// subject for answers. Default: `saga`. Never rename it while sagas are under way.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// How long finished sagas, and the keys of answers, are kept, 1 second at least. A business id
    /// is free again afterwards: keep sagas for longer than a request can be repeated, and than an
    /// answer can come again. Default: for ever.
    pub fn retention(mut self, limit: Duration) -> Self {
        self.retention = Some(limit);
        self
    }

    /// Its connections go through a pooler in transaction mode, those too that sagas are started
    /// on: nothing is prepared. See
    /// [`Builder::behind_pooler`](oncebox_inbox::Builder::behind_pooler).
    pub fn behind_pooler(mut self) -> Self {
        self.is_pooled = true;
        self
    }

    /// Writes a line of JSON to this file for each change of a saga, and for each step of an
    /// answer; see [`Builder::trace_file`](oncebox_inbox::Builder::trace_file). Default: the file
    /// that the environment variable `ONCEBOX_TRACE_FILE` names, if it does.
    pub fn trace_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace_file = Some(path.into());
        self
    }

    /// The orchestrator.
    ///
    /// # Errors
    /// No definition, two of one name and version, a retention that is too short, or a trace file
    /// that cannot be opened.
    pub fn build(self) -> Result<Orchestrator, Error> {
        if self.definitions.is_empty() {
            return Err(Error::Invalid("an orchestrator without a definition has nothing to do".to_owned()));
        }
        if self.retention.is_some_and(|limit| limit < RETENTION_MIN) {
            return Err(Error::Invalid("retention is shorter than a second".to_owned()));
        }
        let mut definitions: HashMap<String, Arc<dyn Registered>> = HashMap::new();
        for definition in self.definitions {
            let graph = definition.graph();
            let is_same = |other: &Arc<dyn Registered>| {
                (other.graph().name(), other.graph().version()) == (graph.name(), graph.version())
            };
            if definitions.values().any(is_same) {
                let (name, version) = (graph.name(), graph.version());
                return Err(Error::Invalid(format!(
                    "saga \"{name}\", version {version}, is registered twice"
                )));
            }
            definitions.insert(graph.fingerprint().to_owned(), definition);
        }
        let drawings: Vec<Drawing> =
            definitions.values().map(|definition| Drawing::of(definition.graph())).collect();
        let started = json!({ "scope": self.scope, "definitions": drawings });
        let recording = Recording::if_wanted(self.trace_file.clone(), started).map_err(Error::Invalid)?;
        let outbox = Outbox::new(self.schema.clone());
        let engine = Engine {
            store: Store::new(&self.schema, self.is_pooled),
            outbox: if self.is_pooled { outbox.behind_pooler() } else { outbox },
            opening: Opening {
                definitions,
                reply_to: self.reply_to,
                scope: self.scope,
                is_recorded: recording.is_some(),
            },
            schema: self.schema,
            counters: Arc::default(),
            recording,
        };
        let Self { retention, is_pooled, leaves_missing, trace_file, .. } = self;
        Ok(Orchestrator { engine: Arc::new(engine), is_pooled, leaves_missing, retention, trace_file })
    }
}
