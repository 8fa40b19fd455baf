//! Streams that the relay creates or compares when it starts: `[[stream]]` tables, and those of the
//! command line or the environment, `ORDERS=orders.>,payments.>`.

use std::{collections::HashSet, time::Duration};

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    options::did_you_mean,
    place::{Place, scalar},
};

/// How a relay treats a declared stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Creates it when it is missing; when it is there, names the differences.
    Create,
    /// Does not start unless it is there as declared.
    Verify,
    /// Leaves it alone.
    Ignore,
}

/// How the relay publishes to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Many messages in flight, each acknowledged by itself; of an ordering key one at a time.
    Pipelined,
    /// In atomic batches, where the stream allows them; else pipelined.
    Atomic,
}

/// A stream as declared.
#[derive(Clone, Debug)]
pub struct StreamTable {
    /// Its name.
    pub name: String,
    /// How the relay treats it.
    pub policy: Policy,
    /// How the relay publishes to it.
    pub publish: Publish,
    /// The configuration that it is created with.
    pub config: Config,
    /// The file does not declare it: the bucket for large payloads. Other messages do not need it,
    /// so a relay starts without.
    pub is_implied: bool,
    /// The fields that stand in the file; only they are compared.
    given: Vec<&'static str>,
}

impl StreamTable {
    /// How a stream differs from its declaration, field by field. Only fields of the
    /// file are compared: the rest is the operator's.
    #[must_use]
    pub fn differences(&self, there: &Config) -> Option<String> {
        let pairs = describe(&self.config).into_iter().zip(describe(there));
        let differing = pairs
            .filter(|((field, wanted), (_, found))| self.given.contains(field) && wanted != found)
            // A stream that allows batches takes pipelined messages as well.
            .filter(|((field, _), _)| *field != "publish" || self.publish == Publish::Atomic)
            .map(|((field, wanted), (_, found))| format!("{field} is {found}, declared {wanted}"));
        let differing: Vec<String> = differing.collect();
        (!differing.is_empty()).then(|| differing.join(", "))
    }
}

/// A field of a `[[stream]]` table.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamField {
    /// Its name.
    pub(super) name: &'static str,
    /// The value that a stream is created with when the field is left out.
    pub(super) default: Option<&'static str>,
    /// Its meaning, with its limits.
    pub(super) help: &'static str,
}

const fn field(name: &'static str, default: Option<&'static str>, help: &'static str) -> StreamField {
    StreamField { name, default, help }
}

/// Every field of a `[[stream]]` table.
pub(super) const STREAM_FIELDS: &[StreamField] = &[
    field("name", None, "Name of the stream; required"),
    field("subjects", None, "List of subjects, wildcards allowed; required"),
    field(
        "policy",
        Some("create"),
        "create: made when missing, and what differs is logged. verify: the relay does not start unless it is there \
         as declared. ignore: left alone",
    ),
    field(
        "publish",
        Some("pipelined"),
        "pipelined: each message is acknowledged by itself. atomic: in atomic batches, from nats-server 2.12.1 on; the \
         stream is made with allow_atomic",
    ),
    field("storage", Some("file"), "file or memory"),
    field("replicas", Some("1"), "Servers that hold it; 1 to 5"),
    field("retention", Some("limits"), "limits, interest or workqueue"),
    field("discard", Some("new"), "What a full stream refuses or drops: new or old messages"),
    field("max_bytes", None, "Bytes at most; a whole number above 0. Left out: no limit"),
    field("max_messages", None, "Messages at most, as above"),
    field("max_messages_per_subject", None, "Messages of one subject at most, as above"),
    field("max_message_bytes", None, "Bytes of one message with its headers at most, as above"),
    field("max_age", None, "Age at most, such as \"30days\" or \"12h\". Left out: no limit"),
    field(
        "duplicate_window",
        Some("10m"),
        "For how long the stream knows a message again, such as \"10m\"; at least 100ms, at most max_age",
    ),
];

const WINDOW: Duration = Duration::from_secs(600);

/// Reads all tables, with the mistakes in them.
pub(super) fn parse_all(
    place: &Place<'_>,
    value: &Spanned<DeValue<'_>>,
    mistakes: &mut Vec<String>,
) -> Vec<StreamTable> {
    let (mut streams, mut names) = (Vec::new(), HashSet::new());
    for (line, fields) in place.tables(value, "streams are written as [[stream]] tables", mistakes) {
        match parse(place, line, fields) {
            Ok(stream) if !names.insert(stream.name.clone()) => {
                mistakes.push(place.mistake(line, format!("stream {} is declared twice", stream.name)));
            }
            Ok(stream) => streams.push(stream),
            Err(found) => mistakes.extend(found),
        }
    }
    streams
}

/// A stream with all fields as they are by default, but for the window, which depends on others.
fn plain() -> StreamTable {
    let config = Config { discard: DiscardPolicy::New, num_replicas: 1, ..Config::default() };
    let (policy, publish) = (Policy::Create, Publish::Pipelined);
    StreamTable { name: String::new(), policy, publish, config, is_implied: false, given: Vec::new() }
}

/// A table with a name and subjects, and no more.
pub(super) fn created(name: String, subjects: Vec<String>) -> StreamTable {
    let mut stream = plain();
    stream.config = Config { name: name.clone(), subjects, duplicate_window: WINDOW, ..stream.config };
    StreamTable { name, given: vec!["name", "subjects"], ..stream }
}

/// Reads one table; `line` is its own.
fn parse(place: &Place<'_>, line: usize, table: &DeTable<'_>) -> Result<StreamTable, Vec<String>> {
    let mut stream = plain();
    let mut mistakes = Vec::new();
    for (key, value) in table {
        let line = place.line(key.span().start);
        let name = key.get_ref().as_ref();
        let Some(field) = STREAM_FIELDS.iter().find(|field| field.name == name) else {
            let hint = did_you_mean(&name.replace('-', "_"), STREAM_FIELDS.iter().map(|field| field.name));
            mistakes.push(place.mistake(line, format!("{name:?} is not a field of a stream{hint}")));
            continue;
        };
        match stream.set(name, value.get_ref()) {
            Ok(()) => stream.given.push(field.name),
            Err(problem) => mistakes.push(place.mistake(line, format!("{name}: {problem}"))),
        }
    }
    for required in ["name", "subjects"] {
        if !table.keys().any(|key| key.get_ref() == required) {
            mistakes.push(place.mistake(line, format!("a stream needs its {required}")));
        }
    }
    if stream.config.duplicate_window.is_zero() {
        let age = Some(stream.config.max_age).filter(|age| !age.is_zero());
        stream.config.duplicate_window = age.unwrap_or(WINDOW).min(WINDOW);
    } else if !stream.config.max_age.is_zero() && stream.config.duplicate_window > stream.config.max_age {
        mistakes.push(place.mistake(line, "duplicate_window is above max_age"));
    }
    stream.config.name.clone_from(&stream.name);
    if mistakes.is_empty() { Ok(stream) } else { Err(mistakes) }
}

impl StreamTable {
    fn set(&mut self, name: &str, value: &DeValue<'_>) -> Result<(), String> {
        if name == "subjects" {
            self.config.subjects = subjects(value)?;
            return Ok(());
        }
        let text = scalar(value).ok_or("is a text or a whole number")?;
        let config = &mut self.config;
        match name {
            "name" => self.name = stream_name(&text)?,
            "policy" => {
                let all =
                    [("create", Policy::Create), ("verify", Policy::Verify), ("ignore", Policy::Ignore)];
                self.policy = one_of(&text, &all)?;
            }
            "publish" => {
                let all = [("pipelined", Publish::Pipelined), ("atomic", Publish::Atomic)];
                self.publish = one_of(&text, &all)?;
                config.allow_atomic_publish = self.publish == Publish::Atomic;
            }
            "storage" => {
                config.storage =
                    one_of(&text, &[("file", StorageType::File), ("memory", StorageType::Memory)])?;
            }
            "retention" => config.retention = one_of(&text, &RETENTIONS)?,
            "discard" => {
                config.discard = one_of(&text, &[("new", DiscardPolicy::New), ("old", DiscardPolicy::Old)])?;
            }
            "replicas" => config.num_replicas = count(&text, 5)?,
            "max_bytes" => config.max_bytes = count(&text, i64::MAX)?,
            "max_messages" => config.max_messages = count(&text, i64::MAX)?,
            "max_messages_per_subject" => config.max_messages_per_subject = count(&text, i64::MAX)?,
            "max_message_bytes" => config.max_message_size = count(&text, i32::MAX.into())?,
            "max_age" => config.max_age = duration(&text)?,
            "duplicate_window" => config.duplicate_window = duration(&text)?,
            other => unreachable!("{other} is a field, and each has its line here"),
        }
        Ok(())
    }
}

const RETENTIONS: [(&str, RetentionPolicy); 3] = [
    ("limits", RetentionPolicy::Limits),
    ("interest", RetentionPolicy::Interest),
    ("workqueue", RetentionPolicy::WorkQueue),
];

/// A stream's configuration, field by field, in the words of the file.
fn describe(config: &Config) -> Vec<(&'static str, String)> {
    let limit = |count: i64| if count > 0 { count.to_string() } else { "no limit".to_owned() };
    let time = |time: Duration| {
        if time.is_zero() { "no limit".to_owned() } else { humantime::format_duration(time).to_string() }
    };
    let mut subjects = config.subjects.clone();
    subjects.sort_unstable();
    let retention = RETENTIONS.iter().find(|(_, retention)| *retention == config.retention);
    vec![
        ("subjects", subjects.join(", ")),
        ("publish", if config.allow_atomic_publish { "atomic" } else { "pipelined" }.to_owned()),
        ("storage", if config.storage == StorageType::File { "file" } else { "memory" }.to_owned()),
        ("replicas", config.num_replicas.max(1).to_string()),
        ("retention", retention.map_or("another", |(name, _)| name).to_owned()),
        ("discard", if config.discard == DiscardPolicy::New { "new" } else { "old" }.to_owned()),
        ("max_bytes", limit(config.max_bytes)),
        ("max_messages", limit(config.max_messages)),
        ("max_messages_per_subject", limit(config.max_messages_per_subject)),
        ("max_message_bytes", limit(config.max_message_size.into())),
        ("max_age", time(config.max_age)),
        ("duplicate_window", time(config.duplicate_window)),
    ]
}

fn one_of<T: Copy>(text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    let names = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("{text:?} is not one of {}", names()))
}

fn count<T: TryFrom<i64>>(text: &str, most: i64) -> Result<T, String> {
    let number = text.parse::<i64>().ok().filter(|number| (1..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{text:?} is not a whole number from 1 to {most}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok().filter(|time| *time >= Duration::from_millis(100));
    parsed.ok_or_else(|| format!("{text:?} is not a duration of at least 100ms, such as \"10m\""))
}

/// Declares the stream that holds a bucket, unless it stands in the file: an object stays for as
/// long as the streams keep its message.
pub(super) fn declare_bucket(streams: &mut Vec<StreamTable>, bucket: &str) {
    let name = format!("OBJ_{bucket}");
    if let Some(declared) = streams.iter_mut().find(|stream| stream.name == name) {
        declared.config.allow_rollup = true;
        return;
    }
    let ages = streams.iter().map(|stream| stream.config.max_age);
    let max_age = if ages.clone().any(|age| age.is_zero()) { None } else { ages.max() };
    let subjects = vec![format!("$O.{bucket}.C.>"), format!("$O.{bucket}.M.>")];
    let mut stream = created(name, subjects);
    stream.is_implied = true;
    stream.config.allow_rollup = true;
    stream.config.allow_direct = true;
    stream.config.max_age = max_age.unwrap_or_default();
    if !stream.config.max_age.is_zero() {
        stream.config.duplicate_window = stream.config.max_age.min(WINDOW);
    }
    streams.push(stream);
}

pub(super) fn bucket_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 200 || !text.chars().all(good) {
        return Err(format!("{text:?} is not a bucket: 1 to 200 letters, digits, - and _"));
    }
    Ok(text.to_owned())
}

pub(super) fn stream_name(text: &str) -> Result<String, String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if text.is_empty() || text.len() > 255 || text.contains(bad) {
        return Err(format!("{text:?} is not a name: 1 to 255 bytes without blanks and . * > / \\"));
    }
    Ok(text.to_owned())
}

fn subjects(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or("is a list of subjects, such as [\"orders.>\"]")?;
    let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
    let all: Option<Vec<String>> = list.iter().map(text).collect();
    let all = all.filter(|all| !all.is_empty()).ok_or("is a list of subjects, such as [\"orders.>\"]")?;
    match all.iter().find(|subject| !is_subject(subject)) {
        Some(bad) => Err(format!("{bad:?} is not a subject")),
        None => Ok(all),
    }
}

pub(super) fn is_subject(subject: &str) -> bool {
    let last = subject.split('.').count() - 1;
    subject.split('.').enumerate().all(|(number, token)| {
        let is_plain = !token.contains(|c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>');
        !token.is_empty() && (is_plain || token == "*" || (token == ">" && number == last))
    })
}

/// The streams of the option `stream`, with `;` between them.
pub(super) fn typed(text: &str) -> Result<Vec<StreamTable>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(typed_stream).collect()
}

fn typed_stream(text: &str) -> Result<StreamTable, String> {
    let (name, subjects) = text.split_once('=').ok_or_else(|| {
        format!("{text:?} is not NAME=SUBJECTS, such as 'ORDERS=orders.>,payments.>', quoted for the shell")
    })?;
    let subjects: Vec<String> = subjects.split(',').map(|subject| subject.trim().to_owned()).collect();
    match subjects.iter().find(|subject| !is_subject(subject)) {
        Some(bad) => Err(format!("{bad:?} is not a subject")),
        None => Ok(created(stream_name(name.trim())?, subjects)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_and_mistakes_are_named() {
        let read = typed("ORDERS = orders.>, payments.*.made ;STOCK=stock").unwrap();
        let read: Vec<_> = read.iter().map(|s| (s.name.as_str(), s.config.subjects.join(" "))).collect();
        assert_eq!(read, [("ORDERS", "orders.> payments.*.made".to_owned()), ("STOCK", "stock".to_owned())]);
        for (text, problem) in [
            ("orders.>", "not NAME=SUBJECTS"),
            ("A=", "\"\" is not a subject"),
            ("A=b,", "\"\" is not a subject"),
            ("A=b.>.c", "\"b.>.c\" is not a subject"),
            ("A.B=c", "not a name"),
            ("=c", "not a name"),
        ] {
            let found = typed(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
