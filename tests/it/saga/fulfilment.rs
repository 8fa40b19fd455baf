//! The order's flow led by sagas: orders over HTTP, while relays, participants, orchestrators and
//! nats-server are killed. Each order ends completed or compensated, and the books balance.

use async_nats::jetstream;
use oncebox_tests::{Nats, Program, TestEnv, eventually};

use super::site::{LIMIT, STOCK, Site, free_port, kill, order, supervise};
use crate::{
    http::support::{request, send},
    relay::support::{fresh_stream, stream_config},
};

const ORDERS: usize = 36;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_is_fulfilled_or_undone_whoever_is_killed() {
    let mut site = Site::start(&[]).await;
    let (ports, mut shops) = ([free_port(), free_port()], Vec::new());
    for port in ports {
        let (address, environment) = (format!("127.0.0.1:{port}"), site.environment(&site.shop));
        shops.push(Program::start("orders", &[&address], &environment).await.unwrap());
    }
    for number in 0..ORDERS {
        let order = order(number);
        let key = format!("\"{}\"", order["id"].as_str().unwrap());
        let headers = [("idempotency-key", &*key), ("content-type", "application/json")];
        // Every fourth client asks twice, the second time another process.
        for port in &ports[..1 + usize::from(number % 4 == 0)] {
            eventually("the shop answers", LIMIT, async || {
                for process in shops.iter_mut().chain(&mut site.participants) {
                    supervise(process).await;
                }
                let there = tokio::net::TcpStream::connect(("127.0.0.1", *port)).await;
                if there.is_err() {
                    return None;
                }
                let taken = request("POST", "/orders", &headers, &order.to_string());
                (send(([127, 0, 0, 1], *port).into(), taken).await.status == 202).then_some(())
            })
            .await;
        }
        match number % 12 {
            2 => kill(&mut site.participants[number % 3]).await,
            5 => kill(&mut site.relays[number % 4]).await,
            8 => kill(&mut shops[1]).await,
            11 if number < 12 => site.nats.restart().await.unwrap(),
            11 => kill(&mut shops[0]).await,
            _ => {}
        }
    }
    let client = site.shop.pg().await;
    let count = async |state: &str| {
        let sql = "SELECT count(*) FROM oncebox.saga WHERE state = $1";
        usize::try_from(client.query_one(sql, &[&state]).await.unwrap().get::<_, i64>(0)).unwrap()
    };
    eventually("every saga has ended", LIMIT, async || {
        for process in shops.iter_mut().chain(&mut site.participants) {
            supervise(process).await;
        }
        (count("completed").await + count("compensated").await == ORDERS).then_some(())
    })
    .await;
    let sent = site.balance().await;
    assert_eq!(count("completed").await, sent.len());
    let ordinary = (0..ORDERS).filter(|number| ![1, 2].contains(&(number % 6))).count();
    let stock = usize::try_from(STOCK).unwrap();
    assert!((1..=ordinary.min(stock)).contains(&sent.len()), "{} of {ordinary}: {sent:?}", sent.len());
    for shop in &mut shops {
        shop.stop().await.unwrap();
    }
    site.stop().await;
}

/// A service that starts while nats-server is away, or has not its stream yet, waits for both.
#[tokio::test]
async fn a_service_that_starts_first_waits_for_nats() {
    let (env, mut nats, port) = (TestEnv::new().await, Nats::start().await.unwrap(), free_port());
    nats.stop().await;
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("STREAM", "LATER".to_owned()),
        ("SUBJECT_PREFIX", "later.".to_owned()),
    ];
    let mut orders = Program::start("orders", &[&format!("127.0.0.1:{port}")], &environment).await.unwrap();
    let says = async |text: &str| {
        eventually(text, LIMIT, async || orders.log().contains(text).then_some(())).await;
    };
    says("connect to NATS: failed, will retry").await;
    nats.resume().await.unwrap();
    says("lead sagas: failed, will retry").await;
    fresh_stream(&nats.url(), stream_config("LATER", "later.>")).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream("LATER").await.unwrap();
    let consumes = async || stream.consumer_info("orders-replies").await.ok();
    eventually("it consumes answers", LIMIT, consumes).await;
    orders.stop().await.unwrap();
}
