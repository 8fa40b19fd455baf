//! The pages of sagas: the list in each order, and one saga with its data, replies and times. The
//! same on the command line.

use oncebox_tests::TestEnv;
use serde_json::Value;

use super::support::Console;
use crate::{operator::sagas::SAGAS, relay::process::run_ok};

/// A saga of a file: one step answered, one rejected, the first undone.
const OF_FILE: &str = r#"
INSERT INTO oncebox.saga (type, business_id, key, version, fingerprint, state, direction, data, began_with, scope, created_at,
                          finished_at)
VALUES ('trip', 'a<b>', 'a%3Cb%3E:trip', 1, 'f2', 'compensated', 'backward',
        '{"data": {"cents": 1234567890123456789012}, "replies": {"book": {"id": "r<1>"}}, "refusals": {"pay": "declined"}}', '', 'saga',
        '2026-01-01 10:00:00Z', '2026-01-01 10:01:40Z');
INSERT INTO oncebox.saga_step (saga_id, step, state, attempt, subject, payload, sent_at, answered_at, undo_attempt, undo_subject,
                               undo_payload, undo_sent_at, undone_at)
SELECT s.id, 'book', 'undone', 1, 'do', ''::bytea, s.created_at, s.created_at + interval '25 s', 1, 'undo', ''::bytea,
       s.created_at + interval '90 s', s.created_at + interval '100 s'
FROM oncebox.saga AS s WHERE s.type = 'trip'
UNION ALL
SELECT s.id, 'pay', 'rejected', 1, 'do', ''::bytea, s.created_at + interval '25 s', s.created_at + interval '90 s', 0, NULL, NULL, NULL, NULL
FROM oncebox.saga AS s WHERE s.type = 'trip';
"#;

async fn keys(console: &Console, query: &str) -> Vec<String> {
    let found = console.api(&format!("/databases/shop/sagas?{query}")).await;
    let key = |saga: &Value| saga["key"].as_str().unwrap().to_owned();
    found["sagas"].as_array().unwrap().iter().map(key).collect()
}

#[tokio::test]
async fn sagas_are_sorted_by_each_of_their_facts() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(SAGAS).await.unwrap();
    let age = "UPDATE oncebox.saga SET created_at = created_at + id * interval '1 second'";
    client.batch_execute(age).await.unwrap();
    let console = Console::of(&env, &[]).await;
    let open = ["1:order", "2:order", "3:order", "4:order", "6:refund", "7:refund"];
    let reversed: Vec<&str> = open.into_iter().rev().collect();
    assert_eq!(keys(&console, "sort=business-id").await, open);
    assert_eq!(keys(&console, "sort=-business-id").await, reversed);
    assert_eq!(keys(&console, "sort=age").await, reversed, "the youngest first");
    assert_eq!(keys(&console, "sort=-age").await, open);
    let by_state = ["1:order", "7:refund", "2:order", "3:order", "6:refund", "4:order"];
    assert_eq!(keys(&console, "sort=state").await, by_state);
    let by_step = ["2:order", "3:order", "6:refund", "1:order", "4:order", "7:refund"];
    assert_eq!(keys(&console, "sort=-step").await, by_step, "ship, reserve, pay, and those that are nowhere");
    assert_eq!(keys(&console, "sort=age&state=stuck&type=order").await, ["3:order", "2:order"]);
    assert_eq!(keys(&console, "sort=age&state=completed").await, ["5:order"]);
    assert_eq!(keys(&console, "sort=age&after=4").await, ["2:order", "1:order"]);
    assert_eq!(console.get("/db/shop/sagas?sort=colour").await.status, 400);
    let page = console.get("/db/shop/sagas?sort=age&state=stuck&after=0").await.body;
    for part in [
        r#"<th aria-sort="descending">"#,
        r#"href="/db/shop/sagas?state=stuck&amp;sort=-age""#,
        r#"href="/db/shop/sagas?state=stuck&amp;sort=step""#,
        r#"<input type="hidden" name="sort" value="age">"#,
    ] {
        let part = part.replace("descending", "ascending");
        assert!(page.contains(&part), "{part}: {page}");
    }
    // Many more than a page: sorted as one.
    let many = "
        INSERT INTO oncebox.saga (type, business_id, key, version, fingerprint, data, began_with, scope)
        SELECT 'many', 'm-' || n % 250, (n % 250) || ':many', 1, 'f3', '{}', '', 'saga' FROM generate_series(101, 350) AS n";
    client.batch_execute(many).await.unwrap();
    let mut all = Vec::new();
    for after in ["", "100", "200"] {
        all.extend(keys(&console, &format!("type=many&sort=business-id&after={after}")).await);
    }
    let mut expected: Vec<String> = (0..250).map(|number| format!("{number}:many")).collect();
    expected.sort_by_key(|key| key.replace(':', "\0"));
    assert_eq!(all, expected);
}

#[tokio::test]
async fn a_saga_shows_its_data_its_replies_and_the_times_of_its_steps() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(OF_FILE).await.unwrap();
    let path = "/db/shop/saga?key=a%253Cb%253E:trip";
    let console = Console::of(&env, &["--show-payloads"]).await;
    let page = console.get(path).await.body;
    for part in [
        "{\n  &quot;cents&quot;: 1234567890123456789012\n}",
        "Reply of book",
        "{\n  &quot;id&quot;: &quot;r&lt;1&gt;&quot;\n}",
        "Reply of pay",
        "&quot;declined&quot;",
        // Each bar: where it begins and how long it is, of a hundred.
        r#"<rect class="good" x="0.00" y="1" width="25.00""#,
        r#"<rect class="bad" x="25.00" y="1" width="65.00""#,
        r#"<rect class="warn" x="90.00" y="1" width="10.00""#,
        "book:undo",
        "65 s",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let hidden = Console::of(&env, &[]).await.get(path).await.body;
    assert!(hidden.contains("book:undo") && !hidden.contains("123456789"), "{hidden}");
    assert!(hidden.contains("data and replies are hidden"), "{hidden}");

    let show = ["saga", "show", "a%3Cb%3E:trip"];
    let text = run_ok(env.database_url(), &show).await;
    assert!(text.contains("25s, undo 10s") && text.contains("1m 5s"), "{text}");
    let text = run_ok(env.database_url(), &[&show[..], &["--data"]].concat()).await;
    assert!(text.contains("1234567890123456789012") && text.contains("r<1>"), "{text}");
    let json = run_ok(env.database_url(), &[&show[..], &["--data", "--json"]].concat()).await;
    assert!(json.contains(r#""cents": 1234567890123456789012"#), "no digit is lost: {json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["replies"][0]["step"], &json["replies"][0]["payload"]["id"]),
        (&"book".into(), &"r<1>".into())
    );
    assert_eq!(
        (&json["replies"][1]["outcome"], &json["steps"][1]["step"]),
        (&"rejected".into(), &"pay".into())
    );
}
