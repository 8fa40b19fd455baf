//! `Nats-Msg-Id`: how a stream tells copies of one message from other messages, inside its window.

use std::{fmt, str::FromStr};

/// Characters of an outbox's identity, lower-case hexadecimal digits.
const OUTBOX_LENGTH: usize = 12;
/// Characters of a digest, those of [`ALPHABET`].
const DIGEST_LENGTH: usize = 16;
/// Base64 for URLs, RFC 4648.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The value of the header `Nats-Msg-Id`: `outbox/digest/sending/key`.
///
/// A stream drops a message whose id it has seen within its window, with any subject and body. So
/// an id must be the same on every re-send of one row, and must differ for different rows: of
/// another outbox with the same keys, of the same key enqueued again, and of a deliberate replay.
/// The first three parts hold no `/`; the key, which may, comes last.
///
/// ```
/// use oncebox_schema::{MessageId, Sending};
///
/// let (outbox, digest) = ("5f0c1a9b3d2e", [0; 12].into());
/// let id = MessageId { outbox, digest, sending: Sending::Replay(2), key: "a/b" };
/// assert_eq!(id.to_string(), "5f0c1a9b3d2e/AAAAAAAAAAAAAAAA/r2/a/b");
/// assert_eq!(MessageId::parse("5f0c1a9b3d2e/AAAAAAAAAAAAAAAA/r2/a/b"), Some(id));
/// assert_eq!(MessageId::parse("a/b"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the grammar has these four parts; another would be another grammar"
)]
pub struct MessageId<'a> {
    /// The identity of the outbox, which its migration wrote: 12 hexadecimal digits.
    pub outbox: &'a str,
    /// The digest of everything that the message consists of.
    pub digest: Digest,
    /// Which sending of the message.
    pub sending: Sending,
    /// Its idempotency key.
    pub key: &'a str,
}

/// 96 bits that stand for a message's content; 16 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest(String);

/// Which sending of a message an id is for. Sending a message again because it may not have arrived
/// is no sending of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sending {
    /// The message itself: `0`.
    Message,
    /// Its N-th deliberate replay: `rN`.
    Replay(u32),
    /// A dead letter of an inbox that an operator sent back at this time, in microseconds since
    /// 1970: `dN`.
    Letter(u64),
}

impl<'a> MessageId<'a> {
    /// The parts of an id; `None` for one that Oncebox did not make.
    #[must_use]
    pub fn parse(id: &'a str) -> Option<Self> {
        let mut parts = id.splitn(4, '/');
        let (outbox, digest, sending, key) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_outbox = outbox.len() == OUTBOX_LENGTH
            && outbox.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let is_digest = digest.len() == DIGEST_LENGTH && digest.bytes().all(|byte| ALPHABET.contains(&byte));
        if !is_outbox || !is_digest || key.is_empty() {
            return None;
        }
        let sending = match sending.split_at_checked(1)? {
            ("0", "") => Sending::Message,
            ("r", number) => Sending::Replay(parse_number(number)?),
            ("d", number) => Sending::Letter(parse_number(number)?),
            _ => return None,
        };
        Some(Self { outbox, digest: Digest(digest.to_owned()), sending, key })
    }
}

impl fmt::Display for MessageId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.outbox, self.digest.0, self.sending, self.key)
    }
}

impl fmt::Display for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => f.write_str("0"),
            Self::Replay(number) => write!(f, "r{number}"),
            Self::Letter(number) => write!(f, "d{number}"),
        }
    }
}

impl From<[u8; 12]> for Digest {
    fn from(bytes: [u8; 12]) -> Self {
        let bits = bytes.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let sextets = (0..DIGEST_LENGTH).rev().map(|place| (bits >> (6 * place)) & 63);
        Self(sextets.map(|sextet| char::from(ALPHABET[sextet as usize])).collect())
    }
}

/// Takes only the form that is printed, so that no two texts are one id.
fn parse_number<N: FromStr>(digits: &str) -> Option<N> {
    let is_printed_so = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    is_printed_so.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_id_is_read_as_it_was_written() {
        let longest = "k".repeat(255);
        for key in ["a", "r1/a", "a;r=1", "0/a", "a/0/b", "%3A:#3:undo", &longest] {
            for sending in [Sending::Message, Sending::Replay(u32::MAX), Sending::Letter(u64::MAX)] {
                let id = MessageId { outbox: "0123456789ab", digest: [0xff; 12].into(), sending, key };
                let text = id.to_string();
                assert!(text.len() <= 400 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
                assert_eq!(MessageId::parse(&text), Some(id));
            }
        }
    }

    #[test]
    fn the_digest_is_base64_for_urls() {
        let bytes = [0xfb, 0xff, 0xfe, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Digest::from(bytes).0, "-__-AAECAwQFBgcI");
    }

    #[test]
    fn ids_of_others_are_not_taken_for_ours() {
        let (outbox, digest) = ("0123456789ab", "AAAAAAAAAAAAAAAA");
        for id in [
            "",
            "k",
            "k;r=1",
            "a/b/c/d",
            &format!("{outbox}/{digest}/0"),
            &format!("{outbox}/{digest}/0/"),
            &format!("{outbox}/{digest}//k"),
            &format!("{outbox}/{digest}/r/k"),
            &format!("{outbox}/{digest}/r01/k"),
            &format!("{outbox}/{digest}/r+1/k"),
            &format!("{outbox}/{digest}/r4294967296/k"),
            &format!("{outbox}/{digest}/1/k"),
            &format!("{outbox}/{digest}/é/k"),
            &format!("0123456789AB/{digest}/0/k"),
            &format!("{outbox}/AAAAAAAAAAAAAAA=/0/k"),
        ] {
            assert_eq!(MessageId::parse(id), None, "{id}");
        }
    }

    proptest! {
        /// No two texts are one id.
        #[test]
        fn an_id_of_any_text_is_read_as_it_is_printed(
            text in prop_oneof![any::<String>(), "0123456789ab/[A-Za-z0-9_-]{16}/[0rd]0?[0-9]{0,2}/.{1,9}"],
        ) {
            if let Some(id) = MessageId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
