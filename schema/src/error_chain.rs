//! Errors as logs and tables take them.

use std::{
    error::Error,
    fmt::Write,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// An error with its sources, in one line, without the values that PostgreSQL tells of: its DETAIL
/// may hold whole rows, so it goes neither into a log, nor a table, nor a header. A HINT stays.
///
/// ```
/// let refused = std::io::Error::other("ERROR: no\nDETAIL: Key (card)=(4111) exists.");
/// assert_eq!(oncebox_schema::error_chain(&refused), "ERROR: no");
/// ```
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = without_detail(&said(error));
    let mut next = error.source();
    while let Some(source) = next {
        let more = without_detail(&said(source));
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

/// The text of an error, which may be a user's own and fail to say it.
fn said(error: &dyn Error) -> String {
    let mut text = String::new();
    let said = catch_unwind(AssertUnwindSafe(|| write!(text, "{error}")));
    if matches!(said, Ok(Ok(()))) { text } else { "an error whose text cannot be read".to_owned() }
}

/// The driver writes DETAIL after the message, and then the hint.
fn without_detail(text: &str) -> String {
    let Some((message, rest)) = text.split_once("\nDETAIL: ") else { return text.replace("\nHINT: ", "; ") };
    match rest.split_once("\nHINT: ") {
        Some((_, hint)) => format!("{message}; {hint}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_detail;

    /// Values of rows must not leave PostgreSQL.
    #[test]
    fn details_of_postgresql_are_left_out() {
        for (said, told) in [
            ("ERROR: no", "ERROR: no"),
            ("ERROR: no\nDETAIL: Key (card)=(4111) exists.", "ERROR: no"),
            ("ERROR: no\nDETAIL: (4111)\n(4112)\nHINT: Use another.", "ERROR: no; Use another."),
            ("ERROR: no\nHINT: Use another.", "ERROR: no; Use another."),
        ] {
            assert_eq!(without_detail(said), told);
        }
    }
}
