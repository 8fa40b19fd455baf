//! Handlers under leases beside the rest: large payloads, replays, pauses, turns of the log, strict
//! order, a graceful stop and a suspension while a call is under way.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_tests::{Program, TestEnv, eventually, is_settled};
use tokio::time::sleep;
use tokio_postgres::Client;

use super::shop::{LIMIT, Programs, lines};
use crate::{
    inbox::support::count,
    relay::{
        large::{drained, enqueue_bytes},
        process::run_ok,
        support::{connect, drain, turn_the_ring, values_of},
    },
};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use crate::clients::crossing::Scene;

            #[tokio::test]
            async fn a_large_payload_and_its_replay_are_one_call() {
                if let Some(scene) = Scene::of(stringify!($client)).await {
                    scene.replays_a_large_payload().await;
                }
            }

            #[tokio::test]
            async fn a_call_goes_on_while_its_subject_is_paused_and_the_log_turns() {
                if let Some(scene) = Scene::of(stringify!($client)).await {
                    scene.pauses_and_turns().await;
                }
            }

            #[tokio::test]
            async fn strict_order_waits_for_a_call() {
                if let Some(scene) = Scene::of(stringify!($client)).await {
                    scene.keeps_order().await;
                }
            }

            #[tokio::test]
            async fn a_stop_waits_for_the_call_that_is_under_way() {
                if let Some(scene) = Scene::of(stringify!($client)).await {
                    scene.stops().await;
                }
            }

            #[tokio::test]
            async fn a_process_that_is_suspended_in_a_call_ends_nothing_when_it_goes_on() {
                if let Some(scene) = Scene::of(stringify!($client)).await {
                    scene.suspends_a_process().await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

const TABLES: &str = "
CREATE TABLE gate (key text PRIMARY KEY);
CREATE TABLE called (id bigserial, key text NOT NULL);
CREATE TABLE arrived (id bigserial, key text NOT NULL, digest text NOT NULL)";

struct Scene {
    env: TestEnv,
    stream: Stream,
    client: Client,
    programs: Programs,
}

impl Scene {
    async fn of(client: &str) -> Option<Self> {
        let programs = Programs::of(client)?;
        let env = TestEnv::new().await;
        let (stream, client) = (env.stream().await, env.pg().await);
        client.batch_execute(TABLES).await.unwrap();
        Some(Self { env, stream, client, programs })
    }

    async fn start(&self, order: &str) -> Program {
        let environment = [
            ("DATABASE_URL", self.env.database_url().to_owned()),
            ("NATS_URL", self.env.nats_url().to_owned()),
            ("STREAM", self.env.name().to_owned()),
            ("ORDER", order.to_owned()),
        ];
        Program::start_file(&self.programs.file("crossing"), &[], &environment).await.unwrap()
    }

    /// Lets the calls for these keys wait.
    async fn close(&self, keys: &[&str]) {
        let sql = "INSERT INTO gate (key) SELECT k || ':pay' FROM unnest($1::text[]) AS k";
        self.client.execute(sql, &[&keys]).await.unwrap();
    }

    async fn open(&self) {
        self.client.batch_execute("DELETE FROM gate").await.unwrap();
    }

    async fn enqueue(&self, key: &str, ordering_key: Option<&str>) {
        let sql = "SELECT oncebox.enqueue($1, $2, 'p', '{}', $3)";
        self.client.execute(sql, &[&key, &self.env.subject("large"), &ordering_key]).await.unwrap();
    }

    async fn relay(&self) {
        let mut worker = connect(&values_of(&self.env)).await.worker();
        eventually("all is sent", LIMIT, async || (drain(&mut worker).await > 0).then_some(())).await;
    }

    async fn calls(&self, number: i64) {
        eventually("the calls", LIMIT, async || (count(&self.env, "called").await == number).then_some(()))
            .await;
    }

    /// All messages have ended, each with one call and one effect, in this order.
    async fn ended(&self, expected: &[&str]) {
        eventually("all are settled", LIMIT, async || {
            let is_done = is_settled(&self.stream, "crossing").await;
            (is_done && count(&self.env, "arrived").await >= expected.len() as i64).then_some(())
        })
        .await;
        assert_eq!(lines(&self.client, "SELECT key FROM arrived ORDER BY id").await, expected);
        let called: Vec<String> = expected.iter().map(|key| format!("{key}:pay")).collect();
        assert_eq!(lines(&self.client, "SELECT key FROM called ORDER BY id").await, called, "each once");
        let left = "SELECT key FROM oncebox.inbox_claim UNION ALL SELECT key FROM oncebox.inbox_effect
                    UNION ALL SELECT key FROM oncebox.dead_letter";
        assert_eq!(lines(&self.client, left).await, [""; 0]);
    }

    async fn replays_a_large_payload(self) {
        enqueue_bytes(&self.env, &self.client, "large", 5 << 20).await;
        drained(&self.env).await;
        let mut program = self.start("process").await;
        self.ended(&["large"]).await;
        let digest = "SELECT digest FROM arrived
                      UNION SELECT encode(sha256(payload), 'hex') FROM oncebox.message";
        assert_eq!(lines(&self.client, digest).await.len(), 1, "it gets the whole payload");
        run_ok(self.env.database_url(), &["outbox", "replay", "--key", "large", "--request", "again"]).await;
        drained(&self.env).await;
        assert_eq!(self.env.messages().await.len(), 2, "it was sent again");
        self.ended(&["large"]).await;
        program.stop().await.unwrap();
    }

    async fn pauses_and_turns(self) {
        self.close(&["during"]).await;
        self.enqueue("during", None).await;
        self.relay().await;
        let mut program = self.start("process").await;
        self.calls(1).await;
        turn_the_ring(&self.client).await;
        let (url, subject) = (self.env.database_url(), self.env.subject("large"));
        run_ok(url, &["outbox", "pause", "--subject", &subject, "--note", "the provider is away"]).await;
        self.enqueue("held", None).await;
        drain(&mut connect(&values_of(&self.env)).await.worker()).await;
        self.open().await;
        self.ended(&["during"]).await;
        run_ok(url, &["outbox", "resume", "--subject", &subject]).await;
        self.relay().await;
        self.ended(&["during", "held"]).await;
        program.stop().await.unwrap();
    }

    async fn keeps_order(self) {
        let keys = ["a-0", "a-1", "a-2"];
        self.close(&["a-0"]).await;
        for key in keys {
            self.enqueue(key, Some("a")).await;
        }
        self.relay().await;
        let mut program = self.start("strict").await;
        self.calls(1).await;
        sleep(Duration::from_millis(500)).await;
        self.calls(1).await;
        self.open().await;
        self.ended(&keys).await;
        program.stop().await.unwrap();
    }

    async fn stops(self) {
        self.close(&["under-way"]).await;
        self.enqueue("under-way", None).await;
        self.relay().await;
        let mut program = self.start("process").await;
        self.calls(1).await;
        let stopping = program.stop_within(LIMIT);
        let opening = async {
            // The lease is renewed meanwhile, which would otherwise end first.
            sleep(Duration::from_secs(3)).await;
            assert_eq!(count(&self.env, "arrived").await, 0);
            self.open().await;
        };
        let (stopped, ()) = tokio::join!(stopping, opening);
        stopped.unwrap();
        self.ended(&["under-way"]).await;
    }

    async fn suspends_a_process(self) {
        self.close(&["late"]).await;
        self.enqueue("late", None).await;
        self.relay().await;
        let mut first = self.start("process").await;
        self.calls(1).await;
        first.suspend(true).unwrap();
        let mut second = self.start("process").await;
        self.calls(2).await;
        self.open().await;
        eventually("the second ends it", LIMIT, async || {
            (count(&self.env, "arrived").await == 1).then_some(())
        })
        .await;
        first.suspend(false).unwrap();
        eventually("it is settled", LIMIT, async || is_settled(&self.stream, "crossing").await.then_some(()))
            .await;
        first.stop().await.unwrap();
        assert_eq!(lines(&self.client, "SELECT key FROM arrived").await, ["late"], "the first ends nothing");
        let left = "SELECT key FROM oncebox.inbox_claim UNION ALL SELECT key FROM oncebox.inbox_effect";
        assert_eq!(lines(&self.client, left).await, [""; 0]);
        second.stop().await.unwrap();
    }
}
