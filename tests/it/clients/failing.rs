//! The rows of failing messages, by which operators see them: each client writes the same.

use oncebox_tests::{TestEnv, eventually};
use serde_json::json;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::{
    scenarios::{Ends, Sent},
    shop::LIMIT,
};

/// Keeps each failure: a message that has ended has no row.
pub(super) const KEEPS: &str = "
CREATE TABLE failure AS TABLE oncebox.inbox_attempt WITH NO DATA;
CREATE FUNCTION keep_failure() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO public.failure SELECT NEW.*;
  RETURN NULL;
END $$;
CREATE TRIGGER keep_failure AFTER INSERT OR UPDATE ON oncebox.inbox_attempt FOR EACH ROW
  WHEN (NEW.failed_at IS NOT NULL AND NEW.begun = 0) EXECUTE FUNCTION keep_failure()";
/// The longest pause of the consumers, in milliseconds, and how early a clock may strike.
const LONGEST: f64 = 2000.0;
const EARLY: f64 = 50.0;

/// A message whose handler fails at its first run.
pub(super) fn recovers(name: &str) -> Sent {
    let sql = format!(
        "DO $$ BEGIN
           IF (SELECT count(*) FROM public.run WHERE name = '{name}') = 1 THEN RAISE 'no ledger yet'; END IF;
         END $$"
    );
    let payload = json!({ "name": name, "sql": [sql], "do": "return", "reply": false });
    Sent::recovering(name, payload)
}

/// How the rows of these messages, in the order of the stream, differ from the right ones.
pub(super) async fn wrong(env: &TestEnv, client: &Client, sent: &[Sent]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, sent) in sent.iter().enumerate() {
        let (failures, reason, pause) = match sent.ends {
            // Under a lease the last one is recorded with the dead letter alone.
            Ends::Fails(reason, pause) => (vec![1, 2], reason, pause),
            Ends::Recovers => (vec![1], "no ledger yet", 200),
            _ => continue,
        };
        let rows = of(client, env, &sent.name, place + 1).await;
        let counts: Vec<i64> = rows.iter().map(|row| row.failures).collect();
        let is_right = |row: &Row| {
            // Over a session that a handler has made serializable, a run's end may lose a race.
            let is_lost = row.reason.contains("could not serialize access");
            let least = if is_lost { 100.0 } else { f64::from(pause) };
            (is_lost || row.reason.contains(reason))
                && row.is_in_place
                && (least..=LONGEST).contains(&row.pause)
                && row.late > -EARLY
        };
        if counts != failures || !rows.iter().all(is_right) {
            wrong.push(format!("{}: {rows:?}", sent.name));
        }
    }
    // Over a session that a handler has changed it is the sweep that forgets the attempts.
    let left = async || {
        let left = "SELECT coalesce(string_agg(key || coalesce(', ' || reason, ''), '; '), '') FROM oncebox.inbox_attempt AS a
                    WHERE key = 'fails-once' OR NOT EXISTS (SELECT FROM oncebox.inbox AS i WHERE i.key = a.key)";
        client.query_one(left, &[]).await.unwrap().get::<_, String>(0)
    };
    let none = eventually("no row is left", LIMIT, async || left().await.is_empty().then_some(()));
    if timeout(LIMIT / 2, none).await.is_err() {
        wrong.push(format!("messages that have ended have rows: {}", left().await));
    }
    wrong
}

#[derive(Debug)]
#[expect(dead_code, reason = "it is printed whole")]
struct Row {
    failures: i64,
    reason: String,
    place: String,
    is_in_place: bool,
    /// Until it is due, in milliseconds.
    pause: f64,
    /// How long after it was due it was run, in milliseconds.
    late: f64,
}

async fn of(client: &Client, env: &TestEnv, name: &str, sequence: usize) -> Vec<Row> {
    let sql = "
        SELECT f.failures, f.reason, concat_ws(' ', f.stream, f.stream_sequence, f.subject),
               (1000 * extract(epoch FROM f.due_at - f.failed_at))::float8,
               (1000 * extract(epoch FROM again.at - f.due_at))::float8
        FROM failure AS f
        CROSS JOIN LATERAL (
          SELECT r.at FROM run AS r WHERE r.name = $1 AND r.at > f.failed_at ORDER BY r.at LIMIT 1
        ) AS again
        WHERE f.key = $1
        ORDER BY f.failures";
    let expected = format!("{} {sequence} {}", env.name(), env.subject("a"));
    let rows = client.query(sql, &[&name]).await.unwrap();
    let read = |row: &tokio_postgres::Row| {
        let place: String = row.get(2);
        let is_in_place = place == expected;
        let numbers = (row.get(3), row.get(4));
        Row {
            failures: row.get(0),
            reason: row.get(1),
            place,
            is_in_place,
            pause: numbers.0,
            late: numbers.1,
        }
    };
    rows.iter().map(read).collect()
}
