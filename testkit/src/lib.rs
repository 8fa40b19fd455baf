//! A test kit for handlers: runs a handler through crashes, duplicates and races, and compares the
//! rows that it leaves with those of one undisturbed run.
//!
//! The inbox makes a handler's effect happen once if the handler writes only through its
//! transaction. This kit finds out whether *your* handler does: on your real PostgreSQL, with your
//! tables, each time on a fresh copy of a database.
//!
//! | scenario | the kit |
//! |---|---|
//! | [`Scenario::Kill`] | the process dies at the n-th statement, for n = 1 up to the last one: once before the server gets the statement, once after the server has carried it out and before its answer arrives; then a new process goes on |
//! | [`Scenario::Duplicates`] | each message twice in a row, then all of them again, in a new process |
//! | [`Scenario::Pairs`] | two processes get each message at the same time |
//! | [`Scenario::Together`] | two processes get all messages at the same time; those of one ordering key in their order |
//! | [`Scenario::Order`] | messages of different ordering keys in other orders |
//!
//! After each scenario all tables are compared with those after the undisturbed run. A row too many
//! is an effect that happened twice; a missing row is an effect that was lost. A process is an
//! inbox and a handler, made by your closure. It dies by being dropped at an `.await`, and its
//! connections are closed. State that the handler keeps in memory is gone then, but threads and
//! tasks that the handler started go on.
//!
//! ```rust,no_run
//! use oncebox_inbox::{Context, Handler, HandlerError, Inbox, Outcome, Received};
//! use oncebox_testkit::{Template, TestKit};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     customer: i64,
//!     cents: i64,
//! }
//!
//! struct Charge;
//!
//! impl Handler for Charge {
//!     type Message = Order;
//!     type Reply = ();
//!
//!     async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
//!         let sql = "INSERT INTO charge (customer, cents) VALUES ($1, $2)";
//!         cx.transaction().execute(sql, &[&order.customer, &order.cents]).await?;
//!         Ok(Outcome::done(()))
//!     }
//! }
//!
//! const TABLES: &str = "CREATE TABLE charge (id bigserial PRIMARY KEY, customer bigint, cents bigint)";
//!
//! #[tokio::test]
//! async fn a_charge_happens_once() {
//!     // Any database of a server; its user may create others.
//!     let server = std::env::var("DATABASE_URL").unwrap();
//!     // With the schema of Oncebox, your tables, and the rows that the messages need.
//!     let template = Template::make(&server, &[TABLES]).await.unwrap();
//!     TestKit::new(template.url())
//!         .message(Received::new("orders", r#"{"customer":1,"cents":5}"#).header("Idempotency-Key", "a"))
//!         .message(Received::new("orders", r#"{"customer":2,"cents":7}"#).header("Idempotency-Key", "b"))
//!         // Sequences do not go back with a transaction: ids differ however well the handler does.
//!         .volatile("public.charge", "id")
//!         .check(|scratch| {
//!             let inbox = Inbox::builder(scratch.pool(4)).scope("payment:charge").single_tenant();
//!             (inbox.build().unwrap(), Charge)
//!         })
//!         .await
//!         .unwrap()
//!         .assert_once();
//! }
//! ```
//!
//! A failure of the report names the statement and the rows:
//!
//! ```text
//! killed at statement 4, `INSERT INTO audit (line) VALUES ($1)`, after the server had carried it out:
//!   public.audit: 1 too many
//!     1 x {"line": "charged a"}
//! ```
//!
//! [`SagaKit`] checks a definition of a saga the same way: along each way that a test names, with a
//! crash at each transition. [`Flow`] runs a relay and consumers until all messages are done, and
//! [`enqueued`] returns those of an open transaction. [`Template`] gives each test a database of
//! its own. A handler over sqlx, SeaORM or Diesel is checked like any other: the pool of its inbox
//! connects to [`Scratch::url`]. A set of handlers is a handler, and a
//! [`LeasedHandler`](oncebox_inbox::LeasedHandler) is checked with its
//! [`Leased`](oncebox_inbox::Leased): give that a lease of a second or less, and its effects a
//! short `settles_within`, since the kit waits for both when a process has died. A service with an
//! HTTP layer is a [`Process`] of your own.
//!
//! # Limits
//!
//! Only tables are compared, not sequences, files or other systems. To compare effects in another
//! system, give the handler a fake of that system which writes to a table of the scratch database,
//! over its own connection to [`Scratch::url`]. A kill hits between statements of connections to
//! [`Scratch`], not between two lines of Rust without a statement in between. Messages that must
//! stay in order need the same ordering key; the rest is expected to come out the same in any
//! order. The kit does not wait for the pauses that a handler asks for.

mod database;
mod enqueued;
mod flow;
mod process;
mod proxy;
mod report;
mod saga;
mod scenario;
mod server;
mod statement;
mod template;

use std::{collections::BTreeMap, fmt, sync::Mutex, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use oncebox_inbox::Received;
use oncebox_schema::SchemaName;
use tokio_postgres::{Config, NoTls};

use database::{Database, Dump};
pub use enqueued::{Enqueued, enqueued, enqueued_over};
pub use flow::{Flow, FlowError};
pub use process::{Process, Run};
pub use report::{Failure, Report, Scenario};
pub use saga::{SagaKit, SagaReport};
use scenario::Stage;
use server::{address, config, url};
pub use template::Template;

const MESSAGES_MAX: usize = 1000;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Checks one handler with some messages; see the [crate].
#[must_use = "a kit does nothing until `check`"]
#[derive(Clone)]
pub struct TestKit {
    url: String,
    schema: SchemaName,
    messages: Vec<Received>,
    /// Columns that are not compared, by table.
    volatile: BTreeMap<String, Vec<String>>,
    kills: Kills,
    kills_max: u64,
    settle_within: Duration,
}

/// Where a process is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a process sends nothing but statements")]
pub enum Kills {
    /// At each statement.
    #[default]
    Statements,
    /// At each COMMIT. This is enough if the handler writes only in its transaction: everything
    /// before the COMMIT is rolled back.
    Commits,
}

/// Shows no password.
impl fmt::Debug for TestKit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestKit").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// Why the kit could not check a handler. The [`Report`] has the handler's own faults instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestKitError {
    /// The kit was given values that cannot work.
    #[error("{0}")]
    Invalid(String),
    /// The database cannot be copied, reached or read.
    #[error("{0}")]
    Database(&'static str, #[source] tokio_postgres::Error),
    /// The scratch database has more rows than the kit compares.
    #[error("table {table} has more than {limit} rows; the kit is for small databases")]
    TooLarge {
        /// Which table.
        table: String,
        /// How many rows of a table are compared.
        limit: usize,
    },
    /// The kit's own connections failed.
    #[error("{0}")]
    Network(&'static str, #[source] std::io::Error),
    /// Even the undisturbed run does not end.
    #[error("the undisturbed run: {0}")]
    Undisturbed(String),
}

/// A copy of the database, for one process of a scenario.
pub struct Scratch {
    url: String,
    config: Config,
}

/// Shows no password.
impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("database", &self.config.get_dbname()).finish_non_exhaustive()
    }
}

impl Scratch {
    /// The copy of the database with this name, reached through a proxy.
    fn new(config: &Config, port: u16, copy: &str) -> Self {
        let mut through = Config::new();
        through.host("127.0.0.1").port(port).dbname(copy).connect_timeout(CONNECT_WITHIN);
        if let Some(user) = config.get_user() {
            through.user(user);
        }
        if let Some(password) = config.get_password() {
            through.password(password);
        }
        Self { url: url(config, "127.0.0.1", port, copy), config: through }
    }

    /// A pool of this number of connections to the scratch database, at least one.
    ///
    /// # Panics
    /// Never: the URL was checked before.
    #[must_use]
    pub fn pool(&self, size: usize) -> Pool {
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        Pool::builder(Manager::from_config(self.config.clone(), NoTls, manager))
            .max_size(size.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_WITHIN))
            .create_timeout(Some(CONNECT_WITHIN))
            .build()
            .expect("timeouts have the runtime that they need")
    }

    /// The scratch database, for a pool of another driver and for connections of the handler's own;
    /// they are cut with the process.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl TestKit {
    /// A kit for copies of this database, `postgres://user[:password]@host[:port]/database`, over
    /// TCP and without TLS. The user may create databases. The database has the schema of Oncebox,
    /// the handler's tables, and the rows that they begin with. No other session may be connected
    /// to it while the kit works.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: SchemaName::default(),
            messages: Vec::new(),
            volatile: BTreeMap::new(),
            kills: Kills::default(),
            kills_max: 500,
            settle_within: Duration::from_secs(60),
        }
    }

    /// The PostgreSQL schema that Oncebox is installed in. Default: `oncebox`.
    pub fn schema(mut self, name: SchemaName) -> Self {
        self.schema = name;
        self
    }

    /// Adds a message; 1 to 1000 of them. They are delivered in this order, unless a scenario says
    /// otherwise.
    pub fn message(mut self, message: Received) -> Self {
        self.messages.push(message);
        self
    }

    /// Leaves out a column that differs from run to run even if the handler is correct, such as an
    /// id from a sequence or a time. Name the table with its schema: `public.charge`. Of Oncebox's
    /// own tables only `inbox`, `message`, `dead_letter` and those of sagas are compared, without
    /// their ids and times.
    pub fn volatile(mut self, table: impl Into<String>, column: impl Into<String>) -> Self {
        self.volatile.entry(table.into()).or_default().push(column.into());
        self
    }

    /// Where a process is killed. Default: at each statement.
    pub fn kills(mut self, kills: Kills) -> Self {
        self.kills = kills;
        self
    }

    /// At how many statements the process is killed at most, twice at each. Default: 500. Of a run
    /// with more statements only the first ones are checked, and the report says so.
    pub fn kills_max(mut self, count: u64) -> Self {
        self.kills_max = count;
        self
    }

    /// How long one scenario may take until all its messages have ended. Default: 60 seconds.
    pub fn settle_within(mut self, limit: Duration) -> Self {
        self.settle_within = limit;
        self
    }

    /// Runs all scenarios. The closure starts a process, such as an inbox with its handler: it is
    /// called for each, and again after each kill.
    ///
    /// # Errors
    /// The kit could not work. The handler's own faults are in the report.
    pub async fn check<P, F>(&self, process: F) -> Result<Report, TestKitError>
    where
        P: Process,
        F: Fn(&Scratch) -> P,
    {
        Ok(self.check_all(process).await?.0)
    }

    /// Does the work of [`TestKit::check`], and returns the tables of the undisturbed run too.
    async fn check_all<P, F>(&self, process: F) -> Result<(Report, Dump), TestKitError>
    where
        P: Process,
        F: Fn(&Scratch) -> P,
    {
        if !(1..=MESSAGES_MAX).contains(&self.messages.len()) {
            return Err(TestKitError::Invalid(format!("messages: 1 to {MESSAGES_MAX} are needed")));
        }
        let database = Database::new(config(&self.url)?, &self.schema, self.left_out());
        let last_problem = Mutex::default();
        Stage { kit: self, database, process, last_problem }.check().await
    }

    /// The columns of Oncebox's own tables that do not count as an effect.
    fn left_out(&self) -> BTreeMap<String, Vec<String>> {
        let mut volatile = self.volatile.clone();
        let own = [
            ("inbox", &["created_at", "message_id"][..]),
            ("message", &["id", "xact", "xmin", "created_at"]),
            ("dead_letter", &["id", "created_at", "deliveries"]),
            ("saga", &["revision", "deadline_at", "due_at", "created_at", "changed_at", "finished_at"]),
            ("saga_step", &["deadline_at", "sent_at", "answered_at", "undo_sent_at", "undone_at"]),
            ("saga_event", &["id", "created_at"]),
        ];
        for (table, columns) in own {
            let columns = columns.iter().map(ToString::to_string);
            volatile.entry(format!("{}.{table}", self.schema.as_str())).or_default().extend(columns);
        }
        volatile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_of_any_text_is_a_part_of_the_url() {
        let mut config = Config::new();
        config.user("me@home").password("a/b:ü ");
        let scratch = Scratch::new(&config, 4711, "copy");
        assert_eq!(scratch.url(), "postgres://me%40home:a%2Fb%3A%C3%BC%20@127.0.0.1:4711/copy");
        let parsed: Config = scratch.url().parse().unwrap();
        assert_eq!((parsed.get_user(), parsed.get_password()), (Some("me@home"), Some("a/b:ü ".as_bytes())));
        assert!(!format!("{scratch:?}").contains("%2F"));
    }

    #[test]
    fn a_url_that_cannot_work_is_refused_without_showing_it() {
        for (url, problem) in [
            ("postgres://me:hunter2@127.0.0.1", "names no database"),
            ("postgres:///db?host=/run&password=hunter2", "one host"),
            ("postgres://me:hunter2@a,b/db", "one host"),
            ("postgres://me:hunter2@a:port/db", "not a URL of PostgreSQL"),
        ] {
            let kit = TestKit::new(url);
            let text = config(&kit.url).unwrap_err().to_string();
            assert!(text.contains(problem), "{url}: {text}");
            assert!(!text.contains("hunter2") && !format!("{kit:?}").contains("hunter2"));
        }
    }
}
