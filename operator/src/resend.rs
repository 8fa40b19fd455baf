//! Fetching messages of inboxes from JetStream, and sending dead letters and copies of failing
//! messages to it: one at a time, each acknowledged before the next.

mod payload;

use std::{error::Error, time::Duration};

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
    jetstream::message::StreamMessage,
};
use oncebox_connect::{
    config::Config,
    error::RelayError,
    nats::{Connection, Server},
};
use oncebox_relay::facts::Letter;
use serde_json::Value;
use tokio::time::timeout;

pub(crate) use self::payload::Payload;
use crate::{
    Result,
    stored::{Question, stored},
};

/// How long JetStream may take to acknowledge one message.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Why NATS does not do something, or the problem with the message.
type Refused = Box<dyn Error + Send + Sync>;

/// A connection to NATS for one command.
#[derive(Debug)]
pub(crate) struct Resender {
    connection: Connection,
}

impl Resender {
    pub(crate) async fn connect(config: &Config) -> Result<Self> {
        let connection = Server::connect_once(config, "oncebox inbox", CONNECT_TIMEOUT).await?;
        Ok(Self { connection })
    }

    /// Publishes it; the stream has stored it when this returns.
    pub(crate) async fn send(&self, id: i64, letter: Letter) -> Result<()> {
        self.publish(letter).await.map_err(|source| RelayError::DeadLetter { id, source })
    }

    /// The same; the error is of NATS, or the message's own.
    pub(crate) async fn publish(&self, letter: Letter) -> Result<(), Refused> {
        letter.publish(&self.connection).await
    }

    /// The message with this sequence; `None` when its stream has it no more.
    pub(crate) async fn stored(&self, stream: &str, sequence: u64) -> Result<Option<StreamMessage>, Refused> {
        let (context, name) = self.connection.jetstream_of(stream, ACK_TIMEOUT);
        // It judges the name, which an inbox has noted.
        context.get_stream_no_info(name).await?;
        let asking = stored(&context, name, Question::At { seq: sequence });
        let answer = timeout(ACK_TIMEOUT, asking).await?;
        answer.map_err(|problem| format!("read sequence {sequence} of stream {name}: {problem}").into())
    }
}

/// Headers as inboxes store them: a JSON object; a name that occurs more than once has an array.
pub(crate) fn headers_json(headers: &HeaderMap) -> String {
    let text = |value: &HeaderValue| Value::from(value.as_str().replace('\0', "\u{fffd}"));
    let pair = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
        let value = match &values[..] {
            [single] => text(single),
            several => Value::from(several.iter().map(text).collect::<Vec<_>>()),
        };
        (name.to_string(), value)
    };
    Value::Object(headers.iter().map(pair).collect()).to_string()
}
