//! Streams from the command line and the environment, and the remedy that shows how.

use oncebox_tests::{Nats, TestEnv};

use crate::relay::{
    process::{Process, run},
    support::{await_messages, enqueue},
};

/// By flag and by environment, several at once, beside those of a file; one that both declare is a
/// mistake.
#[tokio::test]
async fn streams_of_flags_and_environment_are_created_beside_those_of_the_file() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let url = nats.url();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("relay.toml");
    std::fs::write(&path, "[[stream]]\nname = \"FILE\"\nsubjects = [\"file.>\"]\n").unwrap();
    let path = path.to_str().unwrap();
    let typed = format!("ORDERS={},payments.>; STOCK=stock", env.subject(">"));
    let base = [("DATABASE_URL", env.database_url()), ("NATS_URL", &*url), ("ONCEBOX_HTTP_LISTEN", "off")];
    let environment = base.into_iter().chain([("ONCEBOX_CONFIG", path), ("ONCEBOX_STREAM", &typed)]);

    let relay = Process::start(&["relay"], environment.clone());
    relay.await_log("relay is running").await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..10, 0).await;
    let context = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
    await_messages(&context.get_stream("ORDERS").await.unwrap(), 10).await;
    let config = context.get_stream("ORDERS").await.unwrap().get_info().await.unwrap().config;
    assert_eq!(config.subjects, [env.subject(">"), "payments.>".to_owned()]);
    assert_eq!(config.duplicate_window.as_secs(), 600);
    for (name, subject) in [("STOCK", "stock"), ("FILE", "file.>")] {
        let config = context.get_stream(name).await.unwrap().get_info().await.unwrap().config;
        assert_eq!(config.subjects, [subject]);
    }
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));

    // A flag wins over the environment, and says where it was written.
    for (stream, problem) in
        [("FILE=other", "stream FILE is declared twice"), ("orders.>", "is not NAME=SUBJECTS")]
    {
        let (status, log) = Process::start(&["relay", "--stream", stream], environment.clone()).ended().await;
        assert_eq!(status.code(), Some(64), "{log}");
        assert!(log.contains("--stream (ONCEBOX_STREAM): ") && log.contains(problem), "{log}");
    }
    // Other commands have a --stream of their own, and none of these.
    let (code, _, log) =
        run(env.database_url(), &["outbox", "resend", "--stream", "ORDERS", "--dry-run"]).await;
    assert!(!log.contains("NAME=SUBJECTS"), "{code}: {log}");
}

/// The command that the doctor shows for a subject without a stream, run as it stands, delivers.
#[tokio::test]
async fn the_remedy_for_a_subject_without_a_stream_is_a_command_that_helps() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let url = nats.url();
    enqueue(&env.pg().await, &env.subject("lost"), "m-", 0..3, 0).await;
    let (_, text, _) = run(env.database_url(), &["doctor", "--nats-url", &url]).await;
    let command = text.split_once("oncebox relay --stream '").expect(&text).1;
    let stream = command.split_once('\'').unwrap().0;
    assert!(stream.contains('='), "{text}");

    let base = [("DATABASE_URL", env.database_url()), ("NATS_URL", &*url), ("ONCEBOX_HTTP_LISTEN", "off")];
    let relay = Process::start(&["relay", "--stream", stream], base);
    relay.await_log("relay is running").await;
    let context = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
    let name = stream.split_once('=').unwrap().0;
    await_messages(&context.get_stream(name).await.unwrap(), 3).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}
