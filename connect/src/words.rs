//! Numbers with their nouns.

use std::fmt::Display;

/// `1 message`, `2 messages`: of a noun whose plural ends in `s`, and of any text that is a number.
///
/// ```
/// assert_eq!(oncebox_connect::words::counted(1, "dead letter"), "1 dead letter");
/// assert_eq!(oncebox_connect::words::counted("10 000", "message"), "10 000 messages");
/// ```
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let end = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{end}")
}

/// One of two words, for one thing or for another number of them: `is` or `are`.
pub fn for_one<'a>(count: impl Display, one: &'a str, others: &'a str) -> &'a str {
    if count.to_string() == "1" { one } else { others }
}
