//! Two orchestrators of the same sagas, while connections break, one of them dies and comes again,
//! commands and answers come twice and in any order, deadlines pass and operators retry: in the
//! end each saga has finished, with all of its effects or with none.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use deadpool_postgres::Pool;
use oncebox_inbox::{Context, Handler, HandlerError, Inbox, KeySource, Outcome, Received, Verdict};
use oncebox_outbox::Outbox;
use oncebox_saga::{Action, Barrier, Compensation, Orchestrator, Replier};
use oncebox_tests::Proxy;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Row};
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{PARTICIPANT, Shop, data, death, orchestrator};

const SAGAS: i64 = 40;
/// So often there is trouble; then all is left alone, until everything has finished.
const TROUBLED_ROUNDS: u64 = 200;
const ROUND: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(120);

/// The participant of all steps: says no or dies now and then.
struct Participant {
    replier: Replier,
}

impl Handler for Participant {
    type Message = serde_json::Value;
    type Reply = i64;

    async fn handle(&self, cx: Context<'_>, _: serde_json::Value) -> Result<Outcome<i64>, HandlerError> {
        let (step, _) = cx.message().subject().split_once('.').unwrap();
        let barrier = Barrier::new(step)?;
        let luck = luck(cx.key().as_str());
        if cx.key().is_undo() {
            if barrier.compensation(&cx).await? == Compensation::Undo {
                change(&cx, step, -1).await?;
            }
        } else {
            match barrier.action(&cx).await? {
                Action::Act if (5..20).contains(&luck) => {
                    barrier.had_no_effect(&cx).await?;
                    return self.refuse(&cx).await;
                }
                Action::Act => change(&cx, step, 1).await?,
                Action::Acted => {}
                Action::Refused => return self.refuse(&cx).await,
            }
        }
        if luck < 5 {
            return Ok(Outcome::dead("it has a bad day"));
        }
        let outcome = Outcome::done(7);
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}

impl Participant {
    async fn refuse(&self, cx: &Context<'_>) -> Result<Outcome<i64>, HandlerError> {
        self.replier.reply(cx, &Outcome::reject("no".to_owned())).await?;
        Ok(Outcome::reject(0))
    }
}

async fn change(cx: &Context<'_>, step: &str, change: i32) -> Result<(), HandlerError> {
    let (id, _) = cx.key().as_str().split_once(':').unwrap();
    let sql = "INSERT INTO effect (id, step, change) VALUES ($1, $2, $3)";
    cx.transaction().execute(sql, &[&id, &step, &change]).await?;
    Ok(())
}

/// 0 to 99, the same for a key in every run.
fn luck(key: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(key) % 100
}

/// An orchestrator with connections of its own.
struct Process {
    replies: Inbox,
    letters: Inbox,
    orchestrator: Orchestrator,
    proxy: Proxy,
    /// Its work ends where it is.
    dies: CancellationToken,
    _timers: JoinSet<()>,
}

impl Process {
    async fn start(shop: &Shop) -> Arc<Self> {
        let (proxy, pool) = shop.env.pool_through_proxy(6).await;
        let (orchestrator, dies) = (orchestrator(&[&shop.order]), CancellationToken::new());
        let (timers, ends) = (orchestrator.timers(pool.clone()), dies.clone());
        let mut running = JoinSet::new();
        running.spawn(async move {
            tokio::select! {
                () = ends.cancelled() => {}
                () = timers.run(CancellationToken::new()) => {}
            }
        });
        let letters = inbox(pool.clone(), "saga:dead-letters");
        Arc::new(Self {
            replies: inbox(pool, "saga:replies").build().unwrap(),
            letters: letters.key_from(KeySource::client_header("Nats-Msg-Id")).build().unwrap(),
            orchestrator,
            proxy,
            dies,
            _timers: running,
        })
    }

    /// Whether it has dealt with an answer, or with a dead letter.
    async fn hears(&self, message: &Received) -> bool {
        let is_answer = message.subject() == "sagas.replies";
        let hearing = async {
            if is_answer {
                self.replies.run(&self.orchestrator.replies(), message).await
            } else {
                self.letters.run(&self.orchestrator.dead_letters(), message).await
            }
        };
        tokio::select! {
            () = self.dies.cancelled() => false,
            verdict = hearing => match verdict {
                Ok(Verdict::Handled(_) | Verdict::Replayed(_)) => true,
                Ok(Verdict::Dead { reason }) => panic!("an answer died: {reason}"),
                _ => false,
            },
        }
    }
}

/// No connection that breaks is to use up a message's attempts.
fn inbox(pool: Pool, scope: &str) -> oncebox_inbox::Builder {
    Inbox::builder(pool).scope(scope).single_tenant().attempts_max(1_000_000)
}

/// Carries messages to whom they are for, until they are dealt with. It stands for relay, NATS and
/// consumers.
struct Courier {
    processes: Mutex<[Arc<Process>; 2]>,
    participants: Inbox,
}

impl Courier {
    fn process(&self, which: usize) -> Arc<Process> {
        Arc::clone(&self.processes.lock().unwrap()[which])
    }

    async fn carry(&self, message: &Received) {
        while !self.has_brought(message).await {
            sleep(ROUND).await;
        }
    }

    async fn has_brought(&self, message: &Received) -> bool {
        if message.subject() == "sagas.replies" {
            return self.process(fastrand::usize(0..2)).hears(message).await;
        }
        let replier = Replier::new(Outbox::default(), ["sagas.replies"]);
        match self.participants.run(&Participant { replier }, message).await {
            Ok(Verdict::Handled(_) | Verdict::Replayed(_)) => true,
            Ok(Verdict::Dead { reason }) => {
                let key = message.header_value("Idempotency-Key").unwrap();
                // Now and then an audit of the same commands gives its copy up as well.
                if fastrand::u8(0..4) == 0 {
                    let of_audit = death("analytics:audit", key, 1, "no room");
                    self.process(fastrand::usize(0..2)).hears(&of_audit).await;
                }
                let letter = death(PARTICIPANT, key, 1, &reason);
                self.process(fastrand::usize(0..2)).hears(&letter).await
            }
            _ => false,
        }
    }
}

#[tokio::test]
async fn two_orchestrators_in_trouble_leave_all_effects_or_none() {
    let mut shop = Shop::new(&["tell"]).await;
    shop.client.batch_execute("CREATE TABLE effect (id text, step text, change int)").await.unwrap();
    let processes = Mutex::new([Process::start(&shop).await, Process::start(&shop).await]);
    let participants = inbox(shop.env.pool(6), PARTICIPANT).build().unwrap();
    let courier = Arc::new(Courier { processes, participants });
    for number in 0..SAGAS {
        let id = format!("o-{number}");
        if number % 8 == 0 {
            start_late(&shop, &courier, &id, number).await;
        } else {
            shop.start(&id, &data(number)).await.unwrap();
        }
    }
    if timeout(LIMIT, run(&shop, &courier)).await.is_err() {
        panic!("not finished: {}", unfinished(&shop.client).await);
    }
    assert_balanced(&shop).await;
}

/// Its first command is answered before its start is committed.
async fn start_late(shop: &Shop, courier: &Courier, id: &str, number: i64) {
    let mut client = shop.env.pg().await;
    let transaction = client.transaction().await.unwrap();
    shop.orchestrator.start(&transaction, &shop.order, id, &data(number)).await.unwrap();
    let (command, reply) = (format!("{id}:order:reserve"), format!("{id}:order:reserve:reply"));
    for key in [command, reply] {
        let sql = format!("{MESSAGE} WHERE key = $1");
        // None where the participant died, which sends no answer.
        let Some(row) = transaction.query_opt(&sql, &[&key]).await.unwrap() else { break };
        courier.carry(&message(&row).1).await;
    }
    transaction.commit().await.unwrap();
}

const MESSAGE: &str = "SELECT id, key, subject, headers::text, payload FROM oncebox.message";

fn message(row: &Row) -> (i64, Received) {
    let headers: BTreeMap<String, String> = serde_json::from_str(row.get(3)).unwrap();
    let message = Received::new(row.get::<_, &str>(2), row.get::<_, Vec<u8>>(4));
    let message = message.header("Idempotency-Key", row.get::<_, &str>(1));
    (row.get(0), headers.iter().fold(message, |message, (name, value)| message.header(name, value)))
}

/// Until every saga has finished, and everything that was said is heard.
async fn run(shop: &Shop, courier: &Arc<Courier>) {
    // By their ids, which are not committed in their order.
    let (mut seen, mut carriers) = (Vec::<i64>::new(), JoinSet::new());
    let spared = backend(&shop.client).await;
    for round in 0_u64.. {
        let sql = format!("{MESSAGE} WHERE id <> ALL ($1)");
        let mut rows = shop.client.query(&sql, &[&seen]).await.unwrap();
        fastrand::shuffle(&mut rows);
        for (id, message) in rows.iter().map(message) {
            seen.push(id);
            for _ in 0..fastrand::usize(1..=2) {
                let (courier, message) = (Arc::clone(courier), message.clone());
                carriers.spawn(async move { courier.carry(&message).await });
            }
        }
        while let Some(carried) = carriers.try_join_next() {
            carried.unwrap();
        }
        if round < TROUBLED_ROUNDS {
            trouble(shop, courier, round, spared).await;
        } else {
            courier.process(1).proxy.stall(false);
        }
        if round % 20 == 0 {
            // One may have been freed by a late answer before it is asked for.
            let _ = shop
                .client
                .query("SELECT oncebox.retry_saga(id) FROM oncebox.saga WHERE state = 'stuck'", &[])
                .await;
        }
        let open = "SELECT count(*) FROM oncebox.saga WHERE finished_at IS NULL";
        if rows.is_empty() && carriers.is_empty() && shop.number(open).await == 0 {
            return;
        }
        sleep(ROUND).await;
    }
}

async fn backend(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Faults of backends, connections, processes and deadlines, each at its own pace.
async fn trouble(shop: &Shop, courier: &Courier, round: u64, spared: i32) {
    if round.is_multiple_of(3) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> $1 AND backend_type = 'client backend'
                   ORDER BY random() LIMIT 1";
        shop.client.query(sql, &[&spared]).await.unwrap();
    }
    if round % 10 == 5 {
        let sql = "WITH found AS (
                     SELECT id FROM oncebox.saga WHERE finished_at IS NULL AND random() < 0.05
                     FOR UPDATE SKIP LOCKED
                   ), late AS (
                     UPDATE oncebox.saga_step AS t SET deadline_at = clock_timestamp()
                     FROM found AS f WHERE t.saga_id = f.id AND t.deadline_at IS NOT NULL
                     RETURNING t.saga_id
                   )
                   UPDATE oncebox.saga SET due_at = clock_timestamp() WHERE id IN (SELECT saga_id FROM late)";
        shop.client.batch_execute(sql).await.unwrap();
    }
    if round % 7 == 1 {
        courier.process(0).proxy.cut_when_client_sends(b"COMMIT\0", round.is_multiple_of(2));
    }
    match round % 40 {
        10 => courier.process(1).proxy.stall(true),
        25 => courier.process(1).proxy.stall(false),
        35 => {
            let next = Process::start(shop).await;
            let killed = std::mem::replace(&mut courier.processes.lock().unwrap()[1], next);
            killed.dies.cancel();
        }
        _ => {}
    }
}

async fn assert_balanced(shop: &Shop) {
    let sql = "SELECT s.business_id, s.state,
                      (SELECT count(*) FROM (SELECT FROM effect AS e WHERE e.id = s.business_id
                                             GROUP BY e.step HAVING sum(e.change) = 1) AS done),
                      (SELECT coalesce(sum(e.change), 0) FROM effect AS e WHERE e.id = s.business_id)
               FROM oncebox.saga AS s";
    let mut states = BTreeMap::new();
    for row in shop.client.query(sql, &[]).await.unwrap() {
        let (id, state): (String, String) = (row.get(0), row.get(1));
        let (steps, effects): (i64, i64) = (row.get(2), row.get(3));
        let expected = if state == "completed" { 4 } else { 0 };
        assert_eq!((steps, effects), (expected, expected), "{id} is {state}");
        *states.entry(state).or_insert(0) += 1;
    }
    assert!(states["completed"] > 0 && states["compensated"] > 0, "both ends are met: {states:?}");
    assert_eq!(states.values().sum::<i64>(), SAGAS);
}

/// The evidence about a saga that stands still.
async fn unfinished(client: &Client) -> String {
    let sql = "SELECT coalesce(string_agg(concat_ws(' ', s.business_id, s.state, s.reason, s.due_at,
                 (SELECT json_agg(json_build_array(t.step, t.state, t.attempt, t.undo_attempt, t.deadline_at))
                  FROM oncebox.saga_step AS t WHERE t.saga_id = s.id),
                 (SELECT json_agg(json_build_array(e.kind, e.step, e.attempt, e.is_undo, e.is_orphan))
                  FROM oncebox.saga_event AS e WHERE e.key = s.key),
                 (SELECT json_agg(m.key) FROM oncebox.message AS m WHERE starts_with(m.key, s.key)),
                 (SELECT json_agg(json_build_array(i.scope, i.status, i.key)) FROM oncebox.inbox AS i
                  WHERE starts_with(i.key, s.key))), E'\n'), 'no saga, but messages')
               FROM oncebox.saga AS s WHERE s.finished_at IS NULL";
    client.query_one(sql, &[]).await.unwrap().get(0)
}
