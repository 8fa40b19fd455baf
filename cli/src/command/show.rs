//! `show` of one message, or dead letter, that is set aside.

use anyhow::Context as _;
use oncebox_operator::{DeadLetterDetails, ParkedDetails};

use super::{
    On, Run, list,
    output::{self, time},
};

/// Show a parked or dead message, with what waits behind it
#[derive(clap::Args)]
pub(crate) struct Message {
    /// The message's key
    #[arg(value_name = "KEY")]
    key: String,
    #[command(flatten)]
    how: How,
}

/// Show a dead letter, and how its key stands
#[derive(clap::Args)]
pub(crate) struct Letter {
    /// The letter's id, from the list
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    letter: i64,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
struct How {
    /// With the payload, which may hold what others must not see
    #[arg(long)]
    payload: bool,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

impl Run for Message {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { key, how } = self;
        let message = on.operator().await?.show(&key, how.payload).await?.with_context(|| {
            format!(
                "no parked or dead message has the key {key:?}; if a consumer gave it up, see `oncebox inbox dead \
                list`, else `oncebox trace`"
            )
        })?;
        output::end(&if how.json { output::json_lines(&[message])? } else { of_message(&message) })
    }
}

impl Run for Letter {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { letter: id, how } = self;
        let letter = on.operator().await?.dead_letter(id, how.payload.then_some(i32::MAX)).await?;
        let letter = letter.with_context(|| format!("no dead letter has the id {id}"))?;
        output::end(&if how.json { output::json_lines(&[letter])? } else { of_letter(&letter) })
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
