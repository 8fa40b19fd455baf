//! Answers to commands, on the subject that the command names, if the participant allows it.

use oncebox_inbox::{Context, Driver, HandlerError, MessageContext, Outcome};
use oncebox_outbox::{Message, Outbox, Subject};
use serde::Serialize;

/// The header of a command that names the subject of its answer.
const REPLY_TO: &str = "Oncebox-Reply-To";
/// The header of an answer that says how the command ended: `done` or `rejected`.
pub(crate) const OUTCOME: &str = "Reply-Outcome";
/// The header of an answer with the key of the command that it answers.
pub(crate) const IN_REPLY_TO: &str = "In-Reply-To";
/// The header of an answer with the scope of the participant's inbox.
pub(crate) const SCOPE: &str = "Reply-Scope";

/// Answers commands on the subjects that a participant allows, and on no other: a command says
/// where its answer goes, so any sender of a command could otherwise make this service publish
/// anywhere.
#[derive(Clone, Debug)]
pub struct Replier {
    outbox: Outbox,
    allowed: Vec<String>,
}

impl Replier {
    /// Answers go through this outbox, to subjects that match one of these as NATS has it: those of
    /// the orchestrators, such as `sagas.replies`, or a pattern, such as `sagas.*.replies`. With
    /// `>` they go wherever a command says: only where all who may send commands may publish
    /// anything.
    pub fn new<S: Into<String>>(outbox: Outbox, subjects: impl IntoIterator<Item = S>) -> Self {
        Self { outbox, allowed: subjects.into_iter().map(Into::into).collect() }
    }

    /// Enqueues the answer to a command, in the handler's transaction: it is sent if and only if
    /// the effect is committed. Returns whether it was: nothing is sent when the command names no
    /// subject in `Oncebox-Reply-To` ([`Message::reply_to`]), nor for an outcome that is rolled
    /// back, nor once more for a command that was answered so before.
    ///
    /// The answer's payload is the reply as JSON, its key the command's with the step `reply` at
    /// its end, its ordering key the command's. The header `Reply-Outcome` says `done` or
    /// `rejected`, `In-Reply-To` has the command's key, `Reply-Scope` the scope of the inbox.
    ///
    /// # Errors
    /// The subject is not allowed or invalid, the key is too long for another step, the reply has
    /// no JSON form, or PostgreSQL refused; return it from the handler, so that the command has no
    /// effect.
    pub async fn reply<R: Serialize>(
        &self,
        cx: &Context<'_>,
        outcome: &Outcome<R>,
    ) -> Result<bool, HandlerError> {
        let Some(message) = self.answer(cx, outcome)? else { return Ok(false) };
        Ok(self.outbox.enqueue(cx.transaction(), &message).await?.is_some())
    }

    /// The answer of [`Replier::reply`], for a handler over another driver, which enqueues it in
    /// its transaction: `outbox.enqueue(cx.transaction(), &answer)`. `None` where nothing is sent.
    ///
    /// # Errors
    /// Those of [`Replier::reply`], without PostgreSQL's.
    pub fn answer<D: Driver, R: Serialize>(
        &self,
        cx: &MessageContext<'_, D>,
        outcome: &Outcome<R>,
    ) -> Result<Option<Message>, HandlerError> {
        let (word, answer) = match outcome {
            Outcome::Done(answer) => ("done", answer),
            Outcome::Reject(answer) => ("rejected", answer),
            _ => return Ok(None),
        };
        let Some(subject) = cx.message().header_value(REPLY_TO) else { return Ok(None) };
        let subject: Subject = subject.parse()?;
        if !self.allowed.iter().any(|pattern| subject.matches(pattern)) {
            let allowed = self.allowed.join(", ");
            return Err(HandlerError::message(format!(
                "the command asks for its answer on subject \"{subject}\", where this participant does not answer: it \
                 allows {allowed}"
            )));
        }
        let mut message = Message::json(cx.key().step("reply")?, subject, answer)?
            .header(OUTCOME, word)?
            .header(IN_REPLY_TO, cx.key().as_str())?
            .header(SCOPE, cx.scope().trim())?;
        if let Some(ordering_key) = cx.message().ordering_key() {
            message = message.ordering_key(ordering_key);
        }
        Ok(Some(message))
    }
}
