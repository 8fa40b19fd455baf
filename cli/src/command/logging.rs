//! The log of a command.

use std::io::IsTerminal as _;

use oncebox_connect::config::Config;
use tracing_subscriber::EnvFilter;

use super::Command;

/// Logs go to standard error; standard output is for data.
pub(crate) fn start_logging(command: &Command) {
    let filter = Config::log_filter(&command.values);
    let filter = EnvFilter::builder().parse_lossy(filter);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if command.on.outbox.log_json() {
        return lines.json().flatten_event(true).init();
    }
    // Colours are for people; in a log file they are noise.
    let colours = std::io::stderr().is_terminal();
    lines.with_ansi(colours).init();
}
