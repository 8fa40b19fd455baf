//! The environment of one test: a database and a stream of its own.

use std::{
    env,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use async_nats::jetstream::{self, message::StreamMessage, stream::Stream};
use deadpool_postgres::{Manager, Pool};
use futures_util::{StreamExt, TryStreamExt, stream};
use oncebox_schema::{Lanes, SchemaName, migrate_with_roles};
use tokio::{sync::OnceCell, task::JoinSet};
use tokio_postgres::{Client, Config, NoTls};

use crate::{Nats, Postgres, Proxy, pool::pool};

const TEMPLATE: &str = "oncebox_template";
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// A database with the migrated schema `oncebox`, and names for a stream and its subjects, for one
/// test alone.
///
/// The servers are shared by the whole test binary: started once, or those of `DATABASE_URL` (whose
/// user must be allowed to create databases) and `NATS_URL` when they are set. The database and the
/// stream are deleted when this value is dropped; a test that panics keeps them and prints where
/// they are.
#[derive(Debug)]
pub struct TestEnv {
    /// The schema that is installed: `oncebox`.
    pub schema: SchemaName,
    name: String,
    database_url: String,
    servers: Arc<Servers>,
    stream: OnceCell<Stream>,
    // Connections and the like, aborted with the TestEnv.
    tasks: Mutex<JoinSet<()>>,
}

impl TestEnv {
    /// A fresh database and fresh names.
    ///
    /// # Panics
    /// The servers cannot be started or reached; the message names the remedy.
    pub async fn new() -> Self {
        let servers = servers().await;
        let name = unique_name();
        let database_url = servers.create_database(&name).await.expect("create the test's database");
        Self {
            schema: SchemaName::default(),
            name,
            database_url,
            servers,
            stream: OnceCell::new(),
            tasks: Mutex::default(),
        }
    }

    /// The database's URL, with a user that owns it.
    #[must_use]
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// A login of its own in a group role: its URL, and its name, which the caller drops.
    ///
    /// # Panics
    /// PostgreSQL refused.
    pub async fn login(&self, group: &str) -> (String, String) {
        let name = format!("{}_{}", self.name(), group.rsplit('_').next().unwrap_or(group));
        let create = format!("CREATE ROLE {name} LOGIN PASSWORD 'r' IN ROLE {group}");
        self.pg().await.batch_execute(&create).await.expect("PostgreSQL makes a role");
        let authority = self.database_url.split_once("://").map_or("", |(_, authority)| authority);
        let host = authority.split_once('@').map_or(authority, |(_, host)| host);
        (format!("postgres://{name}:r@{host}"), name)
    }

    /// The NATS server's URL.
    #[must_use]
    pub fn nats_url(&self) -> &str {
        &self.servers.nats_url
    }

    /// Unique to this test: `[a-z][a-z0-9_]*`, at most 40 characters; the name of the database and
    /// of the stream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `<name>.<tail>`, a subject of this test's stream.
    #[must_use]
    pub fn subject(&self, tail: &str) -> String {
        format!("{}.{tail}", self.name)
    }

    /// A fresh connection to the database; it lives as long as the `TestEnv` at most.
    ///
    /// # Panics
    /// PostgreSQL cannot be reached.
    pub async fn pg(&self) -> Client {
        let connecting =
            tokio::time::timeout(CONNECT_DEADLINE, tokio_postgres::connect(&self.database_url, NoTls));
        let (client, connection) = connecting.await.expect("connect in time").expect("connect to PostgreSQL");
        self.keep(async move {
            // A test that cuts its connections learns of it from the client.
            let _ = connection.await;
        });
        client
    }

    /// Runs a task as long as the `TestEnv` lives at most: a connection, say.
    pub fn keep(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
    }

    /// A pool of connections to the database.
    ///
    /// # Panics
    /// `size` is 0.
    #[must_use]
    pub fn pool(&self, size: usize) -> Pool {
        assert!(size > 0, "a pool of no connections never answers");
        pool(&self.database_url, size, CONNECT_DEADLINE).expect("our own URL parses")
    }

    /// A pool whose connections go through a proxy that can cut them.
    pub async fn pool_through_proxy(&self, size: usize) -> (Proxy, Pool) {
        let direct: Config = self.database_url.parse().expect("our own URL parses");
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], direct.get_ports()[0]))).await;
        let mut config = Config::new();
        config.host("127.0.0.1").port(proxy.port()).user("postgres");
        config.dbname(direct.get_dbname().expect("our own URL names a database"));
        let pool = Pool::builder(Manager::new(config, NoTls)).max_size(size).build();
        (proxy, pool.expect("no timeouts, so no runtime is needed"))
    }

    /// A fresh connection to NATS.
    ///
    /// # Panics
    /// NATS cannot be reached.
    pub async fn nats(&self) -> async_nats::Client {
        async_nats::connect(&self.servers.nats_url).await.expect("connect to NATS")
    }

    /// JetStream on a fresh connection.
    ///
    /// # Panics
    /// NATS cannot be reached.
    pub async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(self.nats().await)
    }

    /// The test's stream, created on the first call: named `name()`, on the subjects `<name>.>`,
    /// file storage.
    ///
    /// # Panics
    /// NATS cannot be reached or refuses.
    pub async fn stream(&self) -> Stream {
        let create = || async {
            let config = jetstream::stream::Config {
                name: self.name.clone(),
                subjects: vec![format!("{}.>", self.name)],
                ..Default::default()
            };
            self.jetstream().await.get_or_create_stream(config).await.expect("create the test's stream")
        };
        self.stream.get_or_init(create).await.clone()
    }

    /// All messages of the test's stream, in stream order; deleted ones are left out.
    ///
    /// # Panics
    /// NATS cannot be reached or refuses.
    pub async fn messages(&self) -> Vec<StreamMessage> {
        let stream = self.stream().await;
        let state = stream.get_info().await.expect("read the stream's state").state;
        if state.messages == 0 {
            return Vec::new();
        }
        let fetch = |sequence| {
            let stream = &stream;
            async move {
                match stream.get_raw_message(sequence).await {
                    Ok(message) => Ok(Some(message)),
                    Err(error) if is_gap(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        stream::iter(state.first_sequence..=state.last_sequence)
            .map(fetch)
            .buffered(64)
            .try_filter_map(async |message| Ok(message))
            .try_collect()
            .await
            .expect("read the stream's messages")
    }

    /// Deletes the database and, if it was created, the stream.
    async fn delete(name: &str, servers: &Servers, had_stream: bool) -> Result<()> {
        let (client, connection) = tokio_postgres::connect(&servers.database_url("postgres"), NoTls).await?;
        let dropping = async {
            let done = client.batch_execute(&format!("DROP DATABASE \"{name}\" WITH (FORCE)")).await;
            drop(client);
            done
        };
        tokio::try_join!(dropping, connection)?;
        if had_stream {
            jetstream::new(async_nats::connect(&servers.nats_url).await?).delete_stream(name).await?;
        }
        Ok(())
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        if thread::panicking() {
            let until = if self.servers.postgres.is_some() {
                "; it goes with this process: to keep it, run `make up`, set DATABASE_URL and NATS_URL, try again"
            } else {
                ""
            };
            eprintln!("kept for inspection: database {}, stream {}{until}", self.database_url, self.name);
            return;
        }
        let (name, servers, had_stream) =
            (self.name.clone(), self.servers.clone(), self.stream.get().is_some());
        // A thread of its own, because the test's runtime cannot be blocked on from inside.
        let deleting = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                tokio::time::timeout(CONNECT_DEADLINE, Self::delete(&name, &servers, had_stream)).await?
            })
        });
        // A test that stopped the server itself leaves nothing to delete.
        if let Ok(Err(error)) = deleting.join() {
            eprintln!("database {} is left behind: {error:#}", self.name);
        }
    }
}

/// The servers of this test binary.
#[derive(Debug)]
struct Servers {
    // None when the environment names a server.
    postgres: Option<Postgres>,
    _nats: Option<Nats>,
    config: String,
    nats_url: String,
    /// With the one of a test that listens to `tracing` there are two. To a single one, tracing
    /// asks only the thread that comes to an event first whether it listens: when that is another
    /// test's, no listener ever hears of the event.
    _dispatch: tracing::Dispatch,
}

impl Servers {
    /// The URL of a database on the server: the path of the URL replaced.
    fn database_url(&self, database: &str) -> String {
        database_url(&self.config, database)
    }

    async fn create_database(&self, name: &str) -> Result<String> {
        let (client, connection) =
            tokio_postgres::connect(&self.config, NoTls).await.context("connect to PostgreSQL")?;
        // The files are copied: through the WAL, the default, it takes four times as long where
        // nothing is synced anyway.
        let template = match self.postgres {
            Some(_) => format!("TEMPLATE {TEMPLATE} STRATEGY FILE_COPY"),
            None => String::new(),
        };
        let creating = async {
            let done = client.batch_execute(&format!("CREATE DATABASE \"{name}\" {template}")).await;
            drop(client);
            done
        };
        tokio::try_join!(creating, connection)?;
        let url = self.database_url(name);
        if self.postgres.is_none() {
            // A foreign server may hold a template of another version of this code, so there is
            // none.
            migrate_database(&url).await?;
        }
        Ok(url)
    }
}

async fn servers() -> Arc<Servers> {
    static SERVERS: OnceCell<Arc<Servers>> = OnceCell::const_new();
    let start = || async { Arc::new(start_servers().await.expect("servers for the tests")) };
    SERVERS.get_or_init(start).await.clone()
}

async fn start_servers() -> Result<Servers> {
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let (postgres, config) = match variable("DATABASE_URL") {
        Some(url) => (None, url),
        None => {
            let postgres = Postgres::start().await?;
            let url = postgres.url("postgres");
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            let creating = async {
                let done = client.batch_execute(&format!("CREATE DATABASE {TEMPLATE}")).await;
                drop(client);
                done
            };
            tokio::try_join!(creating, connection)?;
            migrate_database(&postgres.url(TEMPLATE)).await?;
            (Some(postgres), url)
        }
    };
    let (nats, nats_url) = match variable("NATS_URL") {
        Some(url) => (None, url),
        None => {
            let nats = Nats::start().await?;
            nats.keep_directory_of_streams()?;
            let url = nats.url();
            (Some(nats), url)
        }
    };
    let dispatch = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    Ok(Servers { postgres, _nats: nats, config, nats_url, _dispatch: dispatch })
}

async fn migrate_database(url: &str) -> Result<()> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let migrating = async {
        // All databases share the roles: databases come and go, and roles of theirs would stay.
        let (schema, roles) = (SchemaName::default(), "oncebox".parse()?);
        let done = migrate_with_roles(&mut client, &schema, Lanes::default(), Some(&roles)).await;
        drop(client);
        anyhow::Ok(done?)
    };
    tokio::try_join!(migrating, async { Ok(connection.await?) })?;
    Ok(())
}

/// The URL of another database on the same server: the path of the URL replaced.
///
/// ```
/// let url = oncebox_tests::database_url("postgres://u@h/old?connect_timeout=3", "new");
/// assert_eq!(url, "postgres://u@h/new?connect_timeout=3");
/// ```
#[must_use]
pub fn database_url(url: &str, database: &str) -> String {
    let (front, query) = url.split_once('?').map_or((url, None), |(front, query)| (front, Some(query)));
    let authority = front.find("://").map_or(0, |scheme| scheme + 3);
    let end = front[authority..].find('/').map_or(front.len(), |slash| authority + slash);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{database}{query}", &front[..end])
}

/// The test's own name, shortened, and something random.
fn unique_name() -> String {
    let thread = thread::current();
    let test = thread.name().unwrap_or("test").to_lowercase();
    let tail: String =
        test.chars().rev().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(27).collect();
    let tail: String = tail.chars().rev().collect();
    format!("t_{tail}_{}", &uuid::Uuid::new_v4().simple().to_string()[..8])
}

fn is_gap(error: &jetstream::stream::RawMessageError) -> bool {
    error.kind() == jetstream::stream::RawMessageErrorKind::NoMessageFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_url_is_replaced() {
        for (url, expected) in [
            ("postgres://u:p@h:1/old", "postgres://u:p@h:1/new"),
            ("postgres://u@h:1", "postgres://u@h:1/new"),
            ("postgres://u@h/old?connect_timeout=3", "postgres://u@h/new?connect_timeout=3"),
        ] {
            assert_eq!(database_url(url, "new"), expected);
        }
    }
}
