//! The identity of a message or a request, and the lock that stands for it.

use oncebox_schema::Key;
use sha2::{Digest, Sha256};

const TENANT_LENGTH_MAX: usize = 255;

/// The identity of a message, or of a request: it is claimed by this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who the key belongs to; empty where there is one tenant.
    pub tenant: String,
    /// The key.
    pub key: Key,
    /// Tells a copy from another message with the same key.
    pub fingerprint: [u8; 32],
    /// The number that stands for scope, tenant and key in PostgreSQL's advisory locks: see
    /// [`lock`].
    pub lock: i64,
}

/// Whether this can be the name of a tenant: 1 to 255 bytes without control characters.
#[must_use]
pub fn is_tenant(text: &str) -> bool {
    (1..=TENANT_LENGTH_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// 64 bits that stand for a key in PostgreSQL's advisory locks. A collision only makes one message
/// wait for another.
#[must_use]
pub fn lock(schema: &str, scope: &str, tenant: &str, key: &Key) -> i64 {
    hash("oncebox inbox 1", [schema, scope, tenant, key.as_str()])
}

/// SHA-256 of the payload as it arrived, with a prefix that no other hash of ours has.
///
/// The subject is not part of it: mirrors and replays may rewrite it, and the scope already says
/// which operation the key is for. JSON is not parsed: producers retry with the same bytes, and two
/// spellings of one value are reported as a mistake instead of being compared.
#[must_use]
pub fn fingerprint(payload: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(b"oncebox payload 1\0").chain_update(payload).finalize().into()
}

/// 64 bits of SHA-256. Each field goes in with its length, so that no two different lists of fields
/// are the same bytes.
#[must_use]
pub fn hash<const N: usize>(purpose: &str, fields: [&str; N]) -> i64 {
    let mut hash = Sha256::new();
    for field in std::iter::once(purpose).chain(fields) {
        hash.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(field.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    i64::from_be_bytes(*digest.first_chunk().expect("32 bytes begin with 8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field counts, and none can run into the next.
    #[test]
    fn locks_of_different_fields_differ() {
        let k = |text: &str| text.parse::<Key>().unwrap();
        let one = lock("oncebox", "a", "b", &k("c"));
        assert_eq!(one, lock("oncebox", "a", "b", &k("c")));
        assert_ne!(one, lock("oncebox2", "a", "b", &k("c")));
        assert_ne!(one, lock("oncebox", "ab", "", &k("c")));
        assert_ne!(one, lock("oncebox", "a", "", &k("bc")));
        assert_ne!(lock("oncebox", "a", "bc", &k("d")), lock("oncebox", "ab", "c", &k("d")));
    }
}
