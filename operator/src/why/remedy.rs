//! Remedies: their words, and the command among them.

use super::Remedy;
use crate::{Verb, shell::quoted};

/// Beginnings of commands in remedies, and whether one is a statement of PostgreSQL.
const BEGINNINGS: [(&str, bool); 6] = [
    ("oncebox ", false),
    ("nats ", false),
    ("SELECT pg_terminate_backend(", true),
    ("ROLLBACK PREPARED '", true),
    ("ALTER TABLE ", true),
    ("ALTER SCHEMA ", true),
];

/// Beginnings of commands that delete a consumer, or decide whose backlog it is.
const GIVING_UP: [&str; 2] = ["nats consumer rm", "oncebox adopt"];

impl Remedy {
    /// In words alone.
    pub(super) fn words(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// The words of a finding, with the first command in them.
    pub(super) fn of_text(what: impl Into<String>) -> Self {
        let what = what.into();
        let found = command_in(&what);
        let (command, is_sql) = found.map_or((None, false), |(command, is_sql)| (Some(command), is_sql));
        Self { what, command, is_sql, ..Self::default() }
    }

    /// Words with an action: a command and the fields of the console's action that does the same.
    pub(super) fn action(what: impl Into<String>, verb: Verb, selects: &[(&str, &str)]) -> Self {
        let options = selects.iter().map(|(name, value)| match *name {
            "all" => " --all".to_owned(),
            name => format!(" --{name} {}", quoted(value)),
        });
        let command = format!("oncebox {}{}", verb.command, options.collect::<String>());
        Self { what: what.into(), command: Some(command), action: fields(verb, selects), ..Self::default() }
    }

    /// The same in another database.
    pub(super) fn at(self, database: Option<&String>) -> Self {
        Self { database: database.cloned().or(self.database), ..self }
    }

    /// Names the database where a configuration file names several.
    pub(super) fn naming(mut self, is_named: impl Fn(&str) -> bool) -> Self {
        // A relay serves all of them, and other programs know none.
        let takes = |command: &str| command.starts_with("oncebox ") && !command.starts_with("oncebox relay");
        if let (Some(command), Some(database)) = (&mut self.command, &self.database)
            && takes(command)
            && is_named(database)
        {
            command.push_str(&format!(" --database {}", quoted(database)));
        }
        self
    }
}

/// The fields of an action, as a form has them.
pub(super) fn fields(verb: Verb, selects: &[(&str, &str)]) -> Vec<(String, String)> {
    let [kind, action] = verb.names();
    let all = [("kind", kind), ("action", action)].into_iter().chain(selects.iter().copied());
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The first command in the words of a remedy, but none that gives something up: that is for a
/// person to decide, who has read the words.
fn command_in(text: &str) -> Option<(String, bool)> {
    first_command(text).filter(|(command, _)| !GIVING_UP.iter().any(|start| command.starts_with(start)))
}

fn first_command(text: &str) -> Option<(String, bool)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let starts =
        |part: &str| BEGINNINGS.iter().find(|(start, _)| part.starts_with(start)).map(|(_, is_sql)| *is_sql);
    if let Some(found) = quoted.clone().find_map(|part| Some((part.to_owned(), starts(part)?))) {
        return Some(found);
    }
    if text.contains('`') {
        return None;
    }
    let places = BEGINNINGS.iter().filter_map(|(start, is_sql)| Some((text.find(start)?, *is_sql)));
    let (from, is_sql) = places.min()?;
    let rest = &text[from..];
    Some((rest[..end(rest)].to_owned(), is_sql))
}

/// Where a command ends that stands among words: before `, or` and the like, outside of quotes.
fn end(text: &str) -> usize {
    let mut is_quoted = false;
    for (place, c) in text.char_indices() {
        match c {
            '\'' => is_quoted = !is_quoted,
            ',' | ';' if !is_quoted => return place,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_has_its_first_command() {
        let check = |text: &str, expected: Option<(&str, bool)>| {
            assert_eq!(command_in(text), expected.map(|(text, is_sql)| (text.to_owned(), is_sql)), "{text}");
        };
        let or = "oncebox relay --stream 'A=a.>,b', or: nats stream add 'A' --subjects 'a.>' --defaults";
        check(or, Some(("oncebox relay --stream 'A=a.>,b'", false)));
        let edit = "widen its limit (`nats stream edit A --max-msgs 16 --force`), or see why";
        check(edit, Some(("nats stream edit A --max-msgs 16 --force", false)));
        let end = "end its transaction: SELECT pg_terminate_backend(17)";
        check(end, Some(("SELECT pg_terminate_backend(17)", true)));
        check(
            "have it commit, or end it: ROLLBACK PREPARED 'a, b'",
            Some(("ROLLBACK PREPARED 'a, b'", true)),
        );
        check("enable JetStream on the server (`jetstream {}`) and for the account", None);
        check("start its service; if nobody needs it any more: `nats consumer rm 'A' 'b'`", None);
        check("if this is to be an outbox of its own: `oncebox adopt --discard-backlog`", None);
    }

    #[test]
    fn an_action_is_a_command_too_and_names_the_database_of_a_file() {
        let remedy = Remedy::action("", Verb::RetryDead, &[("key", "a'b")]);
        assert_eq!(remedy.command.as_deref(), Some(r"oncebox outbox dead retry --key 'a'\''b'"));
        let named = remedy.at(Some(&"shop".to_owned())).naming(|name| name == "shop");
        assert_eq!(
            named.command.as_deref(),
            Some(r"oncebox outbox dead retry --key 'a'\''b' --database 'shop'")
        );
        let relay = Remedy::of_text("start `oncebox relay`").at(Some(&"shop".to_owned())).naming(|_| true);
        assert_eq!(relay.command.as_deref(), Some("oncebox relay"));
    }
}
