//! A relay and consumers, until all messages of a test are done.

use std::{
    fmt,
    path::PathBuf,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    sync::Notify,
};

/// Lines of the relay's log that an error shows.
const LOG_LINES: usize = 10;
/// In the log of a relay that has made its streams.
const RUNNING: &str = "relay is running";

type Running<'a> = Pin<Box<dyn Future<Output = (String, String)> + 'a>>;

/// Runs a relay and your consumers until all messages are done: those that your test has enqueued,
/// those that handlers enqueue, and so on. The relay is the program `oncebox`, on your PostgreSQL
/// and nats-server.
///
/// ```no_run
/// # use std::{error::Error, time::Duration};
/// # use oncebox_inbox::{Consumer, Handler, Inbox};
/// # use oncebox_testkit::Flow;
/// # use tokio_util::sync::CancellationToken;
/// # async fn a_paid_order_is_shipped(
/// #     jetstream: async_nats::jetstream::Context, inbox: Inbox, charge: impl Handler + 'static,
/// # ) -> Result<(), Box<dyn Error>> {
/// let consumer = Consumer::new(jetstream, "ORDERS", "payment").filter_subject("orders.placed");
/// Flow::new("postgres://postgres@127.0.0.1/test", "nats://127.0.0.1")
///     .stream("ORDERS=orders.>")
///     .consumer("ORDERS/payment", consumer.run(inbox, charge, CancellationToken::new()))
///     .run_until_quiet(Duration::from_secs(20))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it runs in `run_until_quiet`"]
pub struct Flow<'a> {
    program: PathBuf,
    database_url: String,
    nats_url: String,
    streams: Vec<String>,
    names: Vec<String>,
    consumers: FuturesUnordered<Running<'a>>,
}

/// Shows no password.
impl fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("consumers", &self.names).finish_non_exhaustive()
    }
}

/// Why not all messages are done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// Messages are left after the deadline, or were given up; the text names them with the reason.
    #[error("{0}")]
    NotDone(String),
    /// A consumer has ended.
    #[error("the consumer {name} has ended: {problem}")]
    Consumer {
        /// Its name.
        name: String,
        /// Its error.
        problem: String,
    },
    /// The relay has ended.
    #[error("the relay has ended ({status}): {log}")]
    Relay {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// The program `oncebox` cannot be run.
    #[error("run {}", .0.display())]
    Program(PathBuf, #[source] std::io::Error),
}

impl<'a> Flow<'a> {
    /// Messages of this database, which has the schema of Oncebox, over this nats-server.
    pub fn new(database_url: impl Into<String>, nats_url: impl Into<String>) -> Self {
        Self {
            program: "oncebox".into(),
            database_url: database_url.into(),
            nats_url: nats_url.into(),
            streams: Vec::new(),
            names: Vec::new(),
            consumers: FuturesUnordered::new(),
        }
    }

    /// The program. Default: `oncebox` of PATH.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = path.into();
        self
    }

    /// A stream that the relay makes if it is missing, in the words of its option `--stream`:
    /// `ORDERS=orders.>,payments.>`.
    pub fn stream(mut self, stream: impl Into<String>) -> Self {
        self.streams.push(stream.into());
        self
    }

    /// A consumer, by the names of stream and durable consumer, `ORDERS/payment`. It is dropped at
    /// the end. It may also be a loop of your own.
    pub fn consumer<E: fmt::Display>(
        mut self,
        name: impl Into<String>,
        running: impl Future<Output = Result<(), E>> + 'a,
    ) -> Self {
        let name = name.into();
        self.names.push(name.clone());
        self.consumers.push(Box::pin(async move {
            let problem =
                running.await.err().map_or_else(|| "without an error".to_owned(), |e| e.to_string());
            (name, problem)
        }));
        self
    }

    /// Runs them until no message is due, parked or at a consumer. A message that is delayed for
    /// later is not waited for.
    ///
    /// # Errors
    /// Messages are left after this time, or were given up on the way: the error names each with
    /// its reason. Or relay or consumer cannot run.
    pub async fn run_until_quiet(mut self, within: Duration) -> Result<(), FlowError> {
        let failed = |error| FlowError::Program(self.program.clone(), error);
        let command = |words: &[&str]| {
            let mut command = Command::new(&self.program);
            command.args(words).env("DATABASE_URL", &self.database_url).env("NATS_URL", &self.nats_url);
            command
                .env("ONCEBOX_HTTP_LISTEN", "off")
                .env("ONCEBOX_LOG", "info")
                .stdin(Stdio::null())
                .kill_on_drop(true);
            command
        };
        let mut relay = command(&["relay"]);
        if !self.streams.is_empty() {
            relay.args(["--stream", &self.streams.join(";")]);
        }
        let mut relay = relay.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let log = BufReader::new(relay.stderr.take().expect("it is piped"));
        let begun = Notify::new();
        let relaying = pin!(async {
            let (mut lines, mut last) = (log.lines(), Vec::new());
            while let Ok(Some(line)) = lines.next_line().await {
                if line.contains(RUNNING) {
                    begun.notify_one();
                }
                last.push(line);
                last.drain(..last.len().saturating_sub(LOG_LINES));
            }
            (relay.wait().await, last.join("\n"))
        });
        let consuming = pin!(async {
            // A consumer would find no stream before.
            begun.notified().await;
            self.consumers.next().await
        });
        let seconds = within.as_secs().clamp(1, 3600).to_string();
        let mut waiting = command(&["status", "--until-quiet", &seconds]);
        waiting.args(self.names.iter().flat_map(|name| ["--consumer", name]));
        tokio::select! {
            output = waiting.output() => {
                let output = output.map_err(failed)?;
                let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                if output.status.success() { Ok(()) } else { Err(FlowError::NotDone(said)) }
            }
            Some((name, problem)) = consuming => Err(FlowError::Consumer { name, problem }),
            (status, log) = relaying => {
                Err(FlowError::Relay { status: status.map_err(failed)?, log })
            }
        }
    }
}
