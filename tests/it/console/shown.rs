//! An action changes the rows that were shown: one row for a ticked box, a group for its button,
//! and not the rows that came since. The same on the command line.

use oncebox_tests::TestEnv;
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::{
    act::{confirm, end, form, number},
    support::{Answer, Console},
};
use crate::relay::{
    process::{run, run_ok},
    support::{connect, drain, enqueue, values_of},
};

/// Letters: scope, tenant, key, subject, reason.
async fn letters(client: &Client, rows: &[[Option<&str>; 5]]) {
    let sql = "
        INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
        VALUES ($1, $2, $3, $4, '{}', '', 1, $5)";
    for row in rows {
        let [scope, tenant, key, subject, reason] = row;
        client.execute(sql, &[scope, tenant, key, subject, reason]).await.unwrap();
    }
}

async fn left(client: &Client) -> Vec<i64> {
    let rows = client.query("SELECT id FROM oncebox.dead_letter ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The links of the buttons of a page, as the fields of their actions.
fn buttons(page: &Answer) -> Vec<String> {
    let links = page.body.split(r#"href="/db/shop/act?"#).skip(1);
    links.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&")).collect()
}

/// As part of an address.
fn encoded(text: &str) -> String {
    text.replace('"', "%22").replace(' ', "%20").replace('[', "%5B").replace(']', "%5D").replace('>', "%3E")
}

#[tokio::test]
async fn a_dead_letter_without_a_key_breaks_no_action_by_key() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let row = |key| [Some("shop:pay"), Some(""), key, Some("shop.pay"), Some("no key")];
    letters(&client, &[row(None), row(Some("order-1")), row(None)]).await;
    let url = env.database_url();
    let listed = run_ok(url, &["inbox", "dead", "list", "--key", "order-1", "--json"]).await;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let console = Console::of(&env, &["--allow-actions"]).await;
    let found = console.api("/databases/shop/set-aside?kind=dead-letters&key=order-1").await;
    assert_eq!(found["rows"].as_array().unwrap().len(), 1, "{found}");
    run_ok(url, &["inbox", "dead", "discard", "--key", "order-1"]).await;
    assert_eq!(left(&client).await, [1, 3]);
}

#[tokio::test]
async fn a_ticked_row_is_one_row_with_or_without_a_key() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let row = |scope, tenant, key| [Some(scope), Some(tenant), key, Some("shop.pay"), Some("no")];
    let key = Some("order-1");
    letters(
        &client,
        &[row("billing", "", key), row("mail", "", key), row("mail", "b", key), row("mail", "", None)],
    )
    .await;
    let sql = "
        INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at)
        SELECT s, t, 'order-1', '', 1, 'no', now()
        FROM (VALUES ('billing', ''), ('mail', ''), ('mail', 'b')) AS v (s, t)";
    client.batch_execute(sql).await.unwrap();
    let console = Console::of(&env, &["--allow-actions"]).await;
    let page = console.get("/db/shop/set-aside?kind=dead-letters").await;
    assert_eq!(page.body.matches(r#"type="checkbox" name="id""#).count(), 4, "{}", page.body);
    let job = confirm(&console, "kind=dead-letters&action=discard&id=1&id=4").await;
    assert_eq!(end(&console, &job).await, json!({ "done": "discarded 2 dead letters" }));
    assert_eq!(left(&client).await, [2, 3]);
    // One that fails has no number.
    let all = console.api("/databases/shop/set-aside?kind=failing").await;
    let id = all["rows"][1]["id"].as_str().unwrap();
    assert_eq!(id, r#"["mail","","order-1"]"#);
    let counted = console.get(&format!("/db/shop/act?kind=failing&action=bury&id={}", encoded(id))).await;
    assert!(counted.body.contains("would bury <strong>1 message</strong>"), "{}", counted.body);
}

#[tokio::test]
async fn the_button_of_a_group_means_that_group() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let row = |subject, reason| [Some("s"), Some(""), None, Some(subject), Some(reason)];
    let rows = [
        row("orders.a", "timeout"),
        row("orders.a", "timeout of the bank"),
        row("orders.a", "Timeout"),
        row("orders.>", "timeout"),
        row("orders.a", "\nat line 7"),
        row("orders.a", "timeout\r\nat line 9"),
    ];
    letters(&client, &rows).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let page = console.get("/db/shop/set-aside?kind=dead-letters").await;
    let buttons = buttons(&page);
    let discards = |part: &str| {
        let found = buttons.iter().find(|link| link.contains("action=discard") && link.contains(part));
        found.unwrap_or_else(|| panic!("{part}: {buttons:?}")).clone()
    };
    for (part, gone) in [
        ("reason-is=timeout&subject-is=orders.a", &[1, 6][..]),
        ("reason-is=timeout&subject-is=orders.%3E", &[4]),
        ("reason-is=&subject-is=orders.a", &[5]),
    ] {
        let before = left(&client).await;
        let job = confirm(&console, &discards(part)).await;
        let noun = if gone.len() == 1 { "letter" } else { "letters" };
        let told = format!("discarded {} dead {noun}", gone.len());
        assert_eq!(end(&console, &job).await, json!({ "done": told }), "{part}");
        let kept: Vec<i64> = before.into_iter().filter(|id| !gone.contains(id)).collect();
        assert_eq!(left(&client).await, kept, "{part}");
    }
    let shown = console.api("/databases/shop/set-aside?kind=dead-letters&reason-is=Timeout").await;
    assert_eq!(shown["rows"].as_array().unwrap().len(), 1, "{shown}");
}

#[tokio::test]
async fn rows_that_came_since_they_were_shown_stay() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let row = [Some("s"), Some(""), None, Some("orders.a"), Some("timeout")];
    letters(&client, &[row]).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let fields = "kind=dead-letters&action=discard&all=1";
    let page = console.get(&format!("/db/shop/act?{fields}")).await;
    letters(&client, &[row; 3]).await;
    let done = console.ask("POST", "/db/shop/act", &[], &form(&page, fields)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let end = end(&console, done.header("location").unwrap()).await;
    assert_eq!(end, json!({ "done": "discarded 1 dead letter; 3 that came since they were shown stay" }));
    let job = console.api(done.header("location").unwrap()).await;
    assert_eq!((&job["done"], &job["expected"]), (&json!(1), &json!(1)), "{job}");
    assert_eq!(left(&client).await, [2, 3, 4]);
    // A row that is gone was among those that were shown: nothing is done.
    let page = console.get(&format!("/db/shop/act?{fields}")).await;
    client.execute("DELETE FROM oncebox.dead_letter WHERE id = 3", &[]).await.unwrap();
    let done = console.ask("POST", "/db/shop/act", &[], &form(&page, fields)).await;
    assert!(done.status == 409 && done.body.contains("has changed since it was shown"), "{}", done.body);
    assert_eq!(left(&client).await, [2, 4]);
}

#[tokio::test]
async fn a_token_of_a_dry_run_confirms_its_rows_on_the_command_line() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let sql = "
        INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at)
        VALUES ('s', '', 'k', '', 1, 'no', now());
        SELECT oncebox.enqueue_at('later', 'orders.a', '', now() + interval '1 hour');
        SELECT oncebox.enqueue('dead', 'orders.a', '');
        INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, attempts, error, dead_at)
        SELECT m.lane, m.id, m.turn, m.key, m.subject, m.headers, m.payload, m.created_at, 1, 'no', now() FROM oncebox.message AS m WHERE m.key = 'dead'";
    client.batch_execute(sql).await.unwrap();
    letters(&client, &[[Some("s"), Some(""), None, Some("orders.a"), Some("timeout")]]).await;
    let url = env.database_url();
    let late_delayed = "SELECT oncebox.enqueue_at('later2', 'orders.a', '', now() + interval '1 hour')";
    let late_dead = "
        SELECT oncebox.enqueue('dead2', 'orders.a', '');
        INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, attempts, error, dead_at)
        SELECT m.lane, m.id, m.turn, m.key, m.subject, m.headers, m.payload, m.created_at, 1, 'no', clock_timestamp()
        FROM oncebox.message AS m WHERE m.key = 'dead2'";
    for (command, late) in [
        (&["inbox", "dead", "discard"][..], ""),
        (&["outbox", "dead", "discard"], late_dead),
        (&["outbox", "delayed", "cancel"], late_delayed),
    ] {
        let dry = run_ok(url, &[command, &["--all", "--dry-run", "--json"]].concat()).await;
        let dry: Value = serde_json::from_str(&dry).unwrap();
        assert_eq!(dry["messages"], 1, "{command:?}");
        let token = dry["confirm"].as_str().unwrap();
        client.batch_execute(late).await.unwrap();
        let (code, _, log) = run(url, &[command, &["--all", "--confirm", "1-1-1-1"]].concat()).await;
        assert!(code != 0, "{command:?}: {log}");
        let (code, text, log) = run(url, &[command, &["--all", "--confirm", token]].concat()).await;
        assert!(code == 0 && text.contains(" 1 message"), "{command:?}: {text} {log}");
        assert_eq!(
            log.contains("1 row came since the dry run, and stays"),
            !late.is_empty(),
            "{command:?}: {log}"
        );
    }
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.parked").await, 1);
}

#[tokio::test]
async fn replays_of_a_time_are_those_that_were_shown() {
    let env = TestEnv::new().await;
    env.stream().await;
    let (client, subject) = (env.pg().await, env.subject("a"));
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &subject, "m-", 0..3, 0).await;
    drain(&mut worker).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let page = console.get("/db/shop/replays").await;
    for field in ["since", "until"] {
        assert!(page.body.contains(&format!(r#"name="{field}""#)), "{field}: {}", page.body);
    }
    let before = console.api("/databases/shop/act?kind=replays&action=replay&until=1h").await;
    assert_eq!(before["count"], 0, "{before}");
    let fields = "kind=replays&action=replay&since=24h&request=r";
    let page = console.get(&format!("/db/shop/act?{fields}")).await;
    enqueue(&client, &subject, "later-", 0..2, 0).await;
    drain(&mut worker).await;
    let done = console.ask("POST", "/db/shop/act", &[], &form(&page, fields)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let end = end(&console, done.header("location").unwrap()).await;
    let told = "asked the relays to replay 3 messages; 2 that came since they were shown stay";
    assert_eq!(end, json!({ "done": told }));
}

#[tokio::test]
async fn each_command_that_a_page_shows_is_one() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    for [kind, action, more] in [
        ["dead", "retry", "id=7"],
        ["dead", "discard", "reason-is=&subject-is=a.b&rate=5"],
        ["parked", "discard", "all=1"],
        ["replays", "cancel", "request=r"],
        ["dead-letters", "retry", "id=7"],
        ["dead-letters", "discard", "scope=s&rate=5"],
        ["failing", "retry", r#"id=["s","","k%27"]"#],
        ["failing", "bury", "reason=x&rate=5"],
        ["delayed", "cancel", "ordering-key=k&rate=5"],
        ["sagas", "retry", "key=k&step=s"],
        ["sagas", "skip", "key=k&step=s"],
        ["sagas", "abandon", "type=t&state=stuck"],
        ["replays", "replay", "subject=a.>&request=r&rate=5"],
        ["losses", "resend", "stream=S"],
        ["pauses", "pause", "all=1&for=2h"],
        ["pauses", "throttle", "subject=a.>&rate=50"],
        ["pauses", "resume", "stream=S"],
    ] {
        let page = console.get(&format!("/db/shop/act?kind={kind}&action={action}&{}", encoded(more))).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let (_, line) = page.body.split_once("<code>oncebox ").unwrap();
        let line = line.split_once("</code>").unwrap().0;
        let line =
            line.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", "\"").replace("&amp;", "&");
        let (code, text) = console.run(&line).await;
        assert_ne!(code, 2, "{line}: {text}");
        // An action with a rate in its command has a box for it.
        let has_box = page.body.contains(r#"name="rate""#);
        assert!(!has_box || !["sagas", "losses"].contains(&kind), "{line}");
        assert!(action != "pause" || !has_box, "{line}");
    }
}
