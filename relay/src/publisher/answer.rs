//! What JetStream's answers mean.

use serde::{Deserialize, de::IgnoredAny};

use crate::decision::Failure;

/// Why nobody took a message, from JetStream's answer to which streams have its subject.
pub(super) fn parse_names(payload: &[u8]) -> Failure {
    #[derive(Deserialize)]
    struct Names {
        streams: Option<Vec<String>>,
        error: Option<ApiError>,
    }
    match serde_json::from_slice(payload) {
        Ok(Names { error: Some(ApiError { err_code, description }), .. }) => {
            Failure::Refused { err_code, description }
        }
        Ok(Names { streams, .. }) => match streams.unwrap_or_default().into_iter().next() {
            Some(stream) => Failure::NoLeader { stream },
            None => Failure::NoResponders,
        },
        Err(_) => Failure::NoAnswer,
    }
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Whether the message was a duplicate, or why JetStream did not store it.
pub(super) fn parse_ack(payload: &[u8]) -> Result<bool, Failure> {
    #[derive(Deserialize)]
    struct Ack {
        stream: Option<IgnoredAny>,
        seq: Option<IgnoredAny>,
        #[serde(default)]
        duplicate: bool,
        error: Option<ApiError>,
    }
    match serde_json::from_slice(payload) {
        Ok(Ack { error: Some(ApiError { err_code, description }), .. }) => {
            Err(Failure::Refused { err_code, description })
        }
        Ok(Ack { stream: Some(_), seq: Some(_), duplicate, .. }) => Ok(duplicate),
        Ok(_) | Err(_) => Err(Failure::NotJetStream),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_jetstream_and_of_strangers() {
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3}"#), Ok(false));
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3,"duplicate":true,"domain":"x"}"#), Ok(true));
        let full = br#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(
            parse_ack(full),
            Err(Failure::Refused { err_code: 10077, description: "maximum messages exceeded".into() })
        );
        let names = |streams: &str| parse_names(format!(r#"{{"total":1,"streams":{streams}}}"#).as_bytes());
        assert_eq!(names("null"), Failure::NoResponders);
        assert_eq!(names(r#"["S","T"]"#), Failure::NoLeader { stream: "S".into() });
        let leaderless =
            br#"{"error":{"code":503,"err_code":10008,"description":"unavailable"},"streams":null}"#;
        let failure = Failure::Refused { err_code: 10008, description: "unavailable".into() };
        assert_eq!(parse_names(leaderless), failure);
        assert_eq!(parse_names(b"?"), Failure::NoAnswer);
        for stranger in [&b""[..], b"ok", b"{}", b"[]", br#"{"stream":"S"}"#] {
            assert_eq!(parse_ack(stranger), Err(Failure::NotJetStream));
        }
    }
}
