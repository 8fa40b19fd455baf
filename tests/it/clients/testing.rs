//! The helpers for users' tests in each language, by tests that use them as a user would.

use std::env::current_exe;

use oncebox_outbox::{Message, Outbox};
use oncebox_testkit::enqueued;
use oncebox_tests::TestEnv;
use serde_json::json;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs};

/// Defines the test of each client: its own tests pass, also of a handler that is not safe.
macro_rules! clients {
    ($($client:ident),*) => {$(
        #[tokio::test]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                pass(programs).await;
            }
        }
    )*};
}
clients!(python, typescript, go);

async fn pass(programs: Programs) {
    let env = TestEnv::new().await;
    let program = current_exe().unwrap().ancestors().nth(2).expect("target/debug/deps").join("oncebox");
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    // The helpers' own tests, and those of docs/testing.md.
    for (file, ends) in
        [("testing", ["7 passed", "pass 7", "PASS"]), ("documented", ["3 passed", "pass 1", "PASS"])]
    {
        let mut testing = Command::new(programs.file(file));
        testing.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url());
        testing.env("ONCEBOX", &program).env("PATH", &path);
        let output =
            timeout(LIMIT, testing.kill_on_drop(true).output()).await.expect("the tests end").unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
        assert!(ends.iter().any(|passed| said.contains(passed)), "{said}");
    }
}

/// In their order, and none of a transaction before.
#[tokio::test]
async fn rust() {
    let env = TestEnv::new().await;
    let (mut client, outbox) = (env.pg().await, Outbox::default());
    let message = |key: &str| {
        Message::json(key.parse().unwrap(), "a.b".parse().unwrap(), &json!({ "key": key })).unwrap()
    };
    let transaction = client.transaction().await.unwrap();
    outbox.enqueue(&transaction, &message("before")).await.unwrap();
    transaction.commit().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert_eq!(enqueued(&transaction).await.unwrap(), []);
    outbox
        .enqueue(&transaction, &message("k:pay").ordering_key("o").header("A", "b").unwrap())
        .await
        .unwrap();
    outbox.enqueue(&transaction, &message("k:later").delayed_by(LIMIT)).await.unwrap();
    let found = enqueued(&transaction).await.unwrap();
    let [pay, later] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*pay.key, &*pay.subject, pay.ordering_key.as_deref()), ("k:pay", "a.b", Some("o")));
    assert_eq!((pay.headers.get("A").map(String::as_str), pay.not_before), (Some("b"), None));
    assert_eq!((&*later.key, later.json()), ("k:later", json!({ "key": "k:later" })));
    assert!(later.not_before.is_some());
}
