//! The programs of a client's README, and a shop on real servers in which they run.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::{
    HeaderMap,
    jetstream::{self, stream::Stream},
};
use oncebox_tests::{Nats, Program, TestEnv, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::Client;

pub(super) const LIMIT: Duration = Duration::from_secs(90);

/// The folder with a client's programs.
pub(super) struct Programs(PathBuf);

impl Programs {
    /// `None` where there is no toolchain for this client.
    pub(super) fn of(client: &str) -> Option<Self> {
        let folder = repository().join(".dev/clients").join(client);
        assert!(folder.is_dir(), "{} is not there: run `make .dev/clients/{client}`", folder.display());
        let Ok(reason) = fs::read_to_string(folder.join("LEFT_OUT")) else { return Some(Self(folder)) };
        let is_required = env::var_os("ONCEBOX_TEST_CLIENTS").is_some_and(|value| value == "required");
        assert!(!is_required, "{reason}");
        eprint!("{reason}");
        None
    }

    /// Those of the folder that has this program.
    pub(super) fn built(program: &Path) -> Self {
        Self(program.parent().unwrap().to_owned())
    }

    pub(super) fn file(&self, program: &str) -> PathBuf {
        self.0.join(program)
    }

    /// The text with which a consumer commits, and not in READ COMMITTED; for pgx the name of the
    /// prepared COMMIT, a hash of the text, after the empty name of a portal.
    pub(super) fn commit(&self) -> &'static [u8] {
        if self.0.ends_with("go") { b"\0stmtcache_79663c1d3b43ceaf" } else { b"COMMIT\0" }
    }
}

pub(super) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Everything that the programs of the README need, and the programs.
pub(super) struct Shop {
    pub(super) env: TestEnv,
    pub(super) nats: Nats,
    pub(super) jetstream: jetstream::Context,
    pub(super) stream: Stream,
    pub(super) programs: Programs,
}

impl Shop {
    pub(super) async fn new(programs: Programs) -> Self {
        let (env, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
        let tables = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL);
                      CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
        env.pg().await.batch_execute(tables).await.unwrap();
        let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
        let config = jetstream::stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders.>".to_owned(), "payments.>".to_owned()],
            ..Default::default()
        };
        let stream = jetstream.create_stream(config).await.unwrap();
        Self { env, nats, jetstream, stream, programs }
    }

    /// The README's consumer, as a process of its own whose connections have this name.
    pub(super) async fn payment(&self, database_url: &str, name: &str) -> Program {
        let separator = if database_url.contains('?') { '&' } else { '?' };
        let database_url = format!("{database_url}{separator}application_name={name}");
        let environment = [("DATABASE_URL", database_url), ("NATS_URL", self.nats.url())];
        Program::start_file(&self.programs.file("payment"), &[], &environment).await.unwrap()
    }

    /// The consumer of this name has begun, after it was started at this time, when it registers or
    /// claims, even if it has sent more since. Before that, it would end at once when it is told to
    /// end. Tests beside this one run consumers of the same names.
    pub(super) async fn has_begun(&self, name: &str, started: &str) {
        let client = self.env.pg().await;
        let sql = format!(
            "SELECT query FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = '{name}'
               AND backend_start >= '{started}' AND query ~* 'register|claim|oncebox|commit'"
        );
        eventually("the consumer has begun", LIMIT, async || lines(&client, &sql).await.pop()).await;
    }

    pub(super) async fn publish(&self, order: &str, cents: i64, key: Option<&str>) {
        self.publish_bytes(format!(r#"{{"order":"{order}","cents":{cents}}}"#), key).await;
    }

    pub(super) async fn publish_bytes(&self, payload: String, key: Option<&str>) {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("Idempotency-Key", key);
        }
        let publish = self.jetstream.publish_with_headers("orders.placed", headers, payload.into());
        publish.await.unwrap().await.unwrap();
    }

    /// Publishes a message with headers as they stand, which clients would refuse.
    pub(super) async fn publish_raw(&self, headers: &str, payload: &str) {
        publish_raw(&self.nats.url(), "orders.placed", headers, payload).await;
    }

    /// Everything that was published is acknowledged, or given up.
    pub(super) async fn settled(&self) {
        eventually("the consumer is done", LIMIT, async || {
            let info = self.stream.consumer_info("payment").await.ok()?;
            (info.num_pending == 0 && info.num_ack_pending == 0).then_some(())
        })
        .await;
    }
}

/// Publishes a message with headers as they stand, which clients would refuse.
pub(super) async fn publish_raw(url: &str, subject: &str, headers: &str, payload: &str) {
    let mut server = TcpStream::connect(url.trim_start_matches("nats://")).await.unwrap();
    let headers = format!("NATS/1.0\r\n{headers}\r\n");
    let (head, whole) = (headers.len(), headers.len() + payload.len());
    let sent = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nHPUB {subject} {head} {whole}\r\n\
         {headers}{payload}\r\nPING\r\n"
    );
    server.write_all(sent.as_bytes()).await.unwrap();
    let mut said = String::new();
    while !said.contains("PONG") {
        let mut part = [0; 4096];
        let length = server.read(&mut part).await.unwrap();
        assert!(length > 0 && !said.contains("-ERR"), "{said}");
        said.push_str(&String::from_utf8_lossy(&part[..length]));
    }
}

pub(super) async fn lines(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}
