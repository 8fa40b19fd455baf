//! Databases whose encoding is not UTF-8: `enqueue` refuses a header that cannot be converted, and
//! one that is in the log already is set aside alone.

use oncebox_relay::{Values, parts::Pass};
use oncebox_schema::{Lanes, migrate};
use oncebox_tests::{TestEnv, adversity};

use crate::relay::{
    process::run_ok,
    support::{assert_delivered, client, connect, drain, stored, values},
};

async fn unreadable_headers(encoding: &str, byte: i32) {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let name = format!("{}_{}", env.name(), encoding.to_lowercase());
    adversity::create_database_in(&env.pg().await, &name, encoding).await.unwrap();
    let url = env.database_url().replace(env.name(), &name);
    {
        let mut pg = client(&url).await;
        migrate(&mut pg, &"oncebox".parse().unwrap(), Lanes::default()).await.unwrap();
        let subject = env.subject("a");
        let refused = adversity::enqueue_byte(&**pg, "bad", &subject, byte, "o").await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "OB004", "{refused:?}");
        assert!(refused.message().contains("\"h\"") && !refused.message().contains("secret"), "{refused:?}");
        // As an earlier version took it.
        adversity::take_any_header(&**pg).await.unwrap();
        const E: i32 = 101;
        for (key, byte) in [("before", E), ("bad", byte), ("behind", E)] {
            adversity::enqueue_byte(&**pg, key, &subject, byte, "o").await.unwrap();
        }
        pg.execute(
            "SELECT oncebox.enqueue('other-' || n, $1, 'p') FROM generate_series(1, 50) AS n",
            &[&subject],
        )
        .await
        .unwrap();
    }
    let values: Values = values(&url, env.nats_url());
    let relay = connect(&values).await;
    let mut worker = relay.worker();
    assert!(matches!(worker.run_once().await.unwrap(), Pass::Settled { .. }), "the lanes are not held up");
    drain(&mut worker).await;
    let mut expected: Vec<String> = (1..=50).map(|n| format!("other-{n}")).collect();
    expected.push("before".to_owned());
    assert_delivered(&stored(&stream).await, &expected);
    let shown = run_ok(&url, &["outbox", "dead", "show", "bad"]).await;
    assert!(shown.contains("cannot be converted"), "{shown}");
    run_ok(&url, &["outbox", "dead", "discard", "--key", "bad"]).await;
    drain(&mut worker).await;
    expected.push("behind".to_owned());
    assert_delivered(&stored(&stream).await, &expected);
    drop((worker, relay));
    let end = format!("DROP DATABASE {name} WITH (FORCE)");
    env.pg().await.batch_execute(&end).await.unwrap();
}

#[tokio::test]
async fn a_byte_that_is_no_utf_8_in_a_database_without_encoding() {
    unreadable_headers("SQL_ASCII", 233).await;
}

#[tokio::test]
async fn a_byte_that_windows_1252_has_no_letter_for() {
    unreadable_headers("WIN1252", 129).await;
}
