//! Relays of one outbox, and of its copies, find each other over NATS.
//!
//! A relay asks on the subject of the outbox's token, with its own id, which it has written into
//! its database. The leader of each database answers whether it finds that id in its own; others
//! say that they are there. It needs no JetStream. Without an answer no relay is there: a server
//! says so at once, unless another client subscribes to the subject, for example to `>`.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use oncebox_connect::nats::HOME_SUBJECTS;
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use crate::delivery::home::Heard;

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Once one has come, others may follow for this time.
const MORE_MAX: Duration = Duration::from_millis(250);
/// The first word, with the version of the rest.
const WORD: &str = "home1";

/// The answer of a relay to the question whether it is one of the same database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ours,
    Other,
    /// It does not lead, or its database is away.
    Busy,
}

/// A relay as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) id: String,
    /// When its database was noted as the home, and since when this relay serves it: of two homes
    /// the lower one is the senior.
    pub(crate) since: (i64, i64),
    pub(crate) address: String,
}

impl Caller {
    fn text(&self, word: &str) -> String {
        let (noted, opened) = self.since;
        format!("{WORD} {word} {} {noted} {opened} {}", self.id, self.address)
    }

    /// Its word, and who says it; `None` of a text that is none of ours.
    fn parse(text: &[u8]) -> Option<(&str, Self)> {
        let mut parts = std::str::from_utf8(text).ok()?.splitn(6, ' ');
        if parts.next()? != WORD {
            return None;
        }
        let (word, id) = (parts.next()?, parts.next()?.to_owned());
        let since = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((word, Self { id, since, address: parts.next()?.to_owned() }))
    }

    /// Reads a question.
    pub(crate) fn asking(message: &Message) -> Option<Self> {
        Self::parse(&message.payload).filter(|(word, _)| *word == "who").map(|(_, caller)| caller)
    }
}

fn subject(token: &str) -> String {
    format!("{HOME_SUBJECTS}{token}")
}

/// Asks whether others serve the outbox.
pub(crate) async fn ask(connection: &Connection, token: &str, own: &Caller) -> Heard {
    let (client, subject, inbox) = (&connection.client, subject(token), connection.client.new_inbox());
    let mut denied = connection.denied.subscribe();
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else { return Heard::Unanswered };
    let question = own.text("who").into();
    if client.publish_with_reply(subject.clone(), inbox, question).await.is_err()
        || client.flush().await.is_err()
    {
        return Heard::Unanswered;
    }
    let (mut deadline, mut heard) = (Instant::now() + ANSWER_MAX, Heard::Nobody);
    loop {
        tokio::select! {
            answer = answers.next() => match answer {
                None => return heard,
                Some(answer) if answer.status == Some(StatusCode::NO_RESPONDERS) => return Heard::Nobody,
                Some(answer) => match Caller::parse(&answer.payload) {
                    Some(("other", other)) => {
                        let is_senior = other.since < own.since;
                        heard = Heard::Another { address: other.address, is_senior };
                        if is_senior {
                            return heard;
                        }
                    }
                    Some(("ours", _)) => {
                        deadline = deadline.min(Instant::now() + MORE_MAX);
                        if matches!(heard, Heard::Nobody | Heard::Unanswered) {
                            heard = Heard::Ours;
                        }
                    }
                    Some(("busy", _)) if heard == Heard::Nobody => heard = Heard::Unanswered,
                    // A stream that takes the subject acknowledges the question.
                    _ => {}
                },
            },
            Ok(refused) = denied.recv() => if *refused == *subject {
                return Heard::Denied;
            },
            () = sleep_until(deadline) => return heard,
        }
    }
}

/// Hears the questions of others. Where NATS denies it, none arrive.
pub(crate) async fn listen(connection: &Connection, token: &str) -> Option<Subscriber> {
    connection.client.subscribe(subject(token)).await.ok()
}

/// Answers one.
pub(crate) async fn answer(connection: &Connection, question: &Message, own: &Caller, answer: Answer) {
    let Some(inbox) = question.reply.clone() else { return };
    let text = own.text(match answer {
        Answer::Ours => "ours",
        Answer::Other => "other",
        Answer::Busy => "busy",
    });
    // The one who asked asks again.
    let _ = connection.client.publish(inbox, text.into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_read_as_it_was_written_and_nothing_else_is() {
        let caller = Caller { id: "a-b".into(), since: (7, -1), address: "db:5432/my orders".into() };
        assert_eq!(Caller::parse(caller.text("who").as_bytes()), Some(("who", caller)));
        for other in
            ["", "home1", "home1 who a 1 x y", "home2 who a 1 2 y", r#"{"stream":"S","seq":1}"#, "\u{e9}"]
        {
            assert_eq!(Caller::parse(other.as_bytes()), None, "{other}");
        }
    }
}
