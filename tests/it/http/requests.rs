//! The HTTP layer. Which test holds which rule (R) and trap (X) of the idempotency notes:

use crate::{
    http::support::{Reply, Shop, order, request},
    inbox::support::count,
};

#[tokio::test]
async fn a_repeated_request_gets_the_same_answer_byte_by_byte() {
    let shop = Shop::open().await;
    let first = shop.order("\"k-1\"", 7, "order").await;
    assert_eq!((first.status, first.replayed()), (201, "false"), "{first:?}");
    for _ in 0..9 {
        let again = shop.order("k-1", 7, "order").await;
        assert_eq!((again.status, again.replayed()), (201, "true"));
        assert_eq!(again.body, first.body);
        for name in ["content-type", "location", "etag"] {
            assert_eq!(again.header(name), first.header(name), "{name}");
        }
        let links = |reply: &Reply| reply.headers.get_all("link").iter().cloned().collect::<Vec<_>>();
        assert_eq!((links(&again), links(&first).len()), (links(&first), 2));
        assert_eq!(again.header("x-request-id"), "", "not among the kept headers");
    }
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
    let counts = shop.layer.counts();
    assert_eq!((counts.handled, counts.replayed), (1, 9));
}

/// No client gets a no that is not stored: a copy of the request could be done after it.
#[tokio::test]
async fn a_no_that_cannot_be_stored_is_not_answered() {
    let shop = Shop::open().await;
    let lost = shop.order("k", 7, "lost:402").await;
    assert_eq!((lost.status, lost.problem().as_str()), (503, "unavailable"), "{lost:?}");
    assert_eq!(shop.order("k", 7, "status:402").await.replayed(), "false");
    assert_eq!(shop.order("k", 7, "order").await.status, 402);
    assert_eq!((shop.runs(), shop.effects().await), (2, 0));
}

/// A body means nothing without the name of its encoding: it is kept, even if other headers are
/// not.
#[tokio::test]
async fn a_body_is_replayed_with_its_encoding() {
    for kept in [None, Some(["content-type"])] {
        let shop = Shop::with(|builder| match kept {
            Some(names) => builder.kept_headers(names),
            None => builder,
        });
        let shop = shop.await;
        for replayed in ["false", "true"] {
            let reply = shop.order("k", 7, "encoded").await;
            assert_eq!((reply.status, reply.replayed(), reply.text()), (201, replayed, "as if packed"));
            assert_eq!(reply.header("content-encoding"), "gzip", "replayed: {replayed}, kept: {kept:?}");
        }
    }
}

/// Nothing of another request is answered from the stored response, and nothing of it is done.
#[tokio::test]
async fn the_key_of_another_request_is_refused() {
    let shop = Shop::open().await;
    assert_eq!(shop.order("k", 7, "order").await.status, 201);
    let text = [("idempotency-key", "k"), ("content-type", "text/plain")];
    for other in [
        order("k", 8, "order"),
        request("POST", "/orders?dry=1", &text[..1], "7"),
        request("POST", "/orders", &text, "7"),
    ] {
        let refused = shop.send(other).await;
        assert_eq!((refused.status, refused.problem().as_str()), (422, "key-reused"));
        assert!(!refused.headers.contains_key("retry-after"), "the same request will not do either");
    }
    let at = |id: u8| request("POST", &format!("/orders/{id}/items"), &text[..1], "7");
    assert_eq!(shop.send(at(1)).await.status, 201);
    assert_eq!(shop.send(at(2)).await.problem(), "key-reused");
    assert_eq!(shop.order("k", 7, "order").await.replayed(), "true", "the stored response is as it was");
    assert_eq!((shop.runs(), shop.effects().await, shop.layer.counts().mismatched), (2, 2, 4));
}

/// The same key of another tenant, route or method is another key; no tenant sees another's
/// response, and no message of one takes the place of another's.
#[tokio::test]
async fn tenants_routes_and_methods_do_not_meet() {
    let shop = Shop::open().await;
    let from = |tenant: &str, method: &str, path: &str| {
        let headers = [("idempotency-key", "k"), ("x-tenant", tenant), ("x-do", "enqueue")];
        shop.send(request(
            method,
            path,
            &headers[..if path == "/orders" && method == "POST" { 3 } else { 2 }],
            "7",
        ))
    };
    let mut locations = Vec::new();
    for (tenant, method, path) in [
        ("a", "POST", "/orders"),
        ("b", "POST", "/orders"),
        ("a", "PUT", "/orders"),
        ("a", "POST", "/orders/1/items"),
        ("a/x", "POST", "/orders"),
    ] {
        let first = from(tenant, method, path).await;
        assert_eq!((first.status, first.replayed()), (201, "false"), "{tenant} {method} {path}");
        let again = from(tenant, method, path).await;
        assert_eq!((again.replayed(), &again.body), ("true", &first.body));
        locations.push(first.header("location").to_owned());
    }
    locations.dedup();
    assert_eq!((locations.len(), shop.runs()), (5, 5));
    let rows = shop.env.pg().await.query("SELECT key FROM oncebox.message ORDER BY key", &[]).await.unwrap();
    let keys: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, ["a%252Fx/k:pay", "a/k:pay", "b/k:pay"]);
}

/// Without a key there is nothing to derive a key from.
#[tokio::test]
async fn requests_without_a_key_are_refused_or_pass_without_a_claim() {
    let shop = Shop::open().await;
    let without = |method: &str, path: &str| request(method, path, &[], "7");
    assert_eq!(shop.send(without("POST", "/orders")).await.problem(), "key-missing");
    let read = shop.send(without("GET", "/orders")).await;
    assert_eq!((read.status, read.text(), read.replayed()), (200, "nothing", ""));
    assert_eq!((shop.runs(), shop.effects().await, shop.layer.counts().refused), (0, 0, 1));

    let shop = Shop::with(|builder| builder.pass_without_key().key_header("Activity-Event-Id")).await;
    assert_eq!(shop.send(without("POST", "/orders")).await.text(), "without a key");
    let claims = shop.send(without("POST", "/orders/1/items")).await;
    assert_eq!((claims.status, claims.problem().as_str()), (400, "key-missing"));
    assert_eq!((shop.runs(), shop.effects().await, shop.rows().await), (1, 0, 0));
    let own = request("POST", "/orders", &[("activity-event-id", "k")], "7");
    assert_eq!(shop.send(own.clone()).await.replayed(), "false");
    assert_eq!(shop.send(own).await.replayed(), "true");
}

#[tokio::test]
async fn writes_message_and_response_are_committed_together_or_not_at_all() {
    let shop = Shop::open().await;
    let all = async || (shop.effects().await, count(&shop.env, "oncebox.message").await, shop.rows().await);
    assert_eq!(shop.order("k", 7, "status:500").await.status, 500);
    assert_eq!(all().await, (0, 0, 0));
    let done = shop.order("k", 7, "enqueue").await;
    assert_eq!((done.status, done.replayed(), all().await), (201, "false", (1, 1, 1)));
    let again = shop.order("k", 7, "status:500").await;
    assert_eq!((again.status, again.body, all().await), (201, done.body, (1, 1, 1)));
    let sql =
        "SELECT m.key, i.scope::text, i.tenant::text, i.key::text FROM oncebox.message m, oncebox.inbox i";
    let row = shop.env.pg().await.query_one(sql, &[]).await.unwrap();
    let found: Vec<&str> = (0..4).map(|column| row.get(column)).collect();
    assert_eq!(found, ["main/k:pay", "shop POST /orders", "main", "main/k"]);
}

/// The status decides whether the response is stored; a 4xx undoes the writes of its handler,
/// unless the handler says otherwise.
#[tokio::test]
async fn the_status_decides_what_is_stored() {
    let shop = Shop::open().await;
    let mut effects = 0;
    for status in [200, 202, 303] {
        let what = format!("status:{status}");
        let first = shop.order(&what, 7, &what).await;
        let again = shop.order(&what, 7, &what).await;
        effects += 1;
        assert_eq!((first.status, again.status, again.replayed()), (status, status, "true"));
        assert_eq!((again.body, shop.effects().await), (first.body, effects));
    }
    for status in [400, 402, 404, 422] {
        let what = format!("status:{status}");
        let first = shop.order(&what, 7, &what).await;
        let again = shop.order(&what, 7, &what).await;
        assert_eq!((first.status, again.status, again.replayed()), (status, status, "true"));
        assert_eq!((again.body, shop.effects().await), (first.body, effects), "{status} wrote something");
    }
    let kept = shop.order("kept", 7, "keep:402").await;
    assert_eq!((kept.status, shop.effects().await), (402, effects + 1));
    assert_eq!(shop.order("kept", 7, "order").await.status, 402);
    let runs = shop.runs();
    for (number, status) in (1..).zip([401, 403, 408, 409, 425, 429, 500, 503]) {
        let what = format!("status:{status}");
        let released = shop.order("free", 7, &what).await;
        assert_eq!((released.status, released.replayed()), (status, "false"));
        assert_eq!((shop.effects().await, shop.runs()), (effects + 1, runs + number));
    }
    assert_eq!(shop.order("free", 7, "order").await.status, 201, "the key was free all the time");
    let counts = shop.layer.counts();
    assert_eq!((counts.handled, counts.rejected, counts.released, counts.replayed), (9, 5, 8, 8));

    // A layer may be told others.
    let shop = Shop::with(|builder| builder.not_stored([404])).await;
    for (status, is_stored) in [(404, false), (401, true), (409, true), (500, false)] {
        let what = format!("status:{status}");
        let (first, again) = (shop.order(&what, 7, &what).await, shop.order(&what, 7, &what).await);
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!(again.replayed() == "true", is_stored, "{status}");
    }
}

/// The first client gets the whole body, after the commit; a repeated request is told that it was
/// done.
#[tokio::test]
async fn large_and_streamed_bodies_are_sent_once_and_never_done_twice() {
    let shop = Shop::with(|builder| builder.response_body_max(1_000)).await;
    for (key, what, expected) in [
        ("fits", "large:1000", "x".repeat(1_000)),
        ("large", "large:1001", "x".repeat(1_001)),
        ("stream", "stream", "one, two, three".to_owned()),
    ] {
        let first = shop.order(key, 7, what).await;
        assert_eq!((first.status, first.text(), first.replayed()), (201, expected.as_str(), "false"));
        let again = shop.order(key, 7, what).await;
        assert_eq!((again.header("location"), again.replayed()), (first.header("location"), "true"));
        if key == "fits" {
            assert_eq!((again.status, again.text()), (201, expected.as_str()));
        } else {
            assert_eq!((again.status, again.problem().as_str()), (410, "response-not-kept"));
            let problem: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
            assert_eq!(problem["first_status"], 201);
        }
    }
    assert_eq!((shop.runs(), shop.effects().await), (3, 3));
}

/// No response of a handler that panicked, swallowed an error of SQL, kept its claim or committed
/// by itself is sent; and the client learns nothing of it.
#[tokio::test]
async fn a_handler_that_breaks_leaves_nothing_and_tells_nothing() {
    let shop = Shop::open().await;
    for (number, what) in (1..).zip(["panic", "swallow", "hold", "restart"]) {
        let broken = shop.order("k", 7, what).await;
        assert_eq!((broken.status, broken.problem().as_str()), (500, "failed"), "{what}");
        assert!(!broken.text().contains("panic") && !broken.text().contains("division"), "{broken:?}");
        shop.state.claims.lock().unwrap().clear();
        assert_eq!((shop.effects().await, shop.rows().await, shop.runs()), (0, 0, number), "{what}");
    }
    assert_eq!(shop.order("k", 7, "order").await.status, 201, "the key is free, and so are the connections");
    assert_eq!(shop.order("other", 7, "commit").await.problem(), "failed");
    let again = shop.order("other", 7, "commit").await;
    assert_eq!(again.status, 410, "done, found out, and not done twice: {again:?}");
    assert_eq!((shop.effects().await, shop.layer.counts().failed), (2, 5));
    assert_eq!(shop.runs(), 6);
}

/// A row without a response, as a crash leaves it after a handler committed by itself: done, and
/// never run again.
#[tokio::test]
async fn a_row_without_a_response_is_not_run_again() {
    let shop = Shop::open().await;
    assert_eq!(shop.order("k", 7, "order").await.status, 201);
    for change in ["NULL", "'null'"] {
        let sql = format!("UPDATE oncebox.inbox SET outcome = {change}");
        shop.env.pg().await.batch_execute(&sql).await.unwrap();
        let again = shop.order("k", 7, "order").await;
        assert_eq!((again.status, again.problem().as_str()), (410, "response-not-kept"));
    }
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
}
