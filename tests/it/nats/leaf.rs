//! Streams that the JetStream which the relay asks does not know: at a leaf node they are in the
//! hub's domain, or another account has them.

use async_nats::{ConnectOptions, jetstream};
use oncebox_tests::{Leaf, Log, Nats, TestEnv, eventually};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, connect, drain, enqueue, stored, stream_config, values,
    },
};

/// A hub and a leaf node, each with a stream ORDERS.
struct Streams {
    env: TestEnv,
    servers: Leaf,
    at_hub: jetstream::stream::Stream,
    at_leaf: jetstream::stream::Stream,
}

impl Streams {
    async fn start() -> Self {
        let (env, servers) = (TestEnv::new().await, Leaf::start().await.unwrap());
        let of = |subject| stream_config("ORDERS", subject);
        let [at_hub, at_leaf] = servers.create_streams(of("orders.>"), of("local.>")).await.unwrap();
        Self { env, servers, at_hub, at_leaf }
    }
}

#[tokio::test]
async fn a_stream_of_the_hub_is_not_taken_for_the_leafs_of_the_same_name() {
    let leaf = Streams::start().await;
    let client = leaf.env.pg().await;
    let relay = connect(&values(leaf.env.database_url(), &leaf.servers.url())).await;
    let mut worker = relay.worker();
    let keys = enqueue(&client, "orders.a", "hub-", 0..40, 0).await;
    let local = enqueue(&client, "local.a", "leaf-", 0..20, 0).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&leaf.at_hub).await, &keys), 0);
    assert_eq!(assert_delivered(&stored(&leaf.at_leaf).await, &local), 0);
    let mut recovery = relay.recovery();
    assert_eq!(recovery.run_once().await.unwrap(), 0, "nothing is lost");
    // The hub's stream is asked: a loss there is found.
    leaf.at_hub.purge().await.unwrap();
    let deleted = jetstream::with_domain(async_nats::connect(leaf.servers.url()).await.unwrap(), "hub");
    deleted.delete_stream("ORDERS").await.unwrap();
    let anew = deleted.create_stream(stream_config("ORDERS", "orders.>")).await.unwrap();
    assert!(recovery.run_once().await.unwrap() > 0, "the stream was made anew");
    let more = enqueue(&client, "orders.a", "more-", 0..1, 0).await;
    drain(&mut worker).await;
    await_messages(&anew, 1).await;
    assert!(stored(&anew).await.iter().any(|message| message.key == more[0]));
}

#[tokio::test]
async fn a_hub_that_is_lost_costs_no_attempts() {
    let leaf = Streams::start().await;
    let client = leaf.env.pg().await;
    let relay = Process::relay(&values(leaf.env.database_url(), &leaf.servers.url()));
    let mut keys = enqueue(&client, "orders.a", "before-", 0..10, 0).await;
    await_messages(&leaf.at_hub, keys.len()).await;
    leaf.servers.open_way(false).await.unwrap();
    keys.extend(enqueue(&client, "orders.a", "during-", 0..10, 0).await);
    let local = enqueue(&client, "local.a", "leaf-", 0..10, 0).await;
    await_messages(&leaf.at_leaf, local.len()).await;
    eventually("they wait", LIMIT, async || {
        let sql = "SELECT coalesce(max(attempts), 0), coalesce(max(error), '') FROM oncebox.parked";
        let row = client.query_one(sql, &[]).await.unwrap();
        let (attempts, error): (i32, String) = (row.get(0), row.get(1));
        assert_eq!(attempts, 0, "{error}");
        error.contains("cannot be reached").then_some(())
    })
    .await;
    leaf.servers.open_way(true).await.unwrap();
    await_messages(&leaf.at_hub, keys.len()).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(assert_delivered(&stored(&leaf.at_hub).await, &keys), 0);
}

#[tokio::test]
async fn a_stream_of_another_account_is_said_to_be_unseen_and_loses_nothing_by_mistake() {
    let accounts = "accounts {
        ORDERS { jetstream: enabled, users: [{ user: o, password: o }], exports: [{ service: \"orders.>\" }] }
        RELAY { jetstream: enabled, users: [{ user: r, password: r }],
                imports: [{ service: { account: ORDERS, subject: \"orders.>\" } }] }
    }";
    let env = TestEnv::new().await;
    let nats = Nats::start_with(accounts).await.unwrap();
    let stream = async |user: &str, subject: &str| {
        let options = ConnectOptions::with_user_and_password(user.to_owned(), user.to_owned());
        let context = jetstream::new(options.connect(nats.url()).await.unwrap());
        context.create_stream(stream_config("ORDERS", subject)).await.unwrap()
    };
    let theirs = stream("o", "orders.>").await;
    stream("r", "own.>").await;
    let (log, _guard) = Log::of_this_thread();
    let url = nats.url().replace("nats://", "nats://r:r@");
    let relay = connect(&values(env.database_url(), &url)).await;
    let mut worker = relay.worker();
    let client = env.pg().await;
    let mut keys = enqueue(&client, "orders.a", "m-", 0..20, 0).await;
    drain(&mut worker).await;
    keys.extend(enqueue(&client, "orders.a", "n-", 0..20, 0).await);
    drain(&mut worker).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "nothing is lost");
    assert_eq!(assert_delivered(&stored(&theirs).await, &keys), 0);
    assert_eq!(log.count("no JetStream that this relay may ask knows it"), 1);
}
