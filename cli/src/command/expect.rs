//! `oncebox expect add | remove | list | unhandled`.

use std::time::Duration;

use anyhow::ensure;
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{Expectation, Expected, Operator, Stamp, SubjectPattern, Unhandled, pause_time};
use serde_json::json;

use super::{
    On, Run, action,
    output::{self, time},
};

/// Find messages that no consumer has handled in time
#[derive(clap::Subcommand)]
pub(crate) enum Expect {
    /// Expect messages with a subject in an inbox within a time of their commit
    Add(Add),
    /// Expect them no more
    Remove {
        #[command(flatten)]
        these: These,
        #[command(flatten)]
        who: action::Who,
    },
    /// List what is expected, and how many messages are missing
    List {
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
    /// List the messages that are missing, the oldest first
    Unhandled {
        #[arg(long, value_name = "PATTERN", help = SUBJECT)]
        subject: Option<SubjectPattern>,
        #[arg(long, value_name = "SCOPE", value_parser = action::bounded(255), help = HANDLED_BY)]
        handled_by: Option<String>,
        /// Messages that are listed, at most
        #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
}

const SUBJECT: &str = "Messages with this subject; * is one token, a last > one or more";
const HANDLED_BY: &str = "The inbox: the scope of a consumer, service:handler";

#[derive(clap::Args)]
pub(crate) struct These {
    #[arg(long, value_name = "PATTERN", help = SUBJECT)]
    subject: SubjectPattern,
    #[arg(long, value_name = "SCOPE", value_parser = action::bounded(255), help = HANDLED_BY)]
    handled_by: String,
}

#[derive(clap::Args)]
pub(crate) struct Add {
    #[command(flatten)]
    these: These,
    /// The time from the commit on: 90s, 15m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = pause_time)]
    within: Duration,
    /// The database of the inbox, by its name in the file of the relay's databases
    #[arg(long = "in", value_name = "DATABASE", value_parser = action::bounded(255))]
    inbox_database: Option<String>,
    /// Also if no consumer with that scope has registered in this database
    #[arg(long)]
    unseen: bool,
    #[command(flatten)]
    who: action::Who,
    /// The connection to the database of the inbox, where the file names that one.
    #[arg(skip)]
    inbox: Option<Box<OutboxConfig>>,
}

impl Expect {
    /// Also looks in the database of the inbox, which the file names.
    pub(super) fn looking_in(self, inbox: OutboxConfig) -> Self {
        match self {
            Self::Add(add) => Self::Add(Add { inbox: Some(Box::new(inbox)), ..add }),
            other => other,
        }
    }

    /// The name of the inbox's database, of an expectation that is added.
    pub(super) fn inbox_database(&self) -> Option<&str> {
        let Self::Add(add) = self else { return None };
        add.inbox_database.as_deref()
    }
}

impl Run for Expect {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let text = match self {
            Self::Add(Add {
                these: These { subject, handled_by },
                within,
                inbox_database,
                unseen,
                who,
                inbox,
            }) => {
                let expected = Expected { subject, handled_by, within, inbox_database, is_unseen: unseen };
                if let Some(inbox) = &inbox {
                    Operator::connect(inbox, Stamp::default()).await?.check_expected(&expected).await?;
                }
                on.acting(&who).await?.expect(&expected).await?;
                added(&who, &expected, inbox.is_some())?
            }
            Self::Remove { these: These { subject, handled_by }, who } => {
                let subject = subject.as_str();
                ensure!(
                    on.acting(&who).await?.expect_no_more(subject, &handled_by).await?,
                    "messages to {subject} are not expected in {handled_by}; nothing was done. See `oncebox expect list`"
                );
                removed(&who, subject, &handled_by)?
            }
            Self::List { json } => {
                output::listed(json, &on.operator().await?.expectations().await?, EXPECTED, expectation)?
            }
            Self::Unhandled { subject, handled_by, limit, json } => {
                let subject = subject.as_ref().map(SubjectPattern::as_str);
                let operator = on.operator().await?;
                let found = operator.unhandled(subject, handled_by.as_deref(), limit as usize).await?;
                output::listed(json, &found, UNHANDLED, unhandled)?
            }
        };
        output::end(&text)
    }
}

fn added(who: &action::Who, expected: &Expected, is_checked: bool) -> anyhow::Result<String> {
    let Expected { subject, handled_by, within, inbox_database, .. } = expected;
    let subject = subject.as_str();
    if who.json {
        return Ok(output::json_lines(&[json!({
            "action": "expected",
            "subject": subject,
            "handled_by": handled_by,
            "within_seconds": within.as_secs_f64(),
            "inbox_database": inbox_database,
        })])?);
    }
    let (place, unchecked) = match inbox_database {
        None => (" in this database".to_owned(), ""),
        Some(name) if is_checked => (format!(" in database {name}"), ""),
        Some(name) => (
            format!(" in database {name}"),
            "That database and its inbox were not checked: name both databases in a file (--config) for that.\n",
        ),
    };
    let within = humantime::format_duration(*within);
    Ok(format!(
        "expected: messages to {subject} in the inbox of {handled_by}{place}, within {within} of their commit\n{unchecked}"
    ))
}

fn removed(who: &action::Who, subject: &str, handled_by: &str) -> anyhow::Result<String> {
    if who.json {
        let action = "expected no more";
        return Ok(output::json_lines(&[
            json!({ "action": action, "subject": subject, "handled_by": handled_by }),
        ])?);
    }
    Ok(format!("expected no more: messages to {subject} in the inbox of {handled_by}\n"))
}

const EXPECTED: [&str; 7] = ["SUBJECT", "HANDLED BY", "WITHIN", "DATABASE", "LOOKED AT", "MISSING", "OLDEST"];
fn expectation(expected: &Expectation) -> [String; 7] {
    let looked = |seconds: f64| format!("{seconds:.0} s ago");
    [
        expected.subject.clone(),
        expected.handled_by.clone(),
        humantime::format_duration(Duration::from_secs_f64(expected.within_seconds)).to_string(),
        expected.inbox_database.clone().unwrap_or_else(|| "this one".to_owned()),
        expected.looked_seconds.map_or_else(|| "never".to_owned(), looked),
        expected.unhandled.to_string(),
        expected.oldest_key.clone().unwrap_or_default(),
    ]
}

const UNHANDLED: [&str; 4] = ["KEY", "SUBJECT", "NOT HANDLED BY", "ENQUEUED"];
fn unhandled(message: &Unhandled) -> [String; 4] {
    [message.key.clone(), message.subject.clone(), message.handled_by.clone(), time(message.enqueued_at)]
}
