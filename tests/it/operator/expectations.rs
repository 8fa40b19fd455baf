//! Expected arrival: a message that no consumer has handled in time is found, told of, and
//! forgotten when it has come; its time runs from its commit on.

mod crossing;

use std::{fs, path::PathBuf, time::Duration};

use oncebox_tests::{TestEnv, eventually, oncebox};
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run, run_ok},
    support::{LIMIT, connect, maintain, values},
};

async fn expect(env: &TestEnv, arguments: &str) -> String {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    run_ok(env.database_url(), &[&["expect"], &arguments[..]].concat()).await
}

async fn enqueue(client: &Client, keys: &[&str], subject: &str) {
    let sql = "SELECT oncebox.enqueue(k, $2, 'p') FROM unnest($1::text[]) AS k";
    client.execute(sql, &[&keys, &subject]).await.unwrap();
}

/// As the consumer of a tenant does.
async fn handle(client: &Client, key: &str, tenant: &str) {
    let sql = format!(
        "BEGIN DEFERRABLE; SELECT oncebox.claim('billing:charge', '{key}', 'p', '{tenant}');
         SELECT oncebox.settle('billing:charge', '{key}', tenant => '{tenant}'); COMMIT"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn missing(env: &TestEnv) -> Vec<String> {
    let lines = expect(env, "unhandled --json").await;
    let key = |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned();
    lines.lines().map(key).collect()
}

#[tokio::test]
async fn a_message_that_is_not_in_its_inbox_in_time_is_found_until_it_has_come() {
    let env = TestEnv::new().await;
    let (client, other) = (env.pg().await, env.pg().await);
    let (orders, mails) = (env.subject("orders.placed"), env.subject("mails.sent"));
    client.batch_execute("SELECT oncebox.register_scope('billing:charge')").await.unwrap();
    run_ok(env.database_url(), &["events", "enable", "unhandled"]).await;
    let added = format!(
        "add --subject {} --handled-by billing:charge --within 2s --by mina",
        env.subject("orders.*")
    );
    expect(&env, &added).await;
    let mut maintainer = connect(&values(env.database_url(), env.nats_url())).await.maintainer();
    enqueue(&client, &["before"], &orders).await;
    maintain(&mut maintainer).await;
    other.batch_execute("BEGIN").await.unwrap();
    enqueue(&other, &["late"], &orders).await;
    enqueue(&client, &["handled", "of-tenant", "forgotten"], &orders).await;
    enqueue(&client, &["other-subject"], &mails).await;
    handle(&client, "handled", "").await;
    handle(&client, "of-tenant", "acme").await;
    // Messages of the open transaction are not judged, and it may delay the judgement of later
    // ones.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    maintain(&mut maintainer).await;
    other.batch_execute("COMMIT").await.unwrap();
    maintain(&mut maintainer).await;
    assert!(!missing(&env).await.contains(&"late".to_owned()), "its time runs from the commit on");
    let looked = async |wanted: &[&str]| {
        maintain(&mut maintainer).await;
        (missing(&env).await == wanted).then_some(())
    };
    let mut looked = looked;
    eventually("both are found", LIMIT, async || looked(&["late", "forgotten"]).await).await;
    let events = "SELECT convert_from(payload, 'UTF8') FROM oncebox.message WHERE subject = 'oncebox.events.unhandled'";
    let events = client.query(events, &[]).await.unwrap();
    let told: Vec<Value> = events.iter().map(|row| serde_json::from_str(row.get(0)).unwrap()).collect();
    assert_eq!((told.len(), &told[0]["inbox"]), (1, &"billing:charge".into()), "{told:?}");
    let (_, said, _) = run(env.database_url(), &["status"]).await;
    assert!(
        said.contains("2 messages to") && said.contains("not in the inbox of billing:charge within 2s"),
        "{said}"
    );
    assert!(said.contains("`oncebox why 'late'`"), "{said}");
    handle(&client, "late", "").await;
    eventually("it has come", LIMIT, async || looked(&["forgotten"]).await).await;
    let list = expect(&env, "list").await;
    assert!(list.contains("billing:charge") && list.contains("forgotten"), "{list}");
    expect(&env, &added.replace("add", "remove").replace(" --within 2s", "")).await;
    assert!(missing(&env).await.is_empty());
}

#[tokio::test]
async fn an_expectation_that_cannot_be_judged_is_refused() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.register_scope('billing:charge', '1 minute')").await.unwrap();
    connect(&values(env.database_url(), env.nats_url())).await.maintainer().run_once().await.unwrap();
    for (arguments, reason) in [
        (
            "add --subject a --handled-by nobody:knows --within 2s",
            "no consumer nobody:knows has registered in this database, which has billing:charge. Correct --handled-by, \
             name the database of the inbox by --in, or say by --unseen that the consumer has never been started",
        ),
        (
            "add --subject a --handled-by billing:charge --within 1m",
            "inbox billing:charge keeps its keys for 1m, so it has forgotten them when they are looked for after 1m. \
             Give a shorter --within",
        ),
        (
            "add --subject a --handled-by billing:charge --within 300d",
            "relays keep messages for 7d, so they are gone when they are looked for after 300d. Give a shorter \
             --within, or let relays keep messages for longer (--retention)",
        ),
        ("remove --subject a --handled-by billing:charge", "nothing was done"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (code, _, said) = run(env.database_url(), &[&["expect"], &arguments[..]].concat()).await;
        assert!(code != 0 && said.contains(reason), "{arguments:?}: {said}");
        assert!(!said.contains("did not do what it was asked") && !said.contains("OB011"), "{said}");
    }
}

/// Tells of the inbox that cannot be looked at, and still looks at the others.
#[tokio::test]
async fn an_inbox_of_more_tenants_than_can_be_searched_stops_no_other_expectation() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let crowd = "SELECT oncebox.register_scope('billing:charge'), oncebox.register_scope('mails:send');
                 INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                 SELECT 'mails:send', 't' || n, 'k', sha256('p'), 'completed' FROM generate_series(1, 65) AS n";
    client.batch_execute(crowd).await.unwrap();
    let subject = env.subject("placed");
    for scope in ["mails:send", "billing:charge"] {
        expect(&env, &format!("add --subject {subject} --handled-by {scope} --within 1s")).await;
    }
    let relay = connect(&values(env.database_url(), env.nats_url())).await;
    let mut maintainer = relay.maintainer();
    maintain(&mut maintainer).await;
    enqueue(&client, &["forgotten"], &subject).await;
    eventually("the other one is judged", LIMIT, async || {
        maintain(&mut maintainer).await;
        (missing(&env).await == ["forgotten"]).then_some(())
    })
    .await;
    let fault = "SELECT string_agg(reason, '; ') FROM oncebox.maintenance_fault";
    let fault: Option<String> = client.query_one(fault, &[]).await.unwrap().get(0);
    let fault = fault.expect("the one that cannot be judged is told of");
    assert!(
        fault.contains("mails:send has more than 64 tenants") && fault.contains("expect remove"),
        "{fault}"
    );
    client.batch_execute("DELETE FROM oncebox.inbox").await.unwrap();
    eventually("both are judged, from where the one stood", LIMIT, async || {
        maintain(&mut maintainer).await;
        (missing(&env).await == ["forgotten", "forgotten"]).then_some(())
    })
    .await;
}

/// A file with both databases, for relays and commands.
fn both(directory: &TempDir, orders: &TestEnv, billing: &TestEnv) -> PathBuf {
    let file = directory.path().join("fleet.toml");
    let table = |name, env: &TestEnv| {
        format!(
            "[[database]]\nname = {name:?}\nurl = {:?}\nnats_url = {:?}\nretention = \"64s\"\n",
            env.database_url(),
            env.nats_url()
        )
    };
    fs::write(&file, table("orders", orders) + &table("billing", billing)).unwrap();
    file
}

#[tokio::test]
async fn an_inbox_of_another_database_is_checked_in_that_database() {
    let (orders, billing) = (TestEnv::new().await, TestEnv::new().await);
    billing.pg().await.batch_execute("SELECT oncebox.register_scope('billing:charge')").await.unwrap();
    let directory = TempDir::new().unwrap();
    let file = both(&directory, &orders, &billing);
    let add = async |rest: &str| {
        let command = format!(
            "expect add --config {} --database orders --subject placed --within 15m {rest}",
            file.display()
        );
        let arguments: Vec<&str> = command.split(' ').collect();
        let (code, text, log) = oncebox(&arguments, &[] as &[(&str, &str)]).await.unwrap();
        (code, text + &log)
    };
    let (code, said) = add("--in biling --handled-by billing:charge").await;
    assert!(code != 0, "{said}");
    assert!(said.contains("--in: the file names no database \"biling\", but orders, billing"), "{said}");
    let (code, said) = add("--in billing --handled-by billing:chrage").await;
    assert!(code != 0, "{said}");
    let unknown = "no consumer billing:chrage has registered in database billing, which has billing:charge";
    assert!(said.contains(unknown) && said.contains("--unseen"), "{said}");
    let (code, said) = add("--in billing --handled-by billing:later --unseen").await;
    assert!(code == 0 && said.contains("database billing"), "{said}");
    let (code, said) = add("--in billing --handled-by billing:charge").await;
    let expected = "expected: messages to placed in the inbox of billing:charge in database billing, within 15m of \
                    their commit";
    assert!(code == 0 && said.contains(expected), "{said}");
    let unchecked = "add --subject a --handled-by x:y --within 90s --in billing";
    let said = expect(&orders, unchecked).await;
    assert!(
        said.contains("x:y in database billing, within 1m 30s") && said.contains("not checked"),
        "{said}"
    );
    let json = expect(&orders, &format!("{unchecked} --json")).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["within_seconds"], &json["inbox_database"]), (&90.0.into(), &"billing".into()));
}

/// The inbox is in a database that the same relay serves; a relay that does not reach it says so.
#[tokio::test]
async fn an_inbox_of_another_database_is_looked_at_by_the_relay_of_both() {
    let (orders, billing) = (TestEnv::new().await, TestEnv::new().await);
    let _streams = (orders.stream().await, billing.stream().await);
    let subject = orders.subject("placed");
    expect(&orders, &format!("add --subject {subject} --handled-by billing:charge --within 1s --in billing"))
        .await;
    let mut alone = connect(&values(orders.database_url(), orders.nats_url())).await.maintainer();
    maintain(&mut alone).await;
    let doctor = "SELECT string_agg(reason, '; ') FROM oncebox.maintenance_fault";
    let fault: Option<String> = orders.pg().await.query_one(doctor, &[]).await.unwrap().get(0);
    assert!(
        fault.is_some_and(|fault| fault.contains("is in database billing, which this relay does not reach"))
    );
    let directory = TempDir::new().unwrap();
    let file = both(&directory, &orders, &billing);
    let relay =
        Process::start(&["relay", "--config", file.to_str().unwrap(), "--http-listen", "127.0.0.1:0"], []);
    let looked = "SELECT FROM oncebox.expectation_mark WHERE expectation = 1";
    let client = orders.pg().await;
    eventually("a relay has looked", LIMIT, async || {
        (!client.query(looked, &[]).await.unwrap().is_empty()).then_some(())
    })
    .await;
    enqueue(&client, &["handled", "forgotten"], &subject).await;
    handle(&billing.pg().await, "handled", "").await;
    eventually("one is missing", LIMIT, async || (missing(&orders).await == ["forgotten"]).then_some(()))
        .await;
    let gone = "SELECT FROM oncebox.maintenance_fault";
    eventually("the fault is gone", LIMIT, async || {
        client.query(gone, &[]).await.unwrap().is_empty().then_some(())
    })
    .await;
    let (_, metrics) = relay.get("/metrics").await;
    let line = format!(
        "oncebox_unhandled_messages{{database=\"orders\",subject=\"{subject}\",scope=\"billing:charge\",inbox_database=\"billing\"}} 1"
    );
    assert!(metrics.contains(&line), "{metrics}");
    handle(&billing.pg().await, "forgotten", "").await;
    eventually("none is missing", LIMIT, async || missing(&orders).await.is_empty().then_some(())).await;
}
