//! `oncebox trace KEY`.

mod text;

use anyhow::Context as _;
use oncebox_connect::config::{Config, ConfigError, OutboxConfig, Sources, Values};
use oncebox_operator::{Operator, PlacedTrace, Stamp, look_elsewhere, together};
use oncebox_schema::Key;

use super::{databases, list, output};

/// Show where a message is, those of the steps below its key, and the saga that sends them
#[derive(clap::Args)]
pub(crate) struct Trace {
    #[arg(value_name = "KEY", value_parser = parse, help = KEY)]
    key: Key,
    /// Messages below the key at most; 1 to 100000
    #[arg(long, value_name = "N", default_value = "1000", value_parser = list::limit())]
    limit: u32,
    #[arg(long, value_name = "URL", help = ALSO)]
    pub(super) also: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) const KEY: &str = "A key, of a message or above those of messages";
pub(super) const ALSO: &str =
    "Another database to look into, of a service that takes part; may be given several times";

/// A database to look into.
#[derive(Clone)]
pub(crate) struct Place {
    pub(super) database: String,
    pub(super) config: OutboxConfig,
    /// The whole configuration, for a command that asks NATS as well.
    pub(super) whole: Option<Box<Config>>,
    /// Whether a configuration file names it.
    pub(super) is_named: bool,
}

/// A database that has answered, to be asked again.
pub(super) struct Opened {
    pub(super) operator: Operator,
    pub(super) placed: PlacedTrace,
    pub(super) place: Place,
}

/// The answers of databases.
pub(super) struct Asked {
    pub(super) opened: Vec<Opened>,
    /// A line for each that gave none.
    pub(super) unasked: String,
    /// The exit code that follows.
    pub(super) code: u8,
    /// Only one was asked.
    pub(super) is_alone: bool,
}

/// Other databases to look into.
///
/// # Errors
/// One is not one that can be connected to.
pub(super) fn others(also: &[String], values: &Values) -> Result<Vec<Place>, ConfigError> {
    let other = |url: &String| {
        let mut values = values.clone();
        values.insert("database-url", url.clone());
        // The file was read already.
        ["config", "database-url-file"].iter().for_each(|name| drop(values.remove(name)));
        OutboxConfig::from_sources(&Sources::read(values, [], |_| None))
            .map(|config| databases::lone(&config))
    };
    also.iter().map(other).collect()
}

impl Trace {
    /// Returns the exit code: of several databases some may be out of reach.
    pub(super) async fn run(self, places: Vec<Place>) -> anyhow::Result<u8> {
        let key = self.key.as_str();
        let asked = ask(places, key, self.limit, self.json).await?;
        let Asked { mut opened, unasked, code, is_alone } = asked;
        if !opened.iter().any(|one| one.placed.trace.is_known()) {
            let meant = meant(&mut opened, key).await?;
            output::print(&unasked)?;
            let problem = format!(
                "no message has the key {:?} or one below it{}: it was never enqueued, its transaction has not \
                 committed, it was cancelled while it was delayed, or it was deleted after the retention time",
                key,
                meant.map(|key| format!(" (there is {key:?})")).unwrap_or_default()
            );
            anyhow::ensure!(code > 0, problem);
            tracing::error!("{problem}; not all databases could be asked");
            return Ok(code);
        }
        if opened.iter().any(|one| one.placed.trace.is_cut) {
            tracing::warn!(
                limit = self.limit,
                "there are more below this key; see them with a higher --limit"
            );
        }
        let mut opened: Vec<_> = opened.into_iter().map(|one| (one.operator, one.placed)).collect();
        let silent = look_elsewhere(&mut opened, databases::LOOK_MAX).await;
        if let Some((_, error)) = silent.into_iter().next() {
            return Err(error.into());
        }
        let found: Vec<PlacedTrace> = opened.into_iter().map(|(_, placed)| placed).collect();
        let text = match (&found[..], self.json) {
            (_, true) => output::json_lines(&found)?,
            ([PlacedTrace { trace, .. }], _) if is_alone => text::text(trace),
            _ => text::timeline(&found),
        };
        output::print(&(text + &unasked))?;
        Ok(code)
    }
}

/// Asks all databases at once; of several, some may not answer.
///
/// # Errors
/// The only one did not answer.
pub(super) async fn ask(places: Vec<Place>, key: &str, steps_max: u32, json: bool) -> anyhow::Result<Asked> {
    let looked = together(places.into_iter().map(|place| async move {
        let (database, target) = (place.database.clone(), place.config.postgres_target());
        (database, Box::pin(databases::in_time(target, open(place, key, steps_max))).await)
    }));
    let looked = looked.await;
    let is_alone = looked.len() == 1;
    let mut asked = Asked { opened: Vec::new(), unasked: String::new(), code: 0, is_alone };
    for (database, looked) in looked {
        match looked {
            Ok(one) => asked.opened.push(one),
            Err(error) if is_alone => return Err(error),
            Err(error) => {
                asked.code = asked.code.max(crate::exit_code(&error));
                asked.unasked += &databases::unasked(&database, &error, json);
            }
        }
    }
    Ok(asked)
}

/// The key that was meant, where a `:` stands in the client's own.
///
/// # Errors
/// PostgreSQL refused or went away.
pub(super) async fn meant(opened: &mut [Opened], key: &str) -> anyhow::Result<Option<String>> {
    for Opened { operator, .. } in opened {
        if let Some(meant) = operator.meant(key).await? {
            return Ok(Some(meant));
        }
    }
    Ok(None)
}

async fn open(place: Place, key: &str, steps_max: u32) -> anyhow::Result<Opened> {
    let database = place.database.clone();
    let operator = Operator::connect(&place.config, Stamp::default()).await;
    let mut operator = operator.with_context(|| format!("look into {database}"))?;
    let trace = operator.trace(key, steps_max).await?;
    Ok(Opened { operator, placed: PlacedTrace { database, trace }, place })
}

/// A whole key; a client's own text is answered with the key that it has become.
pub(super) fn parse(text: &str) -> Result<Key, String> {
    text.parse().map_err(|problem| match Key::root(text) {
        Ok(root) => format!("{problem}; for a client's own key that is {root}"),
        Err(_) => format!("{problem}"),
    })
}
