//! Processes that die: a message that ends them is found and given up, and takes none beside it
//! along; batches under way are handled once, even if processes are killed.

use std::time::Duration;

use async_nats::jetstream::{consumer::pull, stream::Stream};
use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::json;

use super::{
    conformance::{SHARED, TABLES, ended, own_key, publish},
    scenarios::{Sent, returns},
    shop::{LIMIT, Programs, lines},
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

            #[tokio::test]
            async fn batches_through_kills() {
                super::through_kills(stringify!($client), "batch").await;
            }

            #[tokio::test]
            async fn sets_through_kills() {
                super::through_kills(stringify!($client), "set").await;
            }
        }
    )*};
}
clients!(python, typescript, go, java);

/// It kills twice beside others, which proves nothing, and three times alone.
const CRASHES_MAX: usize = 5;

/// Servers, and the durable consumer of the programs.
async fn stage() -> (TestEnv, Stream) {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    env.pg().await.batch_execute(TABLES).await.unwrap();
    // After a second without an acknowledgement a message comes again. More messages are always
    // there than may be delivered, so that those come in batches, too.
    let config = pull::Config {
        durable_name: Some("conform".to_owned()),
        ack_wait: Duration::from_secs(1),
        max_ack_pending: 48,
        ..Default::default()
    };
    stream.create_consumer(config).await.unwrap();
    (env, stream)
}

async fn start(env: &TestEnv, programs: &Programs, settings: &str) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("SETTINGS", settings.to_owned()),
    ];
    Program::start_file(&programs.file("conform"), &[], &environment).await.unwrap()
}

/// Whether each message has been acknowledged, or given up.
async fn is_settled(stream: &Stream) -> Option<()> {
    let info = stream.consumer_info("conform").await.ok()?;
    (info.num_pending == 0 && info.num_ack_pending == 0).then_some(())
}

async fn through_kills(client: &str, settings: &str) {
    const MESSAGES: i64 = 600;
    const KILLS: i64 = 6;
    let Some(programs) = Programs::of(client) else { return };
    let (env, stream) = stage().await;
    let sent: Vec<Sent> = (0..MESSAGES).map(|n| returns(&format!("through-{n}"))).collect();
    publish(&env, sent.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let postgres = env.pg().await;
    let effects =
        async || postgres.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get::<_, i64>(0);
    let mut program = start(&env, &programs, settings).await;
    for kill in 1..=KILLS {
        let some = kill * MESSAGES / (KILLS + 2);
        eventually("it goes on", LIMIT, async || (effects().await >= some).then_some(())).await;
        program.kill().await.unwrap();
        program.restart().await.unwrap();
    }
    eventually("all are settled", LIMIT, async || is_settled(&stream).await).await;
    program.stop().await.unwrap();
    let wrong = "SELECT name || ' ' || count(*) FROM effect GROUP BY name HAVING count(*) <> 1
                 UNION ALL SELECT 'dead: ' || key FROM oncebox.dead_letter";
    assert_eq!(lines(&postgres, wrong).await, [""; 0], "{client}, {settings}");
    assert_eq!(effects().await, MESSAGES);
    assert_eq!(lines(&postgres, SHARED).await, ["shared"], "{client}, {settings}");
}

async fn killed(client: &str, settings: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let (env, stream) = stage().await;
    let postgres = env.pg().await;
    let mut sent: Vec<Sent> = (0..100).map(|n| returns(&format!("beside-{n}"))).collect();
    let mut killer = returns("killer");
    killer.payload["do"] = json!("exit");
    sent.insert(5, killer);
    publish(&env, sent.iter().map(|sent| (own_key(&sent.name), sent))).await;
    let mut crashes = 0;
    while let Some(log) = crashes_or_settles(&env, &programs, settings, &stream).await {
        crashes += 1;
        assert!(crashes <= CRASHES_MAX, "crash {crashes}:\n{log}");
    }
    for sent in &sent {
        let found = ended(&postgres, &sent.name, &sent.name).await;
        let is_right = match sent.name.as_str() {
            "killer" => {
                found.effects == 0 && found.letters.iter().any(|reason| reason.contains("left no trace"))
            }
            _ => found.effects == 1 && found.status.as_deref() == Some("completed"),
        };
        assert!(is_right, "{client}, {settings}, {}: {found:?}", sent.name);
    }
    assert!(crashes >= 2, "the message has killed {crashes} times");
}

/// The log of a consumer that was killed; nothing when all has ended.
async fn crashes_or_settles(
    env: &TestEnv,
    programs: &Programs,
    settings: &str,
    stream: &Stream,
) -> Option<String> {
    let mut program = start(env, programs, settings).await;
    let is_dead = eventually("it is killed, or done", LIMIT, async || {
        if program.check().is_err() {
            return Some(true);
        }
        is_settled(stream).await.map(|()| false)
    })
    .await;
    if is_dead {
        return Some(program.log());
    }
    program.stop().await.unwrap();
    None
}
