//! An account with limits of its own: a message that is too large for it ends no delivery of
//! others.

use async_nats::{ConnectOptions, jetstream, jetstream::stream::Stream};
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, diagnosed, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::{environment, run_ok},
    support::{LIMIT, Running, await_messages, count, enqueue, stream_config, values, with},
};

/// The server tells this limit in a second INFO, which async-nats ignores.
const SMALL: &str = "accounts { A {
    jetstream: enabled, users: [{ user: relay, password: r }], limits { max_payload: 20000 }
} }";
const NORMAL: &str = "accounts { A { jetstream: enabled, users: [{ user: relay, password: r }] } }";

struct Account {
    env: TestEnv,
    nats: Nats,
    client: Client,
    values: Values,
    stream: Stream,
}

async fn account() -> Account {
    let env = TestEnv::new().await;
    let nats = Nats::start_with(SMALL).await.unwrap();
    let login = [("nats-user", "relay"), ("nats-password", "r"), ("http-listen", "127.0.0.1:0")];
    let values = with(&values(env.database_url(), &nats.url()), login);
    let options = ConnectOptions::new().user_and_password("relay".into(), "r".into());
    let context = jetstream::new(options.connect(nats.url()).await.unwrap());
    let stream = context.create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let client = env.pg().await;
    Account { env, nats, client, values, stream }
}

impl Account {
    /// Large ones between small ones, which fill many passes.
    async fn enqueue(&self) -> usize {
        let subject = self.env.subject("placed");
        enqueue(&self.client, &subject, "a", 0..600, 7).await;
        self.enqueue_large("large").await;
        enqueue(&self.client, &subject, "b", 0..600, 7).await;
        1200
    }

    async fn enqueue_large(&self, key: &str) {
        let sql = "SELECT oncebox.enqueue($1, $2, convert_to(repeat('x', 100000), 'UTF8'))";
        self.client.query_one(sql, &[&key, &self.env.subject("large")]).await.unwrap();
    }
}

async fn reason(client: &Client) -> Option<String> {
    let sql = "SELECT error FROM oncebox.parked WHERE dead_at IS NOT NULL";
    client.query_opt(sql, &[]).await.unwrap().map(|row| row.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_above_the_accounts_limit_is_dead_and_the_others_flow() {
    let mut account = account().await;
    let small = account.enqueue().await;
    let relay = Running::start(&account.values);
    await_messages(&account.stream, small).await;
    let dead = async || reason(&account.client).await;
    let text = eventually("the large one is dead", LIMIT, dead).await;
    assert!(text.contains("where 20000 can be sent") && text.contains("of the account"), "{text}");
    let login: Vec<(&str, &str)> = environment(&account.values).collect();
    let (_, found) = diagnosed(&login, "max-payload").await.unwrap();
    assert!(found.len() == 1 && found[0].contains("max_payload is 20000"), "{found:?}");
    // The limit is raised: a retry finds out.
    account.nats.reconfigure(NORMAL).unwrap();
    run_ok(account.env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
    await_messages(&account.stream, small + 1).await;
    relay.stop().await;
}

/// With a bucket the message goes through, in chunks that the account takes.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_bucket_a_message_above_the_accounts_limit_goes_beside_its_payload() {
    let account = account().await;
    let values = with(&account.values, [("object-store", "large")]);
    let small = account.enqueue().await;
    let relay = Running::start(&values);
    await_messages(&account.stream, small + 1).await;
    account.enqueue_large("another").await;
    await_messages(&account.stream, small + 2).await;
    relay.stop().await;
    assert_eq!(reason(&account.client).await, None);
    assert_eq!(count(&account.stream).await, small + 2, "nothing is stored twice");
}
