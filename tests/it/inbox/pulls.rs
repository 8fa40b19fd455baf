//! A consumer's pulls, and how it takes the answers.

use std::time::Duration;

use async_nats::{
    ConnectOptions,
    jetstream::{self, consumer::pull},
};
use futures_util::{FutureExt, StreamExt};
use oncebox_inbox::{Consumer, Error, Inbox, Order};
use oncebox_tests::{Log, Nats, NatsCluster, eventually, is_settled};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    inbox::{
        consumer::{Running, publish},
        support::{Does, LIMIT, dead_letters, effects, environment, inbox},
    },
    relay::support::stream_config,
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

/// Publishes as no client would: the headers as they are given.
async fn raw_publish(nats: &Nats, subject: &str, headers: &[u8], n: usize) {
    let body = format!(r#"{{"n":{n}}}"#);
    let mut raw = TcpStream::connect(("127.0.0.1", nats.port())).await.unwrap();
    let connect = r#"CONNECT {"verbose":false,"headers":true}"#;
    let sent = format!("{connect}\r\nHPUB {subject} {} {}\r\n", headers.len(), headers.len() + body.len());
    let sent = [sent.as_bytes(), headers, body.as_bytes(), b"\r\nPING\r\n"].concat();
    raw.write_all(&sent).await.unwrap();
    let mut answer = String::new();
    while !answer.contains("PONG") {
        let mut some = [0; 4096];
        let read = timeout(LIMIT, raw.read(&mut some)).await.expect("an answer").unwrap();
        assert!(read > 0, "the server hung up: {answer}");
        answer.push_str(&String::from_utf8_lossy(&some[..read]));
    }
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

/// The server answers a pull with such a line; in a message it is just a text.
#[tokio::test]
async fn a_status_in_the_headers_of_a_message_is_not_taken_for_the_servers() {
    let env = environment().await;
    let (nats, jetstream, consumer) = started().await;
    let inbox = inbox(&env);
    let statuses = ["100 Idle Heartbeat", "404 No Messages", "408 Request Timeout", "409 Gone", "503"];
    for (n, status) in statuses.iter().enumerate() {
        let headers = format!("NATS/1.0 {status}\r\nIdempotency-Key: k{n}\r\n\r\n");
        raw_publish(&nats, "s.a", headers.as_bytes(), n).await;
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

/// Each of them ends every connection that it is delivered over, and would stop the consumer for
/// good.
#[tokio::test]
async fn messages_that_no_client_can_read_become_dead_letters() {
    for order in [Order::PerProcess, Order::Strict] {
        let env = environment().await;
        let (nats, jetstream, consumer) = started().await;
        let inbox = inbox(&env);
        publish(&jetstream, "s.a".into(), "first", 7, None).await;
        for (n, line) in [b"no colon".as_slice(), b"a b: x", b"a: \xe4"].iter().enumerate() {
            let headers = [b"NATS/1.0\r\nIdempotency-Key: k\r\n".as_slice(), line, b"\r\n\r\n"].concat();
            raw_publish(&nats, "s.a", &headers, n).await;
            raw_publish(&nats, "s.other", &headers, n).await;
        }
        publish(&jetstream, "s.a".into(), "last", 9, None).await;
        let config = jetstream::stream::Config {
            name: "D".into(),
            subjects: vec!["dead".into()],
            ..Default::default()
        };
        jetstream.create_stream(config).await.unwrap();
        let consumer = consumer.ack_wait(Duration::from_secs(1)).filter_subject("s.a");
        let consumer = consumer.order(order).dead_letter_subject("dead");
        let running = Running::start(consumer, inbox.clone(), Does::effect());
        handled(&inbox, 2).await;
        let stream = jetstream.get_stream("S").await.unwrap();
        eventually("all are settled", LIMIT, async || is_settled(&stream, "d").await.then_some(())).await;
        running.stop().await;
        let counts = inbox.counts();
        assert_eq!((effects(&env).await, counts.dead, counts.dead_letters_published), (2, 3, 3), "{order:?}");
        let reasons = dead_letters(&env).await;
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        let named = ["has no colon", "name \"a b\"", "not UTF-8"];
        assert!(reasons.iter().zip(named).all(|(reason, part)| reason.contains(part)), "{reasons:?}");
    }
}

/// A carriage return inside a value ends the client. The supervisor of the process starts another.
#[tokio::test]
async fn a_message_that_kills_the_client_ends_the_consumer_and_is_given_up_by_the_next() {
    let env = environment().await;
    let (nats, jetstream, _) = started().await;
    raw_publish(&nats, "s.a", b"NATS/1.0\r\nIdempotency-Key: x\ry\r\n\r\n", 0).await;
    publish(&jetstream, "s.a".into(), "last", 9, None).await;
    let inbox = inbox(&env);
    let mut deaths = 0;
    while inbox.counts().handled == 0 {
        let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
        let consumer = Consumer::new(jetstream, "S", "d").ack_wait(Duration::from_secs(1));
        let mut running = Running::start(consumer, inbox.clone(), Does::effect());
        let ended = tokio::select! {
            ended = timeout(LIMIT, running.tasks.join_next()) => Some(ended),
            () = handled(&inbox, 1) => None,
        };
        match ended {
            Some(ended) => {
                let error = ended.expect("an end").unwrap().unwrap().unwrap_err();
                assert!(
                    matches!(&error, Error::Broker(what, _) if what.contains("consume stream")),
                    "{error}"
                );
                deaths += 1;
                assert!(deaths < 5, "nobody gives the message up");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            None => running.stop().await,
        }
    }
    assert!(deaths > 0);
    assert_eq!(
        dead_letters(&env).await,
        ["the header \"Idempotency-Key\" has a carriage return in its value"]
    );
}

/// Longer than it takes to notice that the server is gone: the consumer waits for the client when
/// that gives up.
#[tokio::test]
async fn a_client_that_gives_up_ends_the_consumer() {
    let env = environment().await;
    let (mut nats, _, _) = started().await;
    let pause = |_| Duration::from_millis(250);
    let options = ConnectOptions::new().max_reconnects(20).reconnect_delay_callback(pause);
    let jetstream = jetstream::new(options.connect(nats.url()).await.unwrap());
    let inbox = inbox(&env);
    let mut running =
        Running::start(Consumer::new(jetstream.clone(), "S", "d"), inbox.clone(), Does::effect());
    publish(&jetstream, "s.a".into(), "k", 1, None).await;
    handled(&inbox, 1).await;
    nats.kill().await;
    let ended = timeout(LIMIT, running.tasks.join_next()).await.expect("an end").unwrap().unwrap();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("consume stream"), "{error}");
}

/// A replicated consumer ends a pull that is bounded in bytes with a status of its own. Strict
/// order would recreate its consumer after an interruption, and everything held would be delivered
/// again.
#[tokio::test]
async fn a_completed_pull_of_a_replicated_consumer_is_no_interruption() {
    const MESSAGES: i64 = 500;
    let env = environment().await;
    let cluster = NatsCluster::start().await.unwrap();
    let jetstream = cluster.jetstream().await.unwrap();
    let config = jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s.>".into()],
        num_replicas: 3,
        ..Default::default()
    };
    let stream = cluster.create_stream(config).await.unwrap();
    for n in 0..MESSAGES {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Idempotency-Key", format!("k{n}"));
        headers.insert("Nats-Msg-Id", format!("k{n}"));
        // A stream that was created just now may have no leader yet.
        eventually("it is stored", LIMIT, async || {
            let payload = format!(r#"{{"n":{n}}}"#).into();
            jetstream.publish_with_headers("s.a", headers.clone(), payload).await.ok()?.await.ok()
        })
        .await;
    }
    let inbox = inbox(&env);
    let consumer = Consumer::new(jetstream, "S", "d").order(Order::Strict);
    let running = Running::start(consumer, inbox.clone(), Does::effect());
    let created =
        eventually("it consumes", LIMIT, async || Some(stream.consumer_info("d").await.ok()?.created)).await;
    handled(&inbox, MESSAGES.unsigned_abs()).await;
    eventually("all are settled", LIMIT, async || is_settled(&stream, "d").await.then_some(())).await;
    assert_eq!(stream.consumer_info("d").await.unwrap().created, created, "it is the same consumer");
    assert_eq!((effects(&env).await, inbox.counts().replayed), (MESSAGES, 0));
    running.stop().await;
}

/// Without the right to acknowledge each message is delivered again for ever, and the client of
/// NATS says nothing.
#[tokio::test]
async fn a_user_who_may_not_acknowledge_is_named() {
    let (env, (log, _guard)) = (environment().await, Log::of_this_thread());
    let nats = Nats::start_with(
        "authorization { users: [
            { user: a, password: a }
            { user: c, password: c, permissions: { publish: { deny: [\"$JS.ACK.>\"] } } }
         ] }",
    )
    .await
    .unwrap();
    let login = async |user: &str| {
        let options = ConnectOptions::with_user_and_password(user.to_owned(), user.to_owned());
        jetstream::new(options.connect(nats.url()).await.unwrap())
    };
    let admin = login("a").await;
    admin.create_stream(stream_config("S", "s.>")).await.unwrap();
    publish(&admin, "s.a".to_owned(), "k", 1, None).await;
    let consumer = Consumer::new(login("c").await, "S", "d").ack_wait(Duration::from_secs(1));
    let running = Running::start(consumer, inbox(&env), Does::effect());
    eventually("the log names the right that is missing", LIMIT, async || {
        (log.count("may this user publish to $JS.ACK.>?") > 0).then_some(())
    })
    .await;
    assert_eq!(effects(&env).await, 1);
    drop(running);
}
