//! The consumers of the clients, and their durable consumer on the server.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::{pull, push},
};
use oncebox_tests::{Nats, Program, TestEnv, eventually};

use super::shop::{LIMIT, Programs, Shop, lines, publish_raw};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use crate::clients::shop::Programs;

            #[tokio::test]
            async fn a_consumer_or_stream_that_was_deleted_is_consumed_again() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::delete_the_consumer(programs).await;
                }
            }

            #[tokio::test]
            async fn a_durable_with_other_settings_is_brought_up_to_date() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::change_the_durable(programs).await;
                }
            }

            #[tokio::test]
            async fn a_user_who_may_not_acknowledge_is_named() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::deny_acknowledgements(programs).await;
                }
            }

            #[tokio::test]
            async fn a_durable_that_pushes_is_refused() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::push(programs).await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

async fn delete_the_consumer(programs: Programs) {
    let shop = Shop::new(programs).await;
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    let client = shop.env.pg().await;
    let charged = async |order: &str| {
        shop.publish(order, 1, Some(order)).await;
        let sql = format!("SELECT id FROM charge WHERE id = '{order}'");
        eventually("the order is charged", LIMIT, async || lines(&client, &sql).await.pop()).await;
    };
    charged("first").await;
    shop.stream.delete_consumer("payment").await.unwrap();
    charged("second").await;
    let config = shop.stream.cached_info().config.clone();
    shop.jetstream.delete_stream("ORDERS").await.unwrap();
    shop.jetstream.create_stream(config).await.unwrap();
    charged("third").await;
    payment.stop().await.unwrap();
    let counts = "SELECT id || ' ' || count(*) FROM charge GROUP BY id ORDER BY min(ctid)";
    assert_eq!(lines(&client, counts).await, ["first 1", "second 1", "third 1"]);
}

/// An earlier release has made the consumer, or an operator by hand: with a limit below the
/// inbox's, for other subjects, and without payloads.
async fn change_the_durable(programs: Programs) {
    let shop = Shop::new(programs).await;
    let config = pull::Config {
        durable_name: Some("payment".to_owned()),
        filter_subject: "payments.made".to_owned(),
        max_deliver: 2,
        headers_only: true,
        ..Default::default()
    };
    shop.stream.create_consumer(config).await.unwrap();
    let client = shop.env.pg().await;
    client.batch_execute("ALTER TABLE charge RENAME TO away").await.unwrap();
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    shop.publish("late", 1, Some("late")).await;
    let failed = "SELECT 'twice' FROM oncebox.inbox_attempt WHERE failures >= 2";
    eventually("two attempts fail", LIMIT, async || lines(&client, failed).await.pop()).await;
    client.batch_execute("ALTER TABLE away RENAME TO charge").await.unwrap();
    eventually("the order is charged", LIMIT, async || lines(&client, "SELECT id FROM charge").await.pop())
        .await;
    payment.stop().await.unwrap();
}

/// The client library says nothing of it, and the message is delivered again for ever.
async fn deny_acknowledgements(programs: Programs) {
    let mut shop = Shop::new(programs).await;
    // After a second without an acknowledgement it comes again.
    let config = pull::Config {
        durable_name: Some("payment".to_owned()),
        filter_subject: "orders.placed".to_owned(),
        ack_wait: Duration::from_secs(1),
        ..Default::default()
    };
    shop.stream.create_consumer(config).await.unwrap();
    let user = "{ user: c, password: c, permissions: { publish: { deny: [\"$JS.ACK.>\"] } } }";
    shop.nats.reconfigure(&format!("authorization {{ users: [{user}] }}\nno_auth_user: c")).unwrap();
    shop.nats.restart().await.unwrap();
    shop.publish("order", 1, Some("order")).await;
    let payment = shop.payment(shop.env.database_url(), "payment").await;
    eventually("the log names the right that is missing", LIMIT, async || {
        payment.log().contains("may this user publish to $JS.ACK.>?").then_some(())
    })
    .await;
    assert_eq!(lines(&shop.env.pg().await, "SELECT id FROM charge").await, ["order"], "charged once");
}

/// No client could pull from it, and to change it would take it from those that it pushes to.
async fn push(programs: Programs) {
    let shop = Shop::new(programs).await;
    let config = push::Config {
        durable_name: Some("payment".to_owned()),
        deliver_subject: "pushed".to_owned(),
        ..Default::default()
    };
    shop.stream.create_consumer(config).await.unwrap();
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    let said = eventually("the consumer ends", LIMIT, async || payment.check().err()).await;
    assert!(format!("{said:#}").contains("pushes; delete it"), "{said:#}");
}

/// Signals belong to the process: they end all its consumers, and reach those who listened before.
#[tokio::test]
async fn a_signal_ends_every_consumer_of_python_and_reaches_who_listened_before() {
    let Some(programs) = Programs::of("python") else { return };
    let env = TestEnv::new().await;
    env.stream().await;
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
    ];
    let mut both = Program::start_file(&programs.file("signals"), &[], &environment).await.unwrap();
    eventually("both consume", LIMIT, async || both.log().contains("both consume").then_some(())).await;
    both.stop().await.unwrap();
    assert!(both.log().contains("heard 15\nboth have ended"), "{}", both.log());
}

/// A server that was silent answers all pulls at once: a worker must not have asked for more than
/// it can hold.
#[tokio::test]
async fn after_a_silence_of_nats_a_worker_of_python_holds_one_message() {
    let Some(programs) = Programs::of("python") else { return };
    let (env, mut nats) = (TestEnv::new().await, Nats::start().await.unwrap());
    let tables = "CREATE TABLE effect (name text NOT NULL);
                  CREATE TABLE run (name text NOT NULL, deliveries bigint NOT NULL)";
    let client = env.pg().await;
    client.batch_execute(tables).await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = jetstream::stream::Config {
        name: "S".to_owned(),
        subjects: vec!["s".to_owned()],
        ..Default::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("STREAM", "S".to_owned()),
        ("SETTINGS", "plain".to_owned()),
    ];
    let mut consumer = Program::start_file(&programs.file("conform"), &[], &environment).await.unwrap();
    eventually("workers pull", LIMIT, async || {
        (stream.consumer_info("conform").await.ok()?.num_waiting > 0).then_some(())
    })
    .await;
    nats.suspend(true).await;
    let silent = "SELECT 'long' WHERE clock_timestamp() > $1::text::timestamptz + interval '8 seconds'";
    let since = lines(&client, "SELECT clock_timestamp()::text").await.remove(0);
    let silent = silent.replace("$1", &format!("'{since}'"));
    eventually("workers ask in vain", LIMIT, async || lines(&client, &silent).await.pop()).await;
    nats.suspend(false).await;
    for n in 0..40 {
        let headers = format!("Idempotency-Key: k{n}\r\nTenant: acme\r\n");
        let told =
            format!(r#"{{"name": "k{n}", "sql": ["SELECT pg_sleep(0.1)"], "do": "return", "reply": false}}"#);
        publish_raw(&nats.url(), "s", &headers, &told).await;
    }
    let mut most = 0;
    eventually("all are handled", LIMIT, async || {
        let info = stream.consumer_info("conform").await.ok()?;
        most = most.max(info.num_ack_pending);
        (info.delivered.stream_sequence == 40 && info.num_ack_pending == 0).then_some(())
    })
    .await;
    // A worker may have given a pull up just when the server answered it: that message comes again.
    assert!(most <= 6, "{most} messages were held by 3 workers");
    consumer.stop().await.unwrap();
}
