//! `oncebox trace KEY`.

use anyhow::bail;
use clap::{Arg, ArgMatches};
use oncebox_relay::{Operator, OutboxConfig, Saga, Stamp, Trace as Traced, TracedMessage};
use oncebox_schema::Key;
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, time},
    saga,
};

/// Of a client's key that nobody finds, so many colons are tried as part of its root.
const COLONS_MAX: usize = 4;

/// What was asked for.
pub(crate) struct Trace {
    key: String,
    steps_max: u32,
    json: bool,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages below the key at most; 1 to 100000");
    let key = Arg::new("key").value_name("KEY").required(true).value_parser(parse);
    clap::Command::new("trace")
        .about("Show where a message is, those of the steps below its key, and the saga that sends them")
        .arg(key.help("A key, of a message or above those of messages"))
        .arg(limit)
        .arg(action::json().help("Print one JSON document"))
        .args(connection)
}

impl Trace {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self {
            key: flags.get_one::<Key>("key").map(|key| key.as_str().to_owned()).unwrap_or_default(),
            steps_max: flags.get_one::<u32>("limit").copied().unwrap_or(1_000),
            json: flags.get_flag("json"),
        }
    }

    /// The key that was meant where a `:` stands in the client's own key, which is escaped when it
    /// is enqueued.
    async fn meant(&self, operator: &mut Operator) -> anyhow::Result<Option<String>> {
        for colons in 1..=self.key.matches(':').count().min(COLONS_MAX) {
            let escaped = self.key.replacen(':', "%3A", colons);
            if !operator.trace(&escaped, 1).await?.messages.is_empty() {
                return Ok(Some(escaped));
            }
        }
        Ok(None)
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
        let trace = operator.trace(&self.key, self.steps_max).await?;
        let is_known = !trace.messages.is_empty()
            || !trace.sagas.is_empty()
            || trace.audit.as_ref().is_some_and(|rows| !rows.is_empty());
        if !is_known {
            let meant = self.meant(&mut operator).await?;
            bail!(
                "no message has the key {:?} or one below it{}: it was never enqueued, its transaction has not \
                 committed, or it was deleted after the retention time",
                self.key,
                meant.map(|key| format!(" (there is {key:?})")).unwrap_or_default()
            );
        }
        if trace.is_cut {
            tracing::warn!(
                limit = self.steps_max,
                "there are more below this key; see them with a higher --limit"
            );
        }
        output::print(&if self.json { output::json_lines(&[trace])? } else { text(&trace) })?;
        Ok(())
    }
}

/// A whole key; a client's own text is answered with the key that it has become.
fn parse(text: &str) -> Result<Key, String> {
    text.parse().map_err(|problem| match Key::root(text) {
        Ok(root) => format!("{problem}; for a client's own key that is {root}"),
        Err(_) => format!("{problem}"),
    })
}

fn text(trace: &Traced) -> String {
    let rows: Vec<[String; 8]> = trace.messages.iter().map(row).collect();
    let heads = ["KEY", "STATE", "ID", "LANE", "SUBJECT", "ORDERING KEY", "ENQUEUED", "MORE"];
    let mut text = if rows.is_empty() { String::new() } else { output::table(heads, &rows) };
    if !trace.messages.iter().any(|message| message.key == trace.key) {
        text +=
            "no message has the key itself: none was enqueued, or it was deleted after the retention time\n";
    }
    for progress in &trace.sagas {
        let Saga { key, saga_type, state, reason, .. } = &progress.saga;
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        text += &output::clean(&format!("\nsaga {key}, {saga_type}, is {state}{reason}\n"));
        text += &saga::steps(&progress.steps);
    }
    let rows: Option<Vec<[String; 6]>> = trace.audit.as_ref().map(|rows| {
        let cells = |row: &oncebox_relay::AuditRow| {
            let who = row.operator.as_deref().unwrap_or(&row.database_user);
            let texts = [&row.key, &row.reason, &row.note].map(|text| text.clone().unwrap_or_default());
            let [key, reason, note] = texts;
            [time(row.happened_at), who.to_owned(), row.action.clone(), key, reason, note]
        };
        rows.iter().map(cells).collect()
    });
    match rows {
        None => text += "\nwhat operators did is not shown: this role may not read the audit table\n",
        Some(rows) if rows.is_empty() => {}
        Some(rows) => {
            text += "\n";
            text += &output::table(["DONE", "BY", "ACTION", "KEY", "REASON", "NOTE"], &rows);
        }
    }
    text
}

fn row(message: &TracedMessage) -> [String; 8] {
    [
        message.key.clone(),
        message.state.to_owned(),
        message.id.to_string(),
        message.lane.to_string(),
        message.subject.clone(),
        message.ordering_key.clone().unwrap_or_default(),
        time(message.created_at),
        more(message),
    ]
}

/// What else there is to say, in one line.
fn more(message: &TracedMessage) -> String {
    let mut parts = Vec::new();
    parts.extend(message.not_before.map(|at| format!("not before {}", time(at))));
    if let Some(replay) = &message.replay {
        parts.push(format!("replay {} of request {} {}", replay.number, replay.request, replay.state));
    }
    if let Some(parked) = &message.parked {
        match &parked.behind {
            Some(key) => parts.push(format!("behind {key}")),
            None => parts.push(parked.reason.clone()),
        }
        if parked.attempts > 0 {
            parts.push(format!("attempts: {}", parked.attempts));
        }
        parts.extend(parked.next_attempt_at.map(|at| format!("next attempt {}", time(at))));
        parts.extend(parked.died_at.map(|at| format!("died {}", time(at))));
    }
    parts.extend(message.inboxes.iter().map(|inbox| {
        let status = if inbox.status == "dead" { "dead letter" } else { &inbox.status };
        let tenant = if inbox.tenant.is_empty() { String::new() } else { format!(" of {}", inbox.tenant) };
        format!("{status} in {}{tenant}", inbox.scope)
    }));
    parts.join("; ")
}
