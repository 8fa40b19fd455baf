//! The end of a turn beside other work on the tables of the log: a rewrite, and the relay that
//! moves delayed messages.

use std::time::Duration;

use oncebox_tests::TestEnv;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::relay::support::enqueue;

const REWRITING: Duration = Duration::from_secs(3);
const DELAYED: &str = "SELECT oncebox.enqueue_at('k', 's', 'p', now() + interval '100 ms')";
const MOVE: &str = "SELECT moved FROM oncebox.move_delayed(10, 1000000, '-infinity', 0)";

async fn end_turn(client: &Client) -> Option<String> {
    client.query_one("SELECT oncebox.end_turn(0, 100, 0)", &[]).await.unwrap().get(0)
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_table_that_is_rewritten_is_named_and_the_turn_ends_after_it() {
    let env = TestEnv::new().await;
    let (client, rewriting) = (env.pg().await, env.pg().await);
    enqueue(&client, "s", "a", 0..10, 0).await;
    // As VACUUM FULL and ALTER TABLE do for as long as they take.
    rewriting.batch_execute("BEGIN; LOCK TABLE oncebox.message_0 IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let reason = end_turn(&client).await.expect("the turn cannot end");
    let pid: i32 = rewriting.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    assert_eq!(reason, format!("process {pid} has locked oncebox.message_0 (AccessExclusiveLock)"));
    rewriting.batch_execute("COMMIT").await.unwrap();
    assert_eq!(end_turn(&client).await, None);
}

#[tokio::test]
async fn beside_a_vacuum_full_again_and_again_turns_end_and_no_message_is_lost() {
    let env = TestEnv::new().await;
    let (client, producer, rewriting) = (env.pg().await, env.pg().await, env.pg().await);
    let until = Instant::now() + REWRITING;
    let produce = async {
        let mut sent = 0;
        while Instant::now() < until {
            enqueue(&producer, "s", "m", sent..sent + 5, 0).await;
            sent += 5;
        }
        i64::from(sent)
    };
    let rewrite = async {
        while Instant::now() < until {
            for segment in 0..8 {
                let full = format!("VACUUM FULL oncebox.message_{segment}");
                rewriting.batch_execute(&full).await.unwrap();
            }
        }
    };
    let turn = async {
        let mut turns = 0;
        // No relay empties segments here.
        while Instant::now() < until && turns < 7 {
            turns += i64::from(end_turn(&client).await.is_none());
            sleep(Duration::from_millis(50)).await;
        }
        turns
    };
    let (sent, (), turns) = tokio::join!(produce, rewrite, turn);
    assert!(turns > 0 && sent > 0, "{turns} turns, {sent} messages");
    assert_eq!(count(&client, "SELECT count(*) FROM oncebox.message").await, sent);
}

/// The relay dies or hangs in the transaction in which it moves a message.
#[tokio::test]
async fn a_delayed_message_that_is_being_moved_keeps_its_key_and_the_turn() {
    let env = TestEnv::new().await;
    let (client, relay) = (env.pg().await, env.pg().await);
    client.execute(DELAYED, &[]).await.unwrap();
    assert_eq!(end_turn(&client).await, None);
    assert_eq!(end_turn(&client).await, None);
    sleep(Duration::from_millis(150)).await;
    for end in ["ROLLBACK", "COMMIT"] {
        relay.batch_execute("BEGIN").await.unwrap();
        assert_eq!(count(&relay, MOVE).await, 1);
        let reason =
            end_turn(&client).await.expect("its message is in this turn's segment, and not yet to be seen");
        assert!(reason.contains("producers hold oncebox.message_2"), "{reason}");
        relay.batch_execute(end).await.unwrap();
    }
    // In the turn of the move and in the next one no other message gets the key.
    for _ in 0..2 {
        let taken = client.query_one("SELECT oncebox.enqueue('k', 's', 'p')", &[]).await.unwrap();
        assert_eq!(taken.get::<_, Option<i64>>(0), None);
        assert_eq!(end_turn(&client).await, None);
    }
    assert_eq!(count(&client, "SELECT count(*) FROM oncebox.message WHERE key = 'k' AND lane >= 0").await, 1);
}
