//! The messages that a relay gets while it sleeps: hints of producers, and the questions of other
//! relays.
//!
//! A hint is any message on the outbox's subject; it may be lost. A relay that asks who serves the
//! outbox gets the answer that it is not known yet, and one that this relay does not know wakes it:
//! it may serve a copy.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use tokio::{sync::broadcast, time::timeout};

use super::{
    connection::{Connection, Server},
    home::{Answer, Caller, answer, listen},
};
use crate::telemetry::Metrics;

/// Else the relay that wakes waits for an answer as long.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Why a sleeping relay has stopped to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Hint,
    /// A relay asks that it does not know.
    Question,
    /// NATS does not let the relay hear hints.
    Denied,
    /// The connection is over.
    Over,
}

/// A connection to NATS with the subscriptions of a sleeping relay.
#[derive(Debug)]
pub(crate) struct Ears {
    connection: Connection,
    subject: String,
    hints: Subscriber,
    questions: Option<Subscriber>,
    denied: broadcast::Receiver<Arc<str>>,
}

impl Ears {
    /// Connects and subscribes; a hint that is published from now on is heard.
    pub(crate) async fn open(
        server: &Server,
        metrics: &Metrics,
        subject: &str,
        token: Option<&str>,
    ) -> Result<Self, String> {
        let connection = server.connect(metrics).await.map_err(|error| error.to_string())?;
        let denied = connection.denied.subscribe();
        let subject = subject.to_owned();
        let hints = connection.client.subscribe(subject.clone()).await.map_err(|error| error.to_string())?;
        let questions = match token {
            Some(token) => listen(&connection, token).await,
            None => None,
        };
        connection.client.flush().await.map_err(|error| error.to_string())?;
        Ok(Self { connection, subject, hints, questions, denied })
    }

    /// Leaves both subjects: the relay that wakes asks who else is there, and must not wait for an
    /// answer of its own.
    pub(crate) async fn close(mut self) {
        let _ = self.hints.unsubscribe().await;
        if let Some(mut questions) = self.questions {
            let _ = questions.unsubscribe().await;
        }
        let _ = timeout(CLOSE_MAX, self.connection.client.flush()).await;
    }

    /// Listens until something wakes the relay. Relays in `known` do not.
    pub(crate) async fn hear(&mut self, own: &Caller, known: &HashSet<String>) -> Heard {
        loop {
            let questions = &mut self.questions;
            let question = async move {
                match questions {
                    Some(questions) => questions.next().await,
                    None => std::future::pending::<Option<Message>>().await,
                }
            };
            tokio::select! {
                hint = self.hints.next() => return hint.map_or(Heard::Over, |_| Heard::Hint),
                question = question => {
                    let Some(question) = question else { return Heard::Over };
                    let Some(caller) = Caller::asking(&question).filter(|caller| caller.id != own.id) else { continue };
                    answer(&self.connection, &question, own, Answer::Busy).await;
                    if !known.contains(&caller.id) {
                        let _ = self.connection.client.flush().await;
                        return Heard::Question;
                    }
                }
                Ok(denied) = self.denied.recv() => if *denied == *self.subject {
                    return Heard::Denied;
                },
                () = self.connection.over.cancelled() => return Heard::Over,
            }
        }
    }
}
