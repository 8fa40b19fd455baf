//! Who delays messages and who looks at them: keys, refusals, the outbox crate, an operator.

use std::time::{Duration, SystemTime};

use oncebox_outbox::{Error, Key, Message, Outbox};
use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::{IsolationLevel, error::SqlState};

use super::{
    delayed::{delay, log, move_all, pass, waiting},
    process::{run, run_ok},
    support::{LIMIT, connect, values_of},
};

#[tokio::test]
async fn a_key_is_unique_over_the_log_and_what_is_delayed() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let state = async |sql: &str| client.query_one(sql, &[]).await.map(|row| row.get::<_, Option<i64>>(0));
    let conflict = |error: tokio_postgres::Error| error.code().map(|code| code.code().to_owned());
    assert!(delay(&client, "d", 3600.0, None).await.is_some());
    // The very same again, in any form and with any time, is answered as `enqueue` answers.
    assert_eq!(delay(&client, "d", 7200.0, None).await, None);
    for same in [
        "SELECT oncebox.enqueue('d', 's', 'p')",
        "SELECT oncebox.enqueue_at('d', 's', 'p', clock_timestamp() - interval '1 s')",
        "SELECT id FROM oncebox.enqueue_all('{d}', '{s}', '{p}')",
    ] {
        assert_eq!(state(same).await.unwrap(), None, "{same}");
    }
    for other in [
        "SELECT oncebox.enqueue('d', 's', 'other')",
        "SELECT oncebox.enqueue('d', 'other', 'p')",
        "SELECT oncebox.enqueue_at('d', 's', 'other', clock_timestamp() + interval '1 h')",
        "SELECT id FROM oncebox.enqueue_all('{d}', '{s}', '{other}')",
    ] {
        assert_eq!(conflict(state(other).await.unwrap_err()).as_deref(), Some("OB001"), "{other}");
    }
    let nobody = client.query_one("SELECT oncebox.cancel_delayed(NULL)", &[]).await.unwrap_err();
    assert_eq!(conflict(nobody).as_deref(), Some("OB002"), "a reminder that nobody named is not called off");
    assert_eq!((log(&client).await.len(), waiting(&client).await), (0, (1, 1)));
    // And the other way round: a message in the log is not delayed as well.
    state("SELECT oncebox.enqueue('e', 's', 'p')").await.unwrap();
    assert_eq!(delay(&client, "e", 3600.0, None).await, None);
    let other = "SELECT oncebox.enqueue_at('e', 's', 'x', clock_timestamp() + interval '1 h')";
    assert_eq!(conflict(state(other).await.unwrap_err()).as_deref(), Some("OB001"));
    assert_eq!(waiting(&client).await, (1, 1));
    // After its move too.
    pass(&client, 3600.0).await;
    assert_eq!(move_all(&mut connect(&values_of(&env)).await.mover()).await, 1);
    assert_eq!(delay(&client, "d", 3600.0, None).await, None);
    assert_eq!((log(&client).await, waiting(&client).await), (vec!["e".to_owned(), "d".to_owned()], (0, 0)));
}

/// A key that many messages find at once, and that is cancelled just then, is neither lost nor sent
/// in part: the producer runs its transaction again.
#[tokio::test]
async fn a_key_that_is_cancelled_while_many_are_enqueued_fails_the_call() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    assert!(delay(&client, "d", 3600.0, None).await.is_some());
    // As another transaction would that commits between the statements of enqueue_all().
    let cancelling = "CREATE FUNCTION cancelling() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM oncebox.cancel_delayed('d'); RETURN NULL; END $$;
        CREATE TRIGGER cancelling AFTER INSERT ON oncebox.message_0 EXECUTE FUNCTION cancelling();";
    client.batch_execute(cancelling).await.unwrap();
    let many = "SELECT count(id) FROM oncebox.enqueue_all('{c,d,e}', '{s,s,s}', '{p,p,p}')";
    let error = client.query_one(many, &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
    assert_eq!((log(&client).await.len(), waiting(&client).await), (0, (1, 1)), "nothing has changed");
    client.batch_execute("DROP TRIGGER cancelling ON oncebox.message_0").await.unwrap();
    let again: i64 = client.query_one(many, &[]).await.unwrap().get(0);
    assert_eq!((again, log(&client).await.len()), (2, 2), "d is still delayed");
}

/// Two transactions with one key, one of which delays: never both, at any isolation level.
#[tokio::test]
async fn transactions_that_meet_on_a_key_wait_for_each_other() {
    let env = TestEnv::new().await;
    let (mut one, mut other, reader) = (env.pg().await, env.pg().await, env.pg().await);
    for (n, level) in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead].into_iter().enumerate()
    {
        for delays_first in [true, false] {
            let key = format!("k{n}-{delays_first}");
            let second = other.build_transaction().isolation_level(level).start().await.unwrap();
            // The snapshot of a repeatable read is taken here.
            second.query_one("SELECT count(*) FROM oncebox.message", &[]).await.unwrap();
            let first = one.transaction().await.unwrap();
            let now = "SELECT oncebox.enqueue($1, 's', 'x')";
            let later = "SELECT oncebox.enqueue_at($1, 's', 'y', clock_timestamp() + interval '1 h')";
            let (early, late) = if delays_first { (later, now) } else { (now, later) };
            first.execute(early, &[&key]).await.unwrap();
            let waits = async {
                let sql = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%oncebox.enqueue%'";
                eventually("the second waits", LIMIT, async || reader.query_opt(sql, &[]).await.unwrap())
                    .await;
                first.commit().await.unwrap();
            };
            let late = async { second.execute(late, &[&key]).await };
            let (done, ()) = tokio::join!(late, waits);
            let code = done.unwrap_err().code().unwrap().clone();
            let expected = match level {
                IsolationLevel::ReadCommitted => SqlState::from_code("OB001"),
                _ => SqlState::T_R_SERIALIZATION_FAILURE,
            };
            assert_eq!(code, expected, "{key}");
            second.rollback().await.unwrap();
        }
    }
    assert_eq!((log(&reader).await.len(), waiting(&reader).await), (2, (2, 2)));
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_the_payload_is_bounded_in_a_batch() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for (time, text) in [
        ("NULL", "not_before is null"),
        ("'infinity'", "not_before is infinity; the limit is ten years ahead"),
        ("'-infinity'", "not_before is -infinity; the limit is ten years ahead"),
        ("clock_timestamp() + interval '11 years'", "the limit is ten years ahead"),
    ] {
        let sql = format!("SELECT oncebox.enqueue_at('k', 's', 'p', {time})");
        let error = client.execute(&sql, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "OB008", "{time}");
        assert!(error.message().contains(text), "{error}");
    }
    let later = "clock_timestamp() + interval '1 h'";
    for (arguments, code) in [
        (format!("'a b', 's', 'p', {later}"), "OB002"),
        (format!("'k', 's.', 'p', {later}"), "OB003"),
        (format!("'k', 's', 'p', {later}, '{{\"Nats-x\": \"y\"}}'"), "OB004"),
        (format!("'k', 's', NULL, {later}"), "OB005"),
        (format!("'k', 's', 'p', {later}, '{{}}', 'ä'"), "OB006"),
    ] {
        let error =
            client.execute(&format!("SELECT oncebox.enqueue_at({arguments})"), &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{arguments}");
    }
    assert_eq!((log(&client).await.len(), waiting(&client).await), (0, (0, 0)));
    let large = "SELECT count(oncebox.enqueue_at('l' || n, 's', convert_to(repeat('x', 1000), 'UTF8'), clock_timestamp() + interval '1 h'))
                 FROM generate_series(1, 10) AS n";
    client.query_one(large, &[]).await.unwrap();
    pass(&client, 3600.0).await;
    for (bytes, moved) in [(1, 1), (1000, 1), (2500, 3), (0, 0), (1_000_000, 5)] {
        let sql = "SELECT moved FROM oncebox.move_delayed(100, $1, '-infinity', 0)";
        let row = client.query_one(sql, &[&i64::from(bytes)]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), moved, "{bytes} bytes");
    }
}

#[tokio::test]
async fn a_producer_in_rust_delays_lists_and_cancels() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let outbox = Outbox::default();
    let key = |text: &str| text.parse::<Key>().unwrap();
    let message = |text: &str| Message::bytes(key(text), "s".parse().unwrap(), "p");
    let hour = Duration::from_secs(3600);
    let transaction = client.transaction().await.unwrap();
    let one = message("o-1:remind").delayed_by(hour).ordering_key("o-1");
    assert!(outbox.enqueue(&transaction, &one).await.unwrap().is_some());
    assert_eq!(outbox.enqueue(&transaction, &one).await.unwrap(), None);
    let several = [
        message("o-1"),
        message("o-1:warn").not_before(SystemTime::now() + 2 * hour).header("tenant", "acme").unwrap(),
        message("o-1:past").not_before(SystemTime::UNIX_EPOCH),
        one.clone(),
        message("o-2").delayed_by(Duration::ZERO),
    ];
    let ids = outbox.enqueue_all(&transaction, &several).await.unwrap();
    assert_eq!(ids.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, true, false, true]);
    transaction.commit().await.unwrap();
    assert_eq!(log(&client).await, ["o-1", "o-1:past", "o-2"]);

    let transaction = client.transaction().await.unwrap();
    let delayed = outbox.list_delayed(&transaction, &key("o-1"), 10).await.unwrap();
    let keys: Vec<&str> = delayed.iter().map(|message| message.key.as_str()).collect();
    assert_eq!(keys, ["o-1:remind", "o-1:warn"]);
    let wait = delayed[0].not_before.duration_since(delayed[0].created_at).unwrap();
    assert!(wait <= hour && wait > hour - Duration::from_secs(60), "{wait:?}");
    assert_eq!(delayed[0].ordering_key.as_deref(), Some("o-1"));
    assert!(outbox.cancel_delayed(&transaction, &key("o-1:remind")).await.unwrap());
    assert!(!outbox.cancel_delayed(&transaction, &key("o-1:remind")).await.unwrap());
    assert!(!outbox.cancel_delayed(&transaction, &key("o-1")).await.unwrap(), "it is in the log");
    transaction.commit().await.unwrap();
    assert_eq!(waiting(&client).await, (1, 1));

    let transaction = client.transaction().await.unwrap();
    let far = [
        message("far").delayed_by(100_000 * hour),
        message("far").not_before(SystemTime::now() + 1_000_000 * hour),
    ];
    for far in far {
        let error = outbox.enqueue(&transaction, &far).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_operator_sees_lists_and_cancels() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for (key, seconds) in [("o-1:warn", 7200.0), ("o-1:remind", 3600.0), ("o-2:remind", 5400.0)] {
        delay(&client, key, seconds, Some("o")).await;
    }
    client.execute("SELECT oncebox.enqueue('o-1', 's', 'p')", &[]).await.unwrap();
    let url = env.database_url();
    let listed = async |arguments: &[&str]| {
        let text = run_ok(url, &[&["outbox", "delayed", "list", "--json"], arguments].concat()).await;
        let keys = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone());
        keys.map(|key| key.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]).await, ["o-1:remind", "o-2:remind", "o-1:warn"], "in the order of their times");
    assert_eq!(listed(&["--key", "o-1:warn"]).await, ["o-1:warn"]);
    assert_eq!(listed(&["--subject", "s", "--limit", "1"]).await, ["o-1:remind"]);
    assert_eq!(listed(&["--ordering-key", "o"]).await.len(), 3);
    assert!(run_ok(url, &["outbox", "delayed", "list"]).await.starts_with("NOT BEFORE"));

    let trace: Value = serde_json::from_str(&run_ok(url, &["trace", "o-1", "--json"]).await).unwrap();
    let states: Vec<String> = trace["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| format!("{} {} {}", message["key"], message["state"], message["not_before"].is_null()))
        .collect();
    assert_eq!(
        states.join(", ").replace('"', ""),
        "o-1 due true, o-1:remind delayed false, o-1:warn delayed false"
    );
    let status: Value = serde_json::from_str(&run_ok(url, &["status", "--json"]).await).unwrap();
    assert_eq!(
        (&status["delayed"]["messages"], &status["delayed"]["late_seconds"]),
        (&3.into(), &0.0.into())
    );
    assert_eq!(status["backlog_messages"], 1, "what is delayed is not due");

    let dry = run_ok(url, &["outbox", "delayed", "cancel", "--subject", "s", "--dry-run", "--json"]).await;
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!((&dry["dry_run"], &dry["messages"]), (&true.into(), &3.into()));
    assert!(dry["confirm"].is_string(), "{dry}");
    assert_eq!(waiting(&client).await.0, 3);
    let cancel = ["outbox", "delayed", "cancel", "--key", "o-1:warn", "--by", "mina", "--note", "INC-7"];
    assert_eq!(run_ok(url, &cancel).await, "cancelled 1 message\n");
    let audit = "SELECT count(*) FROM oncebox.audit
                 WHERE action = 'cancel' AND key = 'o-1:warn' AND operator = 'mina' AND note = 'INC-7' AND reason = 'delayed'";
    assert_eq!(client.query_one(audit, &[]).await.unwrap().get::<_, i64>(0), 1);
    let (code, _, problem) = run(url, &["outbox", "delayed", "cancel", "--key", "o-1"]).await;
    assert_eq!(code, 1);
    assert!(
        problem.contains("no delayed message is selected: the message with the key \"o-1\" is due"),
        "{problem}"
    );
    run_ok(url, &["outbox", "delayed", "cancel", "--all", "--limit", "1"]).await;
    assert_eq!(listed(&[]).await, ["o-2:remind"]);
    pass(&client, 7200.0).await;
    let status = run_ok(url, &["status"]).await;
    assert!(status.contains("1; the first is 18"), "{status}");
}
