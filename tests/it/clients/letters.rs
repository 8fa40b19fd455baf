//! A dead letter that is retried comes back with the headers that its message had: JetStream's
//! consumers tell upper case from lower case.

use async_nats::jetstream::consumer::pull;
use futures_util::StreamExt as _;
use oncebox_tests::{Program, TestEnv, eventually};

use super::{
    conformance::TABLES,
    shop::{LIMIT, Programs, lines, publish_raw},
};
use crate::relay::process::run_ok;

/// Defines the test of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        #[tokio::test]
        async fn $client() {
            headers_come_back(stringify!($client)).await;
        }
    )*};
}
clients!(python, typescript, go, java);

async fn headers_come_back(client: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    let (stream, postgres) = (env.stream().await, env.pg().await);
    postgres.batch_execute(TABLES).await.unwrap();
    let headers = "Content-Type: application/json\r\nX-Many: a\r\nx-other: c\r\nX-Many: b\r\n";
    publish_raw(env.nats_url(), &env.subject("a"), headers, "{}").await;
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("SETTINGS", "plain".to_owned()),
    ];
    let mut program = Program::start_file(&programs.file("conform"), &[], &environment).await.unwrap();
    let buried = "SELECT reason FROM oncebox.dead_letter WHERE key IS NULL";
    eventually("it is given up", LIMIT, async || lines(&postgres, buried).await.pop()).await;
    program.stop().await.unwrap();
    let retry = ["inbox", "dead", "retry", "--no-key", "--nats-url", env.nats_url()];
    assert_eq!(run_ok(env.database_url(), &retry).await, "retried 1 message\n");
    let config = pull::Config { filter_subject: env.subject("a"), ..pull::Config::default() };
    let consumer = stream.create_consumer(config).await.unwrap();
    let copies: Vec<_> = consumer.fetch().max_messages(2).messages().await.unwrap().collect().await;
    let copy = copies.into_iter().nth(1).unwrap().unwrap();
    let sent = copy.headers.clone().unwrap();
    let expected = [("Content-Type", "application/json"), ("X-Many", "a"), ("X-Many", "b"), ("x-other", "c")];
    let mut found: Vec<(String, String)> = sent
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name.to_string(), value.to_string())))
        .filter(|(name, _)| name != "Nats-Msg-Id")
        .collect();
    found.sort();
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}
