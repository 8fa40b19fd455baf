//! An account with limits of its own: a message that is too large for it ends no delivery of
//! others.

use async_nats::{
    ConnectOptions,
    jetstream::{
        self,
        stream::{Config, Stream},
    },
};
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, diagnosed, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, environment, run},
    support::{LIMIT, Running, await_messages, count, enqueue, stream_config, values, with},
};

/// The server tells this limit in a second INFO, which async-nats ignores.
const SMALL: &str = "accounts { A {
    jetstream: enabled, users: [{ user: relay, password: r }], limits { max_payload: 20000 }
} }";
const NORMAL: &str = "accounts { A { jetstream: enabled, users: [{ user: relay, password: r }] } }";

const DEMANDING: &str = "accounts { A {
    jetstream: { max_file: 1GB, max_mem: 1GB, max_bytes_required: true }, users: [{ user: relay, password: r }]
} }";

struct Account {
    env: TestEnv,
    nats: Nats,
    client: Client,
    values: Values,
    stream: Stream,
}

async fn account() -> Account {
    account_with(SMALL).await
}

async fn account_with(config: &str) -> Account {
    let env = TestEnv::new().await;
    let nats = Nats::start_with(config).await.unwrap();
    let login = [("nats-user", "relay"), ("nats-password", "r"), ("http-listen", "127.0.0.1:0")];
    let values = with(&values(env.database_url(), &nats.url()), login);
    let options = ConnectOptions::new().user_and_password("relay".into(), "r".into());
    let context = jetstream::new(options.connect(nats.url()).await.unwrap());
    let config = Config { max_bytes: 100_000_000, ..stream_config("S", &env.subject(">")) };
    let stream = context.create_stream(config).await.unwrap();
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

#[tokio::test]
async fn a_cut_because_of_a_message_s_size_is_no_absence_of_nats() {
    let account = account().await;
    let sql = "SELECT oncebox.enqueue('large', $1, convert_to(repeat('x', 20100), 'UTF8'))";
    account.client.query_one(sql, &[&account.env.subject("large")]).await.unwrap();
    let relay = Process::relay(&account.values);
    eventually("the large one is dead", LIMIT, async || reason(&account.client).await).await;
    let log = relay.log();
    let mut lines = log.lines();
    // The server's word may be lost with the connection: the relay cannot know the cause of that
    // cut then.
    assert!(
        !lines.any(|line| line.contains("NATS is away") && line.contains("a message is larger")),
        "{log}"
    );
    assert!(log.contains("max_payload"), "{log}");
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
    // The limit is raised: a retry finds out, since the relay asks again every few seconds.
    account.nats.reconfigure(NORMAL).unwrap();
    account.nats.restart().await.unwrap();
    eventually("the large one is sent", LIMIT, async || {
        run(account.env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
        (count(&account.stream).await == small + 1).then_some(())
    })
    .await;
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

/// NATS is there, and says that JetStream is not: an outage, which spends no attempts.
#[tokio::test(flavor = "multi_thread")]
async fn while_jetstream_is_switched_off_for_the_account_messages_wait() {
    let mut account = account().await;
    let (subject, client) = (account.env.subject("placed"), &account.client);
    enqueue(client, &subject, "a", 0..50, 7).await;
    let relay = Running::start(&with(&account.values, [("attempts-max", "1")]));
    await_messages(&account.stream, 50).await;
    account.nats.reconfigure("accounts { A { users: [{ user: relay, password: r }] } }").unwrap();
    account.nats.restart().await.unwrap();
    enqueue(client, &subject, "b", 0..50, 7).await;
    let refused = "SELECT FROM oncebox.parked WHERE error LIKE '%10039%' OR error LIKE '%10076%' LIMIT 1";
    eventually("some are refused", LIMIT, async || client.query_opt(refused, &[]).await.unwrap()).await;
    let attempts = "SELECT count(*) FILTER (WHERE attempts > 0 OR dead_at IS NOT NULL) FROM oncebox.parked";
    let attempts = async || client.query_one(attempts, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(attempts().await, 0);
    account.nats.reconfigure(NORMAL).unwrap();
    account.nats.restart().await.unwrap();
    await_messages(&account.stream, 100).await;
    assert_eq!(attempts().await, 0);
    relay.stop().await;
}

/// The relay makes the bucket without limits, which such an account refuses.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_demands_limits_delays_large_payloads_alone() {
    let account = account_with(DEMANDING).await;
    let values = with(&account.values, [("object-store", "large"), ("large-payload-bytes", "10000")]);
    let subject = account.env.subject("placed");
    enqueue(&account.client, &subject, "a", 0..50, 7).await;
    account.enqueue_large("large").await;
    let relay = Running::start(&values);
    await_messages(&account.stream, 50).await;
    let parked = "SELECT error FROM oncebox.parked WHERE dead_at IS NULL";
    let parked = async || account.client.query_opt(parked, &[]).await.unwrap();
    let row = eventually("the large one is set aside", LIMIT, parked).await;
    assert!(row.get::<_, String>(0).contains("there is no such bucket"), "{row:?}");
    relay.stop().await;
}
