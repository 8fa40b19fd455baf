//! The end of help texts and of the manual page: examples and exit codes. A test parses each
//! example.

use clap::Command;
use oncebox_connect::config::OPTIONS;
use oncebox_operator::Action;

/// A command line, and its effect.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "oncebox migrate --database-url postgres://owner@localhost/orders",
        "Install the schema, or bring it up to date",
    ),
    ("oncebox dev", "A first message in a minute: it prints what to paste"),
    ("oncebox dev --stream 'MAIL=mail.>' --dir /tmp/try", "With a stream and a directory of your own"),
    ("oncebox outbox enqueue order-4711:charge orders.placed '{\"cents\": 1999}'", "Enqueue one message"),
    ("oncebox migrate --lanes 64", "Install it for more than 16 workers at once"),
    (
        "oncebox relay --database-url postgres://relay@localhost/orders --nats-url nats://localhost:4222",
        "Carry messages until SIGTERM",
    ),
    ("oncebox relay --config /etc/oncebox.toml", "The same with a configuration file"),
    (
        "oncebox relay --config /etc/oncebox.toml --console 127.0.0.1:8321",
        "With the console in the same process",
    ),
    ("oncebox doctor --config /etc/oncebox.toml", "Check both servers against a relay's configuration"),
    ("oncebox status", "Backlog, lag, relays, and what holds delivery up"),
    ("oncebox status --watch 5", "Look again every five seconds"),
    (
        "oncebox why order-4711",
        "Why a message is not there yet: the first thing that holds it, and its remedy",
    ),
    ("oncebox why order-4711 --json", "The same for programs"),
    ("oncebox trace order-4711", "Where a message and those of its steps are"),
    ("oncebox canary list", "Retries in steps: how far each is, and at which row it stopped"),
    ("oncebox adopt --discard-backlog --by mina", "Make a copied database an outbox of its own"),
    ("oncebox adopt --move --note INC-7", "The original has moved here: go on under its identity"),
    (
        "oncebox console --config /etc/oncebox.toml",
        "Pages over all databases that the file names, to look at",
    ),
    (
        "oncebox console --listen 0.0.0.0:8321 --host console.example --token-file /etc/oncebox.tokens --allow-actions",
        "For others as well: who signs in as operator may act",
    ),
    ("oncebox outbox dead list --subject 'orders.*'", "What was given up, and why"),
    ("oncebox outbox dead show order-4711:process-payment", "All about one that is parked or dead"),
    ("oncebox outbox parked list --reason 'no stream'", "What waits to be tried again, and why"),
    ("oncebox outbox parked show order-4711:process-payment", "All about one of them"),
    ("oncebox outbox delayed list --subject 'reminders.>'", "What waits for its time"),
    ("oncebox inbox failing list --by-reason", "Which messages handlers fail on, and why"),
    ("oncebox inbox failing list --scope payment-service:charge", "Each of them, and when it is run again"),
    ("oncebox inbox dead list --scope payment-service:charge", "What an inbox gave up"),
    ("oncebox inbox dead show 17", "All about one of them"),
    ("oncebox outbox replay list", "Replays that are still to be sent"),
    (
        "oncebox expect add --subject orders.placed --handled-by billing:charge --within 15m",
        "Find orders that billing has not handled in time",
    ),
    ("oncebox expect list", "What is expected, and how many messages are missing"),
    ("oncebox expect unhandled --handled-by billing:charge", "Which messages those are"),
    ("oncebox expect remove --subject orders.placed --handled-by billing:charge", "Expect them no more"),
    ("oncebox outbox pauses", "Who has paused what, and until when"),
    ("oncebox events list", "Which kinds are sent"),
    ("oncebox events disable parked --by mina", "Send no events of a kind any more"),
    ("oncebox events enable dead stuck loss", "Tell programs of trouble, as messages to oncebox.events.KIND"),
    ("oncebox saga list --state stuck", "Business processes that wait for an operator"),
    ("oncebox saga show 4711:order", "Each step of one, and each compensation"),
    ("oncebox saga show 4711:order --mermaid", "The same as a flowchart"),
    ("oncebox saga graph order --svg > order.svg", "A definition as a picture"),
    ("oncebox saga check order.toml", "Every mistake in a file of a saga, with its line"),
    ("oncebox saga test order.toml order.scenarios.toml", "The way of each scenario, without a server"),
    ("oncebox saga schema > saga.schema.json", "The format of these files, for an editor"),
    ("oncebox saga apply order.toml", "Programs can start its sagas from now on"),
    ("oncebox saga run order.toml --reply-to sagas.replies", "Lead them, until a signal"),
    ("oncebox saga start order 4711 '{\"order\": 4711, \"cents\": 995}'", "Start one by hand"),
    ("oncebox contract check contracts.json", "Every mistake in a file of contracts, with its place"),
    (
        "oncebox contract check contracts.json --subject orders.placed order.json",
        "Whether a message fits, before it is sent",
    ),
    ("oncebox contract diff old.json new.json", "Which subjects a change breaks, and for which consumers"),
    ("oncebox contract export --asyncapi contracts.json > asyncapi.json", "The same for other tools"),
    (
        "oncebox outbox verify --stream ORDERS --since 2030-01-31T08:00:00Z",
        "Whether a stream holds all that it should",
    ),
    ("oncebox outbox verify --stream ORDERS --resend --dry-run", "How many messages would be sent again"),
    ("oncebox proof --since 24h", "Was all of the last day stored and handled? The keys of each gap"),
    (
        "oncebox proof --since 2030-01-31 --until 2030-02-01 --sign auditor.pem > proof.json",
        "The same of one day, signed for an auditor",
    ),
    ("oncebox outbox prune --retention 36h --dry-run", "How many messages were settled longer ago"),
    ("oncebox inbox scope list", "How long each scope keeps keys and dead letters"),
    (
        "oncebox inbox scope change shop:mails --retention 30d --dry-run",
        "See how the settings of a scope would change",
    ),
    ("oncebox inbox prune", "Delete keys and dead letters beyond the retentions of inboxes"),
    (
        "oncebox completions bash > /etc/bash_completion.d/oncebox",
        "Have the shell complete commands and options",
    ),
    ("oncebox man > /usr/local/share/man/man1/oncebox.1", "Install the manual page"),
];

/// Exit codes, those of sysexits.h where it has one.
pub(super) const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "It was done."),
    (
        "1",
        "It failed; or doctor found something that must be mended, verify something missing, why something that holds a message, or contract something that breaks.",
    ),
    ("64", "The configuration is wrong; every mistake is listed."),
    ("69", "A server cannot be reached, or not with TLS as configured."),
    ("77", "A server refuses the login, or PostgreSQL has no such database."),
    ("130", "A second signal ended a relay before it had drained."),
];

/// Those of actions stand in the catalogue.
pub(super) fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.iter().copied().chain(Action::all_examples())
}

/// Adds to the help of every command its examples, and to the program's own help the exit codes.
pub(super) fn complete(program: Command) -> Command {
    let codes = EXIT_CODES.iter().map(|(code, meaning)| format!("\n  {code:<4} {meaning}"));
    let codes = format!("Exit codes:{}", codes.collect::<String>());
    let name = program.get_name().to_owned();
    program.mut_subcommands(|command| with_examples(command, &name)).after_help(codes)
}

fn with_examples(mut command: Command, above: &str) -> Command {
    let path = format!("{above} {}", command.get_name());
    let is_of_it =
        |line: &str| line.strip_prefix(&path).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let mut text = String::new();
    if let Some(names) = selectors(&command) {
        command = command.override_usage(format!("{path} [OPTIONS] <SELECTION>"));
        text += &format!("A selection is --all, or one or more of {names}.\n\n");
    }
    text += "Examples:";
    for (line, meaning) in examples().filter(|(line, _)| is_of_it(line)) {
        text += &format!("\n  {line}\n      {meaning}");
    }
    if let Some(more) = command.get_after_help() {
        text += &format!("\n\n{more}");
    }
    command.mut_subcommands(|inner| with_examples(inner, &path)).after_help(text)
}

/// The options of which some must be given, when the command has such; clap would name them all in
/// one long line.
fn selectors(command: &Command) -> Option<String> {
    let group = command.get_groups().find(|group| group.get_id() == "selection")?;
    let names = group.get_args().filter(|name| *name != "all").map(|name| format!("--{name}"));
    Some(names.collect::<Vec<_>>().join(", "))
}

/// Options without a flag, since any user of the machine can read flags.
pub(super) fn secrets() -> String {
    let lines = OPTIONS
        .iter()
        .filter(|option| option.is_secret)
        .map(|option| format!("  {} ({})\n          {}", option.environment, option.key(), option.help));
    let lines: Vec<String> = lines.collect();
    format!("In the environment, or in the configuration file, only:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_parses() {
        for (line, _) in examples() {
            let command = line.split(" > ").next().unwrap();
            let words = shlex::split(command).expect("the quotes of an example are closed");
            let parsed = super::super::parser().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
