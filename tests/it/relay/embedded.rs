//! A relay inside another program: options by their names, no port unasked, metrics as text,
//! servers that are away at its start, and a log without errors of its NATS client.

use std::net::TcpListener;

use oncebox_relay::{Config, Embedded, RelayError, Values};
use oncebox_schema::error_chain;
use oncebox_tests::{Log, Nats, Proxy, TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::relay::support::{
    LIMIT, assert_delivered, await_messages, enqueue, fresh_stream, stored, stream_config, with,
};

/// The two options that a relay needs.
fn required(database_url: &str, nats_url: &str) -> Values {
    Values::from([("database-url", database_url.to_owned()), ("nats-url", nats_url.to_owned())])
}

/// A URL that reaches a server of another through a proxy.
async fn through(url: &str) -> (Proxy, String) {
    let (front, rest) = url.rsplit_once(':').unwrap();
    let (port, tail) =
        rest.split_once('/').map_or((rest, String::new()), |(port, tail)| (port, format!("/{tail}")));
    let proxy = Proxy::start(([127, 0, 0, 1], port.parse().unwrap()).into()).await;
    let url = format!("{front}:{}{tail}", proxy.port());
    (proxy, url)
}

#[tokio::test]
async fn mistakes_name_options_and_no_flag() {
    let env = TestEnv::new().await;
    let mut mistaken = required(env.database_url(), "ftp://x");
    mistaken.extend([("workers", "0".to_owned()), ("poll-min-milliseconds", "9000".to_owned())]);
    let mut texts = vec![Config::from_values(&mistaken).map(drop).unwrap_err().to_string()];

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let plain = required(env.database_url(), env.nats_url());
    for changes in [
        [("http-listen", &*address)],
        [("database-url", &*format!("{}?sslmode=require", env.database_url()))],
        [("nats-tls", "require")],
    ] {
        let config = Config::from_values(&with(&plain, changes)).unwrap();
        let ended = Embedded::new(config).run(std::future::pending()).await;
        texts.push(error_chain(&ended.unwrap_err()));
    }
    for text in &texts {
        assert!(!text.contains("--") && !text.contains("ONCEBOX_") && !text.contains("_URL"), "{text}");
    }
    assert!(texts[0].contains("option nats-url: ") && texts[0].contains("option workers: "), "{}", texts[0]);
    assert!(texts[1].contains("the option http-listen"), "{}", texts[1]);
    assert!(texts[3].contains("nats-tls"), "{}", texts[3]);
}

/// Both servers are away at the start, one after the other; then NATS goes and comes back.
#[tokio::test]
async fn it_waits_for_servers_shows_its_metrics_and_logs_no_error() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("EMBEDDED", &env.subject(">"))).await;
    let (postgres_line, database_url) = through(env.database_url()).await;
    let (nats_line, nats_url) = through(&nats.url()).await;
    postgres_line.refuse(true);
    nats_line.refuse(true);
    let (log, _guard) = Log::of_this_thread();
    // A relay that opened the program's port unasked could not start.
    let _program = TcpListener::bind("127.0.0.1:9464");

    let relay = Embedded::new(Config::from_values(&required(&database_url, &nats_url)).unwrap());
    let (watch, stop) = (relay.watch(), CancellationToken::new());
    assert_eq!(watch.not_ready().as_deref(), Some("its relay starts"));
    let mut tasks = JoinSet::new();
    tasks.spawn(relay.run(stop.clone().cancelled_owned()));
    let away = async |server: &str| {
        eventually("named", LIMIT, async || watch.not_ready().filter(|reason| reason.contains(server))).await
    };
    away("PostgreSQL at 127.0.0.1").await;
    assert!(watch.metrics().await.ends_with("# EOF\n"), "metrics before there is a server");
    postgres_line.refuse(false);
    away("NATS at ").await;
    let mut expected = enqueue(&env.pg().await, &env.subject("a"), "first-", 0..20, 2).await;
    nats_line.refuse(false);
    await_messages(&stream, expected.len()).await;
    eventually("ready", LIMIT, async || watch.not_ready().is_none().then_some(())).await;
    eventually("counted", LIMIT, async || {
        watch.metrics().await.contains("oncebox_published_total 20\n").then_some(())
    })
    .await;

    nats_line.refuse(true);
    nats_line.cut();
    away("NATS is away").await;
    expected.extend(enqueue(&env.pg().await, &env.subject("a"), "second-", 0..20, 2).await);
    nats_line.refuse(false);
    await_messages(&stream, expected.len()).await;
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap().expect("the relay drains");
    assert_eq!(watch.not_ready().as_deref(), Some("its relay has ended"));
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);

    let text = log.text();
    assert_eq!(log.count("ERROR"), 0, "{text}");
    assert_eq!(log.count("the relay cannot start yet"), 2, "once for each server: {text}");
    assert_eq!(log.count("/metrics"), 0, "no port: {text}");
}

/// A stop while servers are away is orderly; a mistake that waiting does not mend ends the start.
#[tokio::test]
async fn it_stops_while_it_waits_and_gives_up_what_waiting_does_not_mend() {
    let env = TestEnv::new().await;
    let (line, database_url) = through(env.database_url()).await;
    line.refuse(true);
    let relay = Embedded::new(Config::from_values(&required(&database_url, env.nats_url())).unwrap());
    let (watch, stop) = (relay.watch(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(relay.run(stop.clone().cancelled_owned()));
    eventually("it waits", LIMIT, async || watch.not_ready().filter(|reason| reason.contains("cannot")))
        .await;
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap().expect("nothing was begun");

    let (front, _) = env.database_url().rsplit_once('/').unwrap();
    let missing = required(&format!("{front}/nowhere"), env.nats_url());
    let ended = Embedded::new(Config::from_values(&missing).unwrap()).run(std::future::pending()).await;
    assert!(matches!(ended, Err(RelayError::DatabaseMissing { .. })), "{ended:?}");
}
