//! `oncebox trace KEY`.

mod text;

use anyhow::{Context as _, bail};
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::{ConfigError, OutboxConfig, Sources, Values};
use oncebox_operator::{Operator, Stamp, Trace as Traced, TracedKey};
use oncebox_schema::Key;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{action, output};

/// Of a client's key that nobody finds, so many colons are tried as part of its root.
const COLONS_MAX: usize = 4;

/// The arguments of the command.
pub(crate) struct Trace {
    key: String,
    steps_max: u32,
    /// Other databases that are looked into.
    also: Vec<OutboxConfig>,
    json: bool,
}

/// The answer of one database.
#[derive(Serialize)]
struct Found {
    database: String,
    /// Whether its inboxes have keys of the messages of other databases.
    #[serde(skip)]
    has_inboxes: bool,
    #[serde(flatten)]
    trace: Traced,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages below the key at most; 1 to 100000");
    let also = Arg::new("also")
        .long("also")
        .value_name("URL")
        .action(ArgAction::Append)
        .help("Another database to look into, of a service that takes part; may be given several times");
    let key = Arg::new("key").value_name("KEY").required(true).value_parser(parse);
    clap::Command::new("trace")
        .about("Show where a message is, those of the steps below its key, and the saga that sends them")
        .arg(key.help("A key, of a message or above those of messages"))
        .arg(limit)
        .arg(also)
        .arg(action::json().help("Print one JSON document"))
        .args(connection)
}

impl Trace {
    /// # Errors
    /// Another database is not one that can be connected to.
    pub(super) fn new(flags: &ArgMatches, values: &Values) -> Result<Self, ConfigError> {
        let also = flags.get_many::<String>("also").into_iter().flatten().map(|url| {
            let mut values = values.clone();
            values.insert("database-url", url.clone());
            OutboxConfig::from_sources(&Sources::from(&values))
        });
        Ok(Self {
            key: flags.get_one::<Key>("key").map(|key| key.as_str().to_owned()).unwrap_or_default(),
            steps_max: flags.get_one::<u32>("limit").copied().unwrap_or(1_000),
            also: also.collect::<Result<_, _>>()?,
            json: flags.get_flag("json"),
        })
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
        let (mut operators, mut found) = (Vec::new(), Vec::new());
        for config in std::iter::once(config).chain(&self.also) {
            let database = config.postgres_target();
            let operator = Operator::connect(config, Stamp::default(), &mut tasks).await;
            let mut operator = operator.with_context(|| format!("look into {database}"))?;
            let trace = operator.trace(&self.key, self.steps_max).await?;
            operators.push(operator);
            found.push(Found { database, has_inboxes: false, trace });
        }
        if !found.iter().any(|found| is_known(&found.trace)) {
            let meant = self.meant(&mut operators[0]).await?;
            bail!(
                "no message has the key {:?} or one below it{}: it was never enqueued, its transaction has not \
                 committed, or it was deleted after the retention time",
                self.key,
                meant.map(|key| format!(" (there is {key:?})")).unwrap_or_default()
            );
        }
        if found.iter().any(|found| found.trace.is_cut) {
            tracing::warn!(
                limit = self.steps_max,
                "there are more below this key; see them with a higher --limit"
            );
        }
        look_elsewhere(&mut operators, &mut found).await?;
        output::print(&if self.json { output::json_lines(&found)? } else { shown(&found) })?;
        Ok(())
    }
}

fn is_known(trace: &Traced) -> bool {
    let was_acted_on = trace.audit.as_ref().is_some_and(|rows| !rows.is_empty());
    !trace.messages.is_empty() || !trace.sagas.is_empty() || !trace.inboxes.is_empty() || was_acted_on
}

/// Finds the fate of each message in the inboxes of the other databases.
async fn look_elsewhere(operators: &mut [Operator], found: &mut [Found]) -> anyhow::Result<()> {
    for (at, operator) in operators.iter_mut().enumerate() {
        let database = found[at].database.clone();
        for other in (0..found.len()).filter(|other| *other != at) {
            let messages = &mut found[other].trace.messages;
            let keys: Vec<String> = messages.iter().map(|message| message.key.clone()).collect();
            let mut has_inboxes = false;
            for TracedKey { key, mut inbox, .. } in operator.trace_inboxes(&keys).await? {
                inbox.database = Some(database.clone());
                let message = messages.iter_mut().find(|message| message.key == key);
                message.into_iter().for_each(|message| message.inboxes.push(inbox.clone()));
                has_inboxes = true;
            }
            found[at].has_inboxes |= has_inboxes;
        }
    }
    Ok(())
}

/// One after another, each under its database where there are several.
fn shown(found: &[Found]) -> String {
    match found {
        [Found { trace, .. }] => text::text(trace),
        _ => {
            let parts = found.iter().map(|Found { database, has_inboxes, trace }| {
                let text = match is_known(trace) {
                    true => text::text(trace),
                    false if *has_inboxes => {
                        "it has inboxes of these messages, as their rows say\n".to_owned()
                    }
                    false => "nothing has the key, or one below it\n".to_owned(),
                };
                format!("database {database}\n{text}")
            });
            parts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// A whole key; a client's own text is answered with the key that it has become.
fn parse(text: &str) -> Result<Key, String> {
    text.parse().map_err(|problem| match Key::root(text) {
        Ok(root) => format!("{problem}; for a client's own key that is {root}"),
        Err(_) => format!("{problem}"),
    })
}
