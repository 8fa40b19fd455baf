//! Checks the definition of a saga: the orchestrator crashes at each transition.

use std::fmt;

use deadpool_postgres::Pool;
use oncebox_inbox::{Context, Decode, Handler, HandlerError, Inbox, Outcome, Received};
use oncebox_saga::{Definition, Orchestrator};
use oncebox_schema::{Key, SchemaName};
use serde::{Serialize, de::DeserializeOwned, de::IgnoredAny};

use crate::{Kills, Report, TestKit, TestKitError};

const START: &str = "testkit.start";
const ANSWER: &str = "testkit.answer";
const DEATH: &str = "testkit.death";
const LATE: &str = "testkit.late";

/// Leads one saga along one way through its definition, and kills the orchestrator at each
/// transition: once before its COMMIT reaches the server, once after it was carried out and before
/// its answer arrives. Then the scenarios of [`TestKit`] follow: each event twice, and two
/// orchestrators at once. Afterwards the tables of sagas, the commands that were sent and the
/// user's own tables must be those of an undisturbed run.
///
/// A way is a list of events, in the order in which they happen. Each names a command by the part
/// of its key that follows the saga's key: `reserve`, `reserve:undo`, `reserve:#2`.
///
/// ```no_run
/// use oncebox_saga::{Definition, Step};
/// use oncebox_testkit::SagaKit;
///
/// # fn order() -> Definition<i64> {
/// #     Definition::builder("order", 1)
/// #         .step(Step::new("reserve", "stock.reserve", |n: &i64| *n).scope("stock").compensation("stock.release", |n: &i64| *n))
/// #         .step(Step::new("pay", "payment.charge", |n: &i64| *n).scope("payment").pivot())
/// #         .build()
/// #         .unwrap()
/// # }
/// #[tokio::test]
/// async fn a_declined_order_is_undone_whenever_the_orchestrator_dies() {
///     // A database with `oncebox migrate` done; nobody is connected.
///     let checked = SagaKit::new("postgres://postgres@127.0.0.1/template", &order(), "4711", 995)
///         .done("reserve", &())
///         .rejected("pay", &"declined")
///         .done("reserve:undo", &())
///         .check()
///         .await
///         .unwrap();
///     checked.assert_ends("compensated");
/// }
/// ```
///
/// The kit does not try other orders of the same events, since these do not depend on the
/// definition: the orchestrator keeps answers that come early and drops answers that come late.
#[must_use = "a kit does nothing until `check`"]
pub struct SagaKit<D> {
    kit: TestKit,
    schema: SchemaName,
    definition: Definition<D>,
    business_id: String,
    data: D,
    events: usize,
}

impl<D> fmt::Debug for SagaKit<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SagaKit").field("events", &self.events).finish_non_exhaustive()
    }
}

/// The findings of a [`SagaKit`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaReport {
    /// The result of the crashes, duplicates and races; see [`Report::assert_once`].
    pub report: Report,
    /// The state in which the undisturbed run left the saga, such as `completed`.
    pub state: String,
}

impl SagaReport {
    /// Asserts that the saga ends in this state, and that no crash, duplicate or race changed its
    /// rows.
    ///
    /// # Panics
    /// It ended in another state, or [`Report::assert_once`] panics; the message says which.
    pub fn assert_ends(&self, state: &str) {
        assert_eq!(self.state, state, "the state of the saga after an undisturbed run");
        self.report.assert_once();
    }
}

impl<D: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> SagaKit<D> {
    /// A saga of this business id that begins with this data, in copies of this database: see
    /// [`TestKit::new`].
    pub fn new(
        url: impl Into<String>,
        definition: &Definition<D>,
        business_id: impl Into<String>,
        data: D,
    ) -> Self {
        Self {
            kit: TestKit::new(url).kills(Kills::Commits),
            schema: SchemaName::default(),
            definition: definition.clone(),
            business_id: business_id.into(),
            data,
            events: 0,
        }
        .event(START, "null", &[])
    }

    /// The PostgreSQL schema that Oncebox is installed in. Default: `oncebox`.
    pub fn schema(mut self, name: SchemaName) -> Self {
        self.schema = name.clone();
        self.kit = self.kit.schema(name);
        self
    }

    /// Kills at each statement of each transition, and not only at its COMMIT: takes several times
    /// as long.
    pub fn each_statement(mut self) -> Self {
        self.kit = self.kit.kills(Kills::Statements);
        self
    }

    /// A participant has carried out this command, and answers so.
    ///
    /// # Panics
    /// The answer has no JSON form.
    pub fn done<R: Serialize>(self, command: &str, answer: &R) -> Self {
        self.answer(command, "done", answer)
    }

    /// A participant says no to this command.
    ///
    /// # Panics
    /// The answer has no JSON form.
    pub fn rejected<R: Serialize>(self, command: &str, answer: &R) -> Self {
        self.answer(command, "rejected", answer)
    }

    /// The inbox of this command's participant has given it up, for this reason.
    ///
    /// # Panics
    /// No step of the definition sends such a command.
    pub fn dead(self, command: &str, reason: &str) -> Self {
        let (key, graph) = (self.key(command), self.definition.graph().clone());
        let scope = graph.scope(command).expect("a step of the definition sends the command");
        let headers =
            [("Oncebox-Dead-Key", &*key), ("Oncebox-Dead-Scope", scope), ("Oncebox-Dead-Reason", reason)];
        self.event(DEATH, "null", &headers)
    }

    /// The deadline of this command passes, and an orchestrator looks.
    pub fn late(self, command: &str) -> Self {
        let key = self.key(command);
        self.event(LATE, "null", &[("Late-Key", &key)])
    }

    /// Runs all scenarios, each with a new saga in its own copy of the database.
    ///
    /// # Errors
    /// The kit could not work, or even the undisturbed run does not end.
    pub async fn check(self) -> Result<SagaReport, TestKitError> {
        let invalid = |problem: String| TestKitError::Invalid(problem);
        let key = Key::root(&self.business_id).and_then(|root| root.step(self.definition.graph().name()));
        key.map_err(|problem| invalid(format!("the business id: {problem}")))?;
        let answers = ANSWER.parse().map_err(|_| invalid("the subject of answers is invalid".to_owned()))?;
        let orchestrator = Orchestrator::builder(answers).schema(self.schema.clone());
        let orchestrator = orchestrator.definition(&self.definition).build();
        let orchestrator = orchestrator.map_err(|problem| invalid(problem.to_string()))?;
        // An id that a crash has used up is not used again, so ids differ.
        let [saga, step] = ["saga", "saga_step"].map(|table| format!("{}.{table}", self.schema.as_str()));
        let kit = self.kit.volatile(&saga, "id").volatile(step, "saga_id");
        let checked = kit.check_all(|scratch| {
            let inbox = Inbox::builder(scratch.pool(2)).schema(self.schema.clone()).scope("testkit:saga");
            let inbox = inbox.single_tenant().build().expect("the scope is valid");
            let (definition, business_id, data) =
                (self.definition.clone(), self.business_id.clone(), self.data.clone());
            let beginning = Beginning { definition, business_id, data };
            let (replies, dead_letters) = (orchestrator.replies(), orchestrator.dead_letters());
            let (orchestrator, pool) = (orchestrator.clone(), scratch.pool(2));
            let late = self.schema.sql(include_str!("late.sql"));
            (inbox, Happens { beginning, orchestrator, replies, dead_letters, pool, late })
        });
        let (report, expected) = Box::pin(checked).await?;
        let row = expected.get(&saga).and_then(|rows| rows.first()).map(String::as_str).unwrap_or_default();
        let row: serde_json::Value = serde_json::from_str(row).unwrap_or_default();
        Ok(SagaReport { report, state: row["state"].as_str().unwrap_or("not there").to_owned() })
    }

    fn answer<R: Serialize>(self, command: &str, outcome: &str, answer: &R) -> Self {
        let payload = serde_json::to_string(answer).expect("an answer has a JSON form");
        let key = self.key(command);
        self.event(ANSWER, &payload, &[("In-Reply-To", &key), ("Reply-Outcome", outcome)])
    }

    fn key(&self, command: &str) -> String {
        format!("{}:{}:{command}", self.business_id, self.definition.graph().name())
    }

    /// Adds an event. All events share an ordering key, so they happen in their order.
    fn event(mut self, subject: &str, payload: &str, headers: &[(&str, &str)]) -> Self {
        let message = Received::new(subject, payload.to_owned())
            .header("Idempotency-Key", format!("event-{}", self.events))
            .header("Oncebox-Ordering-Key", "saga");
        let add = |message: Received, (name, value): &(&str, &str)| message.header(*name, *value);
        self.kit = self.kit.message(headers.iter().fold(message, add));
        self.events += 1;
        self
    }
}

struct Beginning<D> {
    definition: Definition<D>,
    business_id: String,
    data: D,
}

/// A handler that lets one event happen in one transaction, as an orchestrator would.
struct Happens<D, R, L> {
    beginning: Beginning<D>,
    orchestrator: Orchestrator,
    replies: R,
    dead_letters: L,
    pool: Pool,
    late: String,
}

impl<D, R, L> Handler for Happens<D, R, L>
where
    D: Serialize + DeserializeOwned + Send + Sync + 'static,
    R: Handler<Reply = ()>,
    L: Handler<Reply = ()>,
{
    type Message = IgnoredAny;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: IgnoredAny) -> Result<Outcome<()>, HandlerError> {
        let message = cx.message();
        match message.subject() {
            START => {
                let Beginning { definition, business_id, data } = &self.beginning;
                self.orchestrator.start(cx.transaction(), definition, business_id, data).await?;
                Ok(Outcome::done(()))
            }
            ANSWER => self.replies.handle(cx, R::Message::decode(message)?).await,
            DEATH => self.dead_letters.handle(cx, L::Message::decode(message)?).await,
            _ => {
                let key = message.header_value("Late-Key").unwrap_or_default();
                // The update is committed at once. If the command is late already, the update
                // changes nothing.
                self.pool.get().await?.execute(&self.late, &[&key]).await?;
                self.orchestrator.timers(self.pool.clone()).run_once().await?;
                Ok(Outcome::done(()))
            }
        }
    }
}
