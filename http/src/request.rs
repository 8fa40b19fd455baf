//! Who a request is: its key and its fingerprint.

use axum::http::{HeaderMap, HeaderName, header::CONTENT_TYPE, request::Parts};
use oncebox_schema::Key;
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// The key, or `None` when there is no such header.
///
/// A header that comes several times must say the same each time: nobody can know which one the
/// client means.
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
/// two pairs of tenant and key have the same: what stands before the first `/` is the tenant, and a
/// digest has no `/`.
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

/// SHA-256 over what makes a request the same request: method, path, query, content type and the
/// raw body.
///
/// Each field goes in with its length. The body is taken as it came: a client repeats the same
/// bytes, and two spellings of one JSON value are rather a mistake to see than one to guess about.
pub(crate) fn fingerprint(parts: &Parts, body: &[u8]) -> [u8; 32] {
    let content_type = parts.headers.get(CONTENT_TYPE).map(|value| value.as_bytes().trim_ascii());
    let query = canonical(parts.uri.query().unwrap_or_default());
    let fields = [
        b"oncebox http 1",
        parts.method.as_str().as_bytes(),
        parts.uri.path().as_bytes(),
        query.as_bytes(),
        &content_type.unwrap_or_default().to_ascii_lowercase(),
        body,
    ];
    let mut hash = Sha256::new();
    for field in fields {
        hash.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().into()
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

    /// X26, X27, X28, X34: a key is one bounded string or none; never empty, never a panic; its `:`
    /// is escaped.
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
        fingerprint(&request.unwrap().into_parts().0, body.as_bytes())
    }

    /// X31, X32: what is another request has another fingerprint, what is the same has the same.
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

    /// X21, X22, X28: tenants do not share the keys of messages, and every root leaves room for a
    /// step.
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
}
