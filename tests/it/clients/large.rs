//! Large payloads in the clients in other languages: fetched and checked, as the inbox in Rust
//! does.

use async_nats::{
    ConnectOptions, HeaderMap,
    jetstream::{self, stream::Stream},
};
use oncebox_tests::{Nats, Program, TestEnv, eventually};
use tokio_postgres::Client;

use super::shop::{LIMIT, Programs, lines};
use crate::{
    inbox::support::{count, dead_letters},
    relay::{
        large::{bucket, drained, enqueue_bytes, object_of, replace},
        support::stream_config,
    },
};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use crate::clients::shop::Programs;

            #[tokio::test]
            async fn a_handler_gets_32_mib_whole() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::get_it_whole(programs).await;
                }
            }

            #[tokio::test]
            async fn a_replaced_or_lost_object_is_a_dead_letter_and_no_other_letter_holds_a_payload() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::give_up(programs).await;
                }
            }

            #[tokio::test]
            async fn a_store_out_of_reach_costs_no_attempt() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::wait_for_the_store(programs).await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

async fn environment() -> (TestEnv, Client) {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    client.batch_execute("CREATE TABLE arrived (key text NOT NULL, digest text NOT NULL)").await.unwrap();
    (env, client)
}

async fn consumer(env: &TestEnv, programs: &Programs, nats_url: &str) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats_url.to_owned()),
        ("STREAM", env.name().to_owned()),
    ];
    Program::start_file(&programs.file("large"), &[], &environment).await.unwrap()
}

async fn get_it_whole(programs: Programs) {
    let (env, client) = environment().await;
    enqueue_bytes(&env, &client, "large", 32 << 20).await;
    enqueue_bytes(&env, &client, "small", 100).await;
    drained(&env).await;
    let mut consumer = consumer(&env, &programs, env.nats_url()).await;
    eventually("both are handled", LIMIT, async || (count(&env, "arrived").await == 2).then_some(())).await;
    consumer.stop().await.unwrap();
    let arrived = lines(&client, "SELECT key || digest FROM arrived ORDER BY key").await;
    let sent = "SELECT key || encode(sha256(payload), 'hex') FROM oncebox.message ORDER BY key";
    assert_eq!(arrived, lines(&client, sent).await);
}

async fn give_up(programs: Programs) {
    let (env, client) = environment().await;
    for key in ["fails", "good", "lost", "replaced"] {
        enqueue_bytes(&env, &client, key, 300_000).await;
    }
    drained(&env).await;
    replace(&env, &object_of(&env, "replaced").await).await;
    let chunks = format!("$O.{}.C.{}.>", env.name(), object_of(&env, "lost").await);
    bucket(&env).await.purge().filter(chunks).keep(1).await.unwrap();
    let mut consumer = consumer(&env, &programs, env.nats_url()).await;
    eventually("all are handled or given up", LIMIT, async || {
        let done = count(&env, "arrived").await + count(&env, "oncebox.dead_letter").await;
        (done == 4).then_some(())
    })
    .await;
    consumer.stop().await.unwrap();
    assert_eq!(lines(&client, "SELECT key FROM arrived").await, ["good"]);
    let mut reasons = dead_letters(&env).await;
    reasons.sort_by_key(|reason| (reason.contains("is not the one"), reason.contains("is not there")));
    let expected = ["the handler fails", "is not there", "is not the one that the message names"];
    for (reason, expected) in reasons.iter().zip(expected) {
        assert!(reason.contains(expected), "{reasons:?}");
    }
    let kept = "SELECT key FROM oncebox.dead_letter WHERE payload <> '' OR NOT headers ? 'Oncebox-Object'";
    assert_eq!(lines(&client, kept).await, [""; 0], "each has the reference, and none the payload");
}

/// A user who may not ask for the object, like the one without a name, gets no answer.
const DENIED: &str = r#"no_auth_user: consumer
authorization { users [
  { user: all, password: p }
  { user: consumer, password: p
    permissions { publish { deny: ["$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>"] } } }
] }"#;

/// A server whose anonymous user may not read the bucket of the one message of this stream.
pub(crate) async fn unreadable(env: &TestEnv) -> (Nats, Stream) {
    let nats = Nats::start_with(DENIED).await.unwrap();
    let all = ConnectOptions::with_user_and_password("all".to_owned(), "p".to_owned());
    let jetstream = jetstream::new(all.connect(nats.url()).await.unwrap());
    jetstream.create_stream(stream_config("OBJ_B", "$O.B.>")).await.unwrap();
    let stream = jetstream.create_stream(stream_config(env.name(), "large")).await.unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Idempotency-Key", "k"),
        ("Oncebox-Object", "B/x"),
        ("Oncebox-Object-Bytes", "3"),
        ("Oncebox-Object-Digest", "SHA-256=x"),
    ] {
        headers.insert(name, value);
    }
    jetstream.publish_with_headers("large", headers, "".into()).await.unwrap().await.unwrap();
    (nats, stream)
}

async fn wait_for_the_store(programs: Programs) {
    let (env, _) = environment().await;
    let (nats, stream) = unreadable(&env).await;
    let mut consumer = consumer(&env, &programs, &nats.url()).await;
    eventually("it is delivered for the third time", LIMIT, async || {
        let info = stream.consumer_info("large").await.ok()?;
        (info.delivered.consumer_sequence == 3).then_some(())
    })
    .await;
    let attempts = count(&env, "oncebox.inbox_attempt").await;
    assert_eq!((attempts, dead_letters(&env).await), (0, Vec::new()));
    consumer.stop().await.unwrap();
}
