//! An order saga by hand: tests give the participants' answers to the orchestrator's handlers
//! directly, so that every order of events is possible.

use std::time::{Duration, SystemTime};

use oncebox_inbox::{Inbox, KeySource, Origin, Received, Verdict, dead_letter_id};
use oncebox_saga::{Definition, Error, Orchestrator, Started, Step};
use oncebox_tests::TestEnv;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

/// The scope of all participants' inboxes.
pub(crate) const PARTICIPANT: &str = "Bücher & Co: the cash desk";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OrderData {
    pub(crate) cents: i64,
    pub(crate) reservation: Option<i64>,
    pub(crate) refusal: Option<String>,
}

pub(crate) fn data(cents: i64) -> OrderData {
    OrderData { cents, reservation: None, refusal: None }
}

#[derive(Serialize)]
struct Command {
    cents: i64,
    reservation: Option<i64>,
}

fn command(order: &OrderData) -> Command {
    Command { cents: order.cents, reservation: order.reservation }
}

fn step(name: &str) -> Step<OrderData> {
    Step::new(name, format!("{name}.do"), command).scope(PARTICIPANT)
}

/// Reserve, pay, ship (the pivot), and the steps that a test adds.
pub(crate) fn order(version: u16, more: &[&str]) -> Definition<OrderData> {
    let hour = Duration::from_secs(3600);
    let mut builder = Definition::builder("order", version)
        .step(
            step("reserve")
                .on_done(|order: &mut OrderData, reservation: i64| order.reservation = Some(reservation))
                .on_rejected(|order: &mut OrderData, refusal: String| order.refusal = Some(refusal))
                .compensation("reserve.undo", command)
                .deadline(hour),
        )
        .step(step("pay").compensation("pay.undo", command).deadline(hour))
        .step(step("ship").pivot().deadline(hour))
        .deadline(2 * hour);
    for name in more {
        builder = builder.step(step(name));
    }
    builder.build().unwrap()
}

pub(crate) struct Shop {
    pub(crate) env: TestEnv,
    pub(crate) client: Client,
    pub(crate) order: Definition<OrderData>,
    pub(crate) orchestrator: Orchestrator,
    told: u64,
}

pub(crate) fn orchestrator(definitions: &[&Definition<OrderData>]) -> Orchestrator {
    let builder = Orchestrator::builder("sagas.replies".parse().unwrap());
    definitions.iter().fold(builder, |builder, definition| builder.definition(definition)).build().unwrap()
}

impl Shop {
    pub(crate) async fn new(more: &[&str]) -> Self {
        let order = order(1, more);
        Self { order: order.clone(), ..Self::led_by(orchestrator(&[&order])).await }
    }

    /// A shop whose sagas are those of this orchestrator.
    pub(crate) async fn led_by(orchestrator: Orchestrator) -> Self {
        let env = TestEnv::new().await;
        Self { client: env.pg().await, env, order: order(1, &[]), orchestrator, told: 0 }
    }

    pub(crate) async fn start(&mut self, id: &str, data: &OrderData) -> Result<Started, Error> {
        let transaction = self.client.transaction().await.unwrap();
        let started = self.orchestrator.start(&transaction, &self.order, id, data).await;
        if started.is_ok() {
            transaction.commit().await.unwrap();
        }
        started
    }

    pub(crate) fn replies(&self) -> Inbox {
        Inbox::builder(self.env.pool(4)).scope("saga:replies").single_tenant().build().unwrap()
    }

    /// A participant's answer to a command, `done PAYLOAD` or `rejected PAYLOAD`, as a message that
    /// has not come before.
    pub(crate) async fn tell(&mut self, key: &str, answer: &str) -> Verdict<()> {
        self.told += 1;
        let message = reply(key, answer, &format!("reply-{}", self.told));
        self.replies().run(&self.orchestrator.replies(), &message).await.unwrap()
    }

    /// The death of a command at its participant, for the so-and-so-many-th time.
    pub(crate) async fn die(&self, key: &str, number: u64) -> Verdict<()> {
        self.dies_at(PARTICIPANT, key, number).await
    }

    /// The death of a command, or of a copy of it, at the inbox of this scope.
    pub(crate) async fn dies_at(&self, scope: &str, key: &str, number: u64) -> Verdict<()> {
        let inbox = Inbox::builder(self.env.pool(4)).scope("saga:dead-letters").single_tenant();
        let inbox = inbox.key_from(KeySource::client_header("Nats-Msg-Id")).build().unwrap();
        let letter = death(scope, key, number, "it panics");
        inbox.run(&self.orchestrator.dead_letters(), &letter).await.unwrap()
    }

    /// One look for due sagas.
    pub(crate) async fn look(&self) -> u64 {
        self.orchestrator.timers(self.env.pool(2)).run_once().await.unwrap()
    }

    /// The deadline of a step passes, and a process looks.
    pub(crate) async fn late(&self, id: &str, step: &str) {
        let sql = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp() - interval '1 second'
                   WHERE step = $2 AND saga_id = (SELECT id FROM oncebox.saga WHERE business_id = $1)";
        assert_eq!(self.client.execute(sql, &[&id, &step]).await.unwrap(), 1);
        self.due(id).await;
        assert!(self.look().await > 0);
    }

    pub(crate) async fn due(&self, id: &str) {
        let sql = "UPDATE oncebox.saga SET due_at = clock_timestamp() WHERE business_id = $1";
        self.client.execute(sql, &[&id]).await.unwrap();
    }

    /// The commands so far, without the saga's own key.
    pub(crate) async fn sent(&self, id: &str) -> Vec<String> {
        let sql = "SELECT substr(key, length($1 || ':order:') + 1) FROM oncebox.message
                   WHERE starts_with(key, $1 || ':order:') ORDER BY id";
        self.client.query(sql, &[&id]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// State, and why.
    pub(crate) async fn state(&self, id: &str) -> (String, Option<String>) {
        let sql = "SELECT state, reason FROM oncebox.saga WHERE business_id = $1";
        let row = self.client.query_one(sql, &[&id]).await.unwrap();
        (row.get(0), row.get(1))
    }

    pub(crate) async fn is(&self, id: &str, expected: &str) {
        let (state, reason) = self.state(id).await;
        assert_eq!(state, expected, "{reason:?}");
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Everything that the tables say of sagas, to see that nothing has changed.
    pub(crate) async fn everything(&self) -> String {
        let sql = "SELECT concat((SELECT json_agg(s ORDER BY s.id) FROM oncebox.saga AS s),
                                 (SELECT json_agg(t ORDER BY t.saga_id, t.step) FROM oncebox.saga_step AS t),
                                 (SELECT json_agg(m.key ORDER BY m.id) FROM oncebox.message AS m))";
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// The so-and-so-many-th death of a command as an inbox of this scope publishes it: each command is
/// stored in a stream of its own.
pub(crate) fn death(scope: &str, key: &str, number: u64, reason: &str) -> Received {
    let stream = format!("STREAM OF {key}");
    let place = Origin { stream, sequence: number, stored_at: SystemTime::UNIX_EPOCH };
    Received::new("dead.participant", "what was sent")
        .header("Nats-Msg-Id", dead_letter_id(scope, &place))
        .header("Oncebox-Dead-Scope", scope)
        .header("Oncebox-Dead-Key", key)
        .header("Oncebox-Dead-Reason", reason)
}

/// An answer as a message.
pub(crate) fn reply(key: &str, answer: &str, message_key: &str) -> Received {
    let (outcome, payload) = answer.split_once(' ').unwrap_or((answer, ""));
    Received::new("sagas.replies", payload.to_owned())
        .header("Idempotency-Key", message_key)
        .header("In-Reply-To", key)
        .header("Reply-Outcome", outcome)
}

/// The handler took it.
pub(crate) fn is_handled(verdict: &Verdict<()>) -> bool {
    matches!(verdict, Verdict::Handled(_))
}

pub(crate) fn refusal(verdict: Verdict<()>) -> String {
    match verdict {
        Verdict::Dead { reason } => reason,
        other => panic!("{other:?}"),
    }
}
