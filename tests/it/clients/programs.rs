//! The clients in other languages: the programs of their READMEs as a user would paste them, on
//! real servers. `tests/clients/prepare.sh` has made each a folder with the same programs.

use oncebox_tests::{TestEnv, eventually};
use tokio::{process::Command, time::timeout};

use super::{
    chaos::{crash_behind_a_claim, kill_and_cut_off, lose_the_servers},
    shop::{LIMIT, Programs, Shop, lines, repository},
};
use crate::relay::support::{Running, through_proxy, values, with};

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use crate::clients::shop::Programs;

            #[tokio::test]
            async fn keys_are_judged_and_derived_as_the_vectors_say() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::judge_and_derive_keys(programs).await;
                }
            }

            #[tokio::test]
            async fn an_order_of_the_readme_is_charged_once_and_the_consumer_drains() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::charge_an_order(programs).await;
                }
            }

            #[tokio::test]
            async fn a_nats_client_that_is_closed_for_good_ends_the_consumer_with_an_error() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::close_the_client(programs).await;
                }
            }

            #[tokio::test]
            async fn a_message_with_odd_headers_is_handled_or_given_up() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::publish_odd_headers(programs).await;
                }
            }

            #[tokio::test]
            async fn a_copy_waits_while_the_key_is_locked_and_is_known_to_the_functions() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::lock_a_key(programs).await;
                }
            }

            #[tokio::test]
            async fn killed_and_cut_off_at_commit_each_order_is_charged_once() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::kill_and_cut_off(programs).await;
                }
            }

            #[tokio::test]
            async fn servers_that_are_away_are_asked_seldom() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::lose_the_servers(programs).await;
                }
            }

            #[tokio::test]
            async fn the_id_of_a_transaction_that_a_crash_has_lost_tells_nothing() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::crash_behind_a_claim(programs).await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

/// A message whose payload is elsewhere has an empty body, which no handler may take for it.
#[tokio::test]
async fn java_gives_up_a_payload_that_it_does_not_fetch() {
    let Some(programs) = Programs::of("java") else { return };
    let shop = Shop::new(programs).await;
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Idempotency-Key", "order-1:charge");
    headers.insert("Oncebox-Object", "payloads/1");
    let publish = shop.jetstream.publish_with_headers("orders.placed", headers, "".into());
    publish.await.unwrap().await.unwrap();
    let client = shop.env.pg().await;
    let given_up = "SELECT reason FROM oncebox.dead_letter";
    let reason = eventually("given up", LIMIT, async || lines(&client, given_up).await.pop()).await;
    assert!(reason.starts_with("its payload is in the object store"), "{reason}");
    payment.stop().await.unwrap();
}

#[tokio::test]
async fn java_asks_no_id_of_a_transaction_that_a_crash_has_lost() {
    if let Some(programs) = Programs::of("java") {
        crash_behind_a_claim(programs).await;
    }
}

/// Not of Go, whose limit is a constant of half a minute.
macro_rules! limited {
    ($($client:ident: $silent:ident, $draining:ident;)*) => {$(
        #[tokio::test]
        async fn $silent() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                fall_silent(programs).await;
            }
        }

        #[tokio::test]
        async fn $draining() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                drain_without_end(programs).await;
            }
        }
    )*};
}
limited! {
    python: no_step_of_python_waits_for_ever, no_drain_of_python_waits_for_ever;
    typescript: no_step_of_typescript_waits_for_ever, no_drain_of_typescript_waits_for_ever;
}

/// A task that a handler waits for and that is cancelled must not end the consumer as a drain does.
#[tokio::test]
async fn a_handler_of_python_that_is_cancelled_from_within_has_failed() {
    ends_with(Programs::of("python"), "cancelled", &[], "within dead\noutside cancelled\n").await;
}

/// Also with a pool in autocommit. The handler gets the pool's isolation level, and copies at once
/// have one effect under the strictest.
#[tokio::test]
async fn no_handler_of_python_commits_before_its_end() {
    let refused =
        "RuntimeError: the inbox ends a handler's transaction: return to commit, raise to roll back";
    let expected = format!(
        "commits dead delivery limit of 1 reached: {refused}\n\
         fails dead delivery limit of 1 reached: ValueError: the handler fails\n\
         returns handled None\ncharged [('returns',)] autocommit True\n\
         [(('handled', 'serializable'), 1), (('replayed', 'serializable'), 7)]\n\
         charged 1 SERIALIZABLE deferrable None\n"
    );
    ends_with(Programs::of("python"), "committing", &[], &expected).await;
}

/// Clients that do not wait for the answer to BEGIN send the claim all the same, and it would be
/// committed by itself: the message would count as handled. A batch of pgx ends at its first error.
#[tokio::test]
async fn a_claim_of_typescript_behind_a_begin_that_failed_has_no_effect() {
    for mode in ["pipeline", "one by one"] {
        ends_with(Programs::of("typescript"), "unbegun", &[mode], "retry handled 1\n").await;
    }
}

/// As with a pool that has too few connections: the message itself was not attempted.
#[tokio::test]
async fn waiting_in_vain_for_a_connection_is_no_attempt_in_go() {
    let refused = " get a connection: too many connections\nhandled <nil>\n";
    ends_with(Programs::of("go"), "unreachable", &[], refused).await;
}

async fn ends_with(programs: Option<Programs>, program: &str, arguments: &[&str], expected: &str) {
    let Some(programs) = programs else { return };
    let env = TestEnv::new().await;
    let table = "CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
    env.pg().await.batch_execute(table).await.unwrap();
    let mut command = Command::new(programs.file(program));
    command.args(arguments).env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("the program ends").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}");
}

/// The server marks its own answers to a pull by a header `Status`, which publishers may use, too.
/// Names of headers that some libraries refuse to read, or PostgreSQL to store, come from others.
async fn publish_odd_headers(programs: Programs) {
    let shop = Shop::new(programs).await;
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    for (order, status) in [("word", "paid"), ("number", "503")] {
        let headers = format!("Idempotency-Key: {order}\r\nStatus: {status}\r\n");
        shop.publish_raw(&headers, &format!(r#"{{"order":"{order}","cents":1}}"#)).await;
    }
    shop.publish_raw("a b: c\r\n", "{}").await;
    shop.publish_raw("a\0b: c\r\n", "{}").await;
    shop.publish("good", 1, Some("good")).await;
    let client = shop.env.pg().await;
    let done = "SELECT 'all' FROM charge, oncebox.dead_letter HAVING count(*) = 6";
    eventually("all are handled", LIMIT, async || lines(&client, done).await.pop()).await;
    shop.settled().await;
    payment.stop().await.unwrap();
    let charged = lines(&client, "SELECT id FROM charge ORDER BY id").await;
    assert_eq!(charged, ["good", "number", "word"]);
    let letters = lines(&client, "SELECT left(reason, 7) FROM oncebox.dead_letter").await;
    assert_eq!(letters, ["no key:", "no key:"]);
}

/// A client computes the lock and the fingerprint of a message by itself. They are those of the SQL
/// functions and of the Rust inbox: else a copy would be handled beside them, or be a mismatch.
async fn lock_a_key(programs: Programs) {
    let shop = Shop::new(programs).await;
    let (client, other) = (shop.env.pg().await, shop.env.pg().await);
    other
        .batch_execute("SELECT pg_advisory_lock(oncebox.inbox_lock('payment-service:charge', '', 'held'))")
        .await
        .unwrap();
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    shop.publish("held", 1, Some("held")).await;
    eventually("the message is put off", LIMIT, async || {
        assert_eq!(lines(&client, "SELECT id FROM charge").await, [""; 0], "it was handled");
        let info = shop.stream.consumer_info("payment").await.ok()?;
        (info.num_redelivered == 1).then_some(())
    })
    .await;
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    shop.settled().await;
    payment.stop().await.unwrap();
    assert_eq!(lines(&client, "SELECT id FROM charge").await, ["held"]);
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claim =
        r#"SELECT answer FROM oncebox.claim('payment-service:charge', 'held', '{"order":"held","cents":1}')"#;
    assert_eq!(lines(&client, claim).await, ["replayed"]);
}

async fn judge_and_derive_keys(programs: Programs) {
    let vectors = repository().join("schema/vectors/keys.tsv");
    let output = Command::new(programs.file("keys")).env("VECTORS", vectors).output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// A client that has given up its reconnects never comes back: only a new process can consume.
async fn close_the_client(programs: Programs) {
    let env = TestEnv::new().await;
    env.stream().await;
    let mut closed = Command::new(programs.file("closed"));
    closed.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url());
    closed.env("STREAM", env.name()).env("SUBJECT", env.subject("a")).kill_on_drop(true);
    let output = timeout(LIMIT, closed.output()).await.expect("the program ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let ends: Vec<&str> = said.lines().collect();
    assert_eq!(ends.len(), 2, "{said}{}", String::from_utf8_lossy(&output.stderr));
    for (end, when) in ends.into_iter().zip(["at work: ", "at start: "]) {
        assert!(end.starts_with(when) && end.to_lowercase().contains("closed"), "{said}");
    }
}

/// A handler that goes on after the grace of a drain is an error, and not a success.
async fn drain_without_end(programs: Programs) {
    let env = TestEnv::new().await;
    env.stream().await;
    let mut draining = Command::new(programs.file("draining"));
    draining.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url());
    draining.env("STREAM", env.name()).env("SUBJECT", env.subject("a")).kill_on_drop(true);
    let output = timeout(LIMIT, draining.output()).await.expect("the drain ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("consumer draining: handlers go on"), "{said}{errors}");
}

/// In a network that swallows packets, no step around a handler waits until TCP gives up. The pool
/// has one connection, so the runs after that show that its place is free again.
async fn fall_silent(programs: Programs) {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let table = "CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
    client.batch_execute(table).await.unwrap();
    let (proxy, url) = through_proxy(env.database_url()).await;
    let steps: [(&str, &[u8], &[&str]); 7] = [
        ("connect", b"user\0", &["silent handled"]),
        ("register", b".register_scope(", &["silent registered"]),
        // Before the handler is called it is no attempt: another connection is tried, now or later.
        ("claim", b"inbox_pkey DO NOTHING", &["silent handled", "handled handled"]),
        ("commit", b"COMMIT\0", &["retry handled"]),
        ("failing-back", b"ROLLBACK", &["retry handled"]),
        ("failing", b".attempt_failed(", &["silent handled"]),
        ("poison", b".bury(", &["silent dead"]),
    ];
    for (what, needle, expected) in steps {
        proxy.lose_when_client_sends(needle);
        let mut silent = Command::new(programs.file("silent"));
        silent.arg(what).env("DATABASE_URL", &url).kill_on_drop(true);
        let step = String::from_utf8_lossy(needle);
        let output =
            timeout(LIMIT, silent.output()).await.unwrap_or_else(|_| panic!("{what} waits at {step}"));
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        assert!(expected.contains(&last), "{what}, {step}: {said}{errors}");
        assert!(!proxy.is_armed(), "{what} sends {step}");
    }
    let charged = lines(&client, "SELECT id FROM charge ORDER BY id").await;
    assert_eq!(charged, ["claim", "commit", "connect", "failing", "failing-back"]);
}

/// From the README's producer through a relay to its consumer, which ends when it is asked to.
async fn charge_an_order(programs: Programs) {
    let shop = Shop::new(programs).await;
    for expected in [true, false] {
        let mut order = Command::new(shop.programs.file("order"));
        order.args(["4711", "1999"]);
        let placed = order.env("DATABASE_URL", shop.env.database_url()).output().await.unwrap();
        let said = String::from_utf8_lossy(&placed.stderr);
        assert_eq!(placed.status.success(), expected, "the table of orders knows it by then: {said}");
    }
    let relay = Running::start(&with(&values(shop.env.database_url(), &shop.nats.url()), []));
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    let client = shop.env.pg().await;
    eventually("the order is charged", LIMIT, async || {
        (!lines(&client, "SELECT id FROM charge").await.is_empty()).then_some(())
    })
    .await;
    shop.publish("4711", 1999, Some("order-4711:charge")).await;
    shop.settled().await;
    payment.stop().await.unwrap();
    relay.stop().await;
    assert_eq!(lines(&client, "SELECT id || ' ' || cents FROM charge").await, ["4711 1999"]);
    let sql = "SELECT key || ' ' || subject || ' ' || convert_from(payload, 'UTF8') FROM oncebox.message ORDER BY id";
    let sent = [
        r#"order-4711:charge orders.placed {"order":"4711","cents":1999}"#,
        r#"order-4711:charge:receipt payments.made {"order":"4711"}"#,
    ];
    assert_eq!(lines(&client, sql).await, sent);
    let kept =
        "SELECT scope || ' ' || status || ' ' || convert_from(outcome, 'UTF8')::jsonb FROM oncebox.inbox";
    assert_eq!(lines(&client, kept).await, ["payment-service:charge completed {\"charged\": 1999}"]);
}
