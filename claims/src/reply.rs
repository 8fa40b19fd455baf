//! The stored form of a reply, or of the result of an effect.

use serde::Serialize;

const REPLY_LENGTH_MAX: usize = 1 << 20;

/// The stored form of a reply; `None` for null.
///
/// # Errors
/// The reply has no JSON form, or is longer than 1 MiB; the error says which.
pub fn encode(reply: &impl Serialize) -> Result<Option<Vec<u8>>, String> {
    let outcome =
        oncebox_schema::to_json(reply).map_err(|problem| format!("the reply does not encode: {problem}"))?;
    if outcome.len() > REPLY_LENGTH_MAX {
        let length = outcome.len();
        return Err(format!(
            "the reply is {length} bytes long; the limit is {REPLY_LENGTH_MAX} bytes (1 MiB)"
        ));
    }
    Ok((outcome != b"null").then_some(outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_bounded() {
        assert_eq!(encode(&()), Ok(None));
        assert_eq!(encode(&7), Ok(Some(b"7".to_vec())));
        assert_eq!(encode(&"x".repeat(REPLY_LENGTH_MAX - 2)).unwrap().unwrap().len(), REPLY_LENGTH_MAX);
        assert!(encode(&"x".repeat(REPLY_LENGTH_MAX - 1)).unwrap_err().contains("1048577 bytes"));
    }
}
