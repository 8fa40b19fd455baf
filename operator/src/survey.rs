//! Questions to JetStream about the streams that take the outbox's subjects, and about their
//! consumers, for `oncebox doctor` and `oncebox status`.
//!
//! Every question is a look: nothing is created, changed or published. All of them together have
//! one deadline.

mod consumers;
mod copies;
mod fed;
mod stream;

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{self, ErrorCode, response::Response, stream::Info};
use oncebox_connect::{
    clock::{Reading, Skew},
    config::{Config, Policy},
    error::error_chain,
    nats::{Connection, HOME_SUBJECTS, Server, unless_denied},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

pub use self::{consumers::ConsumerStatus, stream::StreamStatus};
use self::{
    consumers::consumers_of,
    copies::copies,
    stream::{limit, part, status},
};
use crate::Result;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon NATS says that it denies something.
const DENIED_WITHIN: Duration = Duration::from_millis(500);
/// How long all requests together may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// How many streams are looked at at most.
const STREAMS_MAX: usize = 50;
/// How many consumers are kept at most.
const CONSUMERS_MAX: usize = 500;

/// The answers of NATS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Survey {
    /// Its URL, without credentials.
    pub url: String,
    /// The server's version.
    pub version: String,
    /// The cluster that the server is part of.
    pub cluster: Option<String>,
    /// Bytes of one message with its headers that the server takes, at most.
    pub max_payload_bytes: u64,
    /// The streams that take subjects of the outbox, or that the configuration names.
    pub streams: Vec<StreamStatus>,
    /// The bucket for large payloads, if the configuration names one and it is there.
    pub bucket: Option<StreamStatus>,
    /// The consumers of these streams, 500 at most, and of one stream 256.
    pub consumers: Vec<ConsumerStatus>,
    /// Subjects of recent messages that no stream takes.
    pub subjects_without_stream: Vec<String>,
    /// Streams that the configuration names and that are not there.
    pub missing_streams: Vec<String>,
    /// The clock of the server that answered against this host's; from nats-server 2.10 on.
    pub clock: Option<Skew>,
    /// The part of the account's room for streams on disk that is used up; None without a limit.
    pub account_filled: Option<f64>,
    /// Streams of the configuration that are missing, and that the account refuses: it asks for a
    /// `max_bytes`, and they have none.
    pub unlimited_streams: Vec<String>,
    /// Why JetStream is of no use at all.
    pub unusable: Option<String>,
    /// NATS does not let the relay's user ask whether another database has the same outbox.
    pub may_not_find_copies: bool,
    /// The questions that failed, and why.
    pub unasked: Vec<String>,
}

/// Connects, looks, and hangs up; to ask for rights takes half a second.
///
/// # Errors
/// NATS cannot be reached, or does not let us in.
pub(crate) async fn look(
    config: &Config,
    name: &str,
    subjects: &[String],
    asks_for_rights: bool,
) -> Result<Survey> {
    let deadline = Instant::now() + LOOK_TIMEOUT;
    let connection = Server::connect_once(config, name, LOOK_TIMEOUT).await?;
    let info = connection.client.server_info();
    let mut survey = Survey {
        url: config.nats_target(),
        version: info.version,
        cluster: info.cluster,
        max_payload_bytes: info.max_payload as u64,
        ..Survey::default()
    };
    let context = connection.jetstream(REQUEST_TIMEOUT);
    let mut looker = Looker { config, connection: &connection, context, survey: &mut survey };
    let looking = async {
        if asks_for_rights {
            looker.look_for_right_to_ask().await;
        }
        looker.look(subjects).await;
    };
    if timeout_at(deadline, looking).await.is_err() {
        let problem = format!("JetStream did not answer everything within {LOOK_TIMEOUT:?}");
        survey.unasked.push(problem);
    }
    Ok(survey)
}

/// The usage of an account beside its limits; async-nats cannot decode the answer of nats-server
/// 2.9.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Account {
    storage: u64,
    limits: AccountLimits,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccountLimits {
    max_storage: i64,
    max_bytes_required: bool,
}

struct Looker<'a> {
    config: &'a Config,
    connection: &'a Connection,
    context: jetstream::Context,
    survey: &'a mut Survey,
}

/// A stream's own answer, with the time that newer servers give with it.
#[derive(Deserialize)]
struct Answer {
    #[serde(flatten)]
    info: Info,
    ts: Option<String>,
}

impl Looker<'_> {
    async fn look(&mut self, subjects: &[String]) {
        let mut limits = Account::default();
        let account = async {
            match self.context.request("INFO", &()).await {
                Ok(Response::Ok(account)) => {
                    limits = account;
                    Ok(())
                }
                Ok(Response::Err { error }) => Err(error_chain(&error)),
                Err(error) => Err(error_chain(&error)),
            }
        };
        match unless_denied(self.connection, account).await {
            Ok(()) => {}
            Err(problem) if is_denial(&problem) && !self.connection.over.is_cancelled() => {
                self.survey.unasked.push(format!("the account: {problem}"))
            }
            // Without the account's answer no other question can be asked.
            Err(problem) => return self.survey.unusable = Some(problem),
        }
        for name in self.named() {
            if let Err(problem) = self.look_at(&name).await {
                self.survey.unasked.push(format!("stream {name}: {problem}"));
            }
        }
        self.compare_with(&limits);
        self.set_bucket_apart();
        self.find_streams(subjects).await;
        self.look_at_consumers().await;
        self.look_for_copies().await;
        self.look_for_fed_streams(subjects).await;
    }

    /// An account's limits refuse streams, and messages once they are used up.
    fn compare_with(&mut self, Account { storage, limits }: &Account) {
        self.survey.account_filled = limit(limits.max_storage).map(|most| part(*storage, most));
        let refused = |name: &&String| {
            let declared = self.config.streams.iter().find(|stream| stream.name == **name);
            declared.is_some_and(|stream| stream.policy == Policy::Create && stream.config.max_bytes <= 0)
        };
        if limits.max_bytes_required {
            self.survey.unlimited_streams =
                self.survey.missing_streams.iter().filter(refused).cloned().collect();
        }
    }

    /// Relays ask each other on a subject of the outbox's. No relay answers on this one.
    async fn look_for_right_to_ask(&mut self) {
        let (client, subject) = (&self.connection.client, format!("{HOME_SUBJECTS}doctor"));
        let mut denied = self.connection.denied.subscribe();
        let Ok(_subscribed) = client.subscribe(subject.clone()).await else { return };
        if client.publish(subject.clone(), "".into()).await.is_err() {
            return;
        }
        let _ = client.flush().await;
        let answered = timeout(DENIED_WITHIN, denied.recv()).await;
        self.survey.may_not_find_copies = matches!(answered, Ok(Ok(denied)) if *denied == *subject);
    }

    /// The bucket holds no messages, so it has neither subjects nor consumers to look for.
    fn set_bucket_apart(&mut self) {
        let Some(large) = &self.config.tuning.limits.large_payloads else { return };
        let name = large.stream();
        if let Some(at) = self.survey.streams.iter().position(|stream| stream.name == name) {
            self.survey.bucket = Some(self.survey.streams.remove(at));
        }
    }

    async fn find_streams(&mut self, subjects: &[String]) {
        for subject in subjects {
            if self.survey.streams.iter().any(|stream| stream.takes(subject)) {
                continue;
            }
            match self.stream_of(subject).await {
                Ok(Some(name)) => match self.look_at(&name).await {
                    Err(problem) if is_denial(&problem) => {
                        self.survey.unasked.push(format!("stream {name}: {problem}"));
                    }
                    // The cluster knows it, and none of its servers answers for it.
                    Err(_) => self.survey.streams.push(StreamStatus::without_leader(name, subject)),
                    Ok(()) => {}
                },
                Ok(None) => self.survey.subjects_without_stream.push(subject.clone()),
                Err(problem) => {
                    self.survey.unasked.push(format!("which stream takes {subject}: {problem}"));
                    // The others would not be answered either.
                    return;
                }
            }
        }
    }

    async fn look_at_consumers(&mut self) {
        let consumed = self.survey.streams.iter().filter(|stream| stream.consumers > 0);
        let names: Vec<String> = consumed.map(|stream| stream.name.clone()).collect();
        for name in names {
            match consumers_of(self.connection, &self.context, &name).await {
                Ok(consumers) => self.survey.consumers.extend(consumers),
                Err(problem) => {
                    self.survey.unasked.push(format!("the consumers of stream {name}: {problem}"));
                    // Those of other streams would not be told either.
                    return;
                }
            }
            if self.survey.consumers.len() >= CONSUMERS_MAX {
                return self.survey.consumers.truncate(CONSUMERS_MAX);
            }
        }
    }

    /// A user who may not ask, or whose copies are in another account, is told of a stream without
    /// a consumer although others copy it.
    async fn look_for_copies(&mut self) {
        if self.survey.streams.iter().all(|stream| stream.consumers > 0 || stream.messages == 0) {
            return;
        }
        let copies = copies(self.connection, &self.context).await.unwrap_or_default();
        for stream in self.survey.streams.iter_mut().filter(|stream| stream.consumers == 0) {
            let copy = copies.iter().find(|(_, origins)| origins.contains(&stream.name));
            stream.copied_by = copy.map(|(name, _)| name.clone());
        }
    }

    /// The streams that the configuration names.
    fn named(&self) -> BTreeSet<String> {
        let declared = self.config.streams.iter().filter(|stream| stream.policy != Policy::Ignore);
        let declared = declared.map(|stream| stream.name.clone());
        declared.chain(self.config.tuning.limits.expected_stream.clone()).collect()
    }

    async fn look_at(&mut self, name: &str) -> Result<(), String> {
        if self.survey.streams.len() >= STREAMS_MAX {
            return Ok(());
        }
        let before = Reading::now();
        let asking = async {
            let request = self.context.request(format!("STREAM.INFO.{name}"), &());
            request.await.map_err(|error| error_chain(&error))
        };
        match unless_denied(self.connection, asking).await? {
            Response::Ok(Answer { info, ts }) => {
                let clock = ts.and_then(|text| humantime::parse_rfc3339(&text).ok());
                self.survey.clock = clock.map(|clock| before.skew(clock)).or(self.survey.clock);
                let declared = self.config.streams.iter().find(|stream| stream.name == name);
                self.survey.streams.push(status(&info, declared));
            }
            Response::Err { error } if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                self.survey.missing_streams.push(name.to_owned());
            }
            Response::Err { error } => return Err(error.to_string()),
        }
        Ok(())
    }

    async fn stream_of(&self, subject: &str) -> Result<Option<String>, String> {
        #[derive(Deserialize)]
        struct Names {
            streams: Option<Vec<String>>,
        }
        let asking = async {
            let question = json!({ "subject": subject });
            let request = self.context.request("STREAM.NAMES", &question);
            request.await.map_err(|error| error_chain(&error))
        };
        match unless_denied(self.connection, asking).await? {
            Response::Ok(Names { streams }) => Ok(streams.and_then(|names| names.into_iter().next())),
            Response::Err { error } => Err(error.to_string()),
        }
    }
}

fn is_denial(problem: &str) -> bool {
    problem.contains("does not let the relay's user")
}
