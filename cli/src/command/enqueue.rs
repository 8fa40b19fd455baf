//! `oncebox outbox enqueue`: one message by hand, to try a system or to mend one.

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::{config::OutboxConfig, postgres::connect_postgres};
use oncebox_outbox::{Message, Outbox};
use oncebox_schema::{Key, Subject};
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments of the command.
pub(crate) struct Enqueue(Message);

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let given = |name, value, help| Arg::new(name).value_name(value).required(true).help(help);
    let ordering_key = Arg::new("ordering-key").long("ordering-key").value_name("KEY");
    let header = Arg::new("header").long("header").value_name("NAME=VALUE").action(ArgAction::Append);
    clap::Command::new("enqueue")
        .about("Enqueue one message, in a transaction of its own")
        .arg(
            given("key", "KEY", "Its key; the same message again changes nothing")
                .value_parser(clap::value_parser!(Key)),
        )
        .arg(given("subject", "SUBJECT", "Where it goes").value_parser(clap::value_parser!(Subject)))
        .arg(given("payload", "PAYLOAD", "Its payload, a text"))
        .arg(ordering_key.value_parser(action::bounded(1000)).help("Messages with this key keep their order"))
        .arg(header.value_parser(pair).help("A header; may be given several times"))
        .args(connection)
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "it is not NAME=VALUE".to_owned())
}

impl Enqueue {
    /// # Errors
    /// A header is not allowed.
    pub(super) fn new(flags: &ArgMatches) -> Result<Self, String> {
        let (Some(key), Some(subject), Some(payload)) = (
            flags.get_one::<Key>("key"),
            flags.get_one::<Subject>("subject"),
            flags.get_one::<String>("payload"),
        ) else {
            return Err("KEY, SUBJECT and PAYLOAD are needed".to_owned());
        };
        let mut message = Message::bytes(key.clone(), subject.clone(), payload.as_bytes());
        if let Some(ordering_key) = flags.get_one::<String>("ordering-key") {
            message = message.ordering_key(ordering_key);
        }
        for (name, value) in flags.get_many::<(String, String)>("header").into_iter().flatten() {
            message = message.header(name, value).map_err(|error| format!("--header: {error}"))?;
        }
        Ok(Self(message))
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut client = connect_postgres(config, &mut tasks).await?;
        let outbox = Outbox::new(config.schema().clone());
        outbox.check(&client).await?;
        let transaction = client.transaction().await?;
        let enqueued = outbox.enqueue(&transaction, &self.0).await?;
        transaction.commit().await?;
        let word = if enqueued.is_some() { "enqueued" } else { "was enqueued before:" };
        output::print(&format!("{word} {}\n", self.0.key()))?;
        Ok(())
    }
}
