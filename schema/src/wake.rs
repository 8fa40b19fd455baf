//! The subjects of hints that wake relays.

/// The beginning of subjects on which a message wakes a sleeping relay, which wakes by itself
/// without it.
pub const WAKE_SUBJECTS: &str = "_ONCEBOX.wake.";

/// The subject on which a message wakes the relays of a database and schema. Characters that a
/// token of a subject cannot have, and `%`, are written as `%` and two hexadecimal digits.
#[must_use]
pub fn wake_subject(database: &str, schema: &str) -> String {
    let token = |name: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
    };
    format!("{WAKE_SUBJECTS}{}.{}", token(database), token(schema))
}
