//! The tutorial on sagas through kills: its participants in three languages, and the file that
//! leads them. Each order is shipped and paid, or its stock is back and its card not charged.

use std::{env, time::Duration};

use async_nats::jetstream::{self, stream::Config};
use oncebox_tests::{Nats, Program, TestEnv, oncebox};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use super::shop::{Programs, lines};

/// `ONCEBOX_TEST_SAGAS` says another number.
const SAGAS: i64 = 300;
const LIMIT: Duration = Duration::from_secs(240);
/// Each tenth card is declined.
const START: &str = "
SELECT count(*)::text FROM generate_series($1::bigint, $2) AS number,
  oncebox.start_saga('order', number::text, jsonb_build_object('order', number, 'item', 'book', 'cents',
    CASE number % 10 WHEN 0 THEN 250000 ELSE 1999 END))";
const BOOKS: &str = "
SELECT concat_ws(' ', (SELECT count(*) FROM oncebox.saga WHERE state = 'completed'),
  (SELECT count(*) FROM oncebox.saga WHERE state = 'compensated'), (SELECT count(*) FROM charge),
  (SELECT count(*) FROM parcel), (SELECT free FROM stock),
  (SELECT count(*) FROM parcel JOIN charge USING (id) WHERE id % 10 > 0))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_is_whole_or_undone_while_its_participants_are_killed() {
    let (Some(python), Some(typescript), Some(go)) =
        (Programs::of("python"), Programs::of("typescript"), Programs::of("go"))
    else {
        return;
    };
    let (environs, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
    let sagas =
        env::var_os("ONCEBOX_TEST_SAGAS").map_or(SAGAS, |number| number.to_str().unwrap().parse().unwrap());
    let client = environs.pg().await;
    let stock = format!(
        "CREATE TABLE stock (item text PRIMARY KEY, free int); INSERT INTO stock VALUES ('book', {sagas})"
    );
    client.batch_execute(&stock).await.unwrap();
    let environment = [
        ("DATABASE_URL", environs.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
    ];
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    for (name, subjects) in
        [("COMMANDS", &["stock.*", "payment.*", "shipping.*"][..]), ("SAGAS", &["sagas.>"])]
    {
        let subjects = subjects.iter().map(|subject| (*subject).to_owned()).collect();
        jetstream
            .create_stream(Config { name: name.to_owned(), subjects, ..Config::default() })
            .await
            .unwrap();
    }
    let mut relay = Program::start("oncebox", &["relay"], &environment).await.unwrap();
    let file = python.file("saga/order.toml").display().to_string();
    let (code, _, problem) = oncebox(&["saga", "apply", &file], &environment).await.unwrap();
    assert_eq!(code, 0, "{problem}");
    let mut programs = vec![Program::start("oncebox", &["saga", "run", &file], &environment).await.unwrap()];
    for file in [python.file("stock"), typescript.file("charging"), go.file("shipping")] {
        programs.push(Program::start_file(&file, &[], &environment).await.unwrap());
    }
    let trouble = async {
        let mut begun = 0;
        for round in 0_usize.. {
            if begun < sagas {
                let next = (begun + 25).min(sagas);
                client.query(START, &[&(begun + 1), &next]).await.unwrap();
                begun = next;
            } else if left(&client).await == 0 {
                break;
            }
            let program = &mut programs[round % 4];
            program.kill().await.unwrap();
            program.restart().await.unwrap();
            sleep(Duration::from_millis(fastrand::u64(400..1500))).await;
        }
    };
    timeout(LIMIT, trouble).await.expect("all sagas end in time");
    let (undone, done) = (sagas / 10, sagas - sagas / 10);
    let books = lines(&client, BOOKS).await;
    assert_eq!(books, [format!("{done} {undone} {done} {done} {undone} {done}")]);
    for program in programs.iter_mut().chain([&mut relay]) {
        program.kill().await.unwrap();
    }
}

async fn left(client: &Client) -> i64 {
    let unfinished = "SELECT count(*) FROM oncebox.saga WHERE finished_at IS NULL";
    client.query_one(unfinished, &[]).await.unwrap().get(0)
}
