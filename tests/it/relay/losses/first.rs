//! The first messages of a lane in a stream, and the first ones after its receipts are gone: there
//! is a receipt to go back to, whether they were settled or not.

use async_nats::jetstream::{self, stream::Config};
use oncebox_relay::Values;
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use super::{Broker, lose, number, publish_foreign, status};
use crate::relay::support::{
    LIMIT, assert_delivered, connect, drain, enqueue, fresh_stream, stored, stream_config, values, with,
};

/// One of the outboxes of a test, each with a stream or two of its own on the same server.
struct Outbox {
    env: TestEnv,
    client: Client,
    values: Values,
}

impl Outbox {
    async fn new(broker: &Broker) -> Self {
        let env = TestEnv::new().await;
        Self { client: env.pg().await, values: values(env.database_url(), &broker.nats.url()), env }
    }

    async fn drain(&self) {
        drain(&mut connect(&self.values).await.worker()).await;
    }

    async fn forget_receipts(&self) {
        self.client.batch_execute("DELETE FROM oncebox.receipt").await.unwrap();
    }

    /// A relay publishes the due messages and dies before it settles anything.
    async fn die_before_settling(&self) {
        let mut worker = connect(&with(&self.values, [("batch-lanes", "16")])).await.worker();
        let claimed = worker.claim().await.unwrap().expect("something is due");
        worker.publish(claimed).await;
        drop(worker);
        let locked = "SELECT count(*) FROM oncebox.lane
                      WHERE lane NOT IN (SELECT lane FROM oncebox.lane FOR UPDATE SKIP LOCKED)";
        let free = async || (number(&self.client, locked).await == 0).then_some(());
        eventually("PostgreSQL notices that the relay is gone", LIMIT, free).await;
    }

    /// The messages of a stream that were lost are sent again, each once.
    async fn recovers(&self, broker: &Broker, name: &str, expected: &[String]) {
        let relay = connect(&self.values).await;
        assert!(relay.recovery().run_once().await.unwrap() > 0, "{name}: the loss is found");
        let found = status(&self.values).await.losses;
        assert!(found.iter().all(|loss| loss.kind == "tail" && !loss.is_reported()), "{name}: {found:?}");
        drain(&mut relay.worker()).await;
        let all = stored(&broker.stream(name).await).await;
        assert_eq!(assert_delivered(&all, expected), 0, "{name}: copies");
    }
}

fn config(name: &str, subjects: &[&str]) -> Config {
    Config { subjects: subjects.iter().map(ToString::to_string).collect(), ..stream_config(name, "") }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_messages_of_a_lane_are_sent_again_whatever_became_of_them_before() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let url = broker.nats.url();
    for name in ["COPIES", "LATE", "BARE"] {
        fresh_stream(&url, config(name, &[&format!("{name}.x")])).await;
    }
    let [copies, late, bare] =
        [Outbox::new(&broker).await, Outbox::new(&broker).await, Outbox::new(&broker).await];
    let mut of_bare = enqueue(&bare.client, "BARE.x", "a", 0..20, 1).await;
    bare.drain().await;
    // No stream has this subject yet, so the cursor goes on without any acknowledgement.
    let of_late = enqueue(&late.client, "LATE.y", "a", 0..2, 1).await;
    late.drain().await;
    broker.nats.back_up().await.unwrap();

    let of_copies = enqueue(&copies.client, "COPIES.x", "a", 0..20, 7).await;
    copies.die_before_settling().await;
    copies.drain().await;
    // As after a restore of the database.
    bare.forget_receipts().await;
    of_bare.extend(enqueue(&bare.client, "BARE.x", "a", 20..25, 1).await);
    bare.drain().await;
    publish_foreign(&broker, "LATE.x", 3).await;
    let widen = async || {
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        context.update_stream(config("LATE", &["LATE.x", "LATE.y"])).await.unwrap();
    };
    widen().await;
    let hurry = "UPDATE oncebox.parked SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL";
    late.client.batch_execute(hurry).await.unwrap();
    late.drain().await;

    broker.nats.roll_back().await.unwrap();
    broker.nats.resume().await.unwrap();
    widen().await;
    copies.recovers(&broker, "COPIES", &of_copies).await;
    late.recovers(&broker, "LATE", &of_late).await;
    bare.recovers(&broker, "BARE", &of_bare).await;
    drop((copies.env, late.env, bare.env));
}

/// The relay could not look for the stream when it acknowledged first, as when the server dies
/// right after the acknowledgement.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_of_a_stream_that_nobody_knew_hides_no_loss() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let expected = lose(&env, &mut broker, 100, 150).await;
    let client = env.pg().await;
    let unseen = "UPDATE oncebox.cursor
                  SET acknowledged = acknowledged || jsonb_build_object('-.ORDERS', acknowledged -> 'ORDERS')
                  WHERE acknowledged ? 'ORDERS'";
    assert!(client.execute(unseen, &[]).await.unwrap() > 0);
    broker.nats.resume().await.unwrap();
    let relay = connect(&broker.values).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0, "the loss is found");
    drain(&mut relay.worker()).await;
    assert_eq!(assert_delivered(&stored(&broker.stream("ORDERS").await).await, &expected), 0, "copies");
}
