//! Copies of the user's database, and their content.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use oncebox_schema::SchemaName;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Config, Error, NoTls};

use crate::{CONNECT_WITHIN, TestKitError};

/// How many rows of a table are compared.
const ROWS_MAX: usize = 10_000;
/// How long connections of the last process get to end.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Rows of each table, as JSON.
pub(crate) type Dump = BTreeMap<String, Vec<String>>;

#[derive(Debug)]
pub(crate) struct Database {
    config: Config,
    template: String,
    schema: String,
    volatile: BTreeMap<String, Vec<String>>,
    /// Tells the copies of this kit from those of others.
    run: u64,
    copies: AtomicU64,
}

/// A copy; its name.
#[derive(Debug)]
pub(crate) struct Copy(pub(crate) String);

impl Database {
    pub(crate) fn new(config: Config, schema: &SchemaName, volatile: BTreeMap<String, Vec<String>>) -> Self {
        let template = config.get_dbname().unwrap_or_default().to_owned();
        let run = RandomState::new().hash_one(0);
        Self {
            config,
            template,
            schema: schema.as_str().to_owned(),
            volatile,
            run,
            copies: AtomicU64::new(0),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// A fresh copy.
    pub(crate) async fn copy(&self) -> Result<Copy, TestKitError> {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let copy = Copy(format!("oncebox_testkit_{:016x}_{number}", self.run));
        let sql = sql(include_str!("copy.sql"))
            .replace("{copy}", &quoted(&copy.0))
            .replace("{template}", &quoted(&self.template));
        self.administer(&sql).await.map_err(|error| {
            TestKitError::Database("copy the database; is somebody connected to it?", error)
        })?;
        Ok(copy)
    }

    pub(crate) async fn delete(&self, copy: Copy) -> Result<(), TestKitError> {
        let sql = sql(include_str!("drop.sql")).replace("{copy}", &quoted(&copy.0));
        self.administer(&sql).await.map_err(|error| TestKitError::Database("delete a copy", error))
    }

    /// Runs a statement that needs no database of its own.
    async fn administer(&self, sql: &str) -> Result<(), Error> {
        self.connected("postgres", async |client| client.batch_execute(sql).await).await
    }

    /// All rows that are compared, once no process works in the copy any more.
    pub(crate) async fn dump(&self, copy: &Copy) -> Result<Dump, TestKitError> {
        let reading = self.connected(&copy.0, async |client| {
            self.alone(client).await?;
            let mut dump = Dump::new();
            for row in client.query(include_str!("tables.sql"), &[&self.schema]).await? {
                let (name, quoted): (String, String) = (row.get(0), row.get(1));
                let sql = sql(include_str!("rows.sql")).replace("{table}", &quoted);
                let none = Vec::new();
                let volatile = self.volatile.get(&name).unwrap_or(&none);
                let limit = i64::try_from(ROWS_MAX + 1).unwrap_or(i64::MAX);
                let rows = client.query(&sql, &[volatile, &limit]).await?;
                dump.insert(name, rows.iter().map(|row| row.get(0)).collect());
            }
            Ok(dump)
        });
        let dump = reading.await.map_err(|error| TestKitError::Database("read a copy's tables", error))?;
        match dump.iter().find(|(_, rows)| rows.len() > ROWS_MAX) {
            Some((table, _)) => Err(TestKitError::TooLarge { table: table.clone(), limit: ROWS_MAX }),
            None => Ok(dump),
        }
    }

    /// Waits until the connections of the last process are gone, so that nothing of theirs is still
    /// to come. A task that outlives the handler may keep one for ever, so the wait has a limit.
    async fn alone(&self, client: &Client) -> Result<(), Error> {
        let leaving = async {
            while client.query_one(include_str!("sessions.sql"), &[]).await?.get::<_, i64>(0) > 0 {
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        timeout(LEAVE_WITHIN, leaving).await.unwrap_or(Ok(()))
    }

    /// Does something over a connection of its own, which is gone afterwards.
    pub(crate) async fn connected<T>(
        &self,
        database: &str,
        act: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut config = self.config.clone();
        config.dbname(database).connect_timeout(CONNECT_WITHIN);
        let (mut client, connection) = config.connect(NoTls).await?;
        let acting = async {
            let result = act(&mut client).await;
            drop(client);
            result
        };
        let (result, _) = futures_util::join!(acting, connection);
        result
    }
}

/// A statement without its comments.
pub(crate) fn sql(template: &str) -> String {
    template.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
