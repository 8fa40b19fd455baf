//! Streams that the JetStream which the relay asks does not know: at a leaf node they are in the
//! hub's domain, or another account has them.

use async_nats::{ConnectOptions, jetstream};
use oncebox_tests::{Log, Nats, Proxy, TestEnv, eventually};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, connect, drain, enqueue, stored, stream_config, values,
    },
};

/// A hub and a leaf node, each with a domain and a stream ORDERS, and a proxy between them.
struct Leaf {
    env: TestEnv,
    _hub: Nats,
    leaf: Nats,
    way: Proxy,
    at_hub: jetstream::stream::Stream,
    at_leaf: jetstream::stream::Stream,
}

impl Leaf {
    async fn start() -> Self {
        let env = TestEnv::new().await;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = format!("leafnodes {{ host: 127.0.0.1, port: {port} }}");
        let hub = Nats::start_with_jetstream("domain: hub", &listen).await.unwrap();
        let way = Proxy::start(([127, 0, 0, 1], port).into()).await;
        let remote = format!(
            "leafnodes {{ reconnect: 1, remotes: [{{ url: \"nats-leaf://127.0.0.1:{}\" }}] }}",
            way.port()
        );
        let leaf = Nats::start_with_jetstream("domain: leaf", &remote).await.unwrap();
        let stream = async |nats: &Nats, subject: &str| {
            let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
            context.create_stream(stream_config("ORDERS", subject)).await.unwrap()
        };
        let at_hub = stream(&hub, "orders.>").await;
        let at_leaf = stream(&leaf, "local.>").await;
        let this = Self { env, _hub: hub, leaf, way, at_hub, at_leaf };
        this.await_way(true).await;
        this
    }

    /// Waits until the leaf node reaches the hub, or does not.
    async fn await_way(&self, is_there: bool) {
        let client = async_nats::connect(self.leaf.url()).await.unwrap();
        eventually("the way to the hub", LIMIT, async || {
            let asked = client.request("$JS.hub.API.INFO", "".into()).await;
            (asked.is_ok() == is_there).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_of_the_hub_is_not_taken_for_the_leafs_of_the_same_name() {
    let leaf = Leaf::start().await;
    let client = leaf.env.pg().await;
    let relay = connect(&values(leaf.env.database_url(), &leaf.leaf.url())).await;
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
    let deleted = jetstream::with_domain(async_nats::connect(leaf.leaf.url()).await.unwrap(), "hub");
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
    let leaf = Leaf::start().await;
    let client = leaf.env.pg().await;
    let relay = Process::relay(&values(leaf.env.database_url(), &leaf.leaf.url()));
    let mut keys = enqueue(&client, "orders.a", "before-", 0..10, 0).await;
    await_messages(&leaf.at_hub, keys.len()).await;
    leaf.way.refuse(true);
    leaf.way.cut();
    leaf.await_way(false).await;
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
    leaf.way.refuse(false);
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
