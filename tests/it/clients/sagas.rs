//! The tutorial on sagas through kills: its participants in three languages, and the file that
//! leads them. Each order is shipped and paid, or its stock is back and its card not charged.

use std::{env, time::Duration};

use async_nats::jetstream::{self, stream::Config};
use oncebox_tests::{Nats, Postgres, Program, Stop, eventually, oncebox, tail};
use tokio::time::{Instant, sleep};
use tokio_postgres::{Error, NoTls};

use super::shop::Programs;
use crate::saga::site::{kill, supervise};

/// `ONCEBOX_TEST_SAGAS` says another number.
const SAGAS: i64 = 48;
/// Turns of trouble, each with some orders.
const TURNS: i64 = 24;
/// When no saga has moved for this time, nothing more is killed: a command may have been with a
/// process that was killed each time, and comes again after 30 seconds.
const CALM_AFTER: Duration = Duration::from_secs(20);
/// The longest time for which a saga may stand still then.
const STILL_MAX: Duration = Duration::from_secs(150);
/// Each tenth card is declined. An order that is started twice is one.
const START: &str = "
SELECT count(*)::text FROM generate_series({from}, {to}) AS number,
  oncebox.start_saga('order', number::text, jsonb_build_object('order', number, 'item', 'book', 'cents',
    CASE number % 10 WHEN 0 THEN 250000 ELSE 1999 END))";
const BOOKS: &str = "
SELECT concat_ws(' ', (SELECT count(*) FROM oncebox.saga WHERE state = 'completed'),
  (SELECT count(*) FROM oncebox.saga WHERE state = 'compensated'), (SELECT count(*) FROM charge),
  (SELECT count(*) FROM parcel), (SELECT free FROM stock),
  (SELECT count(*) FROM parcel JOIN charge USING (id) WHERE id % 10 > 0))";
/// How many have not ended, and a number that grows with each change.
const PROGRESS: &str = "
SELECT concat_ws(' ', count(*) FILTER (WHERE s.finished_at IS NULL), sum(s.revision)) FROM oncebox.saga AS s";
const UNENDED: &str = "
SELECT coalesce(string_agg(concat_ws(' ', s.key, s.state, s.reason, t.step, t.state), E'\\n'), '')
FROM (SELECT * FROM oncebox.saga AS o WHERE o.finished_at IS NULL ORDER BY o.id LIMIT 20) AS s
LEFT JOIN oncebox.saga_step AS t ON t.saga_id = s.id";

const ATTEMPTS: &str = "
SELECT coalesce(string_agg(a::text, E'\\n'), 'no attempt is recorded') FROM (SELECT * FROM oncebox.inbox_attempt LIMIT 20) AS a";

/// Servers of its own, which may be killed.
struct Place {
    postgres: Postgres,
    nats: Nats,
    url: String,
    /// Relay, leader, and the participants.
    programs: Vec<Program>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_is_whole_or_undone_whatever_is_killed() {
    let (Some(python), Some(typescript), Some(go)) =
        (Programs::of("python"), Programs::of("typescript"), Programs::of("go"))
    else {
        return;
    };
    let sagas =
        env::var_os("ONCEBOX_TEST_SAGAS").map_or(SAGAS, |number| number.to_str().unwrap().parse().unwrap());
    let mut place = Place::start([&python, &typescript, &go], sagas).await;
    let (mut begun, mut turn, mut seen, mut since) = (0, 0_usize, String::new(), Instant::now());
    loop {
        if begun < sagas {
            let next = (begun + (sagas / TURNS).max(1)).min(sagas);
            place
                .sure(&START.replace("{from}", &(begun + 1).to_string()).replace("{to}", &next.to_string()))
                .await;
            begun = next;
        }
        let progress = place.sure(PROGRESS).await;
        if begun == sagas && progress.starts_with("0 ") {
            break;
        }
        if progress != seen {
            (seen, since) = (progress, Instant::now());
        }
        if since.elapsed() > STILL_MAX {
            let (unended, attempts) = (place.sure(UNENDED).await, place.sure(ATTEMPTS).await);
            let logs: Vec<String> = place.programs.iter().map(|program| tail(&program.log())).collect();
            panic!("no saga moves any more ({seen}):\n{unended}\n{attempts}\n{}", logs.join("\n----\n"));
        }
        if since.elapsed() < CALM_AFTER {
            place.trouble(turn).await;
            turn += 1;
        }
        sleep(Duration::from_millis(fastrand::u64(400..1500))).await;
    }
    println!("{sagas} sagas in {turn} turns of trouble");
    let (undone, done) = (sagas / 10, sagas - sagas / 10);
    assert_eq!(place.sure(BOOKS).await, format!("{done} {undone} {done} {done} {undone} {done}"));
    let letters = "SELECT count(*)::text FROM oncebox.dead_letter";
    assert_eq!(place.sure(letters).await, "0", "nothing was given up");
    for program in &mut place.programs {
        supervise(program).await;
        program.kill().await.unwrap();
    }
}

impl Place {
    async fn start([python, typescript, go]: [&Programs; 3], sagas: i64) -> Self {
        let (postgres, nats) = (Postgres::start().await.unwrap(), Nats::start().await.unwrap());
        let url = postgres.url("postgres");
        let mut place = Self { postgres, nats, url, programs: Vec::new() };
        let environment = [
            ("DATABASE_URL", place.url.clone()),
            ("NATS_URL", place.nats.url()),
            ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
        ];
        let jetstream = jetstream::new(async_nats::connect(place.nats.url()).await.unwrap());
        for (name, subjects) in
            [("COMMANDS", &["stock.*", "payment.*", "shipping.*"][..]), ("SAGAS", &["sagas.>"])]
        {
            let subjects = subjects.iter().map(|subject| (*subject).to_owned()).collect();
            let config = Config { name: name.to_owned(), subjects, ..Config::default() };
            jetstream.create_stream(config).await.unwrap();
        }
        let file = python.file("saga/order.toml").display().to_string();
        for arguments in [&["migrate"][..], &["saga", "apply", &file]] {
            let (code, _, problem) = oncebox(arguments, &environment).await.unwrap();
            assert_eq!(code, 0, "{problem}");
        }
        for sql in [
            "CREATE TABLE stock (item text PRIMARY KEY, free int)",
            &format!("INSERT INTO stock VALUES ('book', {sagas})"),
        ] {
            place.ask(sql).await.unwrap();
        }
        for arguments in [&["relay"][..], &["saga", "run", &file]] {
            place.programs.push(Program::start("oncebox", arguments, &environment).await.unwrap());
        }
        for file in [python.file("stock"), typescript.file("charging"), go.file("shipping")] {
            place.programs.push(Program::start_file(&file, &[], &environment).await.unwrap());
        }
        place
    }

    /// A program in each turn, and now and then a server.
    async fn trouble(&mut self, turn: usize) {
        for program in &mut self.programs {
            supervise(program).await;
        }
        let count = self.programs.len();
        kill(&mut self.programs[turn % count]).await;
        match turn % 12 {
            5 => {
                self.nats.kill().await;
                self.nats.resume().await.unwrap();
            }
            11 => self
                .postgres
                .restart(if turn % 24 == 11 { Stop::Kill } else { Stop::Immediate })
                .await
                .unwrap(),
            _ => {}
        }
    }

    /// The first column of the first row, as text.
    async fn ask(&self, sql: &str) -> Result<String, Error> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        let asked = async {
            let rows = client.query(sql, &[]).await;
            drop(client);
            rows
        };
        let (rows, _) = tokio::join!(asked, connection);
        Ok(rows?.first().map(|row| row.get(0)).unwrap_or_default())
    }

    /// As [`Place::ask`], until PostgreSQL is there.
    async fn sure(&self, sql: &str) -> String {
        eventually("PostgreSQL answers", STILL_MAX, async || self.ask(sql).await.ok()).await
    }
}
