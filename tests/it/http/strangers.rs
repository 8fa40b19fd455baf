//! Who gets a stored response, and who does not: users that are checked inside of the layer,
//! clients that spell the same request in another way, clients that are slow.

use std::{cell::Cell, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::FromRequestParts,
    http::{Request, Response, StatusCode, request::Parts},
    response::IntoResponse,
    routing::post,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use oncebox_http::{Builder, Claim, IdempotencyLayer};
use oncebox_tests::{TestEnv, eventually};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tower_service::Service;

use crate::{
    http::support::{LIMIT, Reply, Shop, reply, request},
    inbox::support::environment,
};

/// An extractor inside of the layer that knows two users, by their tokens or cookies.
struct User(&'static str);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let value = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let known = [value("authorization"), value("cookie"), value("x-api-key")];
        match known.into_iter().flatten().next() {
            Some("Bearer alice" | "session=alice" | "alice") => Ok(Self("alice")),
            Some("Bearer bob" | "session=bob" | "bob") => Ok(Self("bob")),
            _ => Err(StatusCode::UNAUTHORIZED),
        }
    }
}

async fn buy(User(name): User, _: Claim) -> impl IntoResponse {
    (StatusCode::CREATED, format!("secret receipt of {name}"))
}

/// A service with one tenant and users that are checked by an extractor.
fn service(env: &TestEnv, change: impl FnOnce(Builder) -> Builder) -> Router {
    let builder = IdempotencyLayer::builder(env.pool(4)).scope("shop").single_tenant();
    let layer = change(builder).build().unwrap();
    Router::new().route("/orders", post(buy).get(buy)).route_layer(layer)
}

async fn call(router: &Router, headers: &[(&str, &str)]) -> Reply {
    let request = Request::post("/orders").header("idempotency-key", "k");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    reply(router.clone().call(request.body(Body::from("7")).unwrap()).await.unwrap()).await
}

/// Bob, and a client without credentials, send Alice's request with her key.
#[tokio::test]
async fn nobody_gets_the_response_of_another_user() {
    for [alice, bob] in [
        [("authorization", "Bearer alice"), ("authorization", "Bearer bob")],
        [("cookie", "session=alice"), ("cookie", "session=bob")],
        [("x-api-key", "alice"), ("x-api-key", "bob")],
    ] {
        let env = environment().await;
        let named = alice.0 == "x-api-key";
        let change = |builder: Builder| if named { builder.credentials(["x-api-key"]) } else { builder };
        let router = service(&env, change);
        assert_eq!(call(&router, &[]).await.status, 401, "and that takes the key from nobody");
        let first = call(&router, &[alice]).await;
        assert_eq!((first.status, first.text(), first.replayed()), (201, "secret receipt of alice", "false"));
        for others in [&[][..], &[bob], &[bob, alice]] {
            let refused = call(&router, others).await;
            assert!(!refused.text().contains("secret"), "{refused:?}");
            assert_eq!((refused.status, refused.problem().as_str()), (422, "key-reused"), "{others:?}");
        }
        let again = call(&router, &[alice]).await;
        assert_eq!((again.status, again.text(), again.replayed()), (201, "secret receipt of alice", "true"));
    }
}

/// A service that says so answers everybody who has the key.
#[tokio::test]
async fn responses_are_public_when_the_service_says_so() {
    let env = environment().await;
    let router = service(&env, Builder::public_responses);
    assert_eq!(call(&router, &[("authorization", "Bearer alice")]).await.status, 201);
    for others in [&[][..], &[("authorization", "Bearer bob")]] {
        assert_eq!(call(&router, others).await.replayed(), "true");
    }
}

/// Where the tenant says who it is, a new token of the same user gets the stored response.
#[tokio::test]
async fn a_user_who_is_the_tenant_may_have_a_new_token() {
    let env = environment().await;
    let tenant = |parts: &Parts| {
        let token = parts.headers.get("authorization")?.to_str().ok()?;
        token.strip_prefix("Bearer ")?.split('.').next().map(str::to_owned)
    };
    let handler = async |_: Claim| "receipt";
    let layer = IdempotencyLayer::builder(env.pool(4)).scope("shop").tenant(tenant).build().unwrap();
    let router = Router::new().route("/orders", post(handler)).route_layer(layer);
    for (token, replayed) in
        [("Bearer alice.1", "false"), ("Bearer alice.2", "true"), ("Bearer bob.1", "false")]
    {
        assert_eq!(call(&router, &[("authorization", token)]).await.replayed(), replayed, "{token}");
    }
}

/// The advice of a refusal never makes a client do a request twice.
#[tokio::test]
async fn another_spelling_of_the_same_request_is_answered_from_the_stored_response() {
    let env = environment().await;
    let router = service(&env, |builder| builder.public_responses());
    let send = async |content_type: &str, body: &str| {
        let request =
            Request::post("/orders").header("idempotency-key", content_type.split(';').next().unwrap());
        let request = request.header("content-type", content_type).header("cookie", "session=alice");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        reply(router.clone().call(request).await.unwrap()).await
    };
    for [(first, body), (again, same), (other, different)] in [
        [("application/json", "7"), ("application/json; charset=utf-8", "7"), ("application/json", "8")],
        [
            ("multipart/form-data; boundary=a", "--a\r\n\r\n7\r\n--a--"),
            ("multipart/form-data; boundary=b", "--b\r\n\r\n7\r\n--b--"),
            ("multipart/form-data; boundary=b", "--b\r\n\r\n8\r\n--b--"),
        ],
    ] {
        assert_eq!(send(first, body).await.replayed(), "false");
        assert_eq!(send(again, same).await.replayed(), "true", "{again}");
        let refused = send(other, different).await;
        assert_eq!(refused.problem(), "key-reused");
        assert!(refused.text().contains("with a new key it would be done again"), "{}", refused.text());
    }
}

/// A client writes the time into each attempt: the service says which parts count.
#[tokio::test]
async fn a_service_may_say_what_the_content_of_a_request_is() {
    let env = environment().await;
    let router = service(&env, |builder| {
        builder.content(|_, body| body.split(|byte| *byte == b'@').next().unwrap_or_default().to_vec())
    });
    let send = async |body: &str| {
        let request =
            Request::post("/orders").header("idempotency-key", "k").header("cookie", "session=alice");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        reply(router.clone().call(request).await.unwrap()).await
    };
    assert_eq!(send("7@10:00").await.replayed(), "false");
    assert_eq!(send("7@10:01").await.replayed(), "true");
    assert_eq!(send("8@10:01").await.problem(), "key-reused");
}

/// A service with the layer that compresses for clients that accept it, and one that reads and
/// writes trailers.
async fn negotiate(_: Claim, request: Request<Body>) -> Response<Body> {
    let accepts = request.headers().get("accept-encoding").is_some_and(|value| value == "gzip");
    let collected = request.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let response = Response::builder().header("content-encoding", if accepts { "gzip" } else { "identity" });
    let body = Full::new(Bytes::from(format!("{} trailers", trailers.len())));
    response.body(Body::new(body.with_trailers(std::future::ready(Some(Ok(trailers)))))).unwrap()
}

#[tokio::test]
async fn a_stored_response_is_for_any_client_and_trailers_reach_the_first() {
    let env = environment().await;
    let layer = IdempotencyLayer::builder(env.pool(4)).scope("shop").single_tenant().build().unwrap();
    let mut router = Router::new().route("/orders", post(negotiate)).route_layer(layer);
    for (accepts, replayed, trailers) in [("gzip", "false", 1), ("identity", "true", 0)] {
        let mut sent = axum::http::HeaderMap::new();
        sent.insert("checksum", "7".parse().unwrap());
        let body = Full::new(Bytes::from("7")).with_trailers(std::future::ready(Some(Ok(sent))));
        let request =
            Request::post("/orders").header("idempotency-key", "k").header("accept-encoding", accepts);
        let response = router.call(request.body(Body::new(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        assert_eq!(parts.headers["idempotent-replayed"], replayed);
        assert_eq!(parts.headers["content-encoding"], "identity");
        let collected = body.collect().await.unwrap();
        assert_eq!(collected.trailers().map_or(0, axum::http::HeaderMap::len), trailers);
        assert_eq!(collected.to_bytes(), "1 trailers");
    }
}

/// A GET passes without a claim, with a key or not: a handler that needs one is set up wrongly, and
/// its client has not forgotten anything.
#[tokio::test]
async fn a_get_with_a_key_is_not_told_that_it_has_none() {
    let env = environment().await;
    let router = service(&env, |builder| builder);
    let request = Request::get("/orders").header("idempotency-key", "k").header("cookie", "session=alice");
    let refused = reply(router.clone().call(request.body(Body::empty()).unwrap()).await.unwrap()).await;
    assert_eq!((refused.status, refused.problem().as_str()), (500, "set-up-wrongly"));
}

/// Clients that send nearly all of a body and then nothing have used up the bytes that all bodies
/// share: those give way to a client that comes now.
#[tokio::test]
async fn slow_clients_give_way_when_the_bytes_of_bodies_are_used_up() {
    let hour = Duration::from_secs(3_600);
    let shop =
        Shop::with(|builder| builder.request_body_max(1_000).buffered_max(4_000).request_body_timeout(hour))
            .await;
    let mut slow = Vec::new();
    for number in 0..4 {
        let mut client = TcpStream::connect(shop.address).await.unwrap();
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: slow-{number}\r\ncontent-length: 1000\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&[b'7'; 999]).await.unwrap();
        slow.push(client);
    }
    let body = format!("{:0>500}", 7);
    let number = Cell::new(0);
    eventually("a slow one is refused, and another is served", LIMIT, async || {
        number.set(number.get() + 1);
        let key = format!("k-{}", number.get());
        let reply = shop.send(request("POST", "/orders", &[("idempotency-key", &key)], &body)).await;
        let is_refused = |client: &TcpStream| {
            let mut answer = [0; 12];
            client.try_read(&mut answer).is_ok() && answer == *b"HTTP/1.1 408"
        };
        let has_given_way = slow.iter().any(is_refused);
        (has_given_way && reply.status == 201).then_some(())
    })
    .await;
}
