//! `oncebox outbox enqueue`: one message by hand, to try a system or to mend one.

use oncebox_connect::postgres::connect_postgres;
use oncebox_outbox::{Message, Outbox};
use oncebox_schema::{Key, Subject};
use tokio::task::JoinSet;

use super::{On, Run, action, output};

/// Enqueue one message, in a transaction of its own
#[derive(clap::Args)]
pub(crate) struct Enqueue {
    /// Its key; the same message again changes nothing
    #[arg(value_name = "KEY")]
    key: Key,
    /// Where it goes
    #[arg(value_name = "SUBJECT")]
    subject: Subject,
    /// Its payload, a text
    #[arg(value_name = "PAYLOAD")]
    payload: String,
    /// Messages with this key keep their order
    #[arg(long, value_name = "KEY", value_parser = action::bounded(1000))]
    ordering_key: Option<String>,
    /// A header; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    header: Vec<(String, String)>,
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "it is not NAME=VALUE".to_owned())
}

impl Enqueue {
    /// # Errors
    /// A header is not allowed.
    pub(super) fn message(self) -> Result<Message, String> {
        let mut message = Message::bytes(self.key, self.subject, self.payload.as_bytes());
        if let Some(ordering_key) = self.ordering_key {
            message = message.ordering_key(ordering_key);
        }
        for (name, value) in self.header {
            message = message.header(&name, &value).map_err(|error| format!("--header: {error}"))?;
        }
        Ok(message)
    }
}

impl Run for Message {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut tasks = JoinSet::new();
        let mut client = connect_postgres(&on.outbox, &mut tasks).await?;
        let outbox = Outbox::new(on.outbox.schema().clone());
        outbox.check(&client).await?;
        let transaction = client.transaction().await?;
        let enqueued = outbox.enqueue(&transaction, &self).await?;
        transaction.commit().await?;
        let word = if enqueued.is_some() { "enqueued" } else { "was enqueued before:" };
        output::end(&format!("{word} {}\n", self.key()))
    }
}
