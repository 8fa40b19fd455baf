//! The negative control: a relay whose cursor is the highest id it has seen.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream::Context};
use tokio::time::sleep;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

pub(super) async fn relay(database_url: String, jetstream: Context, stop: CancellationToken) {
    let (client, connection) = tokio_postgres::connect(&database_url, NoTls).await.unwrap();
    let relaying = async move {
        let mut highest = 0_i64;
        while !stop.is_cancelled() {
            let sql =
                "SELECT id, key, subject, payload FROM oncebox.message WHERE id > $1 ORDER BY id LIMIT 200";
            for row in client.query(sql, &[&highest]).await.unwrap() {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", row.get::<_, &str>(1));
                headers.insert("Idempotency-Key", row.get::<_, &str>(1));
                let payload = row.get::<_, Vec<u8>>(3).into();
                let sent = jetstream.publish_with_headers(row.get::<_, String>(2), headers, payload).await;
                sent.unwrap().await.unwrap();
                highest = row.get(0);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = relaying => {}
        _ = connection => panic!("PostgreSQL went away"),
    }
}
