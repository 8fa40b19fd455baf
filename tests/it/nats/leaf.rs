//! Streams that the JetStream which the relay asks does not know: at a leaf node they are in the
//! hub's domain, or another account has them.

use async_nats::{ConnectOptions, jetstream};
use oncebox_tests::{Leaf, Log, Nats, TestEnv, eventually};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, connect, count, drain, enqueue, stored, stream_config,
        values,
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

/// The relay's connection to the leaf node stays, so that only the stream's absence tells.
#[tokio::test]
async fn a_hub_that_comes_back_with_less_gets_its_losses_before_newer_messages() {
    let mut leaf = Streams::start().await;
    let client = leaf.env.pg().await;
    let values = values(leaf.env.database_url(), &leaf.servers.url());
    for relays in 1..=2 {
        let mut relay = Process::relay(&values);
        let before = count(&leaf.at_hub).await;
        let number = i32::try_from(before).unwrap();
        let batch = async |from| enqueue(&client, "orders.a", "m-", from..from + 10, 1).await;
        batch(number).await;
        await_messages(&leaf.at_hub, before + 10).await;
        leaf.servers.nodes_mut()[0].back_up().await.unwrap();
        batch(number + 10).await;
        await_messages(&leaf.at_hub, before + 20).await;
        leaf.servers.nodes_mut()[0].roll_back().await.unwrap();
        batch(number + 20).await;
        let waiting = "SELECT count(*) FROM oncebox.parked WHERE error LIKE '%cannot be reached%'";
        eventually("they wait", LIMIT, async || {
            (client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
        })
        .await;
        if relays == 2 {
            // A relay that knows the stream's subjects only from the database.
            relay.signal("KILL").await;
            relay = Process::relay(&values);
            relay.await_log("relay is running").await;
            batch(number + 30).await;
        }
        leaf.servers.nodes_mut()[0].resume().await.unwrap();
        await_messages(&leaf.at_hub, before + 20 + 10 * relays).await;
        relay.signal("TERM").await;
        assert_eq!(relay.ended().await.0.code(), Some(0));
    }
    let all: Vec<String> = (0..70).map(|n| format!("m-{n}")).collect();
    assert_delivered(&stored(&leaf.at_hub).await, &all);
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
