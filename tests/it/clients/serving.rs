//! One table of requests for the HTTP layers of all languages: each must answer each request alike.

use std::fs;

use axum::body::Body;
use oncebox_tests::eventually;
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tower_service::Service as _;

use super::{
    conformance::repeated,
    shop::{LIMIT, lines, repository},
    sites::Site,
};
use crate::http::support::{Reply, reply, request, send};

/// Defines the tests of each layer: every scenario is a function of its site.
macro_rules! sites {
    ($($site:ident: $client:literal, $framework:literal;)*) => {$(
        mod $site {
            #[tokio::test]
            async fn answers_as_all_others_do() {
                if let Some(site) = super::Site::open($client, $framework).await {
                    super::answer(&site).await;
                }
            }

            #[tokio::test]
            async fn fails_as_all_others_do() {
                if let Some(site) = super::Site::open($client, $framework).await {
                    super::fail(&site).await;
                }
            }

            #[tokio::test]
            async fn survives_its_servers_and_clients() {
                if let Some(site) = super::Site::open($client, $framework).await {
                    super::survive(&site).await;
                }
            }
        }
    )*};
}
sites! {
    rust: "rust", "axum";
    starlette: "python", "starlette";
    fastapi: "python", "fastapi";
    express: "typescript", "express";
    fastify: "typescript", "fastify";
    nest: "typescript", "nest";
    hono: "typescript", "hono";
    go: "go", "net/http";
    java: "java", "httpserver";
}

fn brief(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.replayed())
}

/// First requests and repeated ones, other bodies and tenants, keys that are none.
async fn answer(site: &Site) {
    site.says("bad-input").await.unwrap_or_else(|error| panic!("{error}{}", site.log()));
    assert_eq!(lines(&site.client, "SELECT key FROM oncebox.inbox").await, [""; 0]);
    repeat(site).await;
    copies_at_once(site).await;
    meet_nobody_else(site).await;
    read_keys_alike(site).await;
    keep_and_lose_bodies(site).await;
    answer_for_rust(site).await;
}

/// Byte by byte, with the headers that are kept.
async fn repeat(site: &Site) {
    let first = site.order("\"k\"", "order").await;
    assert_eq!(brief(&first), (201, "false"), "{first:?}{}", site.log());
    let again = site.order("k", "order").await;
    assert_eq!(brief(&again), (201, "true"), "{again:?}{}", site.log());
    assert_eq!(again.body, first.body);
    for name in ["content-type", "location", "etag", "content-length"] {
        assert!(!first.header(name).is_empty() && again.header(name) == first.header(name), "{name}");
    }
    let links = |reply: &Reply| reply.headers.get_all("link").iter().cloned().collect::<Vec<_>>();
    assert_eq!((links(&again).len(), links(&again)), (2, links(&first)));
    assert_eq!(again.header("x-request-id"), "", "not among the kept headers");
    let other = site.post("/orders", &[("idempotency-key", "k")], "8").await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
    let other = site.post("/orders?a=1", &[("idempotency-key", "k")], "7").await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
    assert_eq!(site.count("k").await, [1, 1]);
    assert_eq!(brief(&site.order("pays", "enqueue").await), (201, "false"));
    assert_eq!(brief(&site.order("pays", "enqueue").await), (201, "true"));
    assert_eq!(lines(&site.client, "SELECT key FROM oncebox.message").await, ["main/pays:pay"]);
}

/// One is handled, and all get its answer; one that waits too long is told so.
async fn copies_at_once(site: &Site) {
    let copies = futures_util::future::join_all((0..8).map(|_| site.order("copies", "order"))).await;
    assert!(copies.iter().all(|reply| reply.status == 201 && reply.body == copies[0].body), "{copies:?}");
    assert_eq!(copies.iter().filter(|reply| reply.replayed() == "false").count(), 1);
    site.lock().await;
    let (first, ()) = tokio::join!(site.order("held", "locked"), async {
        site.until_one_waits().await;
        let copy = site.order("held", "locked").await;
        assert_eq!((copy.status, copy.problem().as_str()), (409, "in-flight"), "{}", site.log());
        assert_eq!(copy.header("retry-after"), "1");
        site.unlock().await;
    });
    assert_eq!(brief(&first), (201, "false"));
    assert_eq!(brief(&site.order("held", "locked").await), (201, "true"));
    assert_eq!(site.count("held").await, [1, 1]);
}

/// Each tenant has keys of its own, and each route and method.
async fn meet_nobody_else(site: &Site) {
    let send = async |tenant| {
        site.post("/orders", &[("idempotency-key", "shared"), ("x-tenant", tenant)], "7").await
    };
    let (acme, other) = (send("acme").await, send("other").await);
    assert_eq!((brief(&acme), brief(&other)), ((201, "false"), (201, "false")));
    assert_ne!(acme.header("location"), other.header("location"));
    assert_eq!(send("acme").await.body, acme.body);
    let keys = "SELECT key FROM effect WHERE key LIKE '%shared' ORDER BY key";
    assert_eq!(lines(&site.client, keys).await, ["acme/shared", "other/shared"]);
}

/// Every value of the header that the vectors have: a parameter is no part of a key, and no layer
/// guesses that it may be left out.
async fn read_keys_alike(site: &Site) {
    let text = fs::read_to_string(repository().join("schema/vectors/requests.tsv")).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (key, values) = line.split_once('\t').expect("a key and values");
        let values: Vec<String> = values.split('|').map(repeated).collect();
        let headers: Vec<_> = values.iter().map(|value| ("idempotency-key", value.as_str())).collect();
        let reply = site.post("/orders", &[&headers[..], &[("x-do", "order")]].concat(), "7").await;
        if key == "!" {
            assert_eq!((reply.status, reply.problem().as_str()), (400, "key-malformed"), "{line}: {reply:?}");
        } else {
            assert_eq!(brief(&reply), (201, "false"), "{line}: {reply:?}{}", site.log());
            assert_eq!(site.count(key).await, [1, 1], "{line}");
        }
    }
}

/// A body that is too large is sent once; its encoding is kept.
async fn keep_and_lose_bodies(site: &Site) {
    let large = site.order("large", "large:2000").await;
    assert_eq!((brief(&large), large.body.len()), ((201, "false"), 2000));
    let gone = site.order("large", "large:2000").await;
    assert_eq!((gone.status, gone.problem().as_str(), gone.replayed()), (410, "response-not-kept", "true"));
    assert_eq!(gone.header("location"), large.header("location"));
    assert!(gone.text().contains("\"first_status\":") && gone.text().contains("201"), "{gone:?}");
    for replayed in ["false", "true"] {
        let reply = site.order("encoded", "encoded").await;
        assert_eq!((reply.status, reply.replayed(), reply.text()), (201, replayed, "as if packed"));
        assert_eq!(reply.header("content-encoding"), "gzip");
    }
}

/// Keys, fingerprints and stored responses are those of the layer in Rust, and the other way round.
async fn answer_for_rust(site: &Site) {
    let Some(mut rust) = site.beside().await else { return };
    let form = |boundary: &str| {
        let part = format!("--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n\\7\r\n");
        (format!("Multipart/Form-Data; boundary={boundary}"), format!("{part}--{boundary}--\r\n"))
    };
    let (plain, (first, first_body), (again, again_body)) =
        ("text/plain; charset=utf-8", form("----WebKit1"), form("x"));
    for (key, [one, two]) in [
        ("z\u{7e}:1", [("/orders?b=2&a=1&a=0", plain, "7"), ("/orders?a=1&&a=0&b=2", "Text/Plain", "7")]),
        ("form", [("/orders", &first, &first_body), ("/orders", &again, &again_body)]),
    ] {
        for first in ["rust", "site"] {
            let key = format!("{key}-{first}");
            let asked = |(path, kind, body): (&str, &str, &str)| {
                request("POST", path, &[("idempotency-key", &key), ("content-type", kind)], body)
            };
            let [to_rust, to_site] = if first == "rust" { [one, two] } else { [two, one] }.map(asked);
            let by_rust = async { reply(rust.call(to_rust.map(Body::new)).await.unwrap()).await };
            let by_site = send(site.address, to_site);
            let [one, two] = if first == "rust" {
                [by_rust.await, by_site.await]
            } else {
                let by_site = by_site.await;
                [by_site, by_rust.await]
            };
            assert_eq!(
                (brief(&one).1, brief(&two)),
                ("false", (one.status, "true")),
                "{key}: {one:?} {two:?}"
            );
            assert_eq!((&two.body, two.header("location")), (&one.body, one.header("location")));
        }
    }
}

/// Handlers that fail leave nothing, and the next attempt is done.
async fn fail(site: &Site) {
    for (what, statuses) in [
        ("panic", &[500][..]),
        ("status:503", &[503]),
        ("status:429", &[429]),
        ("conflict", &[500, 503]),
        ("swallow", &[500]),
        ("restart", &[500]),
        ("hang", &[503]),
    ] {
        let key = what.replace(':', "-");
        let failed = site.order(&key, what).await;
        assert!(statuses.contains(&failed.status) && failed.replayed() != "true", "{what}: {failed:?}");
        assert_eq!(site.count(&key).await, [0, 0], "{what}");
        assert_eq!(brief(&site.order(&key, "order").await), (201, "false"), "{what}{}", site.log());
        assert_eq!(site.count(&key).await, [1, 1], "{what}");
    }
    for (what, effects) in [("status:402", 0), ("keep:402", 1)] {
        let key = what.replace(':', "-");
        let first = site.order(&key, what).await;
        let again = site.order(&key, "order").await;
        assert_eq!((brief(&first), brief(&again), &first.body), ((402, "false"), (402, "true"), &again.body));
        assert_eq!(site.count(&key).await, [effects, 1], "{what}");
    }
    assert_eq!(site.order("commits", "commit").await.status, 500);
    let parted = site.order("commits", "order").await;
    assert_eq!((parted.status, parted.problem().as_str()), (410, "response-not-kept"));
    assert!(parted.text().contains("A part of the request may be done"));
    assert_eq!(site.count("commits").await, [1, 1]);
}

/// Connections that are cut, and clients that go away.
async fn survive(site: &Site) {
    assert_eq!(brief(&site.order("begins", "order").await), (201, "false"));
    for (key, arrives) in [("arrives", true), ("does-not", false)] {
        site.proxy.cut_when_client_sends(site.commit, arrives);
        let lost = site.order(key, "order").await;
        assert_eq!((lost.status, lost.problem().as_str()), (503, "unavailable"), "{lost:?}{}", site.log());
        assert_eq!(lost.header("retry-after"), "1");
        assert!(!site.proxy.is_armed(), "the commit went through the proxy");
        assert_eq!(brief(&site.order(key, "order").await), (201, if arrives { "true" } else { "false" }));
        assert_eq!(site.count(key).await, [1, 1]);
    }
    let lost = site.order("no", "lost:402").await;
    assert_eq!(
        (lost.status, lost.problem().as_str()),
        (503, "unavailable"),
        "a no that is not stored: {lost:?}{}",
        site.log()
    );
    assert_eq!(brief(&site.order("no", "order").await), (201, "false"));
    go_away(site).await;
    site.proxy.refuse(true);
    site.proxy.cut();
    let refused = site.order("begins", "order").await;
    assert_eq!((refused.status, refused.problem().as_str()), (503, "unavailable"), "{refused:?}");
    site.proxy.refuse(false);
    eventually("PostgreSQL is back", LIMIT, async || {
        (brief(&site.order("begins", "order").await) == (201, "true")).then_some(())
    })
    .await;
}

/// The handler runs to its end, and the client's next attempt gets its answer.
async fn go_away(site: &Site) {
    site.lock().await;
    let mut client = TcpStream::connect(site.address).await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: gone\r\nx-do: locked\r\ncontent-length: 1\r\n\r\n7";
    client.write_all(head.as_bytes()).await.unwrap();
    site.until_one_waits().await;
    client.set_zero_linger().unwrap();
    drop(client);
    // The server has seen the reset before it sees this: both go through the same loopback.
    assert_eq!(brief(&site.order("comes", "order").await), (201, "false"));
    site.unlock().await;
    let done = "SELECT key FROM oncebox.inbox WHERE key = 'main/gone'";
    eventually("the row is committed", LIMIT, async || lines(&site.client, done).await.pop()).await;
    assert_eq!(brief(&site.order("gone", "locked").await), (201, "true"));
    assert_eq!(site.count("gone").await, [1, 1]);
}
