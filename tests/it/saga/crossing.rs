//! Sagas of a file beside other features: large payloads, a pause, turns of the log's ring, two
//! databases in one relay, a leader that is suspended, a participant in strict order.

use std::time::Duration;

use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Order, Outcome};
use oncebox_outbox::Outbox;
use oncebox_saga::{Action, Barrier, Compensation, Replier};
use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_postgres::Client;

use super::{lead::Written, site::LIMIT};
use crate::{
    inbox::consumer::Running,
    relay::{
        process::{Process, run_ok},
        support::{values_of, with},
    },
};

/// `{p}` is the prefix of its subjects, `{late}` the deadline of the second step.
const PARCEL: &str = r#"
name = "parcel"
version = 1

[data]
"/blob" = "string"

[[step]]
name = "first"
subject = "{p}.cmd.do.first"
scope = "crossing:all"
payload = { blob = { from = "/data/blob" } }
reply = { "/blob" = "string" }
compensation = { subject = "{p}.cmd.undo.first", payload = { blob = "" } }

[[step]]
name = "second"
subject = "{p}.cmd.do.second"
scope = "crossing:all"
deadline = "{late}"
payload = { blob = { from = "/replies/first/blob" } }
compensation = { subject = "{p}.cmd.undo.second", payload = { blob = "" } }

[[step]]
name = "third"
subject = "{p}.cmd.do.third"
scope = "crossing:all"
pivot = true
payload = { blob = { from = "/replies/first/blob" } }
"#;
/// How many commands of each step had an effect, and their payloads.
const BOOKS: &str = "SELECT coalesce(string_agg(line, ', ' ORDER BY line), '') FROM (
  SELECT concat_ws(' ', step, sum(change), max(bytes)) AS line FROM book GROUP BY step) AS b";
const STATES: &str =
    "SELECT string_agg(DISTINCT state, ' ') FROM oncebox.saga HAVING bool_and(finished_at IS NOT NULL)";

/// Books each command, and answers with the blob in it.
#[derive(Clone)]
struct Echo(Replier);

impl Handler for Echo {
    type Message = Value;
    type Reply = Value;

    async fn handle(&self, cx: Context<'_>, command: Value) -> Result<Outcome<Value>, HandlerError> {
        let step = cx.message().subject().rsplit('.').next().unwrap().to_owned();
        let (barrier, blob) = (Barrier::new(&step)?, command["blob"].as_str().unwrap());
        let mut answer = Outcome::done(json!({ "blob": blob }));
        let change = match cx.key().is_undo() {
            true => -i32::from(barrier.compensation(&cx).await? == Compensation::Undo),
            false => match barrier.action(&cx).await? {
                Action::Act => 1,
                Action::Acted => 0,
                Action::Refused => {
                    answer = Outcome::reject(json!("too late"));
                    0
                }
            },
        };
        let bytes = i32::try_from(blob.len()).unwrap();
        let sql = "INSERT INTO book (step, change, bytes) VALUES ($1, $2, $3)";
        cx.transaction().execute(sql, &[&step, &change, &bytes]).await?;
        self.0.reply(&cx, &answer).await?;
        // An inbox stores replies of 1 MiB at most; the answer is a message of its own.
        Ok(if matches!(answer, Outcome::Reject(_)) {
            Outcome::reject(Value::Null)
        } else {
            Outcome::done(Value::Null)
        })
    }
}

/// A database with a leader and a participant, and no relay.
struct Place {
    env: TestEnv,
    client: Client,
    file: Written,
    leaders: Vec<Program>,
    participants: Vec<Running>,
}

impl Place {
    async fn new(late: &str, order: Order) -> Self {
        let env = TestEnv::new().await;
        env.stream().await;
        let client = env.pg().await;
        client.batch_execute("CREATE TABLE book (step text, change int, bytes int)").await.unwrap();
        let text = PARCEL.replace("{p}", env.name()).replace("{late}", late);
        let file = Written::new(&format!("{}.toml", env.name()), &text);
        let mut place = Self { env, client, file, leaders: Vec::new(), participants: Vec::new() };
        place.lead().await;
        place.take_part(order).await;
        let applied = "SELECT count(*)::text FROM oncebox.saga_definition WHERE plan IS NOT NULL";
        place.becomes(applied, "1").await;
        place
    }

    /// One more process that leads.
    async fn lead(&mut self) {
        let replies = self.env.subject("replies");
        let run = ["saga", "run", "--reply-to", &replies, self.file.path()];
        let environment =
            [("DATABASE_URL", self.env.database_url().into()), ("NATS_URL", self.env.nats_url().into())];
        self.leaders.push(Program::start("oncebox", &run, &environment).await.unwrap());
    }

    /// One more process that takes part.
    async fn take_part(&mut self, order: Order) {
        let consumer = Consumer::new(self.env.jetstream().await, self.env.name(), "participant");
        let consumer = consumer
            .filter_subjects([self.env.subject("cmd.>")])
            .order(order)
            .ack_wait(Duration::from_secs(2));
        let inbox = Inbox::builder(self.env.pool(3)).scope("crossing:all").single_tenant().build().unwrap();
        let echo = Echo(Replier::new(Outbox::default(), [self.env.subject("replies")]));
        self.participants.push(Running::start(consumer, inbox, echo));
    }

    fn relay(&self) -> Process {
        Process::relay(&values_of(&self.env))
    }

    /// Starts a saga with a blob of `bytes` bytes; whether it is new.
    async fn start(&self, id: &str, bytes: i32) -> bool {
        let sql = "SELECT is_new FROM oncebox.start_saga('parcel', $1, jsonb_build_object('blob',
                     (SELECT left(string_agg(md5(n::text), ''), $2) FROM generate_series(0, $2 / 32) AS n)))";
        self.client.query_one(sql, &[&id, &bytes]).await.unwrap().get(0)
    }

    async fn ask(&self, sql: &str) -> Option<String> {
        self.client.query_opt(sql, &[]).await.unwrap()?.get(0)
    }

    async fn becomes(&self, sql: &str, expected: &str) {
        eventually(&format!("{sql} is {expected}"), LIMIT, async || {
            (self.ask(sql).await.as_deref() == Some(expected)).then_some(())
        })
        .await;
    }

    async fn stop(mut self) {
        for leader in &mut self.leaders {
            leader.stop().await.unwrap();
        }
        for participant in self.participants {
            participant.stop().await;
        }
        let letters = "SELECT string_agg(reason, ', ') FROM oncebox.dead_letter";
        let letters: Option<String> = self.client.query_one(letters, &[]).await.unwrap().get(0);
        assert_eq!(letters, None, "nothing was given up");
    }
}

/// The data of the start, a reply and all commands go through the object store.
#[tokio::test]
async fn large_commands_and_replies_come_whole() {
    let place = Place::new("1h", Order::PerProcess).await;
    let bucket = place.env.name().to_owned();
    let relay = Process::relay(&with(&values_of(&place.env), [("object-store", &bucket)]));
    let bytes = 1_200_000;
    place.start("o-1", bytes).await;
    place.becomes(STATES, "completed").await;
    let expected = format!("first 1 {bytes}, second 1 {bytes}, third 1 {bytes}");
    assert_eq!(place.ask(BOOKS).await, Some(expected));
    let large = place.env.messages().await;
    let large = large.iter().filter(|message| message.headers.get("Oncebox-Object").is_some()).count();
    assert_eq!(large, 6, "three commands and their answers");
    place.stop().await;
    drop(relay);
}

/// The command of a step waits in a pause until the step is late: it comes after its compensation,
/// and has no effect.
#[tokio::test]
async fn a_command_that_a_pause_holds_beyond_its_deadline_has_no_effect() {
    let place = Place::new("1s", Order::PerProcess).await;
    let (relay, url) = (place.relay(), place.env.database_url());
    let paused = place.env.subject("cmd.do.second");
    run_ok(url, &["outbox", "pause", "--subject", &paused, "--unseen"]).await;
    place.start("o-1", 10).await;
    place.becomes(STATES, "compensated").await;
    assert_eq!(place.ask(BOOKS).await.as_deref(), Some("first 0 10, second 0 0"));
    run_ok(url, &["outbox", "resume", "--subject", &paused]).await;
    let refused = "SELECT status::text FROM oncebox.inbox WHERE key = 'o-1:parcel:second'";
    place.becomes(refused, "rejected").await;
    assert_eq!(place.ask(BOOKS).await.as_deref(), Some("first 0 10, second 0 10"));
    assert_eq!(place.ask(STATES).await.as_deref(), Some("compensated"));
    place.stop().await;
    drop(relay);
}

/// The ring turns, and segments are emptied at once, while sagas are under way and after them.
#[tokio::test]
async fn the_ring_of_the_log_turns_beneath_sagas() {
    const SAGAS: i64 = 8;
    let place = Place::new("1h", Order::PerProcess).await;
    let relay = place.relay();
    for number in 0..SAGAS {
        assert!(place.start(&format!("o-{number}"), 10).await);
    }
    let mut turns = 0;
    eventually("all have ended", LIMIT, async || {
        turns += i32::from(place.ask("SELECT oncebox.end_turn(0, 500, 0)").await.is_none());
        for sql in
            ["SELECT oncebox.drain_segments()::text", "SELECT messages::text FROM oncebox.empty_segment(0)"]
        {
            place.ask(sql).await;
        }
        (place.ask(STATES).await.as_deref() == Some("completed")).then_some(())
    })
    .await;
    assert!(turns > 1, "it did turn: {turns}");
    // The messages of the first are gone, and its business id stands for it.
    let gone = "SELECT (count(*) = 0)::text FROM oncebox.message WHERE key LIKE 'o-0:%'";
    eventually("they are gone", LIMIT, async || {
        place.ask("SELECT oncebox.end_turn(0, 500, 0)").await;
        place.ask("SELECT oncebox.drain_segments()::text").await;
        place.ask("SELECT messages::text FROM oncebox.empty_segment(0)").await;
        (place.ask(gone).await.as_deref() == Some("true")).then_some(())
    })
    .await;
    assert!(!place.start("o-0", 10).await, "it was started before");
    let expected = format!("first {SAGAS} 10, second {SAGAS} 10, third {SAGAS} 10");
    assert_eq!(place.ask(BOOKS).await, Some(expected));
    place.stop().await;
    drop(relay);
}

/// Two databases with sagas of the same type and business id, and one relay.
#[tokio::test]
async fn sagas_of_two_databases_behind_one_relay_stay_apart() {
    let places = [Place::new("1h", Order::PerProcess).await, Place::new("1h", Order::PerProcess).await];
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("fleet.toml");
    let table = |(name, place): (&str, &Place)| {
        let (url, nats_url) = (place.env.database_url(), place.env.nats_url());
        format!("[[database]]\nname = {name:?}\nurl = {url:?}\nnats_url = {nats_url:?}\n")
    };
    let text: String = ["one", "other"].into_iter().zip(&places).map(table).collect();
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let relay = Process::start(&["relay", "--config", path, "--http-listen", "127.0.0.1:0"], []);
    for (place, bytes) in places.iter().zip([10, 20]) {
        assert!(place.start("o-1", bytes).await, "the other is another saga");
    }
    for (place, bytes) in places.into_iter().zip([10, 20]) {
        place.becomes(STATES, "completed").await;
        let expected = format!("first 1 {bytes}, second 1 {bytes}, third 1 {bytes}");
        assert_eq!(place.ask(BOOKS).await, Some(expected));
        place.stop().await;
    }
    drop(relay);
}

/// A leader is suspended while its transaction has the saga's row. PostgreSQL ends the transaction,
/// and another leader takes the answer when JetStream delivers it again.
#[tokio::test]
async fn a_leader_that_is_suspended_in_a_transaction_holds_nothing_for_long() {
    let mut place = Place::new("1h", Order::PerProcess).await;
    let mut locking = place.env.pg().await;
    place.start("o-1", 10).await;
    let lock = locking.transaction().await.unwrap();
    lock.execute("SELECT FROM oncebox.saga FOR UPDATE", &[]).await.unwrap();
    let relay = place.relay();
    let waits = "SELECT count(*)::text FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'oncebox saga' AND wait_event_type = 'Lock'";
    place.becomes(waits, "1").await;
    place.leaders[0].suspend(true).unwrap();
    place.lead().await;
    lock.commit().await.unwrap();
    place.becomes(STATES, "completed").await;
    place.leaders[0].suspend(false).unwrap();
    let books = place.ask(BOOKS).await;
    assert_eq!(books.as_deref(), Some("first 1 10, second 1 10, third 1 10"));
    // It goes on with the next one, or with its connections made anew.
    assert!(place.start("o-2", 10).await);
    place.becomes(STATES, "completed").await;
    let commands =
        "SELECT count(*)::text FROM oncebox.message WHERE key LIKE 'o-1:%' AND key NOT LIKE '%:reply'";
    assert_eq!(place.ask(commands).await.as_deref(), Some("3"), "each command was sent once");
    place.stop().await;
    drop(relay);
}

/// A participant in strict order, whose first process ends amid sagas.
#[tokio::test]
async fn a_participant_in_strict_order_takes_part() {
    const SAGAS: i64 = 12;
    let mut place = Place::new("1h", Order::Strict).await;
    place.take_part(Order::Strict).await;
    let relay = place.relay();
    for number in 0..SAGAS {
        assert!(place.start(&format!("o-{number}"), 10).await);
    }
    place.becomes("SELECT (count(*) > 2)::text FROM book", "true").await;
    drop(place.participants.remove(0));
    place.becomes(STATES, "completed").await;
    let expected = format!("first {SAGAS} 10, second {SAGAS} 10, third {SAGAS} 10");
    assert_eq!(place.ask(BOOKS).await, Some(expected));
    place.stop().await;
    drop(relay);
}
