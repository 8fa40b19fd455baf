//! The relay as a login role of its own: enough for all it does, and nothing of the business.

use oncebox_tests::TestEnv;
use tokio_postgres::error::SqlState;

use crate::relay::support::{Running, assert_delivered, await_messages, client, enqueue, stored, values};

#[tokio::test]
async fn a_producer_that_can_only_enqueue_and_a_relay_that_sees_no_business_table_work_together() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let admin = env.pg().await;
    let (producer_name, relay_name) = (format!("{}_p", env.name()), format!("{}_r", env.name()));
    admin
        .batch_execute(&format!(
            "CREATE TABLE public.orders (id text); REVOKE ALL ON public.orders FROM PUBLIC;
             CREATE ROLE {producer_name} LOGIN PASSWORD 'p' IN ROLE oncebox_producer;
             CREATE ROLE {relay_name} LOGIN PASSWORD 'r' IN ROLE oncebox_relay;
             GRANT INSERT ON public.orders TO {producer_name}"
        ))
        .await
        .unwrap();
    let authority = env.database_url().split_once("://").unwrap().1;
    let host = authority.split_once('@').map_or(authority, |(_, host)| host);
    let producer = client(&format!("postgres://{producer_name}:p@{host}")).await;
    let relay_url = format!("postgres://{relay_name}:r@{host}");

    let refused =
        |error: tokio_postgres::Error| assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    for sql in [
        "SELECT count(*) FROM oncebox.message",
        "DELETE FROM oncebox.parked",
        "UPDATE oncebox.lane SET lane = 1",
    ] {
        producer.batch_execute(sql).await.map_err(refused).expect_err(sql);
    }
    let as_relay = client(&relay_url).await;
    for sql in [
        "SELECT count(*) FROM public.orders",
        "INSERT INTO public.orders VALUES ('x')",
        "UPDATE oncebox.message_0 SET subject = 'x'",
    ] {
        as_relay.batch_execute(sql).await.map_err(refused).expect_err(sql);
    }

    // Waking, publishing, parking, releasing, settling: all of it as that role.
    let relay = Running::start(&values(&relay_url, env.nats_url()));
    producer.batch_execute("BEGIN; INSERT INTO public.orders VALUES ('1')").await.unwrap();
    let mut keys = enqueue(&**producer, &env.subject("a"), "m-", 0..300, 7).await;
    producer.batch_execute("COMMIT").await.unwrap();
    let elsewhere = format!("{}_elsewhere.a", env.name());
    enqueue(&**producer, &elsewhere, "parked-", 0..5, 1).await;
    await_messages(&stream, 300).await;
    oncebox_tests::eventually("parked", crate::relay::support::LIMIT, async || {
        let row = admin.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap();
        (row.get::<_, i64>(0) == 5).then_some(())
    })
    .await;
    let mut config = stream.get_info().await.unwrap().config;
    config.subjects.push(elsewhere);
    env.jetstream().await.update_stream(config).await.unwrap();
    keys.extend((0..5).map(|n| format!("parked-{n}")));
    await_messages(&stream, 305).await;
    assert_delivered(&stored(&stream).await, &keys);
    relay.stop().await;
    drop((producer, as_relay));
    let sql = format!("DROP OWNED BY {producer_name}, {relay_name}; DROP ROLE {producer_name}, {relay_name}");
    admin.batch_execute(&sql).await.unwrap();
}
