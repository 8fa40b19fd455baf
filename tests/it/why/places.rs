//! Several messages, several databases, roles, the console.

use oncebox_tests::TestEnv;
use serde_json::{Value, json};

use super::support::{Scene, assert_held, why};
use crate::{
    console::support::Console,
    operator::doctor::run_with,
    relay::support::{connect, drain, with},
};

fn summary(told: &Value) -> Vec<String> {
    let answers = told["answers"].as_array().unwrap().iter();
    let line = |one: &Value| format!("{} {} {}", one["key"], one["outcome"], one["station"]).replace('"', "");
    answers.map(line).collect()
}

#[tokio::test]
async fn each_message_of_a_key_has_its_answer_and_those_that_are_held_come_first() {
    let scene = Scene::new().await;
    let lost = scene.env.subject("lost");
    scene.enqueue("order-1:mail", &lost, None).await;
    drain(&mut connect(&with(&scene.values, [("attempts-max", "1")])).await.worker()).await;
    scene.enqueue("order-1", &scene.taken, None).await;
    scene.enqueue("order-1:pay", &lost, None).await;
    let (code, told) = scene.why("order-1").await;
    assert_eq!(code, 1, "{told}");
    let expected = ["order-1 on-its-way lane", "order-1:mail held outbox", "order-1:pay held stream"];
    assert_eq!(
        (summary(&told), &told["is_cut"]),
        (expected.map(str::to_owned).to_vec(), &json!(false)),
        "{told}"
    );
    let environment = [("DATABASE_URL", scene.env.database_url()), ("NATS_URL", scene.env.nats_url())];
    let (_, text, _) = run_with(&["why", "order-1"], &environment).await;
    assert!(
        text.starts_with("3 messages with this key, or one below it; 2 held\n\norder-1:mail in "),
        "{text}"
    );
    assert!(text.contains("order-1 in ") && text.contains(" is on its way: lane"), "{text}");
    let (_, told) = why(scene.env.database_url(), scene.env.nats_url(), &["order-1", "--limit", "1"]).await;
    assert_eq!((told["answers"].as_array().unwrap().len(), &told["is_cut"]), (2, &json!(true)), "{told}");
}

#[tokio::test]
async fn an_inbox_in_another_database_is_asked_and_the_remedy_names_it() {
    let (scene, other) = (Scene::new().await, TestEnv::new().await);
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let pg = other.pg().await;
    pg.batch_execute("SELECT oncebox.register_scope('mail:send')").await.unwrap();
    let bury = "SELECT oncebox.bury('mail:send', 'order-1', 'payload', 'no account', 'mail.send')";
    pg.batch_execute(bury).await.unwrap();
    let (url, nats) = (scene.env.database_url(), scene.env.nats_url());
    // Of two databases one is away: it may have the key.
    let (environment, away) =
        ([("DATABASE_URL", url), ("NATS_URL", nats)], "postgres://nobody@127.0.0.1:1/away");
    let (code, output, log) = run_with(&["why", "nobody-knows-it", "--also", away], &environment).await;
    assert!(
        code == 69 && output.contains("no database that answered has a message"),
        "{code}: {output}{log}"
    );
    let (_, told) = why(url, nats, &["order-1", "--also", other.database_url()]).await;
    let answer = &told["answers"][0];
    let retry = "oncebox inbox dead retry --id '1'";
    assert_held(answer, "inbox", &["mail:send in ", "gave it up", "no account"], &[retry]);
    assert!(answer["remedy"]["database"].as_str().unwrap().contains(other.name()), "{answer}");

    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "nats_url = {nats:?}\n[[database]]\nname = \"shop\"\nurl = {url:?}\n[[database]]\nname = \"mail\"\nurl = {:?}\n",
        other.database_url()
    );
    std::fs::write(file.path(), text).unwrap();
    let environment = [("ONCEBOX_CONFIG", file.path().to_str().unwrap())];
    let (code, output, log) = run_with(&["why", "order-1", "--json"], &environment).await;
    let told: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}"));
    let command = &told["answers"][0]["remedy"]["command"];
    assert_eq!((code, command), (1, &json!(format!("{retry} --database 'mail'"))), "{told}");
    // A key that only the inbox knows.
    let (_, told) = why(other.database_url(), nats, &["order-1"]).await;
    assert_held(&told["answers"][0], "inbox", &["gave it up"], &[retry]);
}

#[tokio::test]
async fn the_roles_of_operators_and_relays_may_ask() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let sql = "SELECT oncebox.register_scope('pay:charge');
               SELECT oncebox.bury('pay:charge', 'order-1', 'payload', 'no funds', 'pay')";
    scene.pg.batch_execute(sql).await.unwrap();
    for (role, sees_inboxes) in [("relay", false), ("operator", true)] {
        let name = format!("{}_{role}", scene.env.name());
        let create = format!("CREATE ROLE {name} LOGIN PASSWORD 'r' IN ROLE oncebox_{role}");
        scene.pg.batch_execute(&create).await.unwrap();
        let authority = scene.env.database_url().split_once("://").unwrap().1;
        let host = authority.split_once('@').map_or(authority, |(_, host)| host);
        let (_, told) = why(&format!("postgres://{name}:r@{host}"), scene.env.nats_url(), &["order-1"]).await;
        let answer = &told["answers"][0];
        assert_eq!(answer["station"] == "inbox", sees_inboxes, "{role}: {told}");
        assert!(answer["passed"].to_string().contains("at sequence 1"), "{role}: {told}");
        scene.pg.batch_execute(&format!("DROP ROLE {name}")).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_s_page_says_why_with_a_button_and_the_api_has_the_same() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.env.subject("lost"), None).await;
    drain(&mut connect(&with(&scene.values, [("attempts-max", "1")])).await.worker()).await;
    let console = Console::of(&scene.env, &["--allow-actions"]).await;
    console.row("shop", |row| row["state"] != "away").await;
    let told = console.api("/key?key=order-1").await;
    let answer = &told["why"][0];
    assert_held(
        answer,
        "outbox",
        &["it is dead since"],
        &["oncebox outbox dead retry --key 'order-1' --database 'shop'"],
    );
    let page = console.get("/key?key=order-1").await.body;
    assert!(page.contains("Why it is not there yet") && page.contains("it is dead since"), "{page}");
    let button = r#"href="/db/shop/act?kind=dead&amp;action=retry&amp;key=order-1">retry</a>"#;
    assert!(page.contains(button), "{page}");
    let (code, log) = console.run(&answer["remedy"]["command"].as_str().unwrap()["oncebox ".len()..]).await;
    assert_eq!(code, 0, "{log}");
    assert_ne!(console.api("/key?key=order-1").await["why"][0]["station"], "outbox");
    let unknown = console.api("/key?key=nobody").await;
    assert_eq!(unknown["why"][0]["outcome"], "unknown", "{unknown}");
}
