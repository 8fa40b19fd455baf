//! What a consumer asks of nats-server, and how it takes the answers.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull};
use futures_util::{FutureExt, StreamExt};
use oncebox_inbox::{Consumer, Inbox};
use oncebox_tests::{Nats, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    inbox_consumer::{Running, publish},
    inbox_support::{Does, LIMIT, environment, inbox},
};

async fn started() -> (Nats, jetstream::Context, Consumer) {
    let nats = Nats::start().await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config =
        jetstream::stream::Config { name: "S".into(), subjects: vec!["s.>".into()], ..Default::default() };
    jetstream.create_stream(config).await.unwrap();
    let consumer = Consumer::new(jetstream.clone(), "S", "d");
    (nats, jetstream, consumer)
}

async fn handled(inbox: &Inbox, count: u64) {
    eventually("messages are handled", LIMIT, async || (inbox.counts().handled >= count).then_some(())).await;
}

/// A pull dies with the server that it was sent to. It would have been given up after five seconds.
#[tokio::test]
async fn a_consumer_goes_on_at_once_when_a_killed_nats_server_is_back() {
    let env = environment().await;
    let (mut nats, jetstream, consumer) = started().await;
    let inbox = inbox(&env);
    let mut pulls = jetstream.client().subscribe("$JS.API.CONSUMER.MSG.NEXT.S.d").await.unwrap();
    let running = Running::start(consumer, inbox.clone(), Does::effect());
    let mut best = Duration::MAX;
    for n in 0..3 {
        while pulls.next().now_or_never().is_some() {}
        timeout(LIMIT, pulls.next()).await.expect("a pull").unwrap();
        let asked = Instant::now();
        nats.kill().await;
        nats.resume().await.unwrap();
        publish(&jetstream, "s.a".into(), &format!("k{n}"), n, None).await;
        handled(&inbox, n.unsigned_abs() + 1).await;
        best = best.min(asked.elapsed());
    }
    assert!(best < Duration::from_secs(4), "at best {best:?}");
    running.stop().await;
}

/// Such a line is how the server answers a pull; in a message it is just what somebody wrote.
#[tokio::test]
async fn a_status_in_the_headers_of_a_message_is_not_taken_for_the_servers() {
    let env = environment().await;
    let (nats, jetstream, consumer) = started().await;
    let inbox = inbox(&env);
    let mut raw = TcpStream::connect(("127.0.0.1", nats.port())).await.unwrap();
    for (n, status) in
        ["100 Idle Heartbeat", "404 No Messages", "408 Request Timeout", "409 Gone", "503"].iter().enumerate()
    {
        let headers = format!("NATS/1.0 {status}\r\nIdempotency-Key: k{n}\r\n\r\n");
        let body = format!(r#"{{"n":{n}}}"#);
        let (head, whole) = (headers.len(), headers.len() + body.len());
        let connect = r#"CONNECT {"verbose":false,"headers":true}"#;
        let sent = format!("{connect}\r\nHPUB s.a {head} {whole}\r\n{headers}{body}\r\nPING\r\n");
        raw.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.contains("PONG") {
            let mut some = [0; 4096];
            let read = timeout(LIMIT, raw.read(&mut some)).await.expect("an answer").unwrap();
            assert!(read > 0, "the server hung up: {answer}");
            answer.push_str(&String::from_utf8_lossy(&some[..read]));
        }
    }
    publish(&jetstream, "s.a".into(), "last", 9, None).await;
    let running = Running::start(consumer.concurrency(1), inbox.clone(), Does::effect());
    handled(&inbox, 6).await;
    running.stop().await;
    assert_eq!(inbox.counts().dead, 0);
}

/// A pull beyond them is refused, every time.
#[tokio::test]
async fn pulls_keep_to_the_limits_that_were_set_for_the_consumer() {
    let env = environment().await;
    let (_nats, jetstream, consumer) = started().await;
    let config = pull::Config {
        durable_name: Some("d".to_owned()),
        max_batch: 3,
        max_expires: Duration::from_secs(1),
        ..Default::default()
    };
    jetstream.get_stream("S").await.unwrap().create_consumer(config).await.unwrap();
    let inbox = inbox(&env);
    let running = Running::start(consumer, inbox.clone(), Does::effect());
    for n in 0..20 {
        publish(&jetstream, "s.a".into(), &format!("k{n}"), n, None).await;
    }
    handled(&inbox, 20).await;
    running.stop().await;
}
