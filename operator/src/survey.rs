//! Questions to JetStream about the streams that take the outbox's subjects, and about their
//! consumers, for `oncebox doctor` and `oncebox status`.
//!
//! Every question is a look: nothing is created, changed or published. All of them together have
//! one deadline.

mod consumers;
mod copies;
mod fed;

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{
    self, ErrorCode,
    response::Response,
    stream::{Config as StreamConfig, DiscardPolicy, Info, RetentionPolicy, StorageType},
};
use oncebox_connect::{
    clock::{Reading, Skew},
    config::{Config, Policy, StreamTable},
    error::{RelayError, error_chain},
    nats::{Connection, HOME_SUBJECTS, Server, unless_denied},
};
use oncebox_relay::facts::covers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use tokio::time::{Instant, timeout, timeout_at};

pub use self::consumers::ConsumerStatus;
use self::{consumers::consumers_of, copies::copies};

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
    /// Why JetStream is of no use at all.
    pub unusable: Option<String>,
    /// NATS does not let the relay's user ask whether another database has the same outbox.
    pub may_not_find_copies: bool,
    /// The questions that failed, and why.
    pub unasked: Vec<String>,
}

/// A stream: its limits, and how full it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StreamStatus {
    /// Its name.
    pub name: String,
    /// Its subjects.
    pub subjects: Vec<String>,
    /// Kept in memory, not on disk.
    pub is_in_memory: bool,
    /// Servers that hold it.
    pub replicas: usize,
    /// Servers that should hold it and are away.
    pub offline_replicas: Vec<String>,
    /// Whether the stream has a leader in its cluster; without a leader it takes no messages.
    pub has_leader: bool,
    /// Whether acknowledged messages leave it: retention by interest or as a work queue.
    pub deletes_acknowledged: bool,
    /// Whether it keeps a message only until its consumers have it, and none without consumers:
    /// retention by interest.
    pub drops_unconsumed: bool,
    /// Whether it has messages of other streams, or under subjects they were not published to.
    pub copies_others: bool,
    /// How many consumers it has.
    pub consumers: usize,
    /// A stream of the same account that copies it, if it has no consumers.
    pub copied_by: Option<String>,
    /// Which of its messages the server publishes again, and under which subjects, as a template.
    pub republishes: Option<[String; 2]>,
    /// A stream that takes them there, if `--expected-stream` is on.
    pub feeds: Option<String>,
    /// A full stream refuses new messages; else it drops old ones.
    pub discards_new: bool,
    /// The stream acknowledges no messages.
    pub is_silent: bool,
    /// The stream is sealed and takes no more messages.
    pub is_sealed: bool,
    /// A message cannot replace the older ones of its subject, as an object's description does.
    pub refuses_rollups: bool,
    /// How many messages the stream holds at most.
    pub messages_max: Option<u64>,
    /// How many bytes the stream holds at most.
    pub bytes_max: Option<u64>,
    /// How many messages of one subject the stream holds at most.
    pub messages_per_subject_max: Option<u64>,
    /// A subject that is full refuses new messages; else it drops old ones.
    pub discards_new_per_subject: bool,
    /// How many bytes one message may have, headers included.
    pub message_bytes_max: Option<u64>,
    /// The age at which messages are dropped.
    pub age_max_seconds: Option<f64>,
    /// How long the stream recognizes a copy of a message.
    pub duplicate_window_seconds: f64,
    /// Messages in it.
    pub messages: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// The part of its limits that is used up: the fullest of messages and bytes. None without a
    /// limit.
    pub filled: Option<f64>,
    /// The differences from its declaration, field by field.
    pub differs: Option<String>,
    /// The relay does not start when something differs.
    pub is_verified: bool,
}

impl StreamStatus {
    /// Whether it takes a subject.
    pub(crate) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|pattern| covers(pattern, subject))
    }
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
) -> Result<Survey, RelayError> {
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
        // The content does not matter, and async-nats cannot decode the answer of nats-server 2.9.
        let account = async {
            match self.context.request("INFO", &()).await {
                Ok(Response::Ok(IgnoredAny)) => Ok(()),
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
            self.look_at(&name).await;
        }
        self.set_bucket_apart();
        self.find_streams(subjects).await;
        self.look_at_consumers().await;
        self.look_for_copies().await;
        self.look_for_fed_streams(subjects).await;
    }

    /// Relays ask each other on a subject of the outbox's. Nobody answers on this one.
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
                Ok(Some(name)) => self.look_at(&name).await,
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

    /// A user who may not ask is told of a stream that nobody consumes although others copy it, as
    /// is everybody whose copies are in another account.
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

    async fn look_at(&mut self, name: &str) {
        if self.survey.streams.len() >= STREAMS_MAX {
            return;
        }
        let before = Reading::now();
        let asking = async {
            let request = self.context.request(format!("STREAM.INFO.{name}"), &());
            request.await.map_err(|error| error_chain(&error))
        };
        match unless_denied(self.connection, asking).await {
            Ok(Response::Ok(Answer { info, ts })) => {
                let clock = ts.and_then(|text| humantime::parse_rfc3339(&text).ok());
                self.survey.clock = clock.map(|clock| before.skew(clock)).or(self.survey.clock);
                let declared = self.config.streams.iter().find(|stream| stream.name == name);
                self.survey.streams.push(status(&info, declared));
            }
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                self.survey.missing_streams.push(name.to_owned());
            }
            Ok(Response::Err { error }) => self.survey.unasked.push(format!("stream {name}: {error}")),
            Err(problem) => self.survey.unasked.push(format!("stream {name}: {problem}")),
        }
    }

    async fn stream_of(&self, subject: &str) -> Result<Option<String>, String> {
        #[derive(Serialize)]
        struct Question<'a> {
            subject: &'a str,
        }
        #[derive(Deserialize)]
        struct Names {
            streams: Option<Vec<String>>,
        }
        let asking = async {
            let question = Question { subject };
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

fn status(info: &Info, declared: Option<&StreamTable>) -> StreamStatus {
    let config = &info.config;
    let StreamConfig { max_messages, max_bytes, max_age, .. } = *config;
    let limit = |count: i64| u64::try_from(count).ok().filter(|count| *count > 0);
    let (messages_max, bytes_max) = (limit(max_messages), limit(max_bytes));
    let (messages, bytes) = (info.state.messages, info.state.bytes);
    let parts = [(messages, messages_max), (bytes, bytes_max)].into_iter();
    let parts = parts.filter_map(|(count, most)| Some(part(count, most?)));
    let offline = info.cluster.iter().flat_map(|cluster| &cluster.replicas).filter(|peer| peer.offline);
    let differs = declared.and_then(|declared| declared.differences(config));
    StreamStatus {
        name: config.name.clone(),
        subjects: config.subjects.clone(),
        is_in_memory: config.storage == StorageType::Memory,
        replicas: config.num_replicas.max(1),
        offline_replicas: offline.map(|peer| peer.name.clone()).collect(),
        has_leader: info.cluster.as_ref().is_none_or(|cluster| cluster.leader.is_some()),
        drops_unconsumed: config.retention == RetentionPolicy::Interest,
        copies_others: config.mirror.is_some()
            || config.sources.as_ref().is_some_and(|sources| !sources.is_empty())
            || config.subject_transform.is_some(),
        consumers: info.state.consumer_count,
        copied_by: None,
        republishes: config.republish.as_ref().map(|again| [again.source.clone(), again.destination.clone()]),
        feeds: None,
        deletes_acknowledged: config.retention != RetentionPolicy::Limits,
        discards_new: config.discard == DiscardPolicy::New,
        is_silent: config.no_ack,
        is_sealed: config.sealed,
        refuses_rollups: !config.allow_rollup,
        messages_max,
        bytes_max,
        messages_per_subject_max: limit(config.max_messages_per_subject),
        discards_new_per_subject: config.discard_new_per_subject,
        message_bytes_max: limit(config.max_message_size.into()),
        age_max_seconds: (!max_age.is_zero()).then_some(max_age.as_secs_f64()),
        duplicate_window_seconds: config.duplicate_window.as_secs_f64(),
        messages,
        bytes,
        filled: parts.reduce(f64::max),
        differs,
        is_verified: declared.is_some_and(|declared| declared.policy == Policy::Verify),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share to look at")]
fn part(count: u64, most: u64) -> f64 {
    count as f64 / most as f64
}
