//! One table of messages for the consumers in every language: each must end each message alike.

mod held;
mod line;
mod program;
mod standing;

use std::fs;

use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use self::{
    held::{FREE, locked},
    standing::settle,
};
use super::{
    failing::{self, recovers},
    inbox,
    scenarios::{Ends, Sent, documented, returns},
    shop::{LIMIT, Programs, lines, publish_raw, repository},
};

/// Defines the tests of each client, with settings of its pool that must not matter.
macro_rules! conform {
    ($($client:ident: $($settings:ident),*;)*) => {$(
        mod $client {$(
            #[tokio::test]
            async fn $settings() {
                super::conform(stringify!($client), stringify!($settings)).await;
            }
        )*}
    )*};
}
conform! {
    python: plain, spoiled, batch, pipelined, set, leased, strict;
    typescript: plain, spoiled, batch, set, leased, strict;
    go: plain, simple_protocol, exec, types, batch, set, strict;
    java: plain, manual_commit;
    rust: plain, spoiled, strict;
    sqlx: plain, spoiled, strict;
    sea_orm: plain, spoiled, strict;
    diesel: plain, spoiled, strict;
    leased: plain, spoiled, strict;
    functions: plain;
}

pub(super) const TABLES: &str = "
CREATE TABLE effect (name text NOT NULL, zone text NOT NULL DEFAULT current_setting('TimeZone'));
CREATE TABLE run (name text NOT NULL, deliveries bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE late (name text NOT NULL, said text NOT NULL);
GRANT INSERT ON effect TO pg_monitor";
const ATTEMPTS: usize = 3;
/// Messages after all others, over connections that handlers have changed.
const AFTERWARDS: usize = 24;

/// How a message has ended, as the database says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ended {
    pub(super) runs: usize,
    pub(super) effects: usize,
    /// Of the key.
    pub(super) status: Option<String>,
    outcome: Option<Value>,
    pub(super) letters: Vec<String>,
    /// The shortest pause between two runs, in milliseconds.
    pause: Option<f64>,
}

/// A consumer that does as it is told.
enum Running {
    Program(Program),
    Here(inbox::Running),
}

impl Running {
    /// `None` where there is no toolchain for it.
    async fn start(env: &TestEnv, name: &str, settings: &str) -> Option<Self> {
        if let Some(running) = inbox::Running::start(env, name, settings).await {
            return Some(Self::Here(running));
        }
        let program = match program::given() {
            Some(program) if name == program::NAME => program,
            _ => Programs::of(name)?.file("conform"),
        };
        let environment = [
            ("DATABASE_URL", env.database_url().to_owned()),
            ("NATS_URL", env.nats_url().to_owned()),
            ("STREAM", env.name().to_owned()),
            ("SETTINGS", settings.to_owned()),
        ];
        Some(Self::Program(Program::start_file(&program, &[], &environment).await.unwrap()))
    }

    fn check(&mut self) -> Result<(), String> {
        match self {
            Self::Program(program) => program.check().map_err(|error| format!("{error:#}")),
            Self::Here(running) => running.check(),
        }
    }

    fn log(&self) -> String {
        match self {
            Self::Program(program) => program.log(),
            Self::Here(_) => String::new(),
        }
    }

    async fn stop(self) {
        match self {
            Self::Program(mut program) => program.stop().await.unwrap(),
            Self::Here(running) => running.stop().await,
        }
    }
}

/// Sends all messages to a consumer of this client, and compares how they end.
async fn conform(client: &str, settings: &str) {
    let (column, sent) = program::column(client, settings);
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    postgres.batch_execute(failing::KEEPS).await.unwrap();
    let unlocked = returns("locked");
    let locked = locked(&env, column, &unlocked).await;
    let (setting, sent): (Vec<_>, Vec<_>) = sent.into_iter().partition(Sent::changes_its_session);
    let together = TOGETHER.contains(&settings);
    let (grouped, sent) = in_groups(settings, sent);
    let vectors = if column.reads_headers() { vectors() } else { Vec::new() };
    publish(&env, sent.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let named: Vec<Sent> = vectors.iter().map(|(name, ..)| returns(name)).collect();
    publish(&env, vectors.iter().zip(&named).map(|((.., headers), sent)| (headers.clone(), sent))).await;
    publish(&env, [(own_key("locked"), &unlocked)].into_iter()).await;
    // Messages that are there already come in batches.
    let Some(mut consumer) = Running::start(&env, client, settings).await else { return };
    let rest = async |sent: usize, count: usize| standing::of(&stream, &postgres, sent, count).await;
    let total = sent.len() + vectors.len() + 1;
    let mut wrong = Vec::new();
    wrong.extend(settle(&mut consumer, "but for the locked message", async || rest(total, 1).await).await);
    locked.batch_execute(FREE).await.unwrap();
    let mut after = setting;
    after.extend((0..AFTERWARDS).map(|n| returns(&format!("after-{n}"))));
    publish(&env, after.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let mut total = total + after.len();
    wrong.extend(settle(&mut consumer, "afterwards", async || rest(total, 0).await).await);
    for sent in &grouped {
        let group = group_around(&env, &locked, sent).await;
        total += WORKERS + group.len();
        wrong.extend(settle(&mut consumer, &sent.name, async || rest(total, 0).await).await);
        for sent in &group {
            let found = ended(&postgres, &sent.name, &sent.name).await;
            compare(&mut wrong, &apart(found, sent, together), sent);
        }
    }
    for sent in &sent {
        compare(&mut wrong, &apart(ended(&postgres, &sent.name, &sent.name).await, sent, together), sent);
    }
    for (name, key, _) in &vectors {
        let found = apart(ended(&postgres, name, key).await, &returns(name), together);
        compare_vector(&mut wrong, name, key, &found);
    }
    let mut again = 0;
    for sent in after.iter().chain([&unlocked]) {
        let mut found = ended(&postgres, &sent.name, &sent.name).await;
        again += found.runs.saturating_sub(1);
        found.runs = found.runs.min(1);
        compare(&mut wrong, &found, sent);
    }
    if again > column.runs_in_vain() && !together {
        wrong.push(format!("{again} runs behind messages that have changed their session"));
    }
    wrong.extend(failing::wrong(&env, &postgres, &sent).await);
    wrong.extend(lines(&postgres, HURRIED).await);
    wrong.extend(lines(&postgres, OTHER_ZONE).await);
    if together && lines(&postgres, SHARED).await.is_empty() {
        wrong.push("no two messages have shared a transaction".to_owned());
    }
    if sent.iter().any(|sent| sent.name == "leaves-work") {
        wrong.extend(lines(&postgres, LATE).await);
    }
    assert!(wrong.is_empty(), "{client}, {settings}:\n{}\n{}", wrong.join("\n"), consumer.log());
    if settings == "strict" {
        line::walk(&env, &postgres).await;
    }
    consumer.stop().await;
}

/// The settings with which messages share a transaction.
const TOGETHER: [&str; 3] = ["batch", "pipelined", "set"];

/// Whether messages have shared a transaction: each could fall back to one of its own.
pub(super) const SHARED: &str = "SELECT 'shared' FROM effect GROUP BY xmin::text HAVING count(*) > 1 LIMIT 1";

/// A handler must not meet settings that another message's handler has made.
const OTHER_ZONE: &str = "SELECT name || ' met another zone' FROM effect WHERE zone = 'Asia/Tokyo'";

/// The messages that each need a batch of their own, and the others.
fn in_groups(settings: &str, sent: Vec<Sent>) -> (Vec<Sent>, Vec<Sent>) {
    if !TOGETHER.contains(&settings) {
        return (Vec::new(), sent.into_iter().chain([recovers("fails-once")]).collect());
    }
    // One handler may commit the writes that another made after its own ROLLBACK.
    let (mut grouped, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(Sent::ends_its_transaction);
    if settings == "set" {
        // It is one handler, and its writes after its own ROLLBACK are its own.
        grouped.clear();
    }
    let mut sets_zone = returns("sets-zone");
    sets_zone.payload["sql"] = json!(["SET TIME ZONE 'Asia/Tokyo'"]);
    grouped.push(sets_zone);
    (grouped, others)
}

/// Publishes a message among others that return, while all workers are busy.
async fn group_around(env: &TestEnv, locking: &Client, sent: &Sent) -> Vec<Sent> {
    let beside = |n: usize| returns(&format!("beside-{}-{n}", sent.name));
    let around = |from: usize| (from..from + BESIDE / 2).map(beside);
    let group: Vec<Sent> = around(0).chain([sent.clone()]).chain(around(BESIDE)).collect();
    busy(env, locking, &sent.name, async || {
        publish(env, group.iter().map(|sent| (own_key(&sent.name), sent))).await;
    })
    .await;
    group
}

/// How many messages the consumers take at once, alone or in batches.
const WORKERS: usize = 3;
/// How many messages that return surround one that ends its transaction: more than three workers
/// take alone before there is a batch.
const BESIDE: usize = 12;

/// Has all workers wait while messages are published, which are there together then.
async fn busy(env: &TestEnv, locking: &Client, name: &str, publishing: impl AsyncFnOnce()) {
    let wait = |n| {
        let mut sent = returns(&format!("waits-{n}-{name}"));
        sent.payload["sql"] = json!(["SELECT pg_advisory_xact_lock_shared(99)"]);
        sent
    };
    let waiting: Vec<Sent> = (0..WORKERS).map(wait).collect();
    locking.batch_execute("SELECT pg_advisory_lock(99)").await.unwrap();
    publish(env, waiting.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let all = format!(
        "SELECT 'all' FROM pg_locks WHERE locktype = 'advisory' AND objid = 99 AND NOT granted HAVING count(*) = {WORKERS}"
    );
    eventually("all workers wait", LIMIT, async || lines(locking, &all).await.pop()).await;
    publishing().await;
    locking.batch_execute("SELECT pg_advisory_unlock(99)").await.unwrap();
}

/// A batch runs its handlers again when one of them fails: without those runs, which come at once.
fn apart(found: Ended, sent: &Sent, together: bool) -> Ended {
    if !together {
        return found;
    }
    let runs = match sent.ends {
        Ends::Fails(..) => ATTEMPTS,
        Ends::Done(runs) => runs,
        Ends::Recovers => 2,
        _ => 1,
    };
    Ended { runs: found.runs.min(runs), pause: found.pause.map(|_| f64::MAX), ..found }
}

/// Its name is its key.
pub(super) fn own_key(name: &str) -> String {
    format!("Idempotency-Key: {name}\r\n")
}

/// The locked message came again after pauses, and not all the time.
const HURRIED: &str = "
SELECT 'the locked message came ' || deliveries || ' times in ' || waited || ' s'
FROM (SELECT deliveries, extract(epoch FROM at - (SELECT min(at) FROM run)) AS waited FROM run WHERE name = 'locked') AS held
WHERE deliveries > 3 + waited / 0.2";

/// The work that outlives a handler was told that the handler had ended.
const LATE: &str = "
SELECT 'work that was left behind: ' || coalesce(string_agg(said, '; '), 'nothing')
FROM late
HAVING count(*) = 0 OR bool_or(said NOT LIKE '%handler has ended%')";

/// Publishes messages as their bytes stand, which clients would refuse.
pub(super) async fn publish(env: &TestEnv, messages: impl Iterator<Item = (String, &Sent)>) {
    for (headers, Sent { name, payload, .. }) in messages {
        let tenant = if headers.to_lowercase().contains("tenant:") { "" } else { "Tenant: acme\r\n" };
        let headers = format!("Scenario: {name}\r\n{tenant}{headers}");
        publish_raw(env.nats_url(), &env.subject("a"), &headers, &payload.to_string()).await;
    }
}

/// Names, keys and headers of the shared vectors.
fn vectors() -> Vec<(String, String, String)> {
    let text = fs::read_to_string(repository().join("schema/vectors/headers.tsv")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let vector = |(n, line): (usize, &str)| {
        let (key, headers) = line.split_once('\t').expect("a key and headers");
        let headers = headers.split('|').map(|header| format!("{}\r\n", repeated(header))).collect();
        (format!("vector-{n}"), key.to_owned(), headers)
    };
    lines.enumerate().map(vector).collect()
}

/// `{x*3}` becomes `xxx`.
pub(super) fn repeated(text: &str) -> String {
    let Some((before, rest)) = text.split_once('{') else { return text.to_owned() };
    let (inner, after) = rest.split_once('}').expect("a brace is closed");
    let (unit, count) = inner.split_once('*').expect("a unit and a count");
    format!("{before}{}{}", unit.repeat(count.parse().unwrap()), repeated(after))
}

fn compare(wrong: &mut Vec<String>, found: &Ended, sent: &Sent) {
    let name = &sent.name;
    let expected = |runs, effects, status: &str| {
        (found.runs, found.effects, found.status.as_deref()) == (runs, effects, Some(status))
    };
    let letter = |reason: &str| found.letters.len() == 1 && found.letters[0].contains(reason);
    let is_right = match sent.ends {
        Ends::Done(runs) => {
            let outcome = sent.replies.then(|| json!({ "did": name }));
            expected(runs, 1, "completed") && found.outcome == outcome && found.letters.is_empty()
        }
        Ends::Rejected => {
            expected(1, 1, "rejected") && found.outcome == Some(json!("no")) && found.letters.is_empty()
        }
        Ends::Dead(reason) => expected(1, 0, "dead") && letter(reason),
        Ends::Fails(reason, pause) => {
            let paused = found.pause.is_some_and(|found| found >= f64::from(pause));
            expected(ATTEMPTS, 0, "dead")
                && letter("delivery limit of 3 reached: ")
                && letter(reason)
                && paused
        }
        Ends::Recovers => expected(2, 1, "completed") && found.letters.is_empty(),
        Ends::Parted => expected(1, 1, "dead") && letter("the handler sent COMMIT by itself"),
        Ends::Unkept | Ends::Never(_) => false,
    };
    if !is_right {
        wrong.push(format!("{name}: {found:?}"));
    }
}

fn compare_vector(wrong: &mut Vec<String>, name: &str, key: &str, found: &Ended) {
    let is_right = match key.strip_prefix('!') {
        // Each language has sentences of its own about a key that is none.
        Some(reason) => {
            let is_key = ["length", "ASCII", "ROOT"].contains(&reason);
            let says = |letter: &String| letter.contains(if is_key { "key" } else { reason });
            (found.runs, found.effects, found.letters.len()) == (0, 0, 1) && found.letters.iter().all(says)
        }
        None => (found.runs, found.effects, found.status.as_deref()) == (1, 1, Some("completed")),
    };
    if !is_right {
        wrong.push(format!("{name}, {key}: {found:?}"));
    }
}

pub(super) async fn ended(client: &Client, name: &str, key: &str) -> Ended {
    let sql = "
        SELECT (SELECT count(*) FROM run WHERE name = $1),
               (SELECT count(*) FROM effect WHERE name = $1),
               (SELECT status FROM oncebox.inbox WHERE key = $2),
               (SELECT convert_from(outcome, 'UTF8') FROM oncebox.inbox WHERE scope = 'conform:test' AND key = $2 AND status <> 'dead'),
               ARRAY(SELECT reason FROM oncebox.dead_letter WHERE lower(headers::text) LIKE '%\"scenario\": \"' || $1 || '\"%'),
               (SELECT 1000 * min(pause)::float8
                FROM (SELECT extract(epoch FROM at - lag(at) OVER (ORDER BY at)) AS pause FROM run WHERE name = $1) AS pauses)";
    let row = client.query_one(sql, &[&name, &key]).await.unwrap();
    let count = |column| usize::try_from(row.get::<_, i64>(column)).unwrap();
    let outcome: Option<String> = row.get(3);
    Ended {
        runs: count(0),
        effects: count(1),
        status: row.get(2),
        outcome: outcome.map(|text| serde_json::from_str(&text).unwrap()),
        letters: row.get(4),
        pause: row.get(5),
    }
}

/// The table that readers see is the one that is tested.
#[test]
fn the_documents_say_how_each_message_ends() {
    let text = fs::read_to_string(repository().join("docs/languages.md")).unwrap();
    assert!(text.contains(&documented()), "docs/languages.md needs this table:\n{}", documented());
}
