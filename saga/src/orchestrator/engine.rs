//! One transaction of the orchestrator: lock, read, decide, write, send.

use std::sync::Arc;

use oncebox_claims::failure::text;
use oncebox_outbox::{InTransaction, Message, Outbox};
use oncebox_schema::{Key, Recording, SchemaName, Transaction};
use tracing::{error, info, warn};

use super::Started;
use crate::{
    Error,
    command::{Address, fits},
    counts::Counters,
    definition::Unreadable,
    error::failed,
    graph::Graph,
    instance::{Instance, Registered, Waiting},
    progress::{Answer, Command, Event, State, Verdict},
    recording,
    store::{Beginning, Found, Kept, Opening, Store},
};

/// Classes of SQLSTATEs that say that a row is wrong.
const REFUSED: [&str; 3] = ["22", "23", "54"];

/// The state that all tasks of an orchestrator share.
pub(super) struct Engine {
    pub(super) store: Store,
    pub(super) outbox: Outbox,
    pub(super) opening: Opening,
    pub(super) schema: SchemaName,
    pub(super) counters: Arc<Counters>,
    /// Where the changes of sagas are written, if anywhere.
    pub(super) recording: Option<Recording>,
}

/// An answer of a participant, or of its inbox.
pub(super) struct Incoming<'a> {
    pub(super) address: Address,
    pub(super) answer: Answer,
    /// The scope of the inbox that answers, if the participant says it.
    pub(super) scope: Option<&'a str>,
    pub(super) payload: &'a [u8],
    /// It was delivered before, and perhaps could not be applied.
    pub(super) is_again: bool,
}

/// The result of an answer.
pub(super) enum Received {
    /// It is dealt with, or kept.
    Settled,
    /// It can never be applied, and why.
    Refused(String),
    /// Another process has the definition.
    Unknown,
}

/// A saga that was changed, with its data as JSON, and the events that are over.
pub(super) struct Advanced {
    pub(super) instance: Instance,
    data: String,
    pub(super) ended: Vec<(i64, Verdict)>,
}

impl Engine {
    pub(super) async fn start(
        &self,
        transaction: &impl InTransaction,
        definition: Arc<dyn Registered>,
        key: &Key,
        beginning: &Beginning<'_>,
    ) -> Result<Started, Error> {
        let graph = definition.graph();
        if !self.opening.definitions.contains_key(graph.fingerprint()) {
            return Err(Error::NotRegistered { name: graph.name().to_owned(), version: graph.version() });
        }
        if !fits(key, graph.steps().map(str::len).max().unwrap_or(0)) {
            return Err(Error::Invalid(format!(
                "key \"{key}\" is too long for those of the saga's commands"
            )));
        }
        let unusable = |problem: Unreadable| Error::Definition { key: key.clone(), problem: problem.0 };
        let process = definition.open(beginning.data).map_err(unusable)?;
        let mut instance = Instance::new(process, key.clone(), self.opening.reply_to.clone());
        if self.opening.is_recorded {
            instance.follow();
        }
        instance.apply(&Event::Started, b"").map_err(unusable)?;
        let started = self.store.start(transaction, &instance, beginning).await;
        let Some(id) = started.map_err(failed("start a saga"))? else {
            return self.started_before(transaction, &instance, beginning).await;
        };
        instance.id = id;
        recording::changing(self.recording.as_ref(), &instance);
        if let Err(problem) = self.send(transaction, &instance.messages).await {
            if matches!(problem, Error::AlreadySent(_)) {
                // Nothing of this start is kept, even if the caller ignores the error.
                self.store.refuse_start(transaction).await;
            }
            return Err(problem);
        }
        Ok(Started { id, key: instance.key, is_new: true })
    }

    async fn started_before(
        &self,
        transaction: &impl InTransaction,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Started, Error> {
        let found = self.store.find_started(transaction, instance, beginning).await;
        let Some(found) = found.map_err(failed("look for a saga that was started before"))? else {
            return Err(Error::Retry(instance.key.clone()));
        };
        if !found.is_same_id {
            return Err(Error::KeyTaken(instance.key.clone()));
        }
        if !found.is_same_data {
            let business_id = beginning.business_id.to_owned();
            return Err(Error::OtherData { business_id, key: found.key });
        }
        let key = found.key.parse().map_err(|_| {
            Error::Invalid(format!("key \"{}\" of the saga that stands there is invalid", found.key))
        })?;
        Ok(Started { id: found.id, key, is_new: false })
    }

    /// Deals with an answer, in the transaction that its key is claimed in. One of a saga that is
    /// not there waits when `may_be_early`.
    pub(super) async fn receive(
        &self,
        transaction: &Transaction,
        incoming: &Incoming<'_>,
        may_be_early: bool,
    ) -> Result<Received, Error> {
        let found = self.store.lock(transaction, &incoming.address.saga, &self.opening).await;
        match found.map_err(failed("lock a saga"))? {
            None if may_be_early => {
                self.counters.count(Verdict::Early);
                self.keep(transaction, incoming, true).await?;
            }
            None | Some(Found::OfAnother) => self.counters.count(Verdict::Foreign),
            Some(Found::Finished) => self.counters.count(Verdict::Late),
            Some(Found::Unknown) => return Ok(Received::Unknown),
            Some(Found::Quarantined) => self.keep(transaction, incoming, false).await?,
            Some(Found::Unreadable(id, key, problem)) => {
                self.quarantine(transaction, (id, &key), &problem).await?;
                self.keep(transaction, incoming, false).await?;
            }
            Some(Found::Open(instance, waiting)) => {
                return self.answer(transaction, *instance, &waiting, incoming).await;
            }
        }
        Ok(Received::Settled)
    }

    async fn answer(
        &self,
        transaction: &Transaction,
        mut instance: Instance,
        waiting: &[Waiting],
        incoming: &Incoming<'_>,
    ) -> Result<Received, Error> {
        let Address { step, is_undo, attempt, .. } = &incoming.address;
        let Some(command) = command_of(instance.process.graph(), &incoming.address) else {
            let what = if *is_undo { "step that is compensated" } else { "step" };
            return Ok(Received::Refused(format!("saga \"{}\" has no {what} \"{step}\"", instance.key)));
        };
        if let Some(problem) = contradiction(instance.process.graph(), command, incoming) {
            return Ok(Received::Refused(problem));
        }
        let event = Event::Answered(command, incoming.answer.clone());
        let (id, key) = (instance.id, instance.key.clone());
        let applied = instance.apply(&event, incoming.payload);
        let advanced = match applied {
            Ok(Verdict::Applied) => self.advanced(instance, waiting),
            Ok(verdict) => {
                self.counters.count(verdict);
                info!(
                    saga = key.as_str(),
                    step,
                    attempt,
                    is_undo,
                    ?verdict,
                    "an answer that changes nothing"
                );
                if verdict == Verdict::Early {
                    self.keep(transaction, incoming, false).await?;
                }
                return Ok(Received::Settled);
            }
            Err(problem) => Err(problem),
        };
        match advanced {
            Ok(advanced) => {
                self.counters.count(Verdict::Applied);
                self.write_answered(transaction, advanced, incoming).await?;
            }
            Err(problem) => {
                self.quarantine(transaction, (id, &key), &problem).await?;
                self.keep(transaction, incoming, false).await?;
            }
        }
        Ok(Received::Settled)
    }

    /// Writes a saga that an answer has changed. One that is refused is the answer's failure first,
    /// and is put aside when that comes again: only then a savepoint is paid for.
    async fn write_answered(
        &self,
        transaction: &Transaction,
        advanced: Advanced,
        incoming: &Incoming<'_>,
    ) -> Result<(), Error> {
        if !incoming.is_again {
            return self.write(transaction, &[advanced]).await;
        }
        if !self.write_or_quarantine(transaction, advanced).await? {
            self.keep(transaction, incoming, false).await?;
        }
        Ok(())
    }

    /// Writes a saga, or puts it aside when PostgreSQL refuses it, and returns `false` then. Its
    /// row stays locked meanwhile, so no other process can have changed it.
    pub(super) async fn write_or_quarantine(
        &self,
        transaction: &Transaction,
        advanced: Advanced,
    ) -> Result<bool, Error> {
        let (id, key) = (advanced.instance.id, advanced.instance.key.clone());
        self.store.save(transaction).await.map_err(failed("set a savepoint"))?;
        match self.write(transaction, &[advanced]).await {
            Ok(()) => Ok(true),
            Err(problem) if is_refused(&problem) => {
                self.store.go_back(transaction).await.map_err(failed("roll back to a savepoint"))?;
                let problem = Unreadable(format!("it cannot be written: {}", text(&problem)));
                self.quarantine(transaction, (id, &key), &problem).await?;
                Ok(false)
            }
            Err(problem) => Err(problem),
        }
    }

    /// Applies the answers that wait, and sees to it that the data can be written.
    pub(super) fn advanced(
        &self,
        mut instance: Instance,
        waiting: &[Waiting],
    ) -> Result<Advanced, Unreadable> {
        let ended = instance.apply_waiting(waiting)?;
        let data = instance.process.data()?;
        Ok(Advanced { instance, data, ended })
    }

    /// Writes sagas that this transaction holds, and sends their commands.
    pub(super) async fn write(&self, transaction: &Transaction, advanced: &[Advanced]) -> Result<(), Error> {
        if advanced.is_empty() {
            return Ok(());
        }
        let ended: Vec<(i64, Verdict)> = advanced.iter().flat_map(|one| one.ended.clone()).collect();
        let messages: Vec<Message> =
            advanced.iter().flat_map(|one| one.instance.messages.iter().cloned()).collect();
        advanced.iter().for_each(|one| recording::changing(self.recording.as_ref(), &one.instance));
        // Sent first, so that the caller gets its error, not those of the statements after it.
        let advance =
            self.store.ready_to_advance(transaction).await.map_err(failed("prepare a statement"))?;
        let sagas = async {
            let instances = advanced.iter().map(|one| (&one.instance, one.data.as_str()));
            // Boxed because futures of statements are large, and three lie side by side here.
            let written = Box::pin(self.store.advance(transaction, &advance, instances)).await;
            let written = written.map_err(failed("write sagas"))?;
            written.map_err(|_| Error::Retry(advanced[0].instance.key.clone()))
        };
        let events = async {
            self.store.forget_events(transaction, &ended).await.map_err(failed("delete events of sagas"))
        };
        let (sagas, events, sent) = futures_util::join!(sagas, events, self.send(transaction, &messages));
        // The first error says why, the others only that the transaction is aborted.
        sagas.and(events).and(sent)?;
        ended.iter().for_each(|(_, verdict)| self.counters.count(*verdict));
        advanced.iter().for_each(|one| self.reached(&one.instance));
        Ok(())
    }

    pub(super) async fn quarantine(
        &self,
        transaction: &Transaction,
        (id, key): (i64, &Key),
        problem: &Unreadable,
    ) -> Result<(), Error> {
        recording::quarantining(self.recording.as_ref(), id);
        self.counters.add(|counts| counts.quarantined += 1);
        error!(
            saga = key.as_str(),
            "a saga is put in quarantine until an operator retries it: {}", problem.0
        );
        self.store.quarantine(transaction, id, &problem.0).await.map_err(failed("put a saga in quarantine"))
    }

    fn reached(&self, instance: &Instance) {
        let (saga, state) = (instance.key.as_str(), instance.state());
        self.counters.reached(state);
        match state {
            State::Stuck => {
                warn!(saga, "a saga waits for an operator: {}", instance.reason().unwrap_or_default())
            }
            State::Compensated => info!(saga, "a saga is compensated"),
            State::Completed => info!(saga, "a saga is completed"),
            State::Running | State::Compensating => {}
        }
    }

    async fn keep(
        &self,
        transaction: &Transaction,
        incoming: &Incoming<'_>,
        is_orphan: bool,
    ) -> Result<(), Error> {
        let Address { saga, step, is_undo, attempt } = &incoming.address;
        let (kind, scope, reason) = match &incoming.answer {
            Answer::Done => ("done", incoming.scope, None),
            Answer::Rejected => ("rejected", incoming.scope, None),
            Answer::Dead { scope, reason } => ("dead", Some(scope.as_str()), Some(reason.as_str())),
        };
        let kept = Kept {
            key: saga,
            is_orphan,
            kind,
            step,
            attempt: *attempt,
            is_undo: *is_undo,
            payload: incoming.payload,
            scope,
            reason,
        };
        self.store.keep_event(transaction, &kept).await.map_err(failed("keep an answer"))
    }

    /// A saga sends each command once, with the change that asks for it: one that is in the outbox
    /// already is not this saga's, and no participant would answer it again.
    async fn send(&self, transaction: &impl InTransaction, messages: &[Message]) -> Result<(), Error> {
        let ids = match messages {
            [] => Vec::new(),
            [message] => vec![self.outbox.enqueue(transaction, message).await?],
            messages => self.outbox.enqueue_all(transaction, messages).await?,
        };
        match messages.iter().zip(ids).find(|(_, id)| id.is_none()) {
            Some((message, _)) => Err(Error::AlreadySent(message.key().clone())),
            None => Ok(()),
        }
    }
}

/// The command that an answer is to, if the definition has it.
pub(super) fn command_of(graph: &Graph, address: &Address) -> Option<Command> {
    let Address { step, is_undo, attempt, .. } = address;
    let step = graph.step(step).filter(|at| !is_undo || graph.nodes[*at].compensation.is_some())?;
    Some(Command { step, is_undo: *is_undo, attempt: *attempt })
}

/// Why an answer is not that of its step's participant, if it says so: one participant that answers
/// in the name of another would move the wrong step.
pub(super) fn contradiction(graph: &Graph, command: Command, incoming: &Incoming<'_>) -> Option<String> {
    let (node, scope) = (&graph.nodes[command.step], incoming.scope?.trim());
    let expected = node.scope(command.is_undo);
    (scope != expected).then(|| {
        format!(
            "the answer contradicts its saga: it comes from the inbox \"{scope}\", and the inbox that takes the command \
             of step \"{}\" is \"{expected}\"; mend the participant, or the scope in the definition",
            node.name
        )
    })
}

/// Whether a saga is the matter, and not the database: refused once, it is refused again.
pub(super) fn is_refused(problem: &Error) -> bool {
    match problem {
        Error::Outbox(problem) => {
            matches!(problem, oncebox_outbox::Error::Conflict { .. } | oncebox_outbox::Error::Invalid { .. })
        }
        Error::AlreadySent(_) => true,
        // Data, a constraint, a limit of the program.
        Error::Postgres { source, .. } => {
            source.code().is_some_and(|state| REFUSED.iter().any(|class| state.code().starts_with(class)))
        }
        _ => false,
    }
}
