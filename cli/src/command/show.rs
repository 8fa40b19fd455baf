//! `show` of one message, or dead letter, that is set aside.

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{DeadLetterDetails, Kind, Operator, ParkedDetails, Stamp};
use tokio::task::JoinSet;

use super::{
    action, list,
    output::{self, time},
};

/// The arguments of the command.
pub(crate) struct Show {
    of: Which,
    payload: bool,
    json: bool,
}

enum Which {
    Message(String),
    Letter(i64),
}

pub(super) fn command(kind: Kind) -> Command {
    let (about, which) = match kind {
        Kind::Letters => {
            let id = Arg::new("letter").value_name("ID").value_parser(clap::value_parser!(i64).range(1..));
            ("Show a dead letter, and how its key stands", id.help("The letter's id, from the list"))
        }
        _ => (
            "Show a parked or dead message, with what waits behind it",
            Arg::new("key").value_name("KEY").help("The message's key"),
        ),
    };
    let payload = Arg::new("payload").long("payload").action(ArgAction::SetTrue);
    Command::new("show")
        .about(about)
        .arg(which.required(true))
        .arg(payload.help("With the payload, which may hold what others must not see"))
        .arg(action::json())
}

impl Show {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let id = flags.try_get_one::<i64>("letter").ok().flatten();
        let key = || flags.get_one::<String>("key").cloned().unwrap_or_default();
        let of = id.map_or_else(|| Which::Message(key()), |id| Which::Letter(*id));
        Self { of, payload: flags.get_flag("payload"), json: flags.get_flag("json") }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
        let text = match self.of {
            Which::Message(key) => {
                let message = operator.show(&key, self.payload).await?.with_context(|| {
                    format!(
                        "no parked or dead message has the key {key:?}; if a consumer gave it up, see `oncebox inbox dead \
                         list`, else `oncebox trace`"
                    )
                })?;
                if self.json { output::json_lines(&[message])? } else { of_message(&message) }
            }
            Which::Letter(id) => {
                let letter = operator.dead_letter(id, self.payload.then_some(i32::MAX)).await?;
                let letter = letter.with_context(|| format!("no dead letter has the id {id}"))?;
                if self.json { output::json_lines(&[letter])? } else { of_letter(&letter) }
            }
        };
        Ok(output::print(&text).map(drop)?)
    }
}

fn of_message(parked: &ParkedDetails) -> String {
    let message = &parked.message;
    let mut rows = vec![
        ("state", message.state.to_owned()),
        ("replay", list::replay(message)),
        ("id", message.id.to_string()),
        ("lane", message.lane.to_string()),
        ("subject", message.subject.clone()),
        ("ordering key", message.ordering_key.clone().unwrap_or_default()),
        ("reason", message.reason.clone()),
        ("attempts", message.attempts.to_string()),
        ("enqueued", time(message.created_at)),
        ("set aside", time(parked.parked_at)),
        ("died", message.died_at.map(time).unwrap_or_default()),
        ("next attempt", message.next_attempt_at.map(time).unwrap_or_default()),
        ("behind it", parked.behind.to_string()),
        ("headers", parked.headers.to_string()),
        ("payload bytes", message.payload_bytes.to_string()),
    ];
    rows.extend(parked.payload.iter().map(|shown| ("payload", shown.payload.clone())));
    output::facts("KEY", &message.key, &rows)
}

fn of_letter(opened: &DeadLetterDetails) -> String {
    let letter = &opened.letter;
    let origin = letter.stream.as_ref().zip(letter.stream_sequence);
    let mut rows = vec![
        ("scope", letter.scope.clone()),
        ("tenant", letter.tenant.clone()),
        ("key", letter.key.clone().unwrap_or_else(|| format!("none: act on it with --id {}", letter.id))),
        ("the key is now", opened.key_status.clone().unwrap_or_else(|| "free".to_owned())),
        ("subject", letter.subject.clone()),
        ("stream", origin.map(|(stream, number)| format!("{stream} {number}")).unwrap_or_default()),
        ("stored", opened.stored_at.map(time).unwrap_or_default()),
        ("deliveries", letter.deliveries.to_string()),
        ("reason", letter.reason.clone()),
        ("died", time(letter.died_at)),
        ("ordering key", letter.ordering_key.clone().unwrap_or_default()),
        ("behind it", letter.behind.map(|behind| behind.to_string()).unwrap_or_default()),
        ("headers", opened.headers.to_string()),
        ("payload bytes", letter.payload_bytes.to_string()),
    ];
    rows.extend(opened.payload.iter().map(|shown| ("payload", shown.payload.clone())));
    output::facts("ID", &letter.id.to_string(), &rows)
}
