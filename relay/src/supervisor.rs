//! One process for several databases: a relay for each, with its own connections, and a supervisor
//! above them.
//!
//! No relay knows of another. One that cannot start, that ends, panics or is stuck is started again
//! after a pause, while the others go on. The configuration file is read once a second; a database
//! that has come is served, one that has gone is drained, and one whose settings have changed is
//! drained and served anew. A file with a mistake changes nothing.

mod file;
mod member;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    task::{Id, JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, error_span, info, warn};

use self::member::{Member, Served};
use crate::{
    config::{NamedConfig, Sources},
    error::RelayError,
    pass::Common,
    postgres::Peers,
    serve::{Database, Databases, Front, systemd::Systemd},
    telemetry::Metrics,
};

/// Relays that start at the same time, at most: each logs in several times.
const STARTS_MAX: usize = 32;
/// A relay that is stuck is started again; only when that takes longer is the process stuck.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// The time beyond the grace period in which relays end.
const END_MAX: Duration = Duration::from_secs(5);

/// The relays of one process.
#[derive(Debug)]
pub struct Supervisor {
    relays: HashMap<String, Supervised>,
    tasks: JoinSet<()>,
    names: HashMap<Id, String>,
    databases: Databases,
    common: Common,
    peers: Peers,
    served: Served,
    starts: Arc<Semaphore>,
}

/// One of them.
#[derive(Debug)]
struct Supervised {
    named: NamedConfig,
    database: Arc<Database>,
    stop: CancellationToken,
    /// The configuration that replaces it when it has drained.
    next: Option<NamedConfig>,
}

impl Supervisor {
    /// Serves all these databases until `shutdown` resolves, then drains their relays together.
    /// `sources` is their file, which is read again and again.
    ///
    /// # Errors
    /// The HTTP address cannot be bound, or some relays did not drain within the grace period. A
    /// database that cannot be served is no error.
    pub async fn run(
        all: Vec<NamedConfig>,
        sources: Sources,
        systemd: Option<Systemd>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RelayError> {
        let (stop, databases) = (CancellationToken::new(), Databases::default());
        // Settings of the process are the same for all.
        let http_listen = all.first().and_then(|named| named.config.http_listen);
        let otlp = all.first().and_then(|named| named.config.otlp_metrics.clone());
        let grace = all.first().map(|named| named.config.grace).unwrap_or_default();
        let mut front = Front::open(http_listen, otlp, systemd, databases.clone(), stop.clone()).await?;
        let mut supervisor = Self {
            relays: HashMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
            databases,
            common: Common::new(),
            peers: Peers::default(),
            served: Served::default(),
            starts: Arc::new(Semaphore::new(STARTS_MAX)),
        };
        all.into_iter().for_each(|named| supervisor.start(named, 0));
        let (changes, mut changed) = mpsc::channel(1);
        let mut watching = JoinSet::new();
        watching.spawn(file::watch(sources, changes));
        tokio::pin!(shutdown);
        let is_broken = loop {
            tokio::select! {
                () = &mut shutdown => break false,
                () = front.broken() => break true,
                Some(ended) = supervisor.tasks.join_next_with_id() => supervisor.ended(ended),
                Some(sources) = changed.recv() => supervisor.change(&sources),
            }
        };
        drop(watching);
        stop.cancel();
        let drained = supervisor.drain(grace).await;
        front.close().await;
        if is_broken { Err(RelayError::TaskEnded) } else { drained }
    }

    /// Starts a relay that has failed so often.
    fn start(&mut self, named: NamedConfig, failures: u32) {
        let (name, config) = (named.name.clone(), &named.config);
        let stuck_after = config.stuck_after + RESTART_MAX;
        let database = Arc::new(Database::new(Some(name.clone()), Metrics::new(), stuck_after));
        self.databases.add(Arc::clone(&database));
        let stop = CancellationToken::new();
        let (common, peers, starts) = (self.common.clone(), self.peers.clone(), Arc::clone(&self.starts));
        let (config, database_of_it, served) = (config.clone(), Arc::clone(&database), self.served.clone());
        let member = Member {
            name: name.clone(),
            config,
            database: database_of_it,
            common,
            peers,
            served,
            starts,
            failures,
        };
        let task = member.run(stop.clone()).instrument(error_span!("database", %name));
        self.names.insert(self.tasks.spawn(task).id(), name.clone());
        self.relays.insert(name, Supervised { named, database, stop, next: None });
    }

    /// A relay has drained, or its task has panicked.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, false),
            Err(error) => (error.id(), true),
        };
        let Some(name) = self.names.remove(&id) else { return };
        let Some(Supervised { named, database, stop, next }) = self.relays.remove(&name) else { return };
        self.databases.remove(&database);
        if let Some(next) = next {
            self.start(next, 0);
        } else if panicked && !stop.is_cancelled() {
            error!(database = name, "the relay panicked; it is started again");
            self.start(named, 1);
        }
    }

    /// Serves the databases of this file from here on.
    fn change(&mut self, sources: &Sources) {
        let all = match NamedConfig::all(sources) {
            Ok(all) if !all.is_empty() => all,
            Ok(_) => {
                return error!(
                    "the configuration file names no database any more; the relays go on as before"
                );
            }
            Err(mistakes) => {
                return error!(%mistakes, "the configuration file has mistakes; the relays go on as before");
            }
        };
        for (name, relay) in &mut self.relays {
            // One that has gone, and come back while its relay drains, is among those below.
            relay.next = None;
            if !all.iter().any(|named| named.name == *name) && !relay.stop.is_cancelled() {
                info!(database = name, "the configuration file names it no more; its relay drains");
                let backlog = relay.database.metrics.backlog();
                if backlog > 0 {
                    warn!(database = name, backlog, "messages are due there, and wait for another relay");
                }
                relay.stop.cancel();
            }
        }
        for named in all {
            match self.relays.get_mut(&named.name) {
                None => {
                    info!(database = named.name, "the configuration file names a new database");
                    self.start(named, 0);
                }
                Some(relay) if relay.named.settings == named.settings && !relay.stop.is_cancelled() => {}
                Some(relay) => {
                    info!(
                        database = named.name,
                        "its settings have changed; its relay drains and starts again"
                    );
                    relay.next = Some(named);
                    relay.stop.cancel();
                }
            }
        }
    }

    async fn drain(mut self, grace: Duration) -> Result<(), RelayError> {
        self.relays.values().for_each(|relay| relay.stop.cancel());
        let ending = async { while self.tasks.join_next().await.is_some() {} };
        match timeout(grace + END_MAX, ending).await {
            Ok(()) => Ok(()),
            Err(_) => Err(RelayError::Grace(grace)),
        }
    }
}
