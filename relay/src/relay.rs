//! The life of a relay: connect, check, run the loops, drain.

pub(crate) mod asleep;
pub(crate) mod serving;

use std::{sync::Arc, time::Duration};

use oncebox_connect::postgres::{Connector, pool};
use oncebox_schema::check_version;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, warn};

use crate::{
    config::Config,
    error::{NoConnection, RelayError},
    nats::{Connection, Server, keeper, streams},
    pass::{
        ANSWER_MAX, Budget, Common, Demand, Runner, bounded,
        canary::Canaries,
        history::{Historian, note_last},
        home::Gate,
        idle::idle,
        maintenance::Maintainer,
        mover::Mover,
        recovery::Recovery,
        trace_file::TraceFile,
        unread,
        worker::{Shared, Worker},
    },
    postgres::{
        Leader, Peers, Store,
        listen::{self, Told},
    },
    serve::{Database, Databases, Front, databases::Reader, systemd::Systemd},
    telemetry::{Metrics, Traces},
};

pub(crate) use crate::postgres::home::Place;
use asleep::Asleep;

/// How long a shutdown waits for the collector of spans, at most.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How long it waits to be taken off the list of relays; else it counts for three minutes more.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// A relay that has connected to both servers and checked the schema.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    shared: Shared,
    server: Server,
    first_connection: Arc<Connection>,
    systemd: Option<Systemd>,
    /// Whether scrapes have a connection of their own: of one relay for several databases they have
    /// none.
    scrapes_beside: bool,
    peers: Peers,
}

impl Relay {
    /// Connects to both servers, once, and checks the schema's version. A server that accepts a
    /// connection and does not answer ends it; one that answers late does not.
    ///
    /// # Errors
    /// A server cannot be reached or does not let us in, or the schema has another version.
    pub async fn connect(config: Config) -> Result<Self, RelayError> {
        Box::pin(Self::connect_as(config, Metrics::new(), None)).await
    }

    /// Makes the relays of one process find each other's databases.
    pub(crate) fn among(mut self, peers: &Peers, name: &str) -> Self {
        peers.enter(name, &self.shared.store);
        self.peers = peers.clone();
        self
    }

    /// The same with metrics that outlive the attempt; one of the relays of a process that serves
    /// several databases shares the memory for messages with the others.
    pub(crate) async fn connect_as(
        config: Config,
        metrics: Metrics,
        common: Option<&Common>,
    ) -> Result<Self, RelayError> {
        // One connection for each worker, and three for marks, maintenance, delayed messages,
        // receipts and looks at other relays; and one for scrapes, if these have none beside.
        let pool = pool(&config.outbox.database, config.workers + 3 + usize::from(common.is_some()));
        let budget =
            common.map_or_else(|| Budget::new(&config.tuning), |common| common.budget(&config.tuning));
        let scrapes_beside = common.is_none();
        let connection = pool.get().await.map_err(|error| {
            RelayError::no_postgres(config.outbox.postgres_target(), NoConnection::from(error))
        })?;
        let checking = timeout(ANSWER_MAX, check_version(&**connection, &config.outbox.schema)).await;
        checking.map_err(|_| RelayError::PostgresTimeout)??;
        drop(connection);
        let store = bounded(Store::new(pool, config.outbox.schema.clone())).await?;
        let store = Arc::new(if common.is_some() { store.one_of_many() } else { store });
        // It has slept, and is another relay now.
        if let Some(id) = metrics.health.slept() {
            bounded(store.unregister(&id)).await?;
            metrics.health.note_slept(None);
        }
        store.look_for_pooler().await.map_err(RelayError::store)?;
        refuse_subscriber(&store).await?;
        let server = Server::new(&config, format!("oncebox relay {}", config.outbox.schema));
        let first_connection =
            server.connect(&metrics).await.map_err(|error| error.at(config.nats_target()))?;
        metrics.nats_connected.set(1);
        streams::ready(&config.streams, &first_connection).await?;
        let first_connection = Arc::new(first_connection);
        let (_, connections) = watch::channel(Some(Arc::clone(&first_connection)));
        let trace_file = config.trace_file.as_deref().map(|path| TraceFile::open(path, &store.outbox()));
        let trace_file = trace_file.transpose().map_err(RelayError::TraceFile)?;
        let tuning = config.tuning.clone();
        let breaker = server.breaker.clone();
        let shared =
            Shared { store, connections, tuning, metrics, traces: None, trace_file, budget, breaker };
        Ok(Self {
            config,
            shared,
            server,
            first_connection,
            systemd: None,
            scrapes_beside,
            peers: Peers::default(),
        })
    }

    /// The database that the relay has reached; `None` when its outbox is not whole.
    pub(crate) async fn place(&self) -> Result<Option<Place>, RelayError> {
        let address = self.config.outbox.postgres_target();
        let home = bounded(self.shared.store.look_home(&address)).await?;
        Ok(home.map(|home| home.here))
    }

    /// Makes the relay tell systemd how it is while it serves.
    #[must_use]
    pub fn telling(mut self, systemd: Option<Systemd>) -> Self {
        self.systemd = systemd;
        self
    }

    /// A worker by itself, on this relay's first connection to NATS, to make passes one at a time.
    #[must_use]
    pub fn worker(&self) -> Worker {
        Worker::new(self.shared.clone())
    }

    /// This relay's maintenance by itself, to make its steps one at a time.
    #[must_use]
    pub fn maintainer(&self) -> Maintainer {
        maintainer(&self.config, &self.shared, self.peers.clone())
    }

    /// This relay's mover of delayed messages by itself, to make its steps one at a time.
    #[must_use]
    pub fn mover(&self) -> Mover {
        Mover::new(Arc::clone(&self.shared.store))
    }

    /// This relay's steps of canaries by themselves, on its first connection to NATS.
    #[must_use]
    pub fn canaries(&self) -> Canaries {
        Canaries::new(Arc::clone(&self.shared.store), self.shared.connections.clone())
    }

    /// This relay's rows of table `history` by themselves, to write one at a time.
    #[must_use]
    pub fn historian(&self) -> Historian {
        let (_, leader) = watch::channel(Leader::This);
        Historian::new(Arc::clone(&self.shared.store), self.shared.metrics.clone(), leader)
    }

    /// This relay's checks of streams by themselves, on its first connection to NATS.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        let (Shared { store, metrics, .. }, connection) = (&self.shared, Arc::clone(&self.first_connection));
        Recovery::new(Arc::clone(store), Some(connection), self.config.on_loss, metrics.clone())
    }

    /// Serves HTTP, tells systemd, and runs the loops until `shutdown` resolves; then drains.
    ///
    /// # Errors
    /// The HTTP address cannot be bound, or the grace period was too short.
    pub async fn serve(mut self, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        let (stop, databases) = (CancellationToken::new(), Databases::default());
        let database = Arc::new(Database::new(None, self.shared.metrics.clone(), self.config.stuck_after));
        databases.add(Arc::clone(&database));
        let (listen, otlp) = (self.config.http_listen, self.config.otlp_metrics.clone());
        let front = Front::open(listen, otlp, self.systemd.take(), databases, stop.clone());
        let config = self.config.clone();
        let delivering = Box::pin(serving::serve(Some(self), config, database, stop.clone()));
        front.await?.beside(delivering, stop, shutdown).await
    }

    /// Runs the loops until `shutdown` resolves, then cancels `stop` and drains. So it does when it
    /// may sleep; then it returns the event that wakes it.
    ///
    /// # Errors
    /// The grace period was too short, or a task ended early.
    pub(crate) async fn deliver(
        self,
        reader: Reader,
        stop: CancellationToken,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Option<Asleep>, RelayError> {
        let Self { config, mut shared, server, first_connection, scrapes_beside, peers, .. } = self;
        let (store, metrics) = (Arc::clone(&shared.store), shared.metrics.clone());
        let mut tasks = Tasks(JoinSet::new());
        for weakness in &config.weaknesses {
            warn!("{weakness}");
        }
        let scraped = match scrapes_beside {
            true => Arc::new(store.beside(pool(&config.outbox.database, 1))),
            false => Arc::clone(&store),
        };
        tasks.spawn_until(&stop, reader.run(scraped, metrics.clone()));
        let (kept_sender, unchecked) = watch::channel(None);
        let kept = keeper::maintain(server.clone(), first_connection, kept_sender, metrics.clone());
        tasks.spawn_until(&stop, kept);
        let ((wake_sender, wake), (leader_sender, leader)) =
            (watch::channel(0), watch::channel(Leader::This));
        let (opened, at_home) = watch::channel(None);
        let settings = (config.outbox.retention, config.tuning.read.dead_blocks);
        let address = config.outbox.postgres_target();
        let gate = Gate::new(Arc::clone(&store), address, settings, metrics.clone(), leader.clone());
        tasks.spawn_until(&stop, gate.run(unchecked, opened));
        let (checked, connections) = watch::channel(None);
        let recovery = Recovery::new(Arc::clone(&store), None, config.on_loss, metrics.clone());
        tasks.spawn_until(&stop, recovery.run(at_home, checked));
        let told = Told { wake: wake_sender, leader: leader_sender };
        let connector = Connector::new(&config.outbox.database);
        tasks.spawn_until(&stop, listen::listen(connector, Arc::clone(&store), told, connections.clone()));
        shared.traces = trace(&config, &metrics, &mut tasks, &stop)?;
        shared.connections = connections;
        let demand = Arc::new(Demand::new(config.workers));
        for number in 0..config.workers {
            let runner =
                Runner::new(Worker::new(shared.clone()), number, Arc::clone(&demand), leader.clone());
            tasks.spawn(runner.run(wake.clone(), stop.clone()));
        }
        tasks.spawn(unread::run(Arc::clone(&store), stop.clone()));
        tasks.spawn(maintainer(&config, &shared, peers).run(stop.clone()));
        let canaries = Canaries::new(Arc::clone(&store), shared.connections.clone());
        tasks.spawn(canaries.run(leader.clone(), stop.clone()));
        // The queue of traces ends with the last worker.
        drop(shared);
        tasks.spawn(Historian::new(Arc::clone(&store), metrics.clone(), leader.clone()).run(stop.clone()));
        tasks.spawn(Mover::new(Arc::clone(&store)).run(leader, stop.clone()));
        info!(postgres = config.outbox.postgres_target(), nats = config.nats_target(), schema = %config.outbox.schema, "relay is running");
        ended(&mut tasks, &config, &store, metrics, server, stop, shutdown).await
    }
}

/// The loops, whose log lines name the database as their relay's do.
struct Tasks(JoinSet<()>);

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task.in_current_span());
    }

    /// A loop that may be cut off wherever it waits.
    fn spawn_until(&mut self, stop: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = stop.clone().run_until_cancelled_owned(task);
        self.spawn(async { stopped.await.unwrap_or_default() });
    }

    /// Stops them, and waits until they have ended.
    async fn drain(&mut self, stop: &CancellationToken, grace: Duration) -> Result<(), RelayError> {
        stop.cancel();
        let drained = timeout(grace, async { while self.0.join_next().await.is_some() {} }).await;
        drained.map_err(|_| {
            warn!(?grace, "passes under way did not end in time; what they had not settled is sent again");
            RelayError::Grace(grace)
        })
    }
}

/// Waits until the loops must end, or may because the relay sleeps, and drains them.
async fn ended(
    tasks: &mut Tasks,
    config: &Config,
    store: &Arc<Store>,
    metrics: Metrics,
    server: Server,
    stop: CancellationToken,
    shutdown: impl Future<Output = ()>,
) -> Result<Option<Asleep>, RelayError> {
    let idle = async {
        match config.sleep_after {
            Some(after) => idle(store, &metrics, after).await,
            None => std::future::pending().await,
        }
    };
    let (ended_early, idle) = tokio::select! {
        () = shutdown => (false, None),
        _ = tasks.0.join_next() => (true, None),
        idle = idle => (false, Some(idle)),
    };
    let asleep = match &idle {
        Some(idle) => {
            let address = config.outbox.postgres_target();
            Some(Asleep::listen(store, server, metrics.clone(), address, &idle.database).await)
        }
        None => None,
    };
    let drained = tasks.drain(&stop, config.grace).await;
    let _ = timeout(LEAVE_MAX, note_last(store, &metrics)).await;
    if ended_early {
        return Err(RelayError::TaskEnded);
    }
    if let (Some(asleep), Some(idle), Some(after)) = (asleep, idle, config.sleep_after) {
        let settling = asleep.settle(store, &idle, (after, config.sleep_at_most));
        return Ok(Some(settling.await));
    }
    drained?;
    let _ = timeout(LEAVE_MAX, store.unregister(store.relay())).await;
    info!("relay has drained");
    Ok(None)
}

/// A subscription that writes the log applies some rows late, with ids and transactions of another
/// cluster: a relay would take them for settled.
async fn refuse_subscriber(store: &Arc<Store>) -> Result<(), RelayError> {
    let faults = bounded(store.stopping_faults()).await?;
    match faults.iter().find(|fault| fault.fault == "subscription") {
        Some(fault) => Err(RelayError::Subscribed(fault.explained(store.schema().as_str()).to_string())),
        None => Ok(()),
    }
}

/// Starts to export spans, when a collector is configured.
fn trace(
    config: &Config,
    metrics: &Metrics,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> Result<Option<Traces>, RelayError> {
    let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
    let (traces, export) =
        Traces::new(endpoint, &config.nats_target(), metrics).map_err(RelayError::Traces)?;
    tasks.spawn(export.run(stop.clone(), FLUSH_MAX.min(config.grace / 2)));
    info!(endpoint, "spans of traced messages go to the collector");
    Ok(Some(traces))
}

fn maintainer(config: &Config, shared: &Shared, peers: Peers) -> Maintainer {
    let dead_blocks = config.tuning.read.dead_blocks;
    let store = Arc::clone(&shared.store);
    Maintainer::new(store, config.outbox.retention, dead_blocks, shared.metrics.clone(), peers)
}
