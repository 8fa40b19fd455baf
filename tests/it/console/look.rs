//! Pages and the API show several databases at once, while some are away.

use std::time::Duration;

use futures_util::future::join_all;
use oncebox_tests::{Program, TestEnv, eventually, oncebox};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    hostile::PAGES,
    support::{Console, PROMPT},
};

use crate::{
    operator::sagas::SAGAS,
    relay::{
        process::run_ok,
        support::{LIMIT, Running, await_messages, enqueue, through_proxy, values_of},
    },
};

/// No server listens there.
const NOWHERE: &str = "postgres://oncebox@127.0.0.1:1/nowhere";

fn is_away(row: &Value) -> bool {
    row["level"] == "away"
}

fn answers(row: &Value) -> bool {
    !["starting", "away"].contains(&row["level"].as_str().unwrap())
}

#[tokio::test]
async fn every_database_is_a_row_and_one_that_is_away_delays_no_page() {
    let (shop, hanging) = (TestEnv::new().await, TestEnv::new().await);
    enqueue(&shop.pg().await, &shop.subject("a"), "m-", 0..3, 0).await;
    let (proxy, stalled) = through_proxy(hanging.database_url()).await;
    let databases = [("shop", shop.database_url()), ("gone", NOWHERE), ("hangs", &*stalled)];
    let console = Console::start(&databases, Some(shop.nats_url()), &[]).await;
    console.row("hangs", answers).await;
    proxy.stall(true);
    let row = console.row("shop", answers).await;
    assert_eq!((&row["backlog_messages"], &row["level"]), (&3.into(), &"needs_somebody".into()), "{row}");
    assert!(row["finding"].as_str().is_some(), "no relay runs: {row}");
    console.row("gone", is_away).await;
    console.row("hangs", is_away).await;
    let begun = Instant::now();
    let (pages, key) = (console.get("/").await, console.get("/key?key=m-1").await);
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    assert_eq!((pages.status, key.status), (200, 200));
    for part in [r#"href="/db/shop""#, "needs somebody", "127.0.0.1:1/nowhere cannot be reached"] {
        assert!(pages.body.contains(part), "{part}: {}", pages.body);
    }
    // Those that need an operator come first.
    let places = ["gone", "shop"].map(|name| pages.body.find(&format!("/db/{name}\"")).unwrap());
    assert!(places[0] < places[1], "{places:?}");
    for part in ["enqueued", "gone: PostgreSQL", "hangs: PostgreSQL", "oncebox trace m-1"] {
        assert!(key.body.contains(part), "{part}: {}", key.body);
    }
    // Those that do not answer may have it.
    let unknown = console.get("/key?key=nobody-knows-it").await.body;
    assert!(unknown.contains("no database that answered has a message with this key"), "{unknown}");
    proxy.stall(false);
    console.row("hangs", answers).await;
    let log = console.stop().await;
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// Red means that an operator has to act; a warning is never passed over.
#[tokio::test]
async fn what_needs_somebody_and_what_wants_a_look() {
    const WELL: &str = "Nothing is seen to hold delivery up.";
    const LINE: &str = "INSERT INTO oncebox.inbox_behind
            (id, scope, tenant, key, ordering_key, subject, headers, payload, stream, stream_sequence, stored_at, is_due)
        VALUES (7, 'stock:reserve', '', 'k7', 'line', 'a.b', '{}', '', 'S', 7, now(), true)";
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let relay = Running::start(&values_of(&env));
    let console = Console::of(&env, &[]).await;
    // The doctor's warning alone: these servers do not write to disk.
    console.row("shop", |row| row["level"] == "look" && row["doctor_warnings"] != 0).await;
    let pages = async || [console.get("/").await.body, console.get("/db/shop").await.body];
    for page in pages().await {
        assert!(!page.contains(WELL), "{page}");
        assert!(page.contains("the doctor finds 0 problems and"), "{page}");
    }
    let finding = |row: &Value, part: &str| row["finding"].as_str().is_some_and(|what| what.contains(part));
    client.batch_execute(LINE).await.unwrap();
    console
        .row("shop", |row| row["level"] == "look" && finding(row, "is to run 1 message of its lines"))
        .await;
    run_ok(env.database_url(), &["outbox", "pause", "--all"]).await;
    let paused = console.row("shop", |row| finding(row, "paused")).await;
    assert_eq!(paused["level"], "look", "{paused}");
    for page in pages().await {
        assert!(!page.contains(WELL), "{page}");
    }
    client.batch_execute(SAGAS).await.unwrap();
    console.row("shop", |row| row["level"] == "needs_somebody" && finding(row, "sagas of type order")).await;
    relay.stop().await;
}

#[tokio::test]
async fn the_api_says_what_the_commands_say() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..2, 1).await;
    enqueue(&client, &env.subject("a"), "m-0:step-", 0..2, 0).await;
    let console = Console::of(&env, &[]).await;
    console.row("shop", answers).await;
    let environment = [("DATABASE_URL", env.database_url())];
    let command = async |arguments: &[&str]| -> Value {
        let (code, output, log) = oncebox(arguments, &environment).await.unwrap();
        // Messages wait, and there is no relay.
        assert_eq!(code, i32::from(arguments[0] == "status"), "{log}");
        serde_json::from_str(&output).unwrap()
    };
    let (status, shown) = (command(&["status", "--json"]).await, console.api("/databases/shop").await);
    for field in ["schema", "backlog_messages", "parked", "dead", "lanes", "subjects", "inboxes", "pauses"] {
        let without_times = |value: &Value| match value.as_array() {
            Some(all) => all.iter().map(|one| one["lane"].clone()).collect(),
            None => value.clone(),
        };
        assert_eq!(without_times(&shown["status"][field]), without_times(&status[field]), "{field}");
    }
    assert!(shown["seconds_ago"].as_f64().unwrap() < 30.0, "{shown}");
    let trace = command(&["trace", "m-0", "--json"]).await;
    let way = console.api("/key?key=m-0").await;
    for field in ["messages", "sagas", "inboxes", "audit"] {
        assert_eq!(way["databases"][0][field], trace[field], "{field}");
    }
    assert_eq!(way["databases"][0]["messages"].as_array().unwrap().len(), 3);
    // The doctor looks by itself.
    let found = eventually("the doctor's findings", LIMIT, async || {
        let shown = console.api("/databases/shop").await;
        shown["examination"]["findings"].as_array().filter(|found| !found.is_empty()).cloned()
    });
    found.await;
    for (path, status) in [("/databases/none", 404), ("/key", 400), ("/none", 404)] {
        let answer = console.get(&format!("/api/v1{path}")).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let document: Value = serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
}

#[tokio::test]
async fn a_key_s_way_leads_over_all_databases() {
    let (shop, stock) = (TestEnv::new().await, TestEnv::new().await);
    let (shop_client, stock_client) = (shop.pg().await, stock.pg().await);
    shop.stream().await;
    enqueue(&shop_client, &shop.subject("a"), "7", 0..1, 0).await;
    let handled = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                   VALUES ('stock:reserve', '', '70', '', 'completed')";
    stock_client.batch_execute(handled).await.unwrap();
    let relay = Running::start(&values_of(&shop));
    let databases = [("shop", shop.database_url()), ("stock", stock.database_url())];
    let console = Console::start(&databases, Some(shop.nats_url()), &[]).await;
    let way = eventually("the message is settled", LIMIT, async || {
        let way = console.api("/key?key=70").await;
        (way["databases"][0]["messages"][0]["state"] == "settled").then_some(way)
    })
    .await;
    let inbox = &way["databases"][0]["messages"][0]["inboxes"][0];
    assert_eq!((&inbox["database"], &inbox["scope"]), (&"stock".into(), &"stock:reserve".into()), "{way}");
    let page = console.get("/key?key=70").await.body;
    let places = ["enqueued</span>", "completed</span>"].map(|word| page.rfind(word).unwrap());
    assert!(places[0] < places[1], "in the order of time: {page}");
    assert_eq!(
        page.matches("completed</span>").count(),
        2,
        "beside its message, and once on its way: {page}"
    );
    // A box for everything else.
    let subject = shop.subject("a");
    for (q, part) in [("70", "This is a key"), (&*subject, "/key?key=70"), ("nothing", "Nothing was found")] {
        let page = console.get(&format!("/find?q={q}")).await.body;
        assert!(page.contains(part), "{q}: {page}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn one_box_finds_ordering_keys_traces_and_business_ids() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let rows = r#"SELECT oncebox.enqueue('far', 'a.b', 'p', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', 'customer-7');
                  SELECT count(oncebox.enqueue('near-' || n, 'a.c', 'p')) FROM generate_series(1, 500) AS n"#;
    client.batch_execute(rows).await.unwrap();
    client.batch_execute(SAGAS).await.unwrap();
    let console = Console::of(&env, &[]).await;
    console.row("shop", answers).await;
    for q in ["customer-7", "4BF92F3577B34DA6A3CE929D0E0E4736", "a.b"] {
        let found = console.api(&format!("/find?q={q}")).await;
        let messages = found["databases"][0]["messages"].as_array().unwrap();
        assert!(messages.len() == 1 && messages[0]["key"] == "far", "{q}: {found}");
    }
    let found = console.api("/find?q=2").await;
    assert_eq!(found["databases"][0]["sagas"], serde_json::json!(["2:order"]), "{found}");
    let found = console.api("/find?q=a.c").await;
    assert_eq!(found["databases"][0]["messages"].as_array().unwrap().len(), 50, "a page's worth");
    // A client's own key with a colon is stored escaped.
    client.batch_execute("SELECT oncebox.enqueue('cart%3A9', 'a.b', 'p')").await.unwrap();
    let found = console.api("/find?q=cart:9").await;
    assert_eq!(found["meant"], "cart%3A9", "{found}");
}

/// Pages read the answers of one task, so the database does not notice how many are open.
#[tokio::test]
async fn fifty_pages_ask_the_database_no_more_than_one() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    console.row("shop", answers).await;
    let client = env.pg().await;
    let sessions = "SELECT count(*), count(*) FILTER (WHERE application_name LIKE '%operator')
                    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let paths = (0..50).map(|n| if n % 2 == 0 { "/" } else { "/db/shop" });
        let answers = join_all(paths.map(|path| console.get(path))).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        most = most.max(client.query_one(sessions, &[]).await.unwrap().get::<_, i64>(1));
    }
    assert_eq!(most, 1, "sessions of the console");
}

/// A page is told of news by a stream, which keeps no console from ending.
#[tokio::test]
async fn open_pages_are_told_of_news_and_their_number_is_bounded() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    let (_first, seen) = console.events("data: shop\n\n").await;
    assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("content-type: text/event-stream"), "{seen}");
    let mut open = Vec::new();
    let last = loop {
        let (stream, seen) = console.events("\r\n\r\n").await;
        if !seen.starts_with("HTTP/1.1 200") {
            break seen;
        }
        open.push(stream);
        assert!(open.len() < 200, "without end");
    };
    assert!(last.starts_with("HTTP/1.1 503"), "{last}");
    assert_eq!(console.get("/").await.status, 200, "pages are still served");
    let begun = Instant::now();
    console.stop().await;
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
}

/// The same console beside the work of a relay, which does not need it.
#[tokio::test]
async fn a_relay_serves_the_console_beside_its_work() {
    let env = TestEnv::new().await;
    env.stream().await;
    let values = [("DATABASE_URL", env.database_url().to_owned()), ("NATS_URL", env.nats_url().to_owned())];
    let values = [&values[..], &[("ONCEBOX_HTTP_LISTEN", "off".to_owned())]].concat();
    let relay = Program::start("oncebox", &["relay", "--console", "127.0.0.1:0"], &values).await.unwrap();
    let console = Console::served_by(relay).await;
    let name = env.name();
    console.row(name, |row| row["has_leader"] == true).await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..3, 0).await;
    await_messages(&env.stream().await, 3).await;
    let taken = console.address.to_string();
    let second = Program::start("oncebox", &["relay", "--console", &taken], &values).await.unwrap();
    eventually("the second relay has no console", LIMIT, async || {
        second.log().contains("the console is not served").then_some(())
    })
    .await;
    let log = console.stop().await;
    assert!(log.contains("relay has drained"), "{log}");
    enqueue(&env.pg().await, &env.subject("a"), "n-", 0..3, 0).await;
    await_messages(&env.stream().await, 6).await;
}

/// As the operator's role, which is all that a console needs, and with statistics at the end.
#[tokio::test]
async fn pages_need_the_operator_s_role_and_read_no_whole_log() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..5_000, 10).await;
    let login = format!("{}_ops", env.name());
    let create = format!("CREATE ROLE {login} LOGIN PASSWORD 'r' IN ROLE oncebox_operator");
    client.batch_execute(&create).await.unwrap();
    let authority = env.database_url().split_once("://").unwrap().1;
    let host = authority.split_once('@').map_or(authority, |(_, host)| host);
    let url = format!("postgres://{login}:r@{host}");
    let read =
        "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname = 'message'";
    let before: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    let console = Console::start(&[("shop", &url)], Some(env.nats_url()), &["--allow-actions"]).await;
    console.row("shop", answers).await;
    let paths = ["/key?key=m-7", "/find?q=m-key3", "/find?q=nothing", "/db/shop/message?key=m-7"];
    let of_letters = |path: &&str| path.contains("letter?id") || path.contains("dead-letters&id");
    for path in PAGES.iter().copied().filter(|path| !of_letters(path)).chain(paths) {
        let page = console.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(!page.body.contains("permission denied"), "{path}: {}", page.body);
    }
    // Sessions report the rows that they have read when they end.
    console.stop().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    eventually("its sessions have ended", LIMIT, async || {
        (client.query_one(sessions, &[&login]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let after: i64 = client.query_one(read, &[]).await.unwrap().get(0);
    assert_eq!(after, before, "rows of the log that a scan of the whole table read");
    client.batch_execute(&format!("DROP ROLE {login}")).await.unwrap();
}
