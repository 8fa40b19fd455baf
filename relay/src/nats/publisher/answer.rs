//! The meaning of JetStream's answers.

use std::borrow::Cow;

use serde::Deserialize;

use crate::delivery::{Birth, Failure, covers};

/// Which streams have a subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Names {
    None,
    /// This one, at least.
    Stream(String),
    Refused(Failure),
    /// The answer does not come from JetStream.
    Stranger,
}

/// JetStream's answer to which streams have a subject.
pub(super) fn parse_names(payload: &[u8]) -> Names {
    #[derive(Deserialize)]
    struct Answer {
        streams: Option<Vec<String>>,
        error: Option<ApiError>,
    }
    match serde_json::from_slice(payload) {
        Ok(Answer { error: Some(ApiError { err_code, description }), .. }) => {
            Names::Refused(Failure::Refused { err_code, description, stream: None })
        }
        Ok(Answer { streams, .. }) => {
            streams.unwrap_or_default().into_iter().next().map_or(Names::None, Names::Stream)
        }
        Err(_) => Names::Stranger,
    }
}

/// A stream as JetStream describes it, as far as publishing to it goes.
#[derive(Deserialize)]
pub(super) struct StreamInfo {
    config: StreamConfig,
    created: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamConfig {
    no_ack: bool,
    /// A server that does not know atomic batches leaves this out, even for a stream that was
    /// created with it.
    allow_atomic: bool,
    subjects: Vec<String>,
}

impl StreamInfo {
    /// `None` when the stream is not there.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }

    pub(super) fn takes(&self, subject: &str) -> bool {
        self.config.subjects.iter().any(|pattern| covers(pattern, subject))
    }

    pub(super) fn birth(self) -> Option<Birth> {
        let created = humantime::parse_rfc3339(self.created.as_deref()?).ok()?;
        Some(Birth { created, subjects: self.config.subjects })
    }

    /// The subjects, if it is set to acknowledge nothing.
    pub(super) fn no_ack(self) -> Option<Vec<String>> {
        self.config.no_ack.then_some(self.config.subjects)
    }

    /// The subjects, if it takes atomic batches and acknowledges them.
    pub(super) fn atomic(self) -> Option<Vec<String>> {
        (self.config.allow_atomic && !self.config.no_ack).then_some(self.config.subjects)
    }
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Where JetStream has stored a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ack<'a> {
    pub(super) stream: Cow<'a, str>,
    /// Of the JetStream that has the stream.
    pub(super) domain: Option<Cow<'a, str>>,
    pub(super) sequence: u64,
    /// It had it already.
    pub(super) duplicate: bool,
}

/// Where the last message of an atomic batch was stored, or why none of it was. An answer without
/// this batch and its count comes from a server that took the messages one by one.
pub(super) fn parse_commit<'a>(payload: &'a [u8], id: &str, count: usize) -> Result<Ack<'a>, Failure> {
    #[derive(Deserialize)]
    struct Commit<'a> {
        #[serde(borrow)]
        batch: Cow<'a, str>,
        count: usize,
    }
    let ack = parse_ack(payload)?;
    match serde_json::from_slice::<Commit<'_>>(payload) {
        Ok(commit) if commit.batch == id && commit.count == count && ack.sequence >= count as u64 => Ok(ack),
        Ok(_) | Err(_) => Err(Failure::NotJetStream),
    }
}

/// Where the message was stored, or why JetStream did not store it.
pub(super) fn parse_ack(payload: &[u8]) -> Result<Ack<'_>, Failure> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        stream: Option<Cow<'a, str>>,
        #[serde(borrow)]
        domain: Option<Cow<'a, str>>,
        seq: Option<u64>,
        #[serde(default)]
        duplicate: bool,
        error: Option<ApiError>,
    }
    match serde_json::from_slice(payload) {
        Ok(Answer { error: Some(ApiError { err_code, description }), stream, .. }) => {
            Err(Failure::Refused { err_code, description, stream: stream.map(Cow::into_owned) })
        }
        Ok(Answer { stream: Some(stream), domain, seq: Some(sequence), duplicate, .. }) => {
            Ok(Ack { stream, domain, sequence, duplicate })
        }
        Ok(_) | Err(_) => Err(Failure::NotJetStream),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_of_jetstream_and_of_strangers() {
        let ack = |domain: Option<&'static str>, duplicate| {
            Ok(Ack { stream: "S".into(), domain: domain.map(Into::into), sequence: 3, duplicate })
        };
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3}"#), ack(None, false));
        assert_eq!(
            parse_ack(br#"{"stream":"S","seq":3,"duplicate":true,"domain":"x"}"#),
            ack(Some("x"), true)
        );
        let full = br#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(
            parse_ack(full),
            Err(Failure::Refused {
                err_code: 10077,
                description: "maximum messages exceeded".into(),
                stream: Some("S".into())
            })
        );
        let names = |streams: &str| parse_names(format!(r#"{{"total":1,"streams":{streams}}}"#).as_bytes());
        assert_eq!(names("null"), Names::None);
        assert_eq!(names(r#"["S","T"]"#), Names::Stream("S".into()));
        let leaderless =
            br#"{"error":{"code":503,"err_code":10008,"description":"unavailable"},"streams":null}"#;
        let failure = Failure::Refused { err_code: 10008, description: "unavailable".into(), stream: None };
        assert_eq!(parse_names(leaderless), Names::Refused(failure));
        assert_eq!(parse_names(b"?"), Names::Stranger);
        assert_eq!(
            StreamInfo::parse(br#"{"config":{"name":"S","subjects":["a.>"]}}"#).and_then(StreamInfo::no_ack),
            None
        );
        let silent = br#"{"config":{"name":"S","subjects":["a.>"],"no_ack":true},"ts":"x"}"#;
        assert_eq!(StreamInfo::parse(silent).and_then(StreamInfo::no_ack), Some(vec!["a.>".to_owned()]));
        assert_eq!(StreamInfo::parse(br#"{"error":{"code":404}}"#).and_then(StreamInfo::no_ack), None);
        let commit = br#"{"stream":"S","seq":9,"batch":"b","count":3}"#;
        assert_eq!(
            parse_commit(commit, "b", 3),
            Ok(Ack { stream: "S".into(), domain: None, sequence: 9, duplicate: false })
        );
        let duplicates = br#"{"error":{"code":400,"err_code":10201,"description":"x"},"stream":"S","seq":0}"#;
        let refused = Failure::Refused { err_code: 10201, description: "x".into(), stream: Some("S".into()) };
        assert_eq!(parse_commit(duplicates, "b", 3), Err(refused));
        let ignored = br#"{"stream":"S","seq":9}"#;
        for (answer, id, count) in
            [(&commit[..], "c", 3), (commit, "b", 4), (commit, "b", 10), (ignored, "b", 3)]
        {
            assert_eq!(parse_commit(answer, id, count), Err(Failure::NotJetStream), "{id} {count}");
        }
        assert_eq!(StreamInfo::parse(silent).and_then(StreamInfo::atomic), None);
        let atomic = br#"{"config":{"name":"S","subjects":["a.>"],"allow_atomic":true},"ts":"x"}"#;
        assert_eq!(StreamInfo::parse(atomic).and_then(StreamInfo::atomic), Some(vec!["a.>".to_owned()]));
        for stranger in [&b""[..], b"ok", b"{}", b"[]", br#"{"stream":"S"}"#] {
            assert_eq!(parse_ack(stranger), Err(Failure::NotJetStream));
        }
    }

    proptest! {
        /// Every client can answer on a subject.
        #[test]
        fn an_answer_of_any_bytes_is_read(
            pieces in prop::collection::vec(prop_oneof![
                Just(r#"{"stream":"S""#.as_bytes().to_vec()), Just(br#","seq":3"#.to_vec()), Just(b"}".to_vec()),
                Just(br#","error":{"err_code":10077}"#.to_vec()), Just(br#","batch":"b","count":1"#.to_vec()),
                Just(br#"{"streams":["S"],"config":{"subjects":[">"]}}"#.to_vec()),
                prop::collection::vec(any::<u8>(), 0..8),
            ], 0..6),
        ) {
            let bytes = pieces.concat();
            if let Ok(ack) = parse_ack(&bytes) {
                prop_assert!(bytes.starts_with(b"{") || bytes.trim_ascii_start().starts_with(b"{"), "{:?}", ack);
            }
            prop_assert!(parse_commit(&bytes, "b", 1).is_err() || parse_ack(&bytes).is_ok());
            parse_names(&bytes);
            let _ = StreamInfo::parse(&bytes);
        }
    }
}
