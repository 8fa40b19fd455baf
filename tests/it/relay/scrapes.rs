//! `/metrics` under many scrapes, while PostgreSQL is slow to answer them: delivery goes on.

use std::{net::SocketAddr, time::Duration};

use oncebox_tests::{TestEnv, eventually};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, get},
    support::{LIMIT, await_messages, enqueue, values_of, with},
};

/// Only the gauges wait: five seconds, a third of one for each lane.
async fn slow_the_gauges(client: &Client) {
    let view = "CREATE OR REPLACE VIEW oncebox.lane_cursor AS
        SELECT l.lane, c.number, c.floor, c.high, c.snap, c.target, c.after, c.reset_until, c.system_identifier, c.settled_at,
          c.acknowledged
        FROM oncebox.lane AS l
        CROSS JOIN LATERAL (
          SELECT * FROM oncebox.cursor AS newest WHERE newest.lane = l.lane ORDER BY newest.number DESC LIMIT 1
        ) AS c
        WHERE CASE WHEN current_query() LIKE '%lag_seconds%' THEN pg_sleep(0.3)::text IS NOT NULL ELSE true END";
    client.batch_execute(view).await.unwrap();
}

/// PostgreSQL shows the first kilobyte of a statement, which is the comment of `lag.sql`.
async fn readings(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%How far each lane lags%' AND state = 'active'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn scrape(address: SocketAddr) -> u16 {
    get(address, "/metrics").await.0
}

#[tokio::test]
async fn scrapes_of_a_slow_database_delay_no_delivery() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    slow_the_gauges(&client).await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let address = relay.address().await;
    let mut scrapes = JoinSet::new();
    for _ in 0..100 {
        scrapes.spawn(async move {
            // Half of them give up, as Prometheus does, and come again.
            for _ in 0..3 {
                let _ = timeout(Duration::from_secs(1), scrape(address)).await;
            }
            scrape(address).await
        });
    }
    eventually("the gauges are read", LIMIT, async || (readings(&client).await > 0).then_some(())).await;
    let mut most = 0;
    for n in 0..20 {
        let enqueued = Instant::now();
        enqueue(&client, &env.subject("a"), "m-", n..n + 1, 0).await;
        await_messages(&stream, usize::try_from(n).unwrap() + 1).await;
        assert!(enqueued.elapsed() < Duration::from_secs(20), "delivered after {:?}", enqueued.elapsed());
        most = most.max(readings(&client).await);
    }
    assert_eq!(most, 1, "readings at once");
    for status in scrapes.join_all().await {
        assert_eq!(status, 200);
    }
}

/// Clients that begin a request and never end it, or never begin, are cut off in the end.
#[tokio::test]
async fn many_half_requests_leave_the_port_open_to_others() {
    let env = TestEnv::new().await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let address = relay.address().await;
    let mut halves = Vec::new();
    for number in 0..300 {
        let mut half = TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            half.write_all(b"GET /livez HTTP/1.1\r\nHost: relay\r\n").await.unwrap();
        }
        halves.push(half);
    }
    let (status, _) =
        timeout(LIMIT * 2, relay.get("/livez")).await.expect("answered behind 300 half requests");
    assert_eq!(status, 200);
    drop(halves);
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}
