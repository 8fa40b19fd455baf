//! `oncebox trace KEY`.

mod text;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::{ConfigError, OutboxConfig, Sources, Values};
use oncebox_operator::{Operator, Stamp, Trace as Traced, TracedKey};
use oncebox_schema::Key;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{action, databases, output};

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

/// A database to look into.
pub(crate) struct Place {
    pub(super) database: String,
    pub(super) config: OutboxConfig,
}

/// The answer of one database.
#[derive(Serialize)]
struct Found {
    database: String,
    #[serde(flatten)]
    trace: Traced,
}

/// A database that has answered, to be asked again.
struct Opened {
    operator: Operator,
    tasks: JoinSet<()>,
    found: Found,
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
            values.remove("database-url-file");
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
    async fn meant(&self, opened: &mut [Opened]) -> anyhow::Result<Option<String>> {
        for Opened { operator, .. } in opened {
            for colons in 1..=self.key.matches(':').count().min(COLONS_MAX) {
                let escaped = self.key.replacen(':', "%3A", colons);
                if !operator.trace(&escaped, 1).await?.messages.is_empty() {
                    return Ok(Some(escaped));
                }
            }
        }
        Ok(None)
    }

    /// Returns the exit code: of several databases some may be out of reach.
    pub(super) async fn run(self, mut places: Vec<Place>) -> anyhow::Result<u8> {
        places.extend(self.also.iter().map(databases::lone));
        let looked = databases::together(places.into_iter().map(|place| {
            let (key, steps_max) = (self.key.clone(), self.steps_max);
            async move {
                let (database, target) = (place.database.clone(), place.config.postgres_target());
                (database, databases::in_time(target, open(place, key, steps_max)).await)
            }
        }));
        let (mut opened, mut unasked, mut code) = (Vec::new(), String::new(), 0);
        let looked = looked.await;
        let is_alone = looked.len() == 1;
        for (database, looked) in looked {
            match looked {
                Ok(one) => opened.push(one),
                Err(error) if is_alone => return Err(error),
                Err(error) => {
                    code = code.max(crate::exit_code(&error));
                    unasked += &databases::unasked(&database, &error, self.json);
                }
            }
        }
        if !opened.iter().any(|one| is_known(&one.found.trace)) {
            let meant = self.meant(&mut opened).await?;
            output::print(&unasked)?;
            let problem = format!(
                "no message has the key {:?} or one below it{}: it was never enqueued, its transaction has not \
                 committed, or it was deleted after the retention time",
                self.key,
                meant.map(|key| format!(" (there is {key:?})")).unwrap_or_default()
            );
            anyhow::ensure!(code > 0, problem);
            tracing::error!("{problem}; not all databases could be asked");
            return Ok(code);
        }
        if opened.iter().any(|one| one.found.trace.is_cut) {
            tracing::warn!(
                limit = self.steps_max,
                "there are more below this key; see them with a higher --limit"
            );
        }
        let found = look_elsewhere(opened).await?;
        let text = match (&found[..], self.json) {
            (_, true) => output::json_lines(&found)?,
            ([Found { trace, .. }], _) if is_alone => text::text(trace),
            _ => text::timeline(&found),
        };
        output::print(&(text + &unasked))?;
        Ok(code)
    }
}

async fn open(Place { database, config }: Place, key: String, steps_max: u32) -> anyhow::Result<Opened> {
    let mut tasks = JoinSet::new();
    let operator = Operator::connect(&config, Stamp::default(), &mut tasks).await;
    let mut operator = operator.with_context(|| format!("look into {database}"))?;
    let trace = operator.trace(&key, steps_max).await?;
    Ok(Opened { operator, tasks, found: Found { database, trace } })
}

fn is_known(trace: &Traced) -> bool {
    let was_acted_on = trace.audit.as_ref().is_some_and(|rows| !rows.is_empty());
    !trace.messages.is_empty() || !trace.sagas.is_empty() || !trace.inboxes.is_empty() || was_acted_on
}

/// Finds the fate of each message in the inboxes of the other databases.
async fn look_elsewhere(opened: Vec<Opened>) -> anyhow::Result<Vec<Found>> {
    let keys = |one: &Opened| one.found.trace.messages.iter().map(|message| message.key.clone()).collect();
    let keys: Vec<Vec<String>> = opened.iter().map(keys).collect();
    let (mut found, mut looks) = (Vec::new(), Vec::new());
    for (number, Opened { mut operator, tasks, found: own }) in opened.into_iter().enumerate() {
        let others = keys.iter().enumerate().filter(|(other, _)| *other != number);
        let (others, database) =
            (others.flat_map(|(_, keys)| keys.clone()).collect::<Vec<_>>(), own.database.clone());
        found.push(own);
        looks.push(async move {
            let _tasks = tasks;
            let inboxes = match others.is_empty() {
                true => Ok(Vec::new()),
                false => {
                    databases::in_time(database.clone(), async { Ok(operator.trace_inboxes(&others).await?) })
                        .await
                }
            };
            (database, inboxes)
        });
    }
    for (number, (database, inboxes)) in databases::together(looks).await.into_iter().enumerate() {
        for TracedKey { key, mut inbox, .. } in inboxes? {
            inbox.database = Some(database.clone());
            let others = found.iter_mut().enumerate().filter(|(other, _)| *other != number);
            let messages = others.flat_map(|(_, found)| &mut found.trace.messages);
            messages
                .filter(|message| message.key == key)
                .for_each(|message| message.inboxes.push(inbox.clone()));
        }
    }
    Ok(found)
}

/// A whole key; a client's own text is answered with the key that it has become.
fn parse(text: &str) -> Result<Key, String> {
    text.parse().map_err(|problem| match Key::root(text) {
        Ok(root) => format!("{problem}; for a client's own key that is {root}"),
        Err(_) => format!("{problem}"),
    })
}
