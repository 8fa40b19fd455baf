//! Commands on the databases that a configuration file names.

use std::fs;

use oncebox_tests::{TestEnv, oncebox};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use crate::relay::support::{enqueue, through_proxy};

/// No server listens there.
const NOWHERE: &str = "postgres://oncebox@127.0.0.1:1/nowhere";

fn table(name: &str, url: &str) -> String {
    format!("[[database]]\nname = {name:?}\nurl = {url:?}\n\n")
}

fn file(text: &str) -> (NamedTempFile, String) {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    (file, path)
}

/// Runs a command with this file: exit code, output, log.
async fn run(path: &str, arguments: &[&str]) -> (i32, String, String) {
    oncebox(arguments, &[("ONCEBOX_CONFIG", path)]).await.unwrap()
}

fn documents(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(documents: &[Value]) -> Vec<&str> {
    documents.iter().map(|document| document["database"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_mistake_of_database_tables_is_reported_at_once_with_its_line() {
    let text = r#"database_url = "postgres://h/lone"
workers = 0

[[database]]
name = "orders"
url = "postgres://h/orders"
wrokers = 3
log = "debug"
database_ca_file = "/ca"

[[database]]
name = "orders"
url_file = "/nowhere"

[[database]]
name = "no blanks"

[[database]]
url = "postgres://u:hunter2@h/d"
url_file = "/nowhere"
nats_user = "me"

[[database]]
name = "own"
url = "postgres://h/own"
schema = "No"
[[database.stream]]
name = "S"
"#;
    let (_kept, path) = file(text);
    let environment =
        [("ONCEBOX_CONFIG", &*path), ("NATS_URL", "nats://h"), ("ONCEBOX_NATS_TOKEN", "hunter2")];
    let (code, _, log) = oncebox(&["relay"], &environment).await.unwrap();
    assert_eq!(code, 64, "{log}");
    let expected = [
        ":1: database_url stands beside [[database]] tables",
        ":2: workers: \"0\" is not a whole number",
        ":7: \"wrokers\" is not a setting of a database; did you mean workers?",
        ":8: \"log\" is a setting of the whole process",
        ":9: \"database_ca_file\" is called ca_file in a [[database]] table",
        ":11: database orders is named twice",
        ":13: url_file: read /nowhere",
        ":16: name: \"no blanks\" is not a name: 1 to 63 letters, digits, - _ or .",
        ":15: url: is not set",
        ":18: a database needs its name",
        ":20: url_file: is given as well as ",
        ":21: nats_user: needs nats-password",
        ":26: schema: schema name \"No\"",
        ": a stream needs its subjects",
    ];
    for part in expected {
        assert!(log.contains(part), "{part}:\n{log}");
    }
    assert_eq!(log.lines().count(), expected.len() + 1, "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn a_command_that_looks_asks_all_and_one_out_of_reach_is_a_line() {
    let (orders, stock) = (TestEnv::new().await, TestEnv::new().await);
    enqueue(&orders.pg().await, &orders.subject("a"), "m-", 0..3, 0).await;
    let text = table("orders", orders.database_url())
        + &table("lost", NOWHERE)
        + &table("stock", stock.database_url());
    let (_kept, path) = file(&text);
    let (code, output, log) = run(&path, &["status"]).await;
    assert_eq!(code, 69, "{output}{log}");
    for part in [
        "database orders\n",
        "3 messages",
        "database lost: PostgreSQL at 127.0.0.1:1/nowhere",
        "database stock\n",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let (code, output, _) = run(&path, &["status", "--json"]).await;
    let all = documents(&output);
    assert_eq!((code, names(&all)), (69, vec!["orders", "lost", "stock"]));
    assert_eq!((&all[0]["backlog_messages"], &all[2]["backlog_messages"]), (&3.into(), &0.into()));
    assert!(all[1]["error"].as_str().unwrap().contains("cannot be reached"), "{output}");
    let reached = ["status", "--json", "--database", "stock", "--database", "orders"];
    let (code, output, _) = run(&path, &reached).await;
    // Messages wait in one of them, and there is no relay.
    assert_eq!((code, names(&documents(&output))), (1, vec!["orders", "stock"]));
    // Lists as well.
    let (code, output, _) = run(&path, &["outbox", "delayed", "list"]).await;
    assert!(code == 69 && output.matches("database ").count() == 3, "{output}");
    let (code, output, _) = run(&path, &["doctor", "--json"]).await;
    assert_eq!(code, 64, "a doctor asks NATS, which is not configured: {output}");
}

#[tokio::test]
async fn databases_are_chosen_by_name_where_something_changes() {
    let (orders, stock) = (TestEnv::new().await, TestEnv::new().await);
    let (_kept, path) =
        file(&(table("orders", orders.database_url()) + &table("stock", stock.database_url())));
    let discard = ["outbox", "dead", "discard", "--all"];
    let (code, _, log) = run(&path, &discard).await;
    assert!(code == 64 && log.contains("choose with --database: orders, stock"), "{log}");
    for dry in
        [&["outbox", "prune", "--retention", "1h", "--dry-run", "--json"][..], &["saga", "list", "--json"]]
    {
        let (code, output, log) = run(&path, dry).await;
        assert!(code == 0 && output.lines().all(|line| line.contains("\"database\":")), "{output}{log}");
    }
    let (code, output, log) = run(&path, &[&discard[..], &["--database", "stock"]].concat()).await;
    assert!(code == 1 && output.starts_with("database stock\n"), "{output}{log}");
    assert!(log.contains("no dead message is selected") && !output.contains("orders"), "{log}");
    let (code, _, log) = run(&path, &["migrate", "--database", "stock", "--database", "orders"]).await;
    assert!(code == 0 && log.matches("migrated").count() == 2 && log.contains("orders"), "{log}");
    // Each unknown name, with the known ones.
    let (code, _, log) = run(&path, &["status", "--database", "stok", "--database", "x"]).await;
    assert_eq!((code, log.matches("the file names no database").count()), (64, 2), "{log}");
    assert!(log.contains("\"stok\", but orders, stock"), "{log}");
    let (code, _, log) = run(&path, &["status", "--database-url", NOWHERE]).await;
    assert!(code == 64 && log.contains("choose with --database: orders, stock"), "{log}");
    let (code, _, log) = oncebox(&["status", "--database", "a"], &[("DATABASE_URL", NOWHERE)]).await.unwrap();
    assert!(code == 64 && log.contains("but none is named"), "{log}");
    // A database of the environment is none of the file.
    let environment = [("ONCEBOX_CONFIG", &*path), ("DATABASE_URL", NOWHERE)];
    let (code, _, log) = oncebox(&["status"], &environment).await.unwrap();
    assert!(code == 0 && log.contains("DATABASE_URL is not used"), "{log}");
}

/// The lines that a console without a file shows name it so.
#[tokio::test]
async fn a_database_that_no_file_names_is_chosen_by_its_own_name() {
    let env = TestEnv::new().await;
    let own = env.database_url().rsplit('/').next().unwrap();
    let environment = [("DATABASE_URL", env.database_url())];
    let (code, _, log) = oncebox(&["outbox", "pauses", "--database", own], &environment).await.unwrap();
    assert_eq!(code, 0, "{log}");
    let pause = ["outbox", "pause", "--all", "--database", own, "--database", "stock"];
    let (code, _, log) = oncebox(&pause, &environment).await.unwrap();
    assert!(code == 64 && log.contains(&format!("only {own:?} is configured, and not \"stock\"")), "{log}");
}

#[tokio::test]
async fn one_file_names_a_database_by_a_file_and_changes_it_without_its_name() {
    let env = TestEnv::new().await;
    let (_url, url_file) = file(&format!("{}\n", env.database_url()));
    let (_kept, path) = file(&format!("[[database]]\nname = \"only\"\nurl_file = {url_file:?}\n"));
    let (code, output, log) = run(&path, &["outbox", "prune", "--retention", "1h"]).await;
    assert_eq!((code, &*output), (0, "database only\npruned 0 messages\n"), "{log}");
}

#[tokio::test]
async fn a_trace_follows_a_key_through_all_databases_at_once() {
    let (shop, stock, hanging) = (TestEnv::new().await, TestEnv::new().await, TestEnv::new().await);
    let (shop_client, stock_client) = (shop.pg().await, stock.pg().await);
    let enqueue = async |client: &tokio_postgres::Client, key: &str| {
        client.execute("SELECT oncebox.enqueue($1, 'a', 'p')", &[&key]).await.unwrap();
    };
    enqueue(&shop_client, "7").await;
    enqueue(&stock_client, "7:reserve").await;
    enqueue(&shop_client, "7:pay").await;
    let handled = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                   VALUES ('stock:reserve', '', '7', '', 'completed')";
    stock_client.batch_execute(handled).await.unwrap();
    let (proxy, stalled) = through_proxy(hanging.database_url()).await;
    proxy.stall(true);
    let text = table("shop", shop.database_url())
        + &table("hangs", &stalled)
        + &table("stock", stock.database_url());
    let (_kept, path) = file(&text);
    let begun = Instant::now();
    let (code, output, log) = run(&path, &["trace", "7"]).await;
    assert_eq!(code, 69, "{output}{log}");
    assert!(begun.elapsed().as_secs() < 25, "a deadline");
    let lines: Vec<&str> = output.lines().collect();
    let expected = [["shop", " 7 "], ["stock", " 7:reserve "], ["shop", " 7:pay "]];
    for (line, parts) in lines[1..].iter().zip(expected) {
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {output}");
    }
    assert!(lines[1].contains("completed in stock:reserve, stock"), "{output}");
    assert!(output.contains("database hangs: look into hangs: PostgreSQL at "), "{output}");
    let (_, output, _) =
        run(&path, &["trace", "7", "--json", "--database", "stock", "--database", "shop"]).await;
    assert_eq!(names(&documents(&output)), ["shop", "stock"]);
    let (code, _, log) = run(&path, &["trace", "8"]).await;
    assert!(
        code == 69 && log.contains("no message has the key") && log.contains("not all databases"),
        "{log}"
    );
}
