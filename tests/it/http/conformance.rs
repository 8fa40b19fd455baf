//! The HTTP layer as a client of another language sees it: Python's `http.client`, which shares no
//! line with the server.
//!
//! Bad input gets the documented status and changes nothing.

use std::{path::Path, process::Stdio};

use tokio::{process::Command, time::timeout};

use crate::{
    http::support::{LIMIT, Shop},
    inbox::support::count,
};

async fn script(shop: &Shop, part: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/http/conformance/client.py");
    let mut command = Command::new("python3");
    command.arg(file).arg(shop.address.port().to_string()).arg(part);
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, running).await.expect("the client ends in time").unwrap();
    assert!(output.status.success(), "{part}:\n{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn bad_input_gets_the_documented_status_and_changes_nothing() {
    let shop = Shop::with(|builder| {
        builder.request_body_max(1_000).documentation("https://shop.example/docs/idempotency")
    })
    .await;
    script(&shop, "bad-input").await;
    assert_eq!((shop.runs(), shop.effects().await, shop.rows().await), (0, 0, 0));
    assert_eq!(count(&shop.env, "oncebox.dead_letter").await, 0);
}

#[tokio::test]
async fn an_independent_client_sees_what_the_draft_promises() {
    let shop = Shop::with(|builder| builder.response_body_max(1_000)).await;
    script(&shop, "conversation").await;
    assert_eq!((shop.runs(), shop.effects().await), (8, 5));
}
