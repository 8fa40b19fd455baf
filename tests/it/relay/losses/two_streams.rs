//! Two streams, and one of them loses its last messages.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use oncebox_tests::TestEnv;

use super::{Broker, status};
use crate::relay::support::{
    assert_delivered, connect, count, drain, enqueue, fresh_stream, stored, stream_config,
};

#[tokio::test(flavor = "multi_thread")]
async fn of_two_streams_only_the_one_that_lost_something_gets_it_again() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    for (name, subject) in [("ORDERS", "orders.>"), ("MAIL", "mail.>")] {
        // Outside of the window, a message that is sent a second time is stored a second time.
        let window = Duration::from_millis(100);
        let config = Config { duplicate_window: window, ..stream_config(name, subject) };
        fresh_stream(&broker.nats.url(), config).await;
    }
    let client = env.pg().await;
    let (mut orders, mut mail) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let mut worker = connect(&broker.values).await.worker();
        // The same ordering keys, and so the same lanes, by turns.
        let numbers = |from| round * 60 + from..round * 60 + from + 30;
        orders.extend(enqueue(&client, "orders.placed", "a", numbers(0), 7).await);
        mail.extend(enqueue(&client, "mail.sent", "a", numbers(30), 7).await);
        drain(&mut worker).await;
        if round == 0 {
            broker.nats.back_up().await.unwrap();
        }
    }
    broker.nats.roll_back_stream("ORDERS").await.unwrap();
    broker.nats.resume().await.unwrap();
    assert_eq!(count(&broker.stream("ORDERS").await).await, 30);

    let relay = connect(&broker.values).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    drain(&mut relay.worker()).await;
    let found = status(&broker.values).await.losses;
    assert!(found.iter().all(|loss| loss.stream == "ORDERS" && loss.kind == "tail"), "{found:?}");
    assert_delivered(&stored(&broker.stream("ORDERS").await).await, &orders);
    let all = stored(&broker.stream("MAIL").await).await;
    assert_eq!(assert_delivered(&all, &mail), 0, "the other stream's messages are not sent again");
}
