//! The handlers of the participants' messages: answers to commands, and dead letters of their
//! inboxes. Each has its inbox.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use oncebox_inbox::{
    Context, Decode, DecodeError, Handler, HandlerError, Inbox, KeySource, Outcome, Received as Message, Set,
};
use oncebox_schema::Key;

use super::{
    ANSWER_LIMIT, Orchestrator,
    engine::{Engine, Incoming, Received},
};
use crate::{
    Error,
    command::Address,
    progress::Answer,
    replying::{IN_REPLY_TO, OUTCOME, SCOPE},
};

/// How long an answer rests that only another process can apply.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Applies answers.
pub(super) struct Replies {
    engine: Arc<Engine>,
}

/// Applies deaths of commands.
pub(super) struct DeadLetters {
    engine: Arc<Engine>,
}

/// A payload of any kind, which the code of its step may read later.
pub(super) struct Unread;

impl Decode for Unread {
    fn decode(_: &Message) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

impl Replies {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl Handler for Replies {
    type Message = Unread;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: Unread) -> Result<Outcome<()>, HandlerError> {
        let received = match answer_of(cx.key(), cx.message()) {
            Ok(incoming) => self.engine.receive(cx.transaction(), &incoming, true).await?,
            Err(problem) => Received::Refused(problem),
        };
        if matches!(received, Received::Refused(_)) {
            self.engine.counters.add(|counts| counts.refused += 1);
        }
        finish(received)
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Unread>) -> Result<Vec<Outcome<()>>, HandlerError> {
        let answers: Result<Vec<_>, _> =
            set.iter().map(|(cx, _)| answer_of(cx.key(), cx.message())).collect();
        let answers = answers.map_err(HandlerError::message)?;
        if !Box::pin(self.engine.receive_all(set.transaction(), &answers)).await? {
            return Err(HandlerError::message("one of these answers has to be dealt with by itself"));
        }
        Ok(answers.iter().map(|_| Outcome::done(())).collect())
    }
}

impl DeadLetters {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// A command that dies a second time has the same key: each death is a message of its own.
    pub(super) fn key() -> KeySource {
        KeySource::client_header("Nats-Msg-Id")
    }
}

impl Handler for DeadLetters {
    type Message = Unread;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: Unread) -> Result<Outcome<()>, HandlerError> {
        match death_of(cx.message()) {
            Some(incoming) => finish(self.engine.receive(cx.transaction(), &incoming, false).await?),
            None => Ok(Outcome::done(())),
        }
    }
}

fn finish(received: Received) -> Result<Outcome<()>, HandlerError> {
    Ok(match received {
        Received::Settled => Outcome::done(()),
        Received::Refused(problem) => Outcome::dead(problem),
        Received::Unknown => {
            Outcome::snooze(ELSEWHERE, "the saga's definition is registered with other processes only")
        }
    })
}

/// The answer in a message's headers; else the reason why the message is none.
fn answer_of<'m>(key: &Key, message: &'m Message) -> Result<Incoming<'m>, String> {
    let header = |name: &str| {
        message.header_value(name).ok_or_else(|| format!("not an answer: header {name} is missing"))
    };
    let command = header(IN_REPLY_TO)?;
    // A participant that answers one command in the name of another would move the wrong step.
    if let Some(answered) = key.as_str().strip_suffix(":reply").filter(|answered| *answered != command) {
        return Err(format!(
            "the answer contradicts itself: its key is that of the answer to \"{answered}\", and header {IN_REPLY_TO} \
             names \"{command}\"; mend the participant that sent it"
        ));
    }
    let address = command.parse::<Key>().ok().and_then(|key| Address::parse(&key));
    let Some(address) = address else {
        return Err(format!("not an answer: header {IN_REPLY_TO} is not the key of a saga's command"));
    };
    let answer = match header(OUTCOME)? {
        "done" => Answer::Done,
        "rejected" => Answer::Rejected,
        _ => return Err(format!("not an answer: header {OUTCOME} is neither \"done\" nor \"rejected\"")),
    };
    let (scope, is_again) = (message.header_value(SCOPE), message.delivery_count() > 1);
    Ok(Incoming { address, answer, scope, payload: message.payload(), is_again })
}

/// Which command died, if it is one that a saga may have sent.
fn death_of(message: &Message) -> Option<Incoming<'_>> {
    let text = |name: &str| message.header_value(name).unwrap_or_default().trim().to_owned();
    let address = Address::parse(&text("Oncebox-Dead-Key").parse::<Key>().ok()?)?;
    let answer = Answer::Dead { scope: text("Oncebox-Dead-Scope"), reason: text("Oncebox-Dead-Reason") };
    Some(Incoming { address, answer, scope: None, payload: b"", is_again: message.delivery_count() > 1 })
}

impl Orchestrator {
    pub(super) fn inbox(&self, pool: &Pool, name: &str, key: Option<KeySource>) -> Result<Inbox, Error> {
        let mut builder = Inbox::builder(pool.clone())
            .schema(self.engine.schema.clone())
            .scope(format!("{}:{name}", self.engine.opening.scope))
            .handler_timeout(ANSWER_LIMIT)
            .single_tenant();
        if let Some(key) = key {
            builder = builder.key_from(key);
        }
        if let Some(retention) = self.retention {
            builder = builder.retention(retention);
        }
        if self.is_pooled {
            builder = builder.behind_pooler();
        }
        if let Some(path) = &self.trace_file {
            builder = builder.trace_file(path);
        }
        builder.build().map_err(|problem| Error::Invalid(problem.to_string()))
    }
}
