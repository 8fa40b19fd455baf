//! Lists in the order that their reader chose.

use oncebox_tests::TestEnv;
use serde_json::Value;

use super::support::Console;

/// Rows in which each column has two values at least, in an order of its own.
const ROWS: &str = "
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason, created_at)
SELECT 'shop:' || n % 3, '', 'letter-' || n % 7 || '-' || n, 'shop.' || n % 5, '{}', repeat('x', n % 11)::bytea, n % 13,
       'reason ' || n % 4, clock_timestamp() - n % 17 * interval '1 minute'
FROM generate_series(1, 120) AS n;
SELECT oncebox.enqueue_at('late-' || n % 7 || '-' || n, 'late.' || n % 5, repeat('x', n % 11)::bytea,
                          clock_timestamp() + n % 17 * interval '1 hour' + interval '1 hour', '{}', 'o-' || n % 3)
FROM generate_series(1, 120) AS n;
SELECT oncebox.pause_delivery('subject', 'late.' || n, NULL, ARRAY['late.' || n], NULL, 'who ' || n % 2, 'why ' || n % 3, NULL, NULL)
FROM generate_series(0, 4) AS n;
INSERT INTO oncebox.audit (operator, note, action, lane, message_id, key, reason)
SELECT 'who ' || n % 3, 'why ' || n % 5, CASE n % 2 WHEN 0 THEN 'retry' ELSE 'discard' END, 0, n, 'k-' || n % 7, 'reason ' || n % 4
FROM generate_series(1, 120) AS n;
";

/// A list: its path, the field of its rows, and columns with the fields that they sort by.
type List = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const LISTS: [List; 4] = [
    (
        "set-aside?kind=dead-letters",
        "rows",
        &[
            ("key", "key"),
            ("subject", "subject"),
            ("owner", "scope"),
            ("reason", "reason"),
            ("tries", "deliveries"),
            ("since", "died_at"),
            ("payload", "payload_bytes"),
        ],
    ),
    (
        "delayed?",
        "messages",
        &[
            ("due", "not_before"),
            ("key", "key"),
            ("subject", "subject"),
            ("ordering-key", "ordering_key"),
            ("payload", "payload_bytes"),
        ],
    ),
    ("pauses?", "pauses", &[("value", "value"), ("by", "paused_by"), ("note", "reason")]),
    (
        "audit?",
        "rows",
        &[
            ("when", "happened_at"),
            ("who", "operator"),
            ("action", "action"),
            ("key", "key"),
            ("reason", "reason"),
            ("note", "note"),
        ],
    ),
];

/// A field of all rows of a list, page by page.
async fn column(console: &Console, path: &str, rows: &str, field: &str) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), Some(String::new()));
    while let Some(place) = after {
        let page = console.api(&format!("/databases/shop/{path}&after={place}")).await;
        found.extend(page[rows].as_array().unwrap().iter().map(|row| row[field].clone()));
        after = page["after"].as_str().map(str::to_owned);
    }
    found
}

fn place(value: &Value) -> (i64, String) {
    (value.as_i64().unwrap_or_default(), value.as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn each_list_is_sorted_by_its_columns_over_all_its_pages() {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute(ROWS).await.unwrap();
    let console = Console::of(&env, &[]).await;
    for (path, rows, columns) in LISTS {
        for (sort, field) in columns {
            let forwards = column(&console, &format!("{path}&sort={sort}"), rows, field).await;
            let mut expected = forwards.clone();
            expected.sort_by_key(place);
            assert_eq!(forwards, expected, "{path} {sort}");
            assert!(forwards.len() >= 120 || rows == "pauses", "{path} {sort}: {}", forwards.len());
            assert_ne!(forwards.first(), forwards.last(), "{path} {sort}: all are equal");
            let backwards = column(&console, &format!("{path}&sort=-{sort}"), rows, field).await;
            expected.reverse();
            assert_eq!(backwards, expected, "{path} -{sort}");
        }
        let refused = console.get(&format!("/db/shop/{path}&sort=colour")).await;
        assert!(refused.status == 400 && refused.body.contains("is none of"), "{path}: {}", refused.body);
    }
    // A filter keeps the order, and the next page both.
    let page = console.get("/db/shop/set-aside?kind=dead-letters&subject=shop.*&sort=-tries").await.body;
    for part in [
        r#"<th aria-sort="descending">"#,
        r#"<input type="hidden" name="sort" value="-tries">"#,
        "kind=dead-letters&amp;subject=shop.*&amp;sort=-tries&amp;after=100",
        "Of the first 1,000 that match",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
