//! Words of shell commands that remedies show.

/// Any text as one word of a shell command: keys and subjects come from clients, and an operator
/// copies the command.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Fails on a remedy whose commands cannot be pasted as they are: one with dots for something, or
/// with a word in capitals in place of a name. The real names stand in the finding too.
#[cfg(test)]
pub(super) fn assert_whole(what: &str, remedy: &str) {
    const KNOWN: &str = "NATS JetStream PostgreSQL SYSTEM RESET COMMIT TLS URL NTP DEAD CREATE ROLE NOLOGIN LOGIN IN GRANT TO ALTER TABLE SEQUENCE \
         SCHEMA RENAME CACHE DISABLE ROW LEVEL SECURITY SELECT FROM WHERE LIKE ORDER BY ROLLBACK PREPARED JS API STREAM \
         NAMES LIST INFO CONSUMER ORDERS";
    assert!(!remedy.contains("..."), "dots: {remedy}");
    assert!(!remedy.contains(" .. "), "dots: {remedy}");
    // Without it the program asks a question, to which a script has no answer.
    for edit in ["nats stream edit", "nats consumer edit"] {
        let commands = remedy.split(edit).skip(1);
        commands.for_each(|rest| {
            let command = rest.split(['`', ';']).next().unwrap_or_default();
            assert!(command.contains("--force"), "{edit}{command} asks: {remedy}");
        });
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for word in remedy.split(|c| !is_name(c)).filter(|word| word.len() > 1) {
        let is_capital = word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let is_known = KNOWN.split(' ').any(|known| known == word) || what.contains(word);
        assert!(!is_capital || is_known, "{word} is a placeholder: {remedy}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "SUBJECT is a placeholder")]
    fn a_placeholder_is_noticed() {
        assert_whole("the stream ORDERS is missing", "nats stream add ORDERS --subjects SUBJECT");
    }

    #[test]
    fn a_quote_ends_no_word() {
        assert_eq!(quoted("4711:ship"), "'4711:ship'");
        assert_eq!(quoted("';reboot;'"), r"''\'';reboot;'\'''");
    }
}
