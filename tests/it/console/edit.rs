//! A message is edited in a form: old and new are shown first, then confirmed with a reason.

use oncebox_tests::{TestEnv, eventually};
use serde_json::json;

use super::{
    act::{end, form},
    support::Console,
};
use crate::relay::support::{LIMIT, connect, drain, fresh_stream, stream_config, values_of, with};

/// A letter whose payload has two lines.
const LETTER: &str = r#"
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
VALUES ('shop:pay', '', 'k', 'SUBJECT', '{"Idempotency-Key": "k", "a": "1", "b": "2"}', E'first\nsecond', 20, 'no table')"#;

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn a_letter_is_edited_in_a_form_that_shows_old_and_new() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let subject = env.subject("a");
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &subject)).await;
    client.batch_execute(&LETTER.replace("SUBJECT", &subject)).await.unwrap();
    let console = Console::of(&env, &["--allow-actions", "--by", "desk", "--show-payloads"]).await;
    let page = console.get("/db/shop/letter?id=1").await;
    assert!(page.body.contains(r#"href="/db/shop/edit?kind=dead-letters&amp;id=1""#), "{}", page.body);
    let page = console.get("/db/shop/edit?kind=dead-letters&id=1").await;
    assert!(
        page.body.contains("\na: 1\nb: 2\n") && page.body.contains("\nfirst\nsecond</textarea>"),
        "{}",
        page.body
    );
    assert!(!page.body.contains("Idempotency-Key"), "an edit has a key of its own: {}", page.body);

    // Browsers send each line end of a form as two characters.
    let payload = "first\r\n<b>third</b>";
    let filled = format!(
        "kind=dead-letters&id=1&headers={}&payload={}",
        encoded("a: 3\r\nc: 4\r\n"),
        encoded(payload)
    );
    let without = console.ask("POST", "/db/shop/edit", &[], &filled).await;
    assert_eq!(without.status, 403, "the token of a form: {}", without.body);
    let shown = console.ask("POST", "/db/shop/edit", &[], &form(&page, &filled)).await;
    for part in [
        "k:oncebox-edit-1",
        "- a: 1",
        "+ a: 3",
        "- b: 2",
        "+ c: 4",
        "  first",
        "- second",
        "+ &lt;b&gt;third&lt;/b&gt;",
        "12 bytes become 18",
        "oncebox inbox dead edit 1 --header a=3",
    ] {
        assert!(shown.body.contains(part), "{part}: {}", shown.body);
    }
    let change = format!(
        "kind=dead-letters&action=edit&id=1&header=a%3D3&header=c%3D4&remove-header=b&payload={}",
        encoded(payload)
    );
    let silent = console.ask("POST", "/db/shop/act", &[], &form(&shown, &change)).await;
    assert!(silent.status == 400 && silent.body.contains("an edit needs a reason"), "{}", silent.body);
    let other = form(&shown, &change.replace("a%3D3", "a%3D5")) + "&note=INC-7";
    let other = console.ask("POST", "/db/shop/act", &[], &other).await;
    assert!(other.status == 409 && other.body.contains("has changed since it was shown"), "{}", other.body);
    let done = console.ask("POST", "/db/shop/act", &[], &(form(&shown, &change) + "&note=INC-7")).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let job = done.header("location").unwrap();
    assert_eq!(end(&console, job).await, json!({ "done": "edited; its key is k:oncebox-edit-1" }));
    assert!(!console.api(job).await.to_string().contains("third"), "no job shows a payload");
    let sent = stream.get_raw_message(1).await.unwrap();
    assert_eq!(&sent.payload[..], b"first\n<b>third</b>");
    let header = |name: &str| sent.headers.get(name).map(ToString::to_string);
    assert_eq!(
        ["Idempotency-Key", "a", "b", "c"].map(header),
        [Some("k:oncebox-edit-1".into()), Some("3".into()), None, Some("4".into())]
    );
    let audit = console.api("/databases/shop/audit").await;
    assert_eq!((&audit["rows"][0]["action"], &audit["rows"][0]["note"]), (&json!("edit"), &json!("INC-7")));
    assert!(!audit.to_string().contains("third"), "{audit}");
}

/// A program does the same with JSON; payloads that are hidden stay so.
#[tokio::test]
async fn a_dead_message_is_edited_by_a_program() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let enqueue = "SELECT oncebox.enqueue('k', $1, 'secret')";
    client.execute(enqueue, &[&format!("nowhere.{}", env.name())]).await.unwrap();
    drain(&mut connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker()).await;
    let console = Console::of(&env, &["--allow-actions", "--by", "desk"]).await;
    let page = console.get("/db/shop/set-aside?kind=dead").await;
    assert!(page.body.contains(r#"href="/db/shop/edit?kind=dead&amp;key=k""#), "{}", page.body);
    for path in ["/db/shop/edit?kind=dead&key=k", "/api/v1/databases/shop/edit?kind=dead&key=k"] {
        let page = console.get(path).await;
        assert!(page.status == 200 && !page.body.contains("secret"), "{}", page.body);
    }
    let dry = console.api("/databases/shop/act?kind=dead&action=edit&key=k&payload=new&header=a=b").await;
    assert_eq!(
        (&dry["edit"]["key"], &dry["edit"]["payload"], &dry["count"]),
        (&json!("k:oncebox-edit-1"), &json!([]), &json!(1))
    );
    assert!(!dry["order"].to_string().contains("new"), "{dry}");
    let body = json!({
        "kind": "dead", "action": "edit", "key": "k", "payload": "new", "header": ["a=b"], "note": "INC-7", "shown": dry["shown"],
    });
    let kind = [("content-type", "application/json")];
    let begun = console.ask("POST", "/api/v1/databases/shop/act", &kind, &body.to_string()).await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    let parked = "SELECT concat_ws(' ', key, payload, headers, dead_at IS NULL) FROM oncebox.parked";
    let parked = eventually("it is edited", LIMIT, async || {
        let row: String = client.query_one(parked, &[]).await.unwrap().get(0);
        row.starts_with("k:oncebox-edit-1").then_some(row)
    })
    .await;
    assert_eq!(parked, r#"k:oncebox-edit-1 \x6e6577 {"a": "b"} t"#);
    let again = console.ask("POST", "/api/v1/databases/shop/act", &kind, &body.to_string()).await;
    assert!(again.status == 409 && again.body.contains("its key is"), "{}", again.body);
}

#[tokio::test]
async fn json_is_formatted_and_binary_and_cut_payloads_are_said_to_be() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let letters = r#"
        INSERT INTO oncebox.dead_letter (scope, tenant, subject, headers, payload, deliveries, reason)
        SELECT 's', '', 'a', '{}', p, 1, 'no'
        FROM unnest(ARRAY['{"n":1.10,"a":[]}'::bytea, '\x00ff', convert_to(repeat('<', 100000), 'UTF8')]) AS p"#;
    client.batch_execute(letters).await.unwrap();
    let console = Console::of(&env, &["--show-payloads"]).await;
    for (id, part) in [
        (1, "<pre>{\n  &quot;n&quot;: 1.10,\n  &quot;a&quot;: []\n}</pre>"),
        (2, "Binary: hexadecimal digits.</p><pre>\\x00ff</pre>"),
        (3, "Cut: only its beginning."),
    ] {
        let page = console.get(&format!("/db/shop/letter?id={id}")).await;
        assert!(
            page.body.contains(part) && page.body.len() < 140_000,
            "{part}: {} {}",
            page.body.len(),
            page.body
        );
    }
}
