//! Who a request is: its key and its fingerprint.

use axum::http::{HeaderMap, HeaderName, header::CONTENT_TYPE, request::Parts};
use oncebox_schema::Key;
use sha2::{Digest, Sha256};

use crate::{problem::Problem, settings::FingerprintOf};

/// The key, or `None` when there is no such header.
///
/// A header that comes several times must say the same each time: the layer cannot know which one
/// the client means.
pub(crate) fn key(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Key>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|other| other != first) {
        return Err(Problem::KeyMalformed);
    }
    let text = first.to_str().map_err(|_| Problem::KeyMalformed)?;
    let client_key = unquoted(text.trim_matches([' ', '\t'])).ok_or(Problem::KeyMalformed)?;
    Key::root(&client_key).map(Some).map_err(|_| Problem::KeyMalformed)
}

/// The string of a structured field (RFC 9651), or a bare token, as many clients send it.
/// Parameters and lists are refused: a key that a proxy joined with another one is not a valid key.
fn unquoted(text: &str) -> Option<String> {
    let Some(quoted) = text.strip_prefix('"') else {
        return (!text.contains(['"', '\\', ',', ';'])).then(|| text.to_owned());
    };
    let mut content = String::new();
    let mut characters = quoted.strip_suffix('"')?.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => content.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            other => content.push(other),
        }
    }
    Some(content)
}

/// The root of a tenant's keys, by which its requests are claimed and their messages are named. No
/// two pairs of tenant and key have the same root: the part before the first `/` is the tenant, and
/// a digest has no `/`.
pub(crate) fn root(tenant: &str, client_key: &Key) -> Key {
    if tenant.is_empty() {
        return client_key.clone();
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let tenant_text: String = tenant
        .bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    Key::root(&format!("{tenant_text}/{client_key}")).unwrap_or_else(|_| {
        let length = u64::try_from(tenant.len()).unwrap_or(u64::MAX).to_be_bytes();
        let hash = Sha256::new().chain_update(length).chain_update(tenant).chain_update(client_key.as_str());
        let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Key::root(&digest).expect("64 hexadecimal digits are a key")
    })
}

/// SHA-256 over the parts that identify a request: method, path, query, these headers with
/// credentials, and content type and body, or the result of `chosen`.
///
/// Each field goes in with its length. The body is taken as it came: a client repeats the same
/// bytes, and two spellings of one JSON value are rather a mistake to see than one to guess about.
/// Parts that a client's library makes anew for each attempt do not count: the boundary of a
/// multipart body, and whether the content type names the charset UTF-8.
pub(crate) fn fingerprint(
    parts: &Parts,
    body: &[u8],
    credentials: &[HeaderName],
    chosen: Option<&FingerprintOf>,
) -> [u8; 32] {
    let query = canonical(parts.uri.query().unwrap_or_default());
    let mut hash = Fields(Sha256::new());
    hash.add(b"oncebox http 1");
    hash.add(parts.method.as_str().as_bytes());
    hash.add(parts.uri.path().as_bytes());
    hash.add(query.as_bytes());
    for name in credentials {
        for value in parts.headers.get_all(name) {
            hash.add(b"credential");
            hash.add(name.as_str().as_bytes());
            hash.add(value.as_bytes());
        }
    }
    if let Some(chosen) = chosen {
        hash.add(&chosen.of(parts, body));
        return hash.0.finalize().into();
    }
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = MediaType::read(content_type.unwrap_or_default());
    hash.add(media_type.text.as_bytes());
    match media_type.boundary {
        Some(boundary) => {
            let delimiter = [b"--", boundary.as_bytes()].concat();
            let mut rest = body;
            while let Some(at) = rest.windows(delimiter.len()).position(|window| window == delimiter) {
                hash.add(&rest[..at]);
                rest = &rest[at + delimiter.len()..];
            }
            hash.add(rest);
        }
        None => hash.add(body),
    }
    hash.0.finalize().into()
}

/// RFC 2046; a longer one would take long to look for.
const BOUNDARY_MAX: usize = 70;

struct Fields(Sha256);

impl Fields {
    fn add(&mut self, field: &[u8]) {
        self.0.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
        self.0.update(field);
    }
}

/// A content type, in lower case and without the parts that do not count; and the boundary of a
/// multipart body.
struct MediaType {
    text: String,
    boundary: Option<String>,
}

impl MediaType {
    fn read(content_type: &str) -> Self {
        let mut parameters = content_type.split(';').map(str::trim);
        let mut text = parameters.next().unwrap_or_default().to_ascii_lowercase();
        let (is_multipart, mut boundary) = (text.starts_with("multipart/"), None);
        for parameter in parameters.filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            match name.as_str() {
                "boundary" if is_multipart && (1..=BOUNDARY_MAX).contains(&value.len()) => {
                    boundary = Some(value.to_owned());
                }
                "charset" if value.eq_ignore_ascii_case("utf-8") => {}
                _ => text += &format!(";{name}={}", value.to_ascii_lowercase()),
            }
        }
        Self { text, boundary }
    }
}

/// Parameters in the order of their names; those of one name keep theirs, which may mean something.
fn canonical(query: &str) -> String {
    let mut parameters: Vec<&str> = query.split('&').filter(|parameter| !parameter.is_empty()).collect();
    parameters.sort_by_key(|parameter| parameter.split('=').next().unwrap_or_default());
    parameters.join("&")
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, Request};

    use proptest::prelude::*;

    use super::*;

    fn check(values: &[&[u8]], expected: Result<Option<&str>, ()>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        }
        let found = key(&headers, &HeaderName::from_static("idempotency-key"));
        let found = found.as_ref().map(|key| key.as_ref().map(Key::as_str)).map_err(|_| ());
        assert_eq!(found, expected, "{values:?}");
    }

    /// A key is one bounded string or none; never empty, never a panic; its `:` is escaped.
    #[test]
    fn keys_are_strings_or_bare_tokens() {
        check(&[], Ok(None));
        check(
            &[b"\"8e03978e-40d5-43dd-bc93-6894a57f9324\""],
            Ok(Some("8e03978e-40d5-43dd-bc93-6894a57f9324")),
        );
        check(&[b"8e03978e-40d5"], Ok(Some("8e03978e-40d5")));
        check(&[b" \"a:b%\"\t"], Ok(Some("a%3Ab%25")));
        check(&[br#""a\"b\\c""#], Ok(Some(r#"a"b\c"#)));
        check(&[b"a", b"a"], Ok(Some("a")));
        check(&["x".repeat(128).as_bytes()], Ok(Some(&"x".repeat(128))));
        let too_long = "x".repeat(129);
        let escapes = ":".repeat(128);
        for bad in [
            &b""[..],
            b"\"\"",
            b"\"",
            b"\"a",
            b"a\"",
            b"\"a\"b\"",
            b"\"a\\b\"",
            b"\"a\\\"",
            b"a b",
            b"\"a b\"",
            b"a,b",
            b"\"a\", \"b\"",
            b"\"a\";p=1",
            b"a;p=1",
            b"\xffa",
            b"\"\xc3\xa4\"",
            too_long.as_bytes(),
            escapes.as_bytes(),
        ] {
            check(&[bad], Err(()));
        }
        check(&[b"a", b"b"], Err(()));
    }

    fn print(method: &str, uri: &str, content_type: &str, body: &str) -> [u8; 32] {
        let request =
            Request::builder().method(method).uri(uri).header("content-type", content_type).body(());
        fingerprint(&request.unwrap().into_parts().0, body.as_bytes(), &[], None)
    }

    /// Two attempts are one request although a client's library writes their content types
    /// differently.
    #[test]
    fn spellings_of_the_same_content_type_are_the_same_request() {
        let json = |content_type| print("POST", "/", content_type, "{}");
        for same in ["application/json; charset=utf-8", "Application/JSON;charset=\"UTF-8\" ;"] {
            assert_eq!(json("application/json"), json(same), "{same}");
        }
        for other in ["application/json; charset=latin1", "application/json; v=2", "application/jso", ""] {
            assert_ne!(json("application/json"), json(other), "{other}");
        }
        let form = |boundary: &str, value: &str| {
            let part =
                format!("--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n");
            let content_type = format!("multipart/form-data; boundary={boundary}");
            print("POST", "/", &content_type, &format!("{part}{part}--{boundary}--\r\n"))
        };
        assert_eq!(form("----WebKitFormBoundaryA1", "7"), form("x", "7"));
        assert_ne!(form("x", "7"), form("x", "8"));
        assert_eq!(
            print("POST", "/", "multipart/form-data; boundary=\"a b\"", "--a b\r\n7\r\n--a b--"),
            print("POST", "/", "multipart/form-data; boundary=c", "--c\r\n7\r\n--c--")
        );
        // A boundary that is no parameter of a multipart body is one like any other.
        assert_ne!(json("application/json; boundary=x"), json("application/json"));
    }

    #[test]
    fn credentials_belong_to_the_request_where_they_are_to() {
        let names = [HeaderName::from_static("authorization"), HeaderName::from_static("cookie")];
        let print = |headers: &[(&str, &str)], names: &[HeaderName]| {
            let request = Request::post("/orders");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            fingerprint(&request.body(()).unwrap().into_parts().0, b"7", names, None)
        };
        let alice = [("authorization", "Bearer alice")];
        assert_eq!(print(&alice, &names), print(&alice, &names));
        for other in [
            &[][..],
            &[("authorization", "Bearer bob")],
            &[("cookie", "Bearer alice")],
            &[("authorization", "Bearer alice"), ("cookie", "a=b")],
            &[("authorization", "Bearer alice"), ("authorization", "Bearer alice")],
        ] {
            assert_ne!(print(&alice, &names), print(other, &names), "{other:?}");
            assert_eq!(print(&alice, &[]), print(other, &[]), "{other:?}");
        }
    }

    /// Different requests have different fingerprints, repeated requests have the same one.
    #[test]
    fn fingerprints_tell_requests_apart() {
        let one = print("POST", "/orders?b=2&a=1&a=0", "text/plain", "x");
        assert_eq!(one, print("POST", "/orders?a=1&&a=0&b=2", "Text/Plain ", "x"));
        for other in [
            print("PUT", "/orders?b=2&a=1&a=0", "text/plain", "x"),
            print("POST", "/order?b=2&a=1&a=0", "text/plain", "x"),
            print("POST", "/orders?b=2&a=0&a=1", "text/plain", "x"),
            print("POST", "/orders?b=2&a=1", "text/plain", "x"),
            print("POST", "/orders?b=2&a=1&a=0", "text/html", "x"),
            print("POST", "/orders?b=2&a=1&a=0", "text/plain", "y"),
            print("POST", "/orders?b=2&a=1&a=0", "text/plai", "nx"),
        ] {
            assert_ne!(one, other);
        }
    }

    /// Tenants do not share the keys of messages, and every root leaves room for a step.
    #[test]
    fn roots_belong_to_one_tenant() {
        let root = |tenant: &str, key: &str| root(tenant, &Key::root(key).unwrap()).as_str().to_owned();
        assert_eq!(root("", "a:b"), "a%3Ab");
        assert_eq!(root("acme", "k"), "acme/k");
        assert_eq!(root("a/b", "c"), "a%252Fb/c");
        assert_ne!(root("a", "b/c"), root("a/b", "c"));
        let long = "t".repeat(255);
        assert_eq!(root(&long, "k").len(), 64);
        assert_ne!(root(&long, "k"), root(&long, "l"));
        assert_ne!(root(&long, "k"), root(&long[1..], "k"));
        for key in ["k".repeat(128), ":".repeat(42)] {
            let key = Key::root(&root(&long, &key)).unwrap();
            assert!(key.step(&"s".repeat(64)).is_ok());
        }
    }

    proptest! {
        #[test]
        fn a_key_of_any_bytes_is_read_or_refused(
            values in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..24),
                r#"["\\,; a-zA-Z0-9é:%-]{0,24}"#.prop_map(String::into_bytes),
            ], 0..3),
            tenant in any::<String>(),
        ) {
            let mut headers = HeaderMap::new();
            for value in &values {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.append("idempotency-key", value);
                }
            }
            if let Ok(Some(key)) = key(&headers, &HeaderName::from_static("idempotency-key")) {
                prop_assert!((1..=255).contains(&key.as_str().len()), "{}", key);
                prop_assert!((1..=255).contains(&root(&tenant, &key).as_str().len()));
            }
        }
    }
}
