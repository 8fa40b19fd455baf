//! The barrier stands in the transaction of the effect: a call that is committed by itself is
//! refused, and so is one that leaves out an argument.

use oncebox_tests::TestEnv;
use tokio_postgres::{Client, SimpleQueryMessage};

const ACTION: &str = "SELECT oncebox.enter_action('stock', '', 'k', false)";
const UNDO: &str = "SELECT oncebox.enter_compensation('stock', '', 'k', false)";

/// The ways in which drivers send one statement.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Simple,
    /// Parse, Bind and Execute in one go.
    Typed,
    /// Bind and Execute of a statement that was prepared before.
    Prepared,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Simple, Protocol::Typed, Protocol::Prepared];

impl Protocol {
    async fn ask(self, client: &Client, sql: &str) -> Result<String, tokio_postgres::Error> {
        Ok(match self {
            Self::Simple => {
                let messages = client.simple_query(sql).await?;
                let row = messages.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                });
                row.unwrap().to_owned()
            }
            Self::Typed => client.query_typed_one(sql, &[]).await?.get(0),
            Self::Prepared => {
                let prepared = client.prepare(sql).await?;
                client.query_one(&prepared, &[]).await?.get(0)
            }
        })
    }
}

fn refusal(error: &tokio_postgres::Error) -> (&str, &str, &str) {
    let error = error.as_db_error().unwrap();
    (error.code().code(), error.message(), error.hint().unwrap_or_default())
}

async fn state(client: &Client) -> Option<String> {
    let sql = "SELECT state FROM oncebox.barrier WHERE key = 'k'";
    client.query_opt(sql, &[]).await.unwrap().map(|row| row.get(0))
}

/// The driver commits the call by itself: an effect that follows could be lost, and would count as
/// done.
#[tokio::test]
async fn a_call_that_is_committed_by_itself_is_refused_in_each_protocol() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for (sql, before, acts) in [(ACTION, None, "act"), (UNDO, Some("acted"), "undo")] {
        for protocol in PROTOCOLS {
            let refused = protocol.ask(&client, sql).await.unwrap_err();
            let (code, message, hint) = refusal(&refused);
            assert_eq!(code, "OB010", "{protocol:?} {sql}");
            assert!(message.contains("a transaction of its own"), "{message}");
            assert!(hint.contains("COMMIT"), "{hint}");
            assert_eq!(state(&client).await.as_deref(), before, "{protocol:?} {sql}");
        }
        for protocol in PROTOCOLS {
            client.batch_execute("BEGIN").await.unwrap();
            assert_eq!(protocol.ask(&client, sql).await.unwrap(), acts, "{protocol:?}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(Protocol::Typed.ask(&client, sql).await.unwrap(), acts);
        client.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(state(&client).await.as_deref(), Some("undone"));
    // Neither says that an effect may follow.
    assert_eq!(Protocol::Typed.ask(&client, UNDO).await.unwrap(), "nothing");
    assert_eq!(Protocol::Typed.ask(&client, ACTION).await.unwrap(), "refused");
}

/// A caller may bring his own transaction, in which he has read, written and set a savepoint, and
/// sends the call in the middle of it; or he sends all as one text, and marks it.
#[tokio::test]
async fn any_transaction_of_the_caller_will_do_and_one_text_has_the_mark() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("CREATE TABLE stock (key text)").await.unwrap();
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE", "BEGIN"] {
        client.batch_execute(begin).await.unwrap();
        client.query_one("SELECT count(*) FROM stock", &[]).await.unwrap();
        client.batch_execute("SAVEPOINT s").await.unwrap();
        client.query_one(ACTION, &[]).await.unwrap();
        client.batch_execute("ROLLBACK TO s").await.unwrap();
        client.query_one(ACTION, &[]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(state(&client).await.as_deref(), Some("acted"), "{begin}");
        client.batch_execute("DELETE FROM oncebox.barrier").await.unwrap();
    }
    let text = format!("BEGIN; {ACTION}; INSERT INTO stock VALUES ('k'); COMMIT");
    let refused = client.batch_execute(&text).await.unwrap_err();
    assert!(refusal(&refused).2.contains("BEGIN DEFERRABLE"), "{refused:?}");
    assert_eq!(state(&client).await, None);
    client.batch_execute(&text.replace("BEGIN", "BEGIN DEFERRABLE")).await.unwrap();
    assert_eq!(state(&client).await.as_deref(), Some("acted"));
}

/// A flag that is NULL would count as false, and take an effect for none.
#[tokio::test]
async fn an_argument_that_is_missing_or_too_long_is_named() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let names = ["barrier", "tenant", "key", "flag", "attempt"];
    for function in ["enter_action", "end_action", "enter_compensation", "end_compensation"] {
        for (at, name) in names.into_iter().enumerate() {
            let mut arguments = ["'stock'", "''", "'k'", "true", "1"];
            arguments[at] = "NULL";
            let sql = format!("SELECT oncebox.{function}({})", arguments.join(", "));
            let refused = client.query_one(&sql, &[]).await.unwrap_err();
            let (code, message, hint) = refusal(&refused);
            let expected = format!("the {name} of a call at the barrier is null");
            assert_eq!((code, message), ("OB011", expected.as_str()), "{sql}");
            assert!(hint.contains("Saga-Attempt"), "{hint}");
        }
        for (at, long) in [(0, 256), (0, 0), (1, 256), (2, 256), (2, 0)] {
            let mut arguments = ["'stock'", "''", "'k'", "true", "1"].map(str::to_owned);
            arguments[at] = format!("repeat('x', {long})");
            let sql = format!("SELECT oncebox.{function}({})", arguments.join(", "));
            let refused = client.query_one(&sql, &[]).await.unwrap_err();
            assert_eq!(refusal(&refused).0, "OB011", "{sql}");
        }
    }
}
