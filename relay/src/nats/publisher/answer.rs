//! What JetStream's answers mean.

use std::borrow::Cow;

use serde::Deserialize;

use crate::delivery::decision::Failure;

/// Which streams have a subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Names {
    None,
    /// This one, at least.
    Stream(String),
    Refused(Failure),
    /// The answer is none of JetStream.
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
            Names::Refused(Failure::Refused { err_code, description })
        }
        Ok(Answer { streams, .. }) => {
            streams.unwrap_or_default().into_iter().next().map_or(Names::None, Names::Stream)
        }
        Err(_) => Names::Stranger,
    }
}

/// The subjects of a stream, if it is set to acknowledge nothing.
pub(super) fn parse_no_ack(payload: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Info {
        config: Config,
    }
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        no_ack: bool,
        #[serde(default)]
        subjects: Vec<String>,
    }
    let info: Info = serde_json::from_slice(payload).ok()?;
    info.config.no_ack.then_some(info.config.subjects)
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
    pub(super) sequence: u64,
    /// It had it already.
    pub(super) duplicate: bool,
}

/// Where the message was stored, or why JetStream did not store it.
pub(super) fn parse_ack(payload: &[u8]) -> Result<Ack<'_>, Failure> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        stream: Option<Cow<'a, str>>,
        seq: Option<u64>,
        #[serde(default)]
        duplicate: bool,
        error: Option<ApiError>,
    }
    match serde_json::from_slice(payload) {
        Ok(Answer { error: Some(ApiError { err_code, description }), .. }) => {
            Err(Failure::Refused { err_code, description })
        }
        Ok(Answer { stream: Some(stream), seq: Some(sequence), duplicate, .. }) => {
            Ok(Ack { stream, sequence, duplicate })
        }
        Ok(_) | Err(_) => Err(Failure::NotJetStream),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_jetstream_and_of_strangers() {
        let ack = |duplicate| Ok(Ack { stream: "S".into(), sequence: 3, duplicate });
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3}"#), ack(false));
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3,"duplicate":true,"domain":"x"}"#), ack(true));
        let full = br#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(
            parse_ack(full),
            Err(Failure::Refused { err_code: 10077, description: "maximum messages exceeded".into() })
        );
        let names = |streams: &str| parse_names(format!(r#"{{"total":1,"streams":{streams}}}"#).as_bytes());
        assert_eq!(names("null"), Names::None);
        assert_eq!(names(r#"["S","T"]"#), Names::Stream("S".into()));
        let leaderless =
            br#"{"error":{"code":503,"err_code":10008,"description":"unavailable"},"streams":null}"#;
        let failure = Failure::Refused { err_code: 10008, description: "unavailable".into() };
        assert_eq!(parse_names(leaderless), Names::Refused(failure));
        assert_eq!(parse_names(b"?"), Names::Stranger);
        assert_eq!(parse_no_ack(br#"{"config":{"name":"S","subjects":["a.>"]}}"#), None);
        let silent = br#"{"config":{"name":"S","subjects":["a.>"],"no_ack":true},"ts":"x"}"#;
        assert_eq!(parse_no_ack(silent), Some(vec!["a.>".to_owned()]));
        assert_eq!(parse_no_ack(br#"{"error":{"code":404}}"#), None);
        for stranger in [&b""[..], b"ok", b"{}", b"[]", br#"{"stream":"S"}"#] {
            assert_eq!(parse_ack(stranger), Err(Failure::NotJetStream));
        }
    }
}
