//! A console asks a database the same, however many people look.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep},
};
use tokio_postgres::Client;

use super::support::Console;
use crate::relay::support::LIMIT;

/// More than a few looks.
const MEASURED: Duration = Duration::from_secs(10);
const PAGES: usize = 50;

/// Transactions that the console's sessions have begun, as PostgreSQL counts those of the database.
async fn transactions(client: &Client) -> i64 {
    // The sessions report at most once a second, and at the latest after their next statement.
    let sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// An open page, as its script keeps it: a stream of events.
async fn open_page(console: &Console) -> TcpStream {
    assert_eq!(console.get("/db/shop").await.status, 200);
    let mut stream = TcpStream::connect(console.address).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    stream
}

async fn per_second(client: &Client) -> f64 {
    let (before, begun) = (transactions(client).await, Instant::now());
    sleep(MEASURED).await;
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let count = (transactions(client).await - before) as f64;
    count / begun.elapsed().as_secs_f64()
}

#[tokio::test]
async fn fifty_open_pages_cost_a_database_what_one_does() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    console.row("shop", |row| row["is_known"] == true).await;
    let client = env.pg().await;
    let one = open_page(&console).await;
    let with_one = per_second(&client).await;
    let mut pages = vec![one];
    for _ in 1..PAGES {
        pages.push(open_page(&console).await);
    }
    let with_all = per_second(&client).await;
    assert!(with_one > 0.2, "it looks at all: {with_one} a second");
    assert!(with_all < 1.5 * with_one + 1.0, "{with_one} a second with one page, {with_all} with {PAGES}");
    // All of them are live: none was turned away.
    for page in &pages {
        let mut head = [0; 64];
        let read = eventually("a page is live", LIMIT, async || page.try_read(&mut head).ok()).await;
        assert!(head[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    }
}
