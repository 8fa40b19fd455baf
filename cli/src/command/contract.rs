//! `oncebox contract`: check contracts, compare two versions of them, export them; without a
//! server.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use oncebox_contracts::{Contracts, Direction, Mistakes, Verdict};
use serde_json::json;

/// Exit code when a file or a message is wrong, or a change breaks something.
const WRONG: u8 = 1;

/// A text to print, with an exit code.
type Shown = (String, u8);

/// Check which schemas messages must fit, and what a change of them breaks
#[derive(clap::Subcommand)]
pub(super) enum Contract {
    /// Check a file of contracts with its examples, and files with messages
    Check {
        /// The contracts
        file: PathBuf,
        /// Files, each with the payload of a message
        #[arg(value_name = "MESSAGE", num_args = 1.., requires = "subject")]
        message: Vec<String>,
        /// The subject of these messages
        #[arg(long, value_name = "SUBJECT", requires = "message")]
        subject: Option<String>,
    },
    /// Name the subjects whose consumers a change of the contracts breaks
    Diff {
        /// The contracts as they are in production
        old: PathBuf,
        /// The contracts that are to replace them
        new: PathBuf,
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
    /// Print contracts as a document in another format
    Export {
        /// AsyncAPI 3.0, in JSON
        #[arg(long, required = true)]
        asyncapi: bool,
        /// The contracts
        file: PathBuf,
    },
}

impl Contract {
    /// The text of the command, and its exit code.
    pub(super) fn write(&self) -> (Vec<u8>, u8) {
        let shown = match self {
            Self::Check { file, message, subject } => check(file, message, subject.as_deref()),
            Self::Diff { old, new, json } => diff(old, new, *json),
            Self::Export { file, .. } => export(file),
        };
        let (text, code) = shown.unwrap_or_else(|mistakes| (format!("{mistakes}\n"), WRONG));
        (text.into_bytes(), code)
    }
}

fn check(file: &Path, messages: &[String], subject: Option<&str>) -> Result<Shown, Mistakes> {
    let contracts = Contracts::read(file)?;
    let mut text = String::new();
    for contract in contracts.all() {
        let consumers = named(&contract.consumers);
        let _ = writeln!(text, "{}: {consumers}", contract.subject);
    }
    let Some(subject) = subject else { return Ok((text, 0)) };
    if contracts.of(subject).is_none() {
        return Err(Mistakes(vec![format!(
            "{subject}: no contract has this subject, so nothing was checked"
        )]));
    }
    let mut code = 0;
    for path in messages {
        let payload = std::fs::read(path).map_err(|error| Mistakes(vec![format!("read {path}: {error}")]))?;
        if let Err(breach) = contracts.check(subject, &payload) {
            let _ = writeln!(text, "{path}: breaks the contract of {subject}: {breach}");
            code = WRONG;
        } else {
            let _ = writeln!(text, "{path}: fits the contract of {subject}");
        }
    }
    Ok((text, code))
}

fn named(consumers: &[String]) -> String {
    if consumers.is_empty() { "none is named".to_owned() } else { consumers.join(", ") }
}

fn diff(old: &Path, new: &Path, json: bool) -> Result<Shown, Mistakes> {
    let (old, new) = (Contracts::read(old)?, Contracts::read(new)?);
    let changes = old.diff(&new);
    let mut text = String::new();
    for change in &changes {
        let (direction, readers, senders) = match change.direction {
            Direction::Backward => ("backward", "NEW", "OLD"),
            Direction::Forward => ("forward", "OLD", "NEW"),
        };
        let (verdict, why) = match &change.verdict {
            Verdict::Breaks(why) => ("breaks", why),
            Verdict::CannotTell(why) => ("cannot tell", why),
        };
        if json {
            let line = json!({ "subject": change.subject, "direction": direction, "verdict": verdict, "why": why,
                "consumers": change.consumers });
            let _ = writeln!(text, "{line}");
            continue;
        }
        let refuse = if verdict == "breaks" { "refuse" } else { "may refuse" };
        let _ = writeln!(
            text,
            "{}: {direction}: {verdict}: consumers of {readers} {refuse} messages of {senders}: {why} (consumers: {})",
            change.subject,
            named(&change.consumers)
        );
    }
    if changes.is_empty() && !json {
        text.push_str("nothing breaks\n");
    }
    Ok((text, if changes.is_empty() { 0 } else { WRONG }))
}

fn export(file: &Path) -> Result<Shown, Mistakes> {
    let document = Contracts::read(file)?.asyncapi()?;
    Ok((format!("{document:#}\n"), 0))
}
