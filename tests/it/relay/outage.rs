//! Servers that go away, mid-batch or for a while: the relay waits without a transaction open, and
//! recovers by itself.

use std::time::Duration;

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, Postgres, Proxy, Stop, TestEnv, eventually};
use tokio::time::{Instant, sleep};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, client, connect, drain, enqueue, fresh_stream, stored,
        stream_config, values, values_of, with,
    },
};

/// Transactions that relays have open in this database. Left open, that is: a transaction of the
/// maintenance is over at once.
async fn open_transactions(env: &TestEnv) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'oncebox relay' AND xact_start IS NOT NULL
                 AND state <> 'active' AND clock_timestamp() - xact_start > interval '100 milliseconds'";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn while_nats_is_away_no_transaction_is_open_and_no_attempt_is_spent() {
    let env = TestEnv::new().await;
    let mut nats = Nats::start().await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("AWAY", &env.subject(">"))).await;
    let proxy = Proxy::start(([127, 0, 0, 1], nats.port()).into()).await;
    let through_proxy = format!("nats://127.0.0.1:{}", proxy.port());
    let values = with(
        &values(env.database_url(), &through_proxy),
        [("http-listen", "127.0.0.1:0"), ("ack-timeout-seconds", "1"), ("batch-messages", "50")],
    );
    let relay = Process::relay(&values);
    let client = env.pg().await;
    let subject = env.subject("a");
    let mut expected = enqueue(&client, &subject, "before-", 0..500, 5).await;
    await_messages(&stream, expected.len()).await;
    assert_eq!(relay.get("/readyz").await.0, 200);

    nats.stop().await;
    expected.extend(enqueue(&client, &subject, "stopped-", 0..500, 5).await);
    await_away(&env, &relay).await;
    nats.resume().await.unwrap();
    await_messages(&stream, expected.len()).await;
    assert_eq!(relay.get("/readyz").await.0, 200);

    // Killed under load, three times.
    for round in 0..3 {
        expected.extend(enqueue(&client, &subject, &format!("killed-{round}-"), 0..3_000, 7).await);
        await_messages(&stream, expected.len() - 2_500).await;
        nats.kill().await;
        nats.resume().await.unwrap();
    }
    await_messages(&stream, expected.len()).await;

    // Connections that stay open and answer nothing.
    proxy.stall(true);
    expected.extend(enqueue(&client, &subject, "stalled-", 0..500, 5).await);
    await_away(&env, &relay).await;
    proxy.stall(false);
    await_messages(&stream, expected.len()).await;
    let parked: i64 = client.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap().get(0);
    assert_eq!(parked, 0, "an outage sets nothing aside");
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 0, "all settled");
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Once the relay has noticed, no sample over more than a second finds a transaction left open.
async fn await_away(env: &TestEnv, relay: &Process) {
    eventually("not ready", LIMIT, async || {
        let (status, reason) = relay.get("/readyz").await;
        (status == 503 && reason.contains("NATS is away")).then_some(())
    })
    .await;
    assert_eq!(relay.get("/livez").await.0, 200);
    eventually("the last pass has ended", LIMIT, async || (open_transactions(env).await == 0).then_some(()))
        .await;
    let until = Instant::now() + Duration::from_millis(1_200);
    while Instant::now() < until {
        assert_eq!(open_transactions(env).await, 0, "{}", relay.log());
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(relay.get("/readyz").await.0, 503);
}

#[tokio::test]
async fn postgres_restarts_under_load_and_the_relay_recovers_by_itself() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let mut server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    migrate(&mut *client(&url).await, &SchemaName::default(), Lanes::default()).await.unwrap();
    let values =
        with(&values(&url, env.nats_url()), [("http-listen", "127.0.0.1:0"), ("batch-messages", "50")]);
    let relay = Process::relay(&values);
    let mut expected = Vec::new();
    for (round, how) in [Stop::Fast, Stop::Immediate, Stop::Kill, Stop::Immediate].into_iter().enumerate() {
        let producer = client(&url).await;
        expected.extend(enqueue(&**producer, &env.subject("a"), &format!("{round}-"), 0..3_000, 7).await);
        await_messages(&stream, expected.len() - 2_500).await;
        server.stop(how).await;
        eventually("not ready", LIMIT, async || {
            let (status, reason) = relay.get("/readyz").await;
            (status == 503 && reason.contains("PostgreSQL is away")).then_some(())
        })
        .await;
        assert_eq!(relay.get("/livez").await.0, 200);
        server.resume().await.unwrap();
    }
    await_messages(&stream, expected.len()).await;
    eventually("ready", LIMIT, async || (relay.get("/readyz").await.0 == 200).then_some(())).await;
    // A crash takes settlements back, and messages that the stream has already are then sent again.
    // The metric of the backlog may be older than the crash.
    let unsettled = "SELECT count(*) FROM oncebox.message AS m JOIN oncebox.lane_cursor AS c USING (lane)
                     WHERE m.id > c.high";
    let watching = client(&url).await;
    eventually("all settled", LIMIT, async || {
        let row = watching.query_one(unsettled, &[]).await.unwrap();
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 0, "all settled");
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// The refusal of a full disk, as PostgreSQL words it: claims are answered meanwhile.
#[tokio::test]
async fn a_postgresql_whose_disk_is_full_is_not_ready_until_it_takes_writes() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    relay.await_log("relay is running").await;
    let fill = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON oncebox.cursor FOR EACH ROW EXECUTE FUNCTION refuse()";
    client.batch_execute(fill).await.unwrap();
    let expected = enqueue(&client, &env.subject("a"), "full-", 0..10, 0).await;
    let what = "PostgreSQL takes no writes: could not extend file: No space left on device";
    eventually("it is not ready", LIMIT, async || {
        let (code, text) = relay.get("/readyz").await;
        (code == 503 && text.contains(what)).then_some(())
    })
    .await;
    client.batch_execute("DROP TRIGGER refuse ON oncebox.cursor").await.unwrap();
    eventually("it is ready", LIMIT, async || (relay.get("/readyz").await.0 == 200).then_some(())).await;
    await_messages(&stream, expected.len()).await;
    relay.await_log("PostgreSQL takes writes again").await;
    let log = relay.log();
    assert!(!log.contains("PostgreSQL is back") && log.matches(what).count() == 1, "{log}");
}
