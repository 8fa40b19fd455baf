//! Idempotency keys and how they are derived.

use std::{fmt, str::FromStr};

const ROOT_LENGTH_MAX: usize = 128;
const STEP_LENGTH_MAX: usize = 64;
const LENGTH_MAX: usize = 255;
const UNDO: &str = "undo";
/// Steps of Oncebox itself: `oncebox-edit-1`, the key of a message that an operator edited.
const OURS: &str = "oncebox-";

/// An idempotency key: a root and any number of levels, `root:step:#part:undo`.
///
/// The client's part is escaped on the way in, so that `:` only ever separates levels: keys derived
/// from different roots, or by different steps, never collide. At most 255 bytes in all; longer is
/// an error, never a truncation.
///
/// ```
/// use oncebox_schema::Key;
///
/// let order = Key::root("4711")?;
/// assert_eq!(order.step("ship")?.part(3)?.as_str(), "4711:ship:#3");
/// assert_ne!(Key::root("a:b")?.step("c")?, Key::root("a")?.step("b")?.step("c")?);
/// assert!(order.step("undo").is_err() && order.step("oncebox-edit-1").is_err());
/// # Ok::<(), oncebox_schema::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

/// Why a text is not a key, or why a key cannot be derived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The client's key is empty or too long.
    #[error("root key is {0} bytes long; the limit is 1 to 128 bytes")]
    RootLength(usize),
    /// The client's key has a character outside visible ASCII (0x21 to 0x7E).
    #[error("root key {0:?} has a character outside visible ASCII; blanks are not allowed either")]
    RootCharacter(String),
    /// The step's name does not match the grammar, or is reserved.
    #[error(
        "step {0:?} does not match [a-z0-9][a-z0-9._-]{{0,63}}, or is reserved: \"undo\", and what begins with \"oncebox-\""
    )]
    Step(String),
    /// The key undoes an undo.
    #[error("key {0:?} is an undo already; an undo is not undone")]
    UndoOfUndo(String),
    /// The whole key is empty or too long.
    #[error("key is {0} bytes long; the limit is 1 to 255 bytes")]
    Length(usize),
    /// A whole key (from a header or a table) does not follow the grammar.
    #[error("key {0:?} is not ROOT or ROOT:STEP...: write ':' and '%' of the root as %3A and %25")]
    Grammar(String),
}

impl Key {
    /// The root key from a client's text: 1 to 128 bytes of visible ASCII, with `:` and `%`
    /// escaped.
    ///
    /// # Errors
    /// Empty, too long, or a character outside visible ASCII.
    pub fn root(client_key: &str) -> Result<Self, KeyError> {
        if !(1..=ROOT_LENGTH_MAX).contains(&client_key.len()) {
            return Err(KeyError::RootLength(client_key.len()));
        }
        if !client_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::RootCharacter(client_key.to_owned()));
        }
        bounded(client_key.replace('%', "%25").replace(':', "%3A"))
    }

    /// The key of a step: `key:name`, where name matches `[a-z0-9][a-z0-9._-]{0,63}`, is not
    /// `undo`, and does not begin with `oncebox-`.
    ///
    /// # Errors
    /// A bad name, or more than 255 bytes in all.
    pub fn step(&self, name: &str) -> Result<Self, KeyError> {
        if name.starts_with(OURS) {
            return Err(KeyError::Step(name.to_owned()));
        }
        self.level(name)
    }

    fn level(&self, name: &str) -> Result<Self, KeyError> {
        if !is_step(name) || name == UNDO {
            return Err(KeyError::Step(name.to_owned()));
        }
        bounded(format!("{self}:{name}"))
    }

    /// The key of one message of several that a step sends: `key:#number`.
    ///
    /// # Errors
    /// More than 255 bytes in all.
    pub fn part(&self, number: u32) -> Result<Self, KeyError> {
        bounded(format!("{self}:#{number}"))
    }

    /// The key of the compensation: `key:undo`.
    ///
    /// # Errors
    /// The key is an undo already, or more than 255 bytes in all.
    pub fn undo(&self) -> Result<Self, KeyError> {
        if self.is_undo() {
            return Err(KeyError::UndoOfUndo(self.0.clone()));
        }
        bounded(format!("{self}:{UNDO}"))
    }

    /// Whether the last level is `undo`.
    #[must_use]
    pub fn is_undo(&self) -> bool {
        self.0.ends_with(":undo")
    }

    /// The whole key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses a whole key, as it stands in a table or a header; a client's raw key goes through
/// [`Key::root`].
impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if !(1..=LENGTH_MAX).contains(&text.len()) {
            return Err(KeyError::Length(text.len()));
        }
        let grammar = || KeyError::Grammar(text.to_owned());
        let mut levels = text.split(':');
        let root = levels.next().and_then(unescape).ok_or_else(grammar)?;
        let mut key = Self::root(&root).map_err(|problem| match problem {
            KeyError::RootCharacter(_) => grammar(),
            other => other,
        })?;
        for level in levels {
            key = match level.strip_prefix('#') {
                Some(digits) => {
                    let number: u32 = digits.parse().map_err(|_| grammar())?;
                    key.part(number)?
                }
                None if level == UNDO => key.undo()?,
                None => key.level(level)?,
            };
        }
        // One key has one spelling: no "#03", no "+3".
        if key.0 == text { Ok(key) } else { Err(grammar()) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn is_step(name: &str) -> bool {
    let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= STEP_LENGTH_MAX
        && name.starts_with(first)
        && name.chars().all(|c| first(c) || matches!(c, '.' | '_' | '-'))
}

/// Undoes the escapes of a root; `None` for an escape that [`Key::root`] never writes.
fn unescape(root: &str) -> Option<String> {
    let mut pieces = root.split('%');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        let (character, rest) = match (piece.strip_prefix("3A"), piece.strip_prefix("25")) {
            (Some(rest), _) => (':', rest),
            (_, Some(rest)) => ('%', rest),
            _ => return None,
        };
        text.push(character);
        text.push_str(rest);
    }
    Some(text)
}

fn bounded(text: String) -> Result<Key, KeyError> {
    if text.len() > LENGTH_MAX { Err(KeyError::Length(text.len())) } else { Ok(Key(text)) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The table that SQL is held to as well, see `tests/it/schema/keys.rs`.
    #[test]
    fn vectors() {
        for line in include_str!("../vectors/keys.tsv").lines().filter(|line| !line.starts_with('#')) {
            let (verdict, key) = line.split_once('\t').unwrap();
            let key = expand(key);
            assert_eq!(key.parse::<Key>().is_ok(), verdict == "ok", "{line}: {:?}", key.parse::<Key>());
        }
    }

    /// `{x*127}` in a vector stands for 127 times `x`.
    fn expand(text: &str) -> String {
        let Some((head, rest)) = text.split_once('{') else { return text.to_owned() };
        let (repeat, tail) = rest.split_once('}').unwrap();
        let (unit, count) = repeat.rsplit_once('*').unwrap();
        format!("{head}{}{}", unit.repeat(count.parse().unwrap()), expand(tail))
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum Level {
        Step(String),
        Part(u32),
        Undo,
    }

    fn path() -> impl Strategy<Value = (String, Vec<Level>)> {
        // A small alphabet full of separators makes collisions likely if they are possible at all.
        let level = prop_oneof![
            "[ab0.-]{1,3}".prop_filter("a step", |name| is_step(name)).prop_map(Level::Step),
            (0_u32..12).prop_map(Level::Part),
            Just(Level::Undo),
        ];
        ("[ab:%3A25#]{1,6}", prop::collection::vec(level, 0..4))
    }

    fn derive(root: &str, levels: &[Level]) -> Result<Key, KeyError> {
        levels.iter().try_fold(Key::root(root)?, |key, level| match level {
            Level::Step(name) => key.step(name),
            Level::Part(number) => key.part(*number),
            Level::Undo => key.undo(),
        })
    }

    proptest! {
        #[test]
        fn distinct_paths_give_distinct_keys(paths in prop::collection::vec(path(), 2..60)) {
            let mut seen: HashMap<Key, (String, Vec<Level>)> = HashMap::new();
            for (root, levels) in paths {
                let Ok(key) = derive(&root, &levels) else { continue };
                prop_assert_eq!(&key.as_str().parse::<Key>().unwrap(), &key, "a derived key parses to itself");
                let other = seen.insert(key, (root.clone(), levels.clone()));
                prop_assert!(other.is_none_or(|other| other == (root, levels)));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,300}") {
            let _ = text.parse::<Key>();
        }
    }
}
