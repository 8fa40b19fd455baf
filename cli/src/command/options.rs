//! Which options of the configuration each command takes.

use clap::ArgMatches;
use oncebox_connect::config::Sources;
use oncebox_operator::Action;

use super::pause;

/// The options of a command that talks to PostgreSQL alone; a name that ends in `-` stands for all
/// options that begin with it.
pub(super) const FOR_DATABASE: &[&str] = &["config", "database-", "schema", "log", "log-format"];

/// The options of `status`, which looks at the streams as well when NATS is configured.
pub(super) const FOR_STATUS: &[&str] =
    &["config", "database-", "schema", "log", "log-format", "nats-", "expected-stream"];

pub(super) fn is_meant(names: &[&str], option: &str) -> bool {
    names.iter().any(|name| *name == option || (name.ends_with('-') && option.starts_with(name)))
}

/// The options of commands that talk to both servers, such as `inbox dead retry`.
pub(super) const FOR_BOTH: &[&str] = &["config", "database-", "schema", "log", "log-format", "nats-"];

/// The options of `dev`.
pub(super) const FOR_DEV: &[&str] =
    &["database-url", "nats-url", "stream", "schema", "http-listen", "log", "log-format"];

/// The options of `outbox prune`.
pub(super) const FOR_PRUNE: &[&str] = &["config", "database-", "schema", "log", "log-format", "retention"];

/// The options that a command takes; none of them stands for all.
pub(super) fn needs(path: &[&str], flags: &ArgMatches, sources: &Sources) -> &'static [&'static str] {
    match path {
        ["relay" | "doctor"] => &[][..],
        ["status" | "why" | "proof"] if sources.has("nats-url") => FOR_STATUS,
        ["console"] if sources.has("nats-url") => &[][..],
        ["inbox", "dead", "edit"] => [FOR_BOTH, FOR_DATABASE][usize::from(flags.get_flag("dry-run"))],
        // Of a canary, the relays do.
        _ if Action::of_command(path).is_some_and(|verb| verb.needs_nats()) => {
            let is_given = |name| flags.try_get_one(name).ok().flatten() == Some(&true);
            [FOR_BOTH, FOR_DATABASE][usize::from(is_given("dry-run") || is_given("canary"))]
        }
        ["outbox", "verify"] | ["saga", "run"] => FOR_BOTH,
        ["outbox", "pause" | "throttle"] if pause::Pause::names_stream(flags) => FOR_BOTH,
        ["outbox", "prune"] => FOR_PRUNE,
        _ => FOR_DATABASE,
    }
}
