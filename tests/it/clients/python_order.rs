//! The order of the messages of one key in Python: within a process, and across processes that are
//! killed and suspended.

use oncebox_tests::{Program, TestEnv, eventually};
use tokio_postgres::Client;

use super::shop::{LIMIT, Programs, lines, publish_raw};

const TABLES: &str = "CREATE TABLE line (name text PRIMARY KEY, last int NOT NULL DEFAULT 0);
                      CREATE TABLE seen (line text, n int, before int)";
const LINES: usize = 5;
/// Each message ran behind the one before it, but for the one behind a dead letter, and once.
const WRONG: &str = "
SELECT concat_ws(' ', line, n, 'behind', before) FROM seen WHERE before <> n - 1 AND NOT (line = 'l2' AND n = 8 AND before = 6)
UNION ALL SELECT concat_ws(' ', line, n, 'twice') FROM seen GROUP BY line, n HAVING count(*) > 1";

async fn publish(env: &TestEnv, from: usize, to: usize) {
    for n in from..=to {
        for line in 0..LINES {
            let dead = if (line, n) == (2, 7) { r#", "dead": true"# } else { "" };
            let headers = format!("Idempotency-Key: l{line}-{n}\r\nOncebox-Ordering-Key: l{line}\r\n");
            let payload = format!(r#"{{"line": "l{line}", "n": {n}{dead}}}"#);
            publish_raw(env.nats_url(), &env.subject("a"), &headers, &payload).await;
        }
    }
}

async fn start(env: &TestEnv, programs: &Programs, order: &str, batch: &str) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("ORDER", order.to_owned()),
        ("BATCH", batch.to_owned()),
        ("FAILING", "0.1".to_owned()),
    ];
    Program::start_file(&programs.file("ordering"), &[], &environment).await.unwrap()
}

async fn handled(client: &Client, upto: usize) {
    let sql = format!("SELECT 'all' FROM seen HAVING count(*) >= {}", upto * LINES - 1);
    eventually("all are handled", LIMIT, async || lines(client, &sql).await.pop()).await;
}

#[tokio::test]
async fn one_process_handles_each_key_in_order_alone_and_in_batches() {
    let Some(programs) = Programs::of("python") else { return };
    for batch in ["1", "16"] {
        let env = TestEnv::new().await;
        env.stream().await;
        let client = env.pg().await;
        client.batch_execute(TABLES).await.unwrap();
        publish(&env, 1, 30).await;
        let mut consumer = start(&env, &programs, "process", batch).await;
        handled(&client, 30).await;
        assert_eq!(lines(&client, WRONG).await, [""; 0], "batch {batch}");
        consumer.stop().await.unwrap();
    }
}

#[tokio::test]
async fn in_strict_order_a_standby_goes_on_where_a_killed_or_suspended_leader_was() {
    let Some(programs) = Programs::of("python") else { return };
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    client.batch_execute(TABLES).await.unwrap();
    let leads =
        |process: &Program| process.log().contains("this process consumes, in strict order").then_some(());
    let mut leader = start(&env, &programs, "strict", "1").await;
    eventually("it leads", LIMIT, async || leads(&leader)).await;
    for round in 1..=3 {
        let standby = start(&env, &programs, "strict", "1").await;
        eventually("it stands by", LIMIT, async || standby.log().contains("stands by").then_some(())).await;
        publish(&env, 20 * round - 19, 20 * round).await;
        if round == 2 {
            leader.suspend(true).unwrap()
        } else {
            leader.kill().await.unwrap()
        }
        handled(&client, 20 * round).await;
        assert!(leads(&standby).is_some());
        if round == 2 {
            leader.suspend(false).unwrap();
            leader.stop().await.unwrap();
        }
        leader = standby;
    }
    assert_eq!(lines(&client, WRONG).await, [""; 0], "{}", leader.log());
    leader.stop().await.unwrap();
}
