//! The settings and the fill of a stream, as the survey gives them.

use async_nats::jetstream::stream::{
    Config as StreamConfig, DiscardPolicy, Info, RetentionPolicy, StorageType,
};
use oncebox_connect::config::{Policy, StreamTable};
use oncebox_relay::facts::covers;
use schemars::JsonSchema;
use serde::Serialize;

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
    /// An empty message takes the place of one that goes by its age, and stays for this time.
    pub delete_marker_seconds: Option<f64>,
    /// It sends messages at times that these name, for which it may not refuse any when it is full.
    pub is_scheduling: bool,
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

impl StreamStatus {
    /// One that takes this subject, and of which no more is known: no server answers for it.
    pub(super) fn without_leader(name: String, subject: &str) -> Self {
        Self { name, subjects: vec![subject.to_owned()], ..Self::default() }
    }
}

pub(super) fn status(info: &Info, declared: Option<&StreamTable>) -> StreamStatus {
    let config = &info.config;
    let StreamConfig { max_messages, max_bytes, max_age, .. } = *config;
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
        delete_marker_seconds: config.subject_delete_marker_ttl.map(|ttl| ttl.as_secs_f64()),
        is_scheduling: config.allow_message_schedules,
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
pub(super) fn part(count: u64, most: u64) -> f64 {
    count as f64 / most as f64
}

/// None where the server has none.
pub(super) fn limit(count: i64) -> Option<u64> {
    u64::try_from(count).ok().filter(|count| *count > 0)
}
