//! The producers of the clients: payloads arrive as they were given, now or at their time.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines};

/// Defines the test of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        #[tokio::test]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                enqueue(programs).await;
            }
        }
    )*};
}
clients!(python, typescript, go);

/// Messages that wait are in `delayed`; the log has the keys of all others.
const ENQUEUED: &str = "
SELECT concat_ws(' ', m.key, d.not_before - clock_timestamp() BETWEEN '59 min' AND '1 h',
                 CASE m.key WHEN 'bytes' THEN encode(p.payload, 'escape')
                 ELSE (convert_from(p.payload, 'UTF8')::jsonb = CASE m.key
                   WHEN 'text' THEN to_jsonb('{\"a\":\"\\t\"}'::text)
                   ELSE jsonb_build_object('order', E'Zo\\u00eb \"q\" \\\\t\\n', 'cents', 1999)
                 END)::text END)
FROM oncebox.message AS m
LEFT JOIN oncebox.delayed AS d ON m.lane = -1 AND d.id = m.id
CROSS JOIN LATERAL (SELECT coalesce(d.payload, m.payload)) AS p (payload)
ORDER BY m.key";

async fn enqueue(programs: Programs) {
    let env = TestEnv::new().await;
    let mut producing = Command::new(programs.file("producing"));
    producing.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, producing.output()).await.expect("the program ends").unwrap();
    let expected = "enqueued\npast\nagain None\ncancelled True False\nrefused\nrefused\nrefused\n";
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}");
    let enqueued = lines(&env.pg().await, ENQUEUED).await;
    let bytes = r#"bytes t {"a":"\\t"}\377"#;
    assert_eq!(enqueued, [bytes, "later t true", "now true", "past true", "text true"]);
}
