//! Participants in each language, led by the orchestrator, and in the wrong order by hand. The test
//! carries the messages between the outbox and the stream, each of them twice.

use std::time::Duration;

use oncebox_inbox::Received;
use oncebox_tests::{Program, eventually};
use serde_json::Value;

use super::shop::{LIMIT, Programs, lines, publish_raw};
use crate::saga::shop::{Shop, data};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use crate::clients::shop::Programs;

            #[tokio::test]
            async fn takes_part_in_sagas_of_the_orchestrator() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::be_led(programs).await;
                }
            }

            #[tokio::test]
            async fn leaves_the_books_right_in_any_order() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::come_in_any_order(programs).await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

/// An orchestrator's database, where the participant has its own books.
async fn begin(programs: &Programs) -> (Shop, Program) {
    let shop = Shop::new(&[]).await;
    shop.env.stream().await;
    shop.client.batch_execute("CREATE TABLE stock (key text, change int)").await.unwrap();
    let environment = [
        ("DATABASE_URL", shop.env.database_url().to_owned()),
        ("NATS_URL", shop.env.nats_url().to_owned()),
        ("STREAM", shop.env.name().to_owned()),
    ];
    let program = Program::start_file(&programs.file("taking"), &[], &environment).await.unwrap();
    (shop, program)
}

async fn send(shop: &Shop, key: &str, cents: i64, headers: &str) {
    let headers = format!("Idempotency-Key: {key}\r\n{headers}");
    let payload = format!("{{\"cents\":{cents}}}");
    publish_raw(shop.env.nats_url(), &shop.env.subject("a"), &headers, &payload).await;
}

/// Carries the messages that were committed since: commands to the participant, answers to the
/// orchestrator.
async fn carry(shop: &Shop, carried: &mut Vec<i64>) {
    let sql = "SELECT id, subject, key, headers::text, convert_from(payload, 'UTF8')
               FROM oncebox.message WHERE id <> ALL ($1) ORDER BY id";
    for row in shop.client.query(sql, &[&*carried]).await.unwrap() {
        carried.push(row.get(0));
        let [subject, key, headers, payload] = [1, 2, 3, 4].map(|column| row.get::<_, String>(column));
        let headers: serde_json::Map<String, Value> = serde_json::from_str(&headers).unwrap();
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
        for _copy in 0..2 {
            if subject == "sagas.replies" {
                let answer =
                    Received::new(subject.as_str(), payload.clone()).header("Idempotency-Key", &*key);
                let answer = headers.clone().fold(answer, |answer, (name, value)| answer.header(name, value));
                shop.replies().run(&shop.orchestrator.replies(), &answer).await.unwrap();
            } else {
                let lines = headers.clone().map(|(name, value)| format!("{name}: {value}\r\n"));
                let lines = format!("Idempotency-Key: {key}\r\n{}", lines.collect::<String>());
                publish_raw(shop.env.nats_url(), &shop.env.subject("a"), &lines, &payload).await;
            }
        }
    }
}

/// One saga that ends well, and one whose last step says no, so that the others are undone.
async fn be_led(programs: Programs) {
    let (mut shop, mut program) = begin(&programs).await;
    shop.start("good", &data(500)).await.unwrap();
    shop.start("bad", &data(5000)).await.unwrap();
    let ended = "SELECT string_agg(business_id || ' ' || state, ', ' ORDER BY business_id) FROM oncebox.saga
                 HAVING bool_and(finished_at IS NOT NULL)";
    let mut carried = Vec::new();
    let states = eventually("both sagas end", LIMIT, async || {
        carry(&shop, &mut carried).await;
        lines(&shop.client, ended).await.pop()
    })
    .await;
    assert_eq!(states, "bad compensated, good completed", "{}", program.log());
    program.stop().await.unwrap();
    let books = "SELECT split_part(key, ':', 1) || ' ' || count(*) || ' ' || sum(change) FROM stock GROUP BY split_part(key, ':', 1) ORDER BY 1";
    assert_eq!(lines(&shop.client, books).await, ["bad 4 0", "good 3 3"]);
    let learned = "SELECT data ->> 'reservation' FROM oncebox.saga WHERE business_id = 'good'";
    assert_eq!(lines(&shop.client, learned).await, ["77"]);
}

/// Key, cents and headers of a command; the answer.
const COMMANDS: [(&str, i64, &str, &str); 12] = [
    ("late:pay:undo", 5, "", "done 77"),
    ("late:pay", 5, "", "rejected \"too late\""),
    ("twice:pay", 5, "", "done 77"),
    ("twice:pay:#2", 5, "Saga-Attempt: 2\r\n", "done 77"),
    ("twice:pay:#2:undo", 5, "Saga-Attempt: 2\r\n", "done 77"),
    ("twice:pay:undo", 5, "", "done 77"),
    ("parts:pay:#2", 5, "", "done 77"),
    ("refused:ship", 5000, "", "rejected \"no such address\""),
    ("refused:ship:undo", 5000, "", "done 77"),
    ("again:pay", 13, "", "done 77"),
    ("again:pay:undo", 13, "", "rejected \"not now\""),
    ("again:pay:#2:undo", 13, "Saga-Attempt: 2\r\n", "done 77"),
];

/// Undone before it is done, done twice, refused, undone in a second attempt; one after another.
async fn come_in_any_order(programs: Programs) {
    let (shop, mut program) = begin(&programs).await;
    for (key, cents, headers, expected) in COMMANDS {
        send(
            &shop,
            key,
            cents,
            &format!("Oncebox-Reply-To: odd.x.replies\r\nOncebox-Ordering-Key: o\r\n{headers}"),
        )
        .await;
        let answer = format!(
            "SELECT (headers ->> 'Reply-Outcome') || ' ' || convert_from(payload, 'UTF8') FROM oncebox.message
             WHERE key = '{key}:reply' AND subject = 'odd.x.replies' AND ordering_key = 'o'
               AND headers ->> 'In-Reply-To' = '{key}'"
        );
        let found = eventually(key, LIMIT, async || lines(&shop.client, &answer).await.pop());
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        assert_eq!(found.as_deref(), Ok(expected), "{key}: {}", program.log());
    }
    // Without an answer, and with one where none is allowed.
    send(&shop, "mute:pay", 5, "").await;
    send(&shop, "odd:pay", 5, "Oncebox-Reply-To: payments.made\r\n").await;
    let ended =
        "SELECT key || ' ' || status FROM oncebox.inbox WHERE key IN ('mute:pay', 'odd:pay') ORDER BY key";
    eventually("both end", LIMIT, async || {
        (lines(&shop.client, ended).await == ["mute:pay completed", "odd:pay dead"]).then_some(())
    })
    .await;
    program.stop().await.unwrap();
    let books = "SELECT split_part(key, ':', 1) || ' ' || sum(change) FROM stock GROUP BY split_part(key, ':', 1) ORDER BY 1";
    assert_eq!(lines(&shop.client, books).await, ["again 0", "mute 1", "parts 1", "twice 0"]);
    let sent = "SELECT 'elsewhere' FROM oncebox.message WHERE subject = 'payments.made'";
    assert_eq!(lines(&shop.client, sent).await, [""; 0]);
}
