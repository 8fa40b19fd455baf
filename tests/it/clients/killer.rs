//! A message that ends its process takes none beside it along: it is found, and given up.

use std::time::Duration;

use async_nats::jetstream::{consumer::pull, stream::Stream};
use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::json;

use super::{
    conformance::{TABLES, ended, own_key, publish},
    scenarios::{Sent, returns},
    shop::{LIMIT, Programs},
};

/// Defines the tests of each client, one message at a time and in batches.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            #[tokio::test]
            async fn one_by_one() {
                super::killed(stringify!($client), "plain").await;
            }

            #[tokio::test]
            async fn in_batches() {
                super::killed(stringify!($client), "batch").await;
            }
        }
    )*};
}
clients!(python, typescript, go);

/// It kills twice beside others, which proves nothing, and three times alone.
const CRASHES_MAX: usize = 5;

async fn killed(client: &str, settings: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    // After a second without an acknowledgement a message comes again.
    let durable = Some("conform".to_owned());
    let config = pull::Config { durable_name: durable, ack_wait: Duration::from_secs(1), ..Default::default() };
    stream.create_consumer(config).await.unwrap();
    let mut sent: Vec<Sent> = (0..8).map(|n| returns(&format!("beside-{n}"))).collect();
    let mut killer = returns("killer");
    killer.payload["do"] = json!("exit");
    sent.insert(3, killer);
    publish(&env, sent.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let mut crashes = 0;
    while let Some(log) = crashes_or_settles(&env, &programs, settings, &stream).await {
        crashes += 1;
        assert!(crashes <= CRASHES_MAX, "crash {crashes}:\n{log}");
    }
    for sent in &sent {
        let found = ended(&postgres, &sent.name, &sent.name).await;
        let is_right = match sent.name.as_str() {
            "killer" => found.effects == 0 && found.letters.iter().any(|reason| reason.contains("left no trace")),
            _ => found.effects == 1 && found.status.as_deref() == Some("completed"),
        };
        assert!(is_right, "{client}, {settings}, {}: {found:?}", sent.name);
    }
    assert!(crashes >= 2, "the message has killed {crashes} times");
}

/// What a consumer has logged that was killed; nothing when all has ended.
async fn crashes_or_settles(env: &TestEnv, programs: &Programs, settings: &str, stream: &Stream) -> Option<String> {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("SETTINGS", settings.to_owned()),
    ];
    let mut program = Program::start_file(&programs.file("conform"), &[], &environment).await.unwrap();
    let is_dead = eventually("it is killed, or done", LIMIT, async || {
        if program.check().is_err() {
            return Some(true);
        }
        let info = stream.consumer_info("conform").await.ok()?;
        (info.num_pending == 0 && info.num_ack_pending == 0).then_some(false)
    })
    .await;
    if is_dead {
        return Some(program.log());
    }
    program.stop().await.unwrap();
    None
}
