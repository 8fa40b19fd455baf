//! NOTIFY as a hint: a sleeping relay wakes at once, a busy one costs producers nothing.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use oncebox_tests::{TestEnv, eventually};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::relay::support::{LIMIT, Running, await_messages, enqueue, values_of, with};

/// Another session that listens on the relay's channel.
struct Listener {
    heard: Arc<Mutex<usize>>,
    _client: Client,
    _listening: JoinSet<()>,
}

impl Listener {
    async fn start(env: &TestEnv) -> Self {
        let (client, mut connection) = tokio_postgres::connect(env.database_url(), NoTls).await.unwrap();
        let heard = Arc::new(Mutex::new(0));
        let (counted, mut listening) = (Arc::clone(&heard), JoinSet::new());
        listening.spawn(async move {
            let mut messages = stream::poll_fn(move |context| connection.poll_message(context)).boxed();
            while let Some(Ok(message)) = messages.next().await {
                // A relay tests its own ears with a payload; producers send none.
                if matches!(message, AsyncMessage::Notification(n) if n.payload().is_empty()) {
                    *counted.lock().await += 1;
                }
            }
        });
        client.batch_execute("LISTEN oncebox").await.unwrap();
        Self { heard, _client: client, _listening: listening }
    }

    async fn heard(&self) -> usize {
        *self.heard.lock().await
    }
}

async fn is_marked_asleep(client: &Client) -> bool {
    let row = client.query_one("SELECT last_value = 1 FROM oncebox.relay_asleep", &[]).await;
    row.unwrap().get(0)
}

/// Whether a relay listens for producers.
async fn is_listened_to(client: &Client) -> bool {
    let sql = "SELECT count(*) = 1 FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'oncebox relay' AND query LIKE 'LISTEN%'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_enqueue_wakes_a_relay_that_sleeps() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    // Jitter included, it would sleep for half a minute at least.
    let changes = [("poll-max-milliseconds", "60000"), ("poll-min-milliseconds", "60000")];
    let relay = Running::start(&with(&values_of(&env), changes));
    let client = env.pg().await;
    let listener = Listener::start(&env).await;
    eventually("it listens", LIMIT, async || is_listened_to(&client).await.then_some(())).await;
    // The first message may still be found by the pass that the relay begins with; between any two
    // that follow it would pause for half a minute.
    for round in 0..3 {
        // As it does itself, after some passes that found nothing.
        client.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
        let enqueued = Instant::now();
        enqueue(&client, &env.subject("a"), "m-", round..round + 1, 0).await;
        assert!(!is_marked_asleep(&client).await, "the first producer clears the mark");
        let delivered = await_messages(&stream, usize::try_from(round).unwrap() + 1);
        timeout(Duration::from_secs(20), delivered).await.expect("woken by the producer, not by a poll");
        println!("delivered {:?} after it was enqueued", enqueued.elapsed());
    }
    assert_eq!(listener.heard().await, 3);
    relay.stop().await;
}

/// It sends no NOTIFY, and the look that follows the mark does not find it.
#[tokio::test]
async fn an_enqueue_before_the_sleep_mark_that_commits_behind_it_does_not_wait_for_long() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    // Jitter included, the next pause after the mark and its look would be six seconds at least.
    let changes = [("poll-max-milliseconds", "60000"), ("poll-min-milliseconds", "200")];
    let relay = Running::start(&with(&values_of(&env), changes));
    let (client, producer) = (env.pg().await, env.pg().await);
    eventually("it listens", LIMIT, async || is_listened_to(&client).await.then_some(())).await;
    producer.batch_execute("BEGIN").await.unwrap();
    enqueue(&producer, &env.subject("a"), "m-", 0..1, 0).await;
    eventually("it marks itself asleep", LIMIT, async || is_marked_asleep(&client).await.then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    producer.batch_execute("COMMIT").await.unwrap();
    let delivered = timeout(Duration::from_secs(4), await_messages(&stream, 1));
    delivered.await.expect("found by a look, soon");
    relay.stop().await;
}

#[tokio::test]
async fn producers_notify_no_busy_relay_and_none_that_is_not_there() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let listener = Listener::start(&env).await;
    client.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
    for n in 0..100 {
        enqueue(&client, &env.subject("a"), "none-", n..n + 1, 0).await;
    }
    eventually("the first one notifies", Duration::from_secs(5), async || {
        (listener.heard().await == 1).then_some(())
    })
    .await;
    let relay = Running::start(&values_of(&env));
    await_messages(&stream, 100).await;
    let before = listener.heard().await;
    for n in 0..300 {
        enqueue(&client, &env.subject("a"), "busy-", n..n + 1, 0).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    await_messages(&stream, 400).await;
    // Some at most: a relay that found nothing for a third of a second is not busy.
    let notified = listener.heard().await - before;
    assert!(notified < 30, "{notified} of 300 transactions notified");
    eventually("it marks itself asleep", LIMIT, async || is_marked_asleep(&client).await.then_some(())).await;
    relay.stop().await;
}
