//! The program's manners: exit codes, messages, signals, HTTP.

use std::{collections::HashMap, net::TcpListener};

use oncebox_schema::LATEST_VERSION;
use oncebox_tests::{Proxy, TestEnv, adversity, eventually};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, client, enqueue, stored, through_proxy, values_of, with,
    },
};

async fn refusal(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let (status, log) = Process::start(arguments, environment.iter().copied()).ended().await;
    assert!(!log.contains("secret"), "{log}");
    assert!(!log.contains('\x1b'), "no colours outside a terminal: {log}");
    (status.code().expect("no signal"), log)
}

/// A port that no server listens on.
fn closed_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_wrong_configuration_lists_every_mistake_and_exits_64() {
    let wrong = [
        ("DATABASE_URL", "http://me:secret@x"),
        ("ONCEBOX_WORKERS", "0"),
        ("ONCEBOX_BATCH_MESSAGES", "many"),
        ("ONCEBOX_HTTP_LISTEN", "9464"),
    ];
    let (code, log) = refusal(&["relay"], &wrong).await;
    assert_eq!(code, 64, "{log}");
    for part in
        ["DATABASE_URL", "NATS_URL", "ONCEBOX_WORKERS", "1 to 64", "ONCEBOX_BATCH_MESSAGES", "IP:PORT"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
    let (code, log) = refusal(&["relay"], &[("ONCEBOX_WORKER", "4")]).await;
    assert_eq!(code, 64, "{log}");
    assert!(log.contains("did you mean ONCEBOX_WORKERS?"), "{log}");
    assert_eq!(refusal(&["relay", "--no-such-flag"], &[]).await.0, 64);
    assert_eq!(refusal(&["--help"], &[]).await.0, 0);
}

#[tokio::test]
async fn an_unreachable_server_is_named_without_secrets_and_exits_69() {
    let env = TestEnv::new().await;
    let port = closed_port();
    let nowhere_sql = format!("postgres://me:secret@127.0.0.1:{port}/orders");
    let nowhere_nats = format!("nats://me:secret@127.0.0.1:{port}");
    let (code, log) =
        refusal(&["relay"], &[("DATABASE_URL", &nowhere_sql), ("NATS_URL", env.nats_url())]).await;
    assert_eq!(code, 69, "{log}");
    assert!(log.contains(&format!("PostgreSQL at 127.0.0.1:{port}/orders cannot be reached")), "{log}");
    let (code, log) =
        refusal(&["relay"], &[("DATABASE_URL", env.database_url()), ("NATS_URL", &nowhere_nats)]).await;
    assert_eq!(code, 69, "{log}");
    assert!(log.contains(&format!("NATS at nats://127.0.0.1:{port} cannot be reached")), "{log}");
    let (code, log) = refusal(&["migrate"], &[("DATABASE_URL", &nowhere_sql)]).await;
    assert_eq!(code, 69, "{log}");
}

#[tokio::test]
async fn a_role_without_a_connection_left_exits_69() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    let login = format!("{}_l", env.name());
    let role = format!("CREATE ROLE {login} LOGIN CONNECTION LIMIT 1 PASSWORD 'l' IN ROLE oncebox_relay");
    pg.batch_execute(&role).await.unwrap();
    let authority = env.database_url().split_once("://").unwrap().1;
    let host = authority.split_once('@').map_or(authority, |(_, host)| host);
    let url = format!("postgres://{login}:l@{host}");
    // A relay needs more than one; then there is none at all.
    let mut only = None;
    for command in ["relay", "relay", "status"] {
        let environment = [("DATABASE_URL", url.as_str()), ("NATS_URL", env.nats_url())];
        let (code, log) = refusal(&[command], &environment).await;
        assert_eq!(code, 69, "{command}: {log}");
        assert!(log.contains("too many connections"), "{command}: {log}");
        if only.is_none() {
            // Its sessions may take a moment to end.
            let pool = oncebox_tests::pool(&url, 1, LIMIT).unwrap();
            only = Some(eventually("a connection", LIMIT, async || pool.get().await.ok()).await);
        }
    }
    drop(only);
    pg.batch_execute(&format!("ALTER ROLE {login} NOLOGIN; DROP OWNED BY {login}; DROP ROLE {login}"))
        .await
        .unwrap();
}

/// A limit on idle sessions is for clients that forget theirs.
#[tokio::test]
async fn an_idle_session_timeout_ends_no_session_of_a_relay_at_rest() {
    let env = TestEnv::new().await;
    let (pg, _stream) = (env.pg().await, env.stream().await);
    let limit = format!("ALTER DATABASE {} SET idle_session_timeout = '1s'", env.name());
    pg.batch_execute(&limit).await.unwrap();
    let relay = Process::relay(&values_of(&env));
    relay.await_log("this relay is the leader").await;
    let listens = "SELECT FROM pg_stat_activity
                   WHERE datname = current_database() AND query LIKE 'LISTEN%' AND backend_start < now() - interval '5 s'";
    eventually("the session that listens lives on", LIMIT, async || {
        assert!(!relay.log().contains("WARN"), "{}", relay.log());
        pg.query_opt(listens, &[]).await.unwrap().map(drop)
    })
    .await;
    relay.kill().await;
}

#[tokio::test]
async fn a_login_that_postgres_refuses_exits_77_and_is_not_called_unreachable() {
    let env = TestEnv::new().await;
    let (server, host) = env.database_url().split_once("://").unwrap();
    let host = host.split_once('@').map_or(host, |(_, host)| host);
    let place = host.split('/').next().unwrap();
    let no_user = format!("{server}://nobody_{}:secret@{host}", env.name());
    let no_database = env.database_url().replace(env.name(), "no_such_database");
    for (url, parts) in [
        (no_user, ["refuses the login; check the user", "role \"nobody"]),
        (no_database, ["has no such database; create it", "\"no_such_database\" does not exist"]),
    ] {
        let environment = [("DATABASE_URL", &*url), ("NATS_URL", env.nats_url())];
        for command in ["relay", "migrate", "status"] {
            let (code, log) = refusal(&[command], &environment).await;
            assert_eq!(code, 77, "{command}: {log}");
            assert!(log.contains(place) && parts.iter().all(|part| log.contains(part)), "{parts:?}: {log}");
            assert_eq!(log.contains("refuses the login"), parts[0].contains("refuses the login"), "{log}");
            assert!(!log.contains("cannot be reached") && !log.contains("object"), "{log}");
        }
    }
}

#[tokio::test]
async fn a_user_without_privileges_is_told_what_to_have_granted() {
    let env = TestEnv::new().await;
    let admin = env.pg().await;
    let user = format!("{}_user", env.name());
    admin.batch_execute(&format!("CREATE ROLE {user} LOGIN")).await.unwrap();
    let (server, host) = env.database_url().split_once("://").unwrap();
    let host = host.split_once('@').map_or(host, |(_, host)| host);
    let url = format!("{server}://{user}@{host}");
    let environment = [("DATABASE_URL", &*url), ("NATS_URL", env.nats_url())];
    for command in ["relay", "status"] {
        let (code, log) = refusal(&[command], &environment).await;
        assert_eq!(code, 1, "{log}");
        let grant = format!("GRANT \"oncebox_relay\" TO \"{user}\"");
        assert!(log.contains(&grant) && log.contains("oncebox_operator"), "{log}");
    }
    let (code, log) = refusal(&["migrate"], &environment).await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("migrate as the user who installed the schema"), "{log}");
    // With the role of another purpose it gets further, and not far enough.
    admin.batch_execute(&format!("GRANT oncebox_producer TO {user}")).await.unwrap();
    let (code, log) = refusal(&["relay"], &environment).await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("grant it the role that ends with _relay") && log.contains("outbox"), "{log}");
    admin.batch_execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}")).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_is_named_with_an_example_and_without_the_password() {
    let url = |text: &'static str| [("DATABASE_URL", text), ("NATS_URL", "nats://127.0.0.1")];
    for (arguments, environment, part) in [
        (&["relay"][..], url("postgres://me:p@secret:5432/w#rd@db.example/orders"), "%40"),
        (&["relay"], url("postgres://me:secret@db.example/orders?foo=bar"), "\"foo\""),
        (
            &["outbox", "replay", "--since", "yesterday"],
            url("postgres://me@db.example/orders"),
            "2030-01-31T08:00:00Z",
        ),
        (&["trace", "100%"], url("postgres://me@db.example/orders"), "100%25"),
    ] {
        let (code, log) = refusal(arguments, &environment).await;
        assert_eq!(code, 64, "{arguments:?}: {log}");
        assert!(log.contains(part) && !log.contains("5432/w"), "{arguments:?}: {log}");
    }
}

/// A proxy that takes connections and passes nothing, and the URL that leads there.
async fn mute(url: &str) -> (Proxy, String) {
    let (proxy, url) = through_proxy(url).await;
    proxy.stall(true);
    (proxy, url)
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_counts_as_unreachable() {
    let env = TestEnv::new().await;
    let (_postgres, mute_sql) = mute(env.database_url()).await;
    let (_nats, mute_nats) = mute(env.nats_url()).await;
    let relay = ["relay"];
    let sql = [("DATABASE_URL", &*mute_sql), ("NATS_URL", env.nats_url())];
    let nats = [("DATABASE_URL", env.database_url()), ("NATS_URL", &*mute_nats)];
    let refusals =
        tokio::join!(refusal(&relay, &sql), refusal(&relay, &nats), refusal(&["migrate"], &sql[..1]));
    for (code, log) in [refusals.0, refusals.1, refusals.2] {
        assert_eq!(code, 69, "{log}");
        assert!(log.contains("cannot be reached"), "{log}");
    }
}

#[tokio::test]
async fn a_schema_of_another_version_is_refused_and_migrate_mends_what_it_can() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let both = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    client
        .batch_execute("INSERT INTO oncebox.migration (version, name) VALUES (9999, 'later')")
        .await
        .unwrap();
    let (code, log) = refusal(&["relay"], &both).await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("9999"), "{log}");
    let behind = format!("DELETE FROM oncebox.migration WHERE version >= {LATEST_VERSION}");
    client.batch_execute(&behind).await.unwrap();
    let (code, log) = refusal(&["relay"], &both).await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("oncebox migrate"), "{log}");
    client.batch_execute("DROP SCHEMA oncebox CASCADE").await.unwrap();
    let (code, log) = refusal(&["relay"], &both).await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("oncebox migrate"), "{log}");
    // An empty variable counts as not given.
    let migrating = [both[0], ("ONCEBOX_SCHEMA", "")];
    for _ in 0..2 {
        let (code, log) = refusal(&["migrate"], &migrating).await;
        assert_eq!(code, 0, "{log}");
    }
    let relay = Process::start(&["relay", "--http-listen", "off"], both);
    relay.await_log("relay is running").await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn sigterm_settles_what_is_in_flight_and_a_second_signal_does_not_wait() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = client(env.database_url()).await;
    let mut keys = enqueue(&**client, &env.subject("a"), "m-", 0..4_000, 0).await;
    // Small batches: the signal arrives in the middle of the backlog.
    let values = with(&values_of(&env), [("batch-messages", "20"), ("window", "10"), ("workers", "2")]);
    let relay = Process::relay(&values);
    await_messages(&stream, 200).await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("drained"), "{log}");
    let in_stream = stored(&stream).await.len();
    let sql = "SELECT count(*) FROM oncebox.message AS m JOIN oncebox.lane_cursor AS l USING (lane) WHERE m.id <= l.high";
    let settled: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(settled, in_stream as i64, "all that was published is settled");
    assert!(in_stream < keys.len(), "the signal came in the middle");
    // A pass that cannot end: the broker is mute. The first signal waits for it, the second does
    // not.
    let (proxy, url) = through_proxy(env.nats_url()).await;
    let relay = Process::relay(&with(&values, [("nats-url", &url), ("ack-timeout-seconds", "15")]));
    await_messages(&stream, keys.len()).await;
    proxy.stall(true);
    keys.extend(enqueue(&**client, &env.subject("a"), "late-", 0..20, 0).await);
    let in_pass = "datname = current_database() AND state = 'idle in transaction'
                   AND state_change < clock_timestamp() - interval '0.5 s'";
    adversity::await_relay_session(&client, in_pass).await.unwrap();
    relay.signal("TERM").await;
    relay.await_log("draining").await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(130), "{log}");
    // Nothing is lost by it.
    let relay = Process::relay(&values);
    await_messages(&stream, keys.len()).await;
    relay.signal("INT").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}

#[tokio::test]
async fn metrics_parse_and_tell_lag_and_backlog() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..500, 0).await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    await_messages(&stream, 500).await;
    assert!(relay.address().await.ip().is_loopback());
    assert_eq!(relay.get("/readyz").await, (200, "ok\n".into()));
    assert_eq!(relay.get("/nothing").await.0, 404);
    // A transaction that has all lanes locked keeps the relay from claiming them.
    client.batch_execute("BEGIN; SELECT FROM oncebox.lane FOR UPDATE").await.unwrap();
    enqueue(&env.pg().await, &env.subject("a"), "later-", 0..320, 0).await;
    let (status, text) = relay.get("/metrics").await;
    assert_eq!(status, 200);
    let values = parse(&text);
    assert_eq!(values["oncebox_published_total"], 500.0);
    assert!(values["oncebox_lag_seconds"] > 0.0);
    assert_eq!(values["oncebox_backlog_messages"], 320.0, "{text}");
    assert_eq!(values.keys().filter(|name| name.starts_with("oncebox_lane_lag_seconds{")).count(), 16);
    for histogram in ["claim", "publish", "settle"] {
        assert!(values[&*format!("oncebox_{histogram}_seconds_count")] > 0.0, "{histogram}: {text}");
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    await_messages(&stream, 820).await;
    eventually("the lag ends", LIMIT, async || {
        let values = parse(&relay.get("/metrics").await.1);
        (values["oncebox_lag_seconds"] == 0.0 && values["oncebox_backlog_messages"] == 0.0).then_some(())
    })
    .await;
}

/// OpenMetrics: every line is a comment or a sample, every sample was announced, and the end is
/// marked.
fn parse(text: &str) -> HashMap<String, f64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let types: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(types.iter().any(|family| name.starts_with(family)), "not announced: {line}");
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    });
    samples.collect()
}
