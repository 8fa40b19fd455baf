//! Copies of messages that a consumer has handled: looked up together, and acknowledged without a
//! claim. A message that only resembles a copy is claimed.

use async_nats::jetstream;
use oncebox_tests::{Program, TestEnv, eventually};
use tokio_postgres::Client;

use super::{
    ordering::{TABLES, publish, publish_one, start},
    shop::{LIMIT, Programs, lines},
};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            #[tokio::test]
            async fn a_stream_that_is_read_again_has_no_second_effect() {
                super::read_again(stringify!($client), "1").await;
            }

            #[tokio::test]
            async fn batches_read_a_stream_again() {
                super::read_again(stringify!($client), "16").await;
            }
        }
    )*};
}
clients!(python, typescript, go);

/// Those that a process pulls before the first one has ended as a copy are claimed.
const CLAIMED_MAX: i64 = 500;

async fn until(postgres: &Client, env: &TestEnv, effects: i64, dead: &[&str]) {
    let client = jetstream::new(async_nats::connect(env.nats_url()).await.unwrap());
    eventually(&format!("{effects} effects, dead: {dead:?}"), LIMIT, async || {
        let stream = client.get_stream(env.name()).await.ok()?;
        let info = stream.consumer_info("ordering").await.ok()?;
        let found: i64 = postgres.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get(0);
        let letters = lines(postgres, "SELECT key FROM oncebox.dead_letter ORDER BY id").await;
        (found == effects && info.num_ack_pending == 0 && info.num_pending == 0 && letters == dead)
            .then_some(())
    })
    .await;
}

/// The consumer is deleted, so the stream delivers all of it again, with a delivery count of 1.
async fn read_again(client: &str, batch: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    postgres.batch_execute("INSERT INTO tried VALUES ('b', -5)").await.unwrap();
    publish(&env, 0, 200).await;
    let mut program: Program = start(&env, &programs, "process", batch).await;
    until(&postgres, &env, 999, &["b-5"]).await;
    program.stop().await.unwrap();
    assert_eq!(program.log().matches("has finished").count(), 1, "{}", program.log());
    assert!(program.log().contains("handled 999"), "{}", program.log());

    let count = format!("ALTER DATABASE \"{}\" SET track_functions = 'all'", env.name());
    postgres.batch_execute(&count).await.unwrap();
    stream.delete_consumer("ordering").await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(env.nats_url()).await.unwrap());
    publish_one(&env, &jetstream, "a", 3, 1000).await; // the key was used with another payload
    publish(&env, 200, 204).await;
    program.restart().await.unwrap();
    until(&postgres, &env, 1019, &["b-5", "a-3"]).await;
    let copies = "SELECT key || n FROM effect GROUP BY key, n HAVING count(*) > 1";
    assert_eq!(lines(&postgres, copies).await, [""; 0], "no second effect");
    program.stop().await.unwrap();

    // A session reports its calls when it ends.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("all sessions have ended", LIMIT, async || {
        (postgres.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let calls = "SELECT coalesce(sum(calls) FILTER (WHERE funcname = 'claim'), 0)::bigint,
                        coalesce(sum(calls) FILTER (WHERE funcname = 'claim_batch'), 0)::bigint,
                        coalesce(sum(calls) FILTER (WHERE funcname = 'look_up_copies'), 0)::bigint
                 FROM pg_stat_user_functions";
    let row = postgres.query_one(calls, &[]).await.unwrap();
    let (claims, batches, looks): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert!(looks > 0 && claims < CLAIMED_MAX, "{claims} claims, {batches} of batches, {looks} looks");
}
