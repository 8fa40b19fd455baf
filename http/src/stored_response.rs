//! The stored form of a response, in the row of the key.
//!
//! ```text
//! version 1 │ status │ has a body? │ number of headers │ name length, name, value length, value ... │ body
//!   1 byte     2         1               2                    2              4
//! ```
//! Numbers are big-endian. Any other content of a row counts as a response that was not kept.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_ENCODING, response::Parts};
use bytes::Bytes;

const VERSION: u8 = 1;
/// Together with the largest body, it stays below the limit of a row.
const HEADERS_MAX: usize = 60 * 1024;
/// The limit of a row, see the migrations.
const LENGTH_MAX: usize = 1 << 20;
const FIXED: usize = 6;
/// The largest body that can be kept, in bytes: 960 KiB.
pub(crate) const BODY_MAX: usize = 960 * 1024;

const _: () = assert!(FIXED + HEADERS_MAX + BODY_MAX <= LENGTH_MAX);

/// The layer answers a repeated request from this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// `None` is a tombstone: the body was too large, or a stream.
    pub(crate) body: Option<Bytes>,
}

impl StoredResponse {
    /// Of a response, with these of its headers, and those without which no client could read its
    /// body. Headers that are too large for a row leave a tombstone.
    pub(crate) fn of(parts: &Parts, listed: &[HeaderName], body: Option<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        let encoding = [CONTENT_ENCODING];
        let unlisted = encoding.iter().filter(|name| !listed.contains(name));
        for name in listed.iter().chain(unlisted) {
            for value in parts.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        let length: usize = headers.iter().map(|(name, value)| 6 + name.as_str().len() + value.len()).sum();
        if length > HEADERS_MAX {
            return Self { status: parts.status, headers: HeaderMap::new(), body: None };
        }
        Self { status: parts.status, headers, body: body.filter(|body| body.len() <= BODY_MAX) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = vec![VERSION];
        row.extend(self.status.as_u16().to_be_bytes());
        row.push(u8::from(self.body.is_some()));
        row.extend(length::<2>(self.headers.len()));
        for (name, value) in &self.headers {
            row.extend(length::<2>(name.as_str().len()));
            row.extend(name.as_str().as_bytes());
            row.extend(length::<4>(value.len()));
            row.extend(value.as_bytes());
        }
        row.extend(self.body.as_deref().unwrap_or_default());
        row
    }

    /// `None` unless [`StoredResponse::encode`] can have written this.
    pub(crate) fn decode(row: &[u8]) -> Option<Self> {
        let mut rest = Rest(row);
        if rest.number(1)? != usize::from(VERSION) {
            return None;
        }
        let status = StatusCode::from_u16(u16::try_from(rest.number(2)?).ok()?).ok()?;
        let has_body = rest.number(1)?;
        let mut headers = HeaderMap::new();
        for _ in 0..rest.number(2)? {
            let length = rest.number(2)?;
            let name = HeaderName::from_bytes(rest.bytes(length)?).ok()?;
            let length = rest.number(4)?;
            headers.append(name, HeaderValue::from_bytes(rest.bytes(length)?).ok()?);
        }
        let body = match has_body {
            0 if rest.0.is_empty() => None,
            1 => Some(Bytes::copy_from_slice(rest.0)),
            _ => return None,
        };
        Some(Self { status, headers, body })
    }
}

/// The last bytes of a length that was checked to fit.
fn length<const N: usize>(length: usize) -> [u8; N] {
    *length.to_be_bytes().last_chunk().expect("a usize has at least four bytes")
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, width: usize) -> Option<usize> {
        Some(self.bytes(width)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Response;
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 4] = ["content-type", "location", "etag", "link"];

    fn kept() -> impl Strategy<Value = StoredResponse> {
        let value = prop::collection::vec(prop_oneof![Just(b'\t'), 32_u8..=126, 128_u8..=255], 0..40);
        let headers = prop::collection::vec((prop::sample::select(&NAMES[..]), value), 0..8);
        let body = prop::option::of(prop::collection::vec(any::<u8>(), 0..200));
        (200_u16..600, headers, body).prop_map(|(status, list, body)| {
            let mut headers = HeaderMap::new();
            for (name, value) in list {
                headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(&value).unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            StoredResponse { status, headers, body: body.map(Bytes::from) }
        })
    }

    proptest! {
        /// Status, headers and body come back byte by byte.
        #[test]
        fn what_is_kept_comes_back_byte_by_byte(kept in kept()) {
            prop_assert_eq!(StoredResponse::decode(&kept.encode()), Some(kept));
        }

        #[test]
        fn no_row_makes_the_reader_panic(row in prop::collection::vec(any::<u8>(), 0..60), cut in 0_usize..60) {
            let _ = StoredResponse::decode(&row);
            let mut versioned = vec![VERSION, 0, 200, 1, 0, 1];
            versioned.extend(&row[..cut.min(row.len())]);
            let _ = StoredResponse::decode(&versioned);
        }
    }

    #[test]
    fn other_rows_are_not_mistaken_for_responses() {
        for row in
            [&b""[..], b"null", b"{\"charge\":1}", b"\x02\x00\xc8\x01\x00\x00", b"\x01\x00\xc8\x00\x00\x00x"]
        {
            assert_eq!(StoredResponse::decode(row), None, "{row:?}");
        }
        assert!(StoredResponse::decode(b"\x01\x00\xc8\x01\x00\x00").is_some());
    }

    /// The largest response that is kept fits into a row; a larger one leaves a tombstone.
    #[test]
    fn the_largest_response_fits_into_a_row() {
        let listed = NAMES.map(HeaderName::from_static);
        let parts = |value: usize| {
            let response = Response::builder().header("link", "x".repeat(value)).body(()).unwrap();
            response.into_parts().0
        };
        let body = Bytes::from(vec![7; BODY_MAX]);
        let largest = StoredResponse::of(&parts(HEADERS_MAX - 10), &listed, Some(body.clone()));
        assert!(largest.body.is_some() && largest.encode().len() <= LENGTH_MAX);
        let tombstone = StoredResponse::of(&parts(HEADERS_MAX - 9), &listed, Some(body));
        assert!(tombstone.body.is_none() && tombstone.headers.is_empty());
    }
}
