//! The file of tokens: a line `NAME:ROLE:TOKEN` for each person.

use std::{collections::HashSet, fmt};

use hmac::{Hmac, KeyInit as _, Mac as _};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::Sha256;

/// The fewest bytes of a token: too many to try out.
const TOKEN_BYTES_MIN: usize = 16;
const NAME_BYTES_MAX: usize = 255;

/// The rights of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "a console has these two")]
pub enum Role {
    /// Looks.
    Reader,
    /// Looks and acts, where the console allows actions.
    Operator,
}

/// A person, and the secret that proves it. Nothing shows it.
#[derive(Clone)]
pub struct Token {
    pub(crate) name: String,
    pub(crate) role: Role,
    secret: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}:***", self.name, self.role)
    }
}

impl Token {
    /// Reads a file of tokens. Empty lines and those that begin with `#` count for nothing.
    ///
    /// # Errors
    /// All mistakes at once, each with its line, none of which shows a token.
    pub fn parse(text: &str) -> Result<Vec<Self>, Vec<String>> {
        let (mut tokens, mut mistakes, mut names) = (Vec::new(), Vec::new(), HashSet::new());
        for (line, number) in text.lines().zip(1..).map(|(line, number)| (line.trim(), number)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match Self::parse_line(line) {
                Ok(token) if names.insert(token.name.clone()) => tokens.push(token),
                Ok(token) => mistakes.push(format!("line {number}: {} is there twice", token.name)),
                Err(problem) => mistakes.push(format!("line {number}: {problem}")),
            }
        }
        if tokens.is_empty() && mistakes.is_empty() {
            mistakes.push("it has no line NAME:ROLE:TOKEN".to_owned());
        }
        if mistakes.is_empty() { Ok(tokens) } else { Err(mistakes) }
    }

    fn parse_line(line: &str) -> Result<Self, String> {
        let mut parts = line.splitn(3, ':');
        let (Some(name), Some(role), Some(secret)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("it is not NAME:ROLE:TOKEN".to_owned());
        };
        let role = match role {
            "reader" => Role::Reader,
            "operator" => Role::Operator,
            _ => return Err("the role is neither reader nor operator".to_owned()),
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err("the name is not 1 to 255 bytes of text".to_owned());
        }
        if secret.len() < TOKEN_BYTES_MIN {
            return Err(format!("the token has less than {TOKEN_BYTES_MIN} bytes"));
        }
        Ok(Self { name: name.to_owned(), role, secret: secret.to_owned() })
    }

    /// The person with this token, and with this name if one is given.
    pub(crate) fn find<'a>(all: &'a [Self], key: &Key, name: Option<&str>, secret: &str) -> Option<&'a Self> {
        // All are compared, each in constant time: how long it takes tells nothing.
        all.iter().fold(None, |found, token| {
            let is_it = key.equal(&token.secret, secret) & name.is_none_or(|name| name == token.name);
            if is_it { Some(token) } else { found }
        })
    }
}

/// A random secret of the process, with which secrets are compared and forms are signed.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

impl Key {
    pub(crate) fn new() -> Self {
        let (one, other) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let mut key = [0; 32];
        key[..16].copy_from_slice(one.as_bytes());
        key[16..].copy_from_slice(other.as_bytes());
        Self(key)
    }

    fn mac(&self, text: &str) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.chain_update(text)
    }

    /// A text that only this process can make of that one.
    pub(crate) fn sign(&self, text: &str) -> String {
        self.mac(text).finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether two secrets are equal. Their codes are compared in constant time, so a caller does
    /// not learn how many bytes were right.
    pub(crate) fn equal(&self, one: &str, other: &str) -> bool {
        let code = self.mac(one).finalize().into_bytes();
        self.mac(other).verify_slice(&code).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "0123456789abcdef";

    #[test]
    fn a_file_is_read_whole_and_every_mistake_has_its_line() {
        let text = format!("# people\n\nmina:operator:{LONG}:with:colons\nrob:reader:{LONG}2\n");
        let tokens = Token::parse(&text).unwrap();
        let people: Vec<(&str, Role)> =
            tokens.iter().map(|token| (token.name.as_str(), token.role)).collect();
        assert_eq!(people, [("mina", Role::Operator), ("rob", Role::Reader)]);
        let wrong = format!("mina:boss:{LONG}\nrob\nann:reader:short\nrob:reader:{LONG}\nrob:reader:{LONG}");
        let mistakes = Token::parse(&wrong).unwrap_err();
        let parts =
            ["line 1: the role", "line 2: it is not", "line 3: the token has less", "line 5: rob is there"];
        assert_eq!(mistakes.len(), parts.len(), "{mistakes:?}");
        for (mistake, part) in mistakes.iter().zip(parts) {
            assert!(mistake.contains(part) && !mistake.contains("short"), "{mistake}");
        }
        assert!(Token::parse("# nobody").is_err());
        assert!(!format!("{tokens:?}").contains(LONG));
    }

    #[test]
    fn a_person_is_found_by_the_whole_token() {
        let (key, tokens) = (Key::new(), Token::parse(&format!("mina:operator:{LONG}")).unwrap());
        let find = |name, secret| Token::find(&tokens, &key, name, secret).map(|token| token.name.as_str());
        assert_eq!(find(None, LONG), Some("mina"));
        assert_eq!(find(Some("mina"), LONG), Some("mina"));
        for (name, secret) in [(Some("rob"), LONG), (None, &LONG[1..]), (None, "")] {
            assert_eq!(find(name, secret), None, "{name:?} {secret}");
        }
        assert_ne!(key.sign("a"), key.sign("b"));
        assert_ne!(key.sign("a"), Key::new().sign("a"));
    }
}
