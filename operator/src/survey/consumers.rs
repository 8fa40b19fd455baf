//! The consumers of a stream, as JetStream lists them.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::{self, response::Response};
use oncebox_connect::{
    error::error_chain,
    nats::{Connection, unless_denied},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::time::Time;

/// A consumer of a stream: how far it is, and who waits for its messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Its stream.
    pub stream: String,
    /// Its name.
    pub name: String,
    /// The subjects that it takes; none stands for all of its stream.
    pub filters: Vec<String>,
    /// Messages of the stream that it has not delivered yet.
    pub pending: u64,
    /// Messages delivered and not acknowledged.
    pub unacknowledged: u64,
    /// The highest sequence of its stream that it has delivered.
    pub delivered_sequence: u64,
    /// All up to this sequence of its stream are acknowledged.
    pub acknowledged_sequence: u64,
    /// At this number (`max_ack_pending`) it delivers no further message.
    pub unacknowledged_max: Option<u64>,
    /// Messages of those that it has delivered more than once.
    pub redelivered: u64,
    /// How long ago it was created.
    pub created_seconds: f64,
    /// How long ago it last delivered a message; `None` when it never has.
    pub delivered_seconds: Option<f64>,
    /// How long ago a message was last acknowledged; `None` when none ever was.
    pub acknowledged_seconds: Option<f64>,
    /// After this time without an acknowledgement it delivers a message again.
    pub ack_wait_seconds: f64,
    /// JetStream deletes it when no service pulls from it for this time (`inactive_threshold`).
    pub inactive_max_seconds: Option<f64>,
    /// Whether a client waits for messages: a pull request, or a subscriber.
    pub is_awaited: bool,
    /// When its pause ends, if it is paused.
    pub paused_until: Option<Time>,
    /// For how long it is still paused.
    pub pause_seconds: f64,
}

/// Asks for the consumers of a stream: the first page, which has 256 of them.
pub(super) async fn consumers_of(
    connection: &Connection,
    context: &jetstream::Context,
    stream: &str,
) -> Result<Vec<ConsumerStatus>, String> {
    let asking = async {
        let first = json!({ "offset": 0 });
        context.request(format!("CONSUMER.LIST.{stream}"), &first).await.map_err(|error| error_chain(&error))
    };
    match unless_denied(connection, asking).await? {
        Response::Ok(Page { consumers }) => {
            Ok(consumers.unwrap_or_default().into_iter().map(|info| info.status(stream)).collect())
        }
        Response::Err { error } => Err(error.to_string()),
    }
}

#[derive(Deserialize)]
struct Page {
    consumers: Option<Vec<Info>>,
}

/// The part of JetStream's answer that is shown. async-nats cannot decode the answers of all
/// versions.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    name: String,
    created: String,
    config: Config,
    delivered: Place,
    ack_floor: Place,
    num_ack_pending: u64,
    num_redelivered: u64,
    num_waiting: u64,
    num_pending: u64,
    push_bound: bool,
    paused: bool,
    /// The server's clock; from nats-server 2.10 on.
    ts: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    filter_subject: Option<String>,
    filter_subjects: Option<Vec<String>>,
    max_ack_pending: i64,
    /// Nanoseconds.
    ack_wait: u64,
    /// Nanoseconds.
    inactive_threshold: u64,
    pause_until: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Place {
    stream_seq: u64,
    last_active: Option<String>,
}

impl Info {
    fn status(self, stream: &str) -> ConsumerStatus {
        let time = |text: &str| humantime::parse_rfc3339(text).ok();
        let now = self.ts.as_deref().and_then(time).unwrap_or_else(SystemTime::now);
        let age = |then: Option<&String>| {
            let then = then.and_then(|text| time(text))?;
            Some(now.duration_since(then).unwrap_or_default().as_secs_f64())
        };
        let Config { filter_subject, filter_subjects, max_ack_pending, ack_wait, .. } = self.config;
        let (inactive, pause_until) = (self.config.inactive_threshold, self.config.pause_until);
        let filters = filter_subject.into_iter().chain(filter_subjects.unwrap_or_default());
        let paused_until = pause_until.as_deref().and_then(time).filter(|_| self.paused);
        let pause = paused_until.and_then(|until| until.duration_since(now).ok());
        ConsumerStatus {
            pause_seconds: pause.unwrap_or_default().as_secs_f64(),
            stream: stream.to_owned(),
            name: self.name,
            filters: filters.filter(|filter| !filter.is_empty()).collect(),
            pending: self.num_pending,
            unacknowledged: self.num_ack_pending,
            delivered_sequence: self.delivered.stream_seq,
            acknowledged_sequence: self.ack_floor.stream_seq,
            unacknowledged_max: u64::try_from(max_ack_pending).ok().filter(|most| *most > 0),
            redelivered: self.num_redelivered,
            created_seconds: age(Some(&self.created)).unwrap_or_default(),
            delivered_seconds: age(self.delivered.last_active.as_ref()),
            acknowledged_seconds: age(self.ack_floor.last_active.as_ref()),
            ack_wait_seconds: Duration::from_nanos(ack_wait).as_secs_f64(),
            inactive_max_seconds: (inactive > 0).then(|| Duration::from_nanos(inactive).as_secs_f64()),
            is_awaited: self.num_waiting > 0 || self.push_bound,
            paused_until: paused_until.map(Time),
        }
    }
}
