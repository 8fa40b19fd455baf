//! Words of shell commands that remedies show.

/// Any text as one word of a shell command: keys and subjects come from clients, and an operator
/// copies the command.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_ends_no_word() {
        assert_eq!(quoted("4711:ship"), "'4711:ship'");
        assert_eq!(quoted("';reboot;'"), r"''\'';reboot;'\'''");
    }
}
