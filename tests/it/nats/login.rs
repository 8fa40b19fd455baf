//! Every way to log in to NATS, against a server that demands it; TLS besides, alone and together.

use std::fs;

use async_nats::{ConnectOptions, jetstream};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use oncebox_connect::error::error_chain;
use oncebox_relay::{Config, Relay, RelayError, Values};
use oncebox_tests::{Nats, TestEnv, nats_server_binary};

use crate::{
    certificates::{Authority, Signed},
    relay::{
        process::Process,
        support::{connect, drain, enqueue, stream_config, values, with},
    },
};

type Change<'a> = (&'static str, &'a str);

fn changed(values: &Values, changes: &[Change<'_>]) -> Values {
    let mut values = values.clone();
    values.extend(changes.iter().map(|(name, text)| (*name, (*text).to_owned())));
    values
}

/// With `good` messages arrive; without anything, and with each of `bad`, the server lets no client
/// in, and nothing secret is shown.
async fn check(
    server: &str,
    admin: ConnectOptions,
    scheme: &str,
    good: &[Change<'_>],
    bad: &[&[Change<'_>]],
) {
    let env = TestEnv::new().await;
    let nats = Nats::start_with(server).await.unwrap();
    let client = admin.connect(nats.url()).await.expect("the test itself gets in");
    let stream = jetstream::new(client).create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let url = nats.url().replacen("nats://", scheme, 1);
    let values = values(env.database_url(), &url);
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..10, 0).await;
    let nothing: &[Change<'_>] = &[];
    for changes in std::iter::once(&nothing).filter(|_| !good.is_empty()).chain(bad) {
        let values = changed(&values, changes);
        let config = Config::from_values(&values).unwrap_or_else(|error| panic!("{changes:?}: {error}"));
        assert_shows_nothing(&format!("{config:?}"));
        let error = Relay::connect(config).await.map(drop).expect_err("is not let in");
        // Without TLS there is nothing but the login that could be wrong.
        let is_refused = matches!(error, RelayError::NatsRefused { .. });
        assert!(is_refused || server.contains("tls"), "{error:?}");
        assert_shows_nothing(&error_chain(&error));
        let loud = with(&values, [("log", "trace")]);
        let (status, log) = Process::relay(&loud).ended().await;
        assert_eq!(status.code(), Some(if is_refused { 77 } else { 69 }), "{log}");
        assert_eq!(log.contains("refuses the login"), is_refused, "{log}");
        assert_shows_nothing(&log);
    }
    let mut worker = connect(&changed(&values, good)).await.worker();
    assert_eq!(drain(&mut worker).await, 10);
    assert_eq!(stream.get_info().await.unwrap().state.messages, 10);
}

/// Secrets of these tests hold the word, or begin as seeds and tokens of JWT do. Ids of servers are
/// random letters.
fn assert_shows_nothing(text: &str) {
    assert!(!text.contains("hunter2"), "{text}");
    for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
        assert!(!word.starts_with("SUA") && !word.starts_with("eyJ0"), "{word}: {text}");
    }
}

fn write(authority: &Authority, name: &str, text: &str) -> String {
    fs::write(authority.path(name), text).unwrap();
    authority.path(name).to_str().unwrap().to_owned()
}

#[tokio::test]
async fn user_and_password() {
    let files = Authority::new();
    let (good, bad) = (write(&files, "good", "hunter2 it is\n"), write(&files, "bad", "hunter2"));
    let config = r#"authorization { user: "relay", password: "hunter2 it is" }"#;
    let admin = || ConnectOptions::new().user_and_password("relay".into(), "hunter2 it is".into());
    let wrong: [&[Change<'_>]; 3] = [
        &[("nats-user", "relay"), ("nats-password-file", &bad)],
        &[("nats-user", "other"), ("nats-password", "hunter2 it is")],
        &[("nats-token", "hunter2 it is")],
    ];
    let right = [("nats-user", "relay"), ("nats-password-file", good.as_str())];
    check(config, admin(), "nats://", &right, &wrong).await;
    check(config, admin(), "nats://", &[("nats-user", "relay"), ("nats-password", "hunter2 it is")], &[])
        .await;
    check(config, admin(), "nats://relay:hunter2%20it%20is@", &[], &[]).await;
}

#[tokio::test]
async fn token() {
    let files = Authority::new();
    let good = write(&files, "good", "hunter2");
    let admin = || ConnectOptions::new().token("hunter2".into());
    let config = "authorization { token: hunter2 }";
    let wrong: [&[Change<'_>]; 1] = [&[("nats-token", "hunter2 and more")]];
    check(config, admin(), "nats://", &[("nats-token-file", &good)], &wrong).await;
    check(config, admin(), "nats://", &[("nats-token", "hunter2")], &[]).await;
}

#[tokio::test]
async fn nkey() {
    let files = Authority::new();
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let good = write(&files, "good", &user.seed().unwrap());
    let config = format!("authorization {{ users = [ {{ nkey: {} }} ] }}", user.public_key());
    let admin = || ConnectOptions::new().nkey(user.seed().unwrap());
    let other = stranger.seed().unwrap();
    let wrong: [&[Change<'_>]; 1] = [&[("nats-nkey-seed", &other)]];
    check(&config, admin(), "nats://", &[("nats-nkey-seed-file", &good)], &wrong).await;
}

/// A JWT as NATS signs them.
fn jwt(issuer: &KeyPair, subject: &str, nats: &serde_json::Value) -> String {
    let part = |value: &serde_json::Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let header = part(&serde_json::json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let claims = part(&serde_json::json!({
        "jti": "test", "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject, "name": "test", "nats": nats
    }));
    let signature = issuer.sign(format!("{header}.{claims}").as_bytes()).unwrap();
    format!("{header}.{claims}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// A .creds file for a new user of the account.
pub(crate) fn credentials(account: &KeyPair) -> String {
    let user = KeyPair::new_user();
    let claims = serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let (jwt, seed) = (jwt(account, &user.public_key(), &claims), user.seed().unwrap());
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test]
async fn jwt_credentials() {
    let files = Authority::new();
    let (operator, system, account) =
        (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let limits = |jetstream: i64| {
        serde_json::json!({
            "type": "account", "version": 2,
            "limits": {
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                "leaf": -1, "mem_storage": jetstream, "disk_storage": jetstream, "streams": jetstream,
                "consumer": jetstream
            }
        })
    };
    let own = serde_json::json!({ "type": "operator", "version": 2, "system_account": system.public_key() });
    let preload = [(&system, 0), (&account, -1)].map(|(key, jetstream)| {
        format!("{}: {}", key.public_key(), jwt(&operator, &key.public_key(), &limits(jetstream)))
    });
    let config = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}\n}}",
        jwt(&operator, &operator.public_key(), &own),
        system.public_key(),
        preload.join("\n")
    );
    let (good, stranger) = (credentials(&account), credentials(&KeyPair::new_account()));
    let file = write(&files, "relay.creds", &good);
    let admin = || ConnectOptions::new().credentials(&good).unwrap();
    let wrong: [&[Change<'_>]; 1] = [&[("nats-credentials", &stranger)]];
    check(&config, admin(), "nats://", &[("nats-credentials-file", &file)], &wrong).await;
    check(&config, admin(), "nats://", &[("nats-credentials", &good)], &[]).await;
}

fn tls_block(server: &Signed, ca: &str, more: &str) -> String {
    format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {ca:?}, {more} }}\n",
        server.cert(),
        server.key()
    )
}

#[tokio::test]
async fn tls_with_a_ca_a_client_certificate_and_a_password() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (ca, other_ca) = (authority.ca(), stranger.ca());
    let server = authority.sign("server", &["127.0.0.1"]);
    let (ours, theirs) = (authority.sign("relay", &[]), stranger.sign("relay", &[]));
    let admin = || {
        ConnectOptions::new()
            .add_root_certificates(authority.path("ca.pem"))
            .add_client_certificate(ours.cert.clone(), ours.key.clone())
            .user_and_password("relay".into(), "hunter2".into())
    };
    // Encrypted, and the server's certificate is checked.
    let wrong: [&[Change<'_>]; 2] = [&[("nats-ca-file", &other_ca)], &[("nats-tls", "require")]];
    check(&tls_block(&server, &ca, ""), admin(), "nats://", &[("nats-ca-file", &ca)], &wrong).await;
    let elsewhere = authority.sign("elsewhere", &["nats.example"]);
    let misnamed = Nats::start_with(&tls_block(&elsewhere, &ca, "")).await.unwrap();
    let env = TestEnv::new().await;
    let values = with(&values(env.database_url(), &misnamed.url()), [("nats-ca-file", &ca)]);
    let error = Relay::connect(Config::from_values(&values).unwrap()).await.map(drop).unwrap_err();
    let told = error_chain(&error);
    assert!(told.contains("answers, but TLS with it fails") && told.contains("not valid for name"), "{told}");
    // A client certificate, and a password as well.
    let block = tls_block(&server, &ca, "verify: true");
    let config = format!("{block}authorization {{ user: relay, password: hunter2 }}");
    let login = [("nats-user", "relay"), ("nats-password", "hunter2"), ("nats-ca-file", ca.as_str())];
    let with_cert = [&login[..], &[("nats-cert-file", ours.cert()), ("nats-key-file", ours.key())]].concat();
    let with_theirs =
        [&login[..], &[("nats-cert-file", theirs.cert()), ("nats-key-file", theirs.key())]].concat();
    let no_password = &with_cert[2..];
    check(&config, admin(), "tls://", &with_cert, &[&login, &with_theirs, no_password]).await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_when_tls_is_asked_for() {
    let env = TestEnv::new().await;
    let authority = Authority::new();
    let ca = authority.ca();
    let plain = values(env.database_url(), env.nats_url());
    let by_scheme = env.nats_url().replacen("nats", "tls", 1);
    for change in [
        ("nats-ca-file", ca.as_str()),
        ("nats-tls", "require"),
        ("nats-tls", "first"),
        ("nats-url", &by_scheme),
    ] {
        let config = Config::from_values(&changed(&plain, &[change])).unwrap();
        let error = Relay::connect(config).await.map(drop).expect_err(change.0);
        assert!(matches!(error, RelayError::NatsTls { .. }), "{error:?}");
        let told = error_chain(&error);
        assert!(
            told.contains("answers, but does not begin with TLS") && told.contains("tls block"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn tls_comes_first_where_the_server_wants_it_first() {
    let output = std::process::Command::new(nats_server_binary().unwrap()).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    if version.contains("v2.9.") {
        // handshake_first came with 2.10.4.
        return;
    }
    let authority = Authority::new();
    let ca = authority.ca();
    let server = authority.sign("server", &["127.0.0.1"]);
    let admin = ConnectOptions::new().add_root_certificates(authority.path("ca.pem"));
    let first = [("nats-ca-file", ca.as_str()), ("nats-tls", "first")];
    // "auto": the server greets in plaintext only when nothing comes for a while, which lets this
    // harness look.
    let block = tls_block(&server, &ca, "handshake_first: auto");
    check(&block, admin.clone(), "nats://", &first, &[]).await;
    let ordinary = Nats::start_with(&tls_block(&server, &ca, "")).await.unwrap();
    let env = TestEnv::new().await;
    let config = Config::from_values(&changed(&values(env.database_url(), &ordinary.url()), &first)).unwrap();
    Relay::connect(config).await.map(drop).expect_err("this server greets first");
}

#[tokio::test]
async fn a_secret_replaced_in_its_file_is_used_for_the_next_connection() {
    let env = TestEnv::new().await;
    let files = Authority::new();
    let file = write(&files, "password", "hunter2");
    let config = "authorization { users = [ { user: old, password: hunter2 } ] }";
    let mut nats = Nats::start_with(config).await.unwrap();
    let changes =
        [("nats-user", "old"), ("nats-password-file", file.as_str()), ("http-listen", "127.0.0.1:0")];
    let relay = Process::relay(&changed(&values(env.database_url(), &nats.url()), &changes));
    relay.await_log("relay is running").await;
    nats.reconfigure("authorization { users = [ { user: old, password: hunter2-new } ] }").unwrap();
    nats.restart().await.unwrap();
    relay.await_log("does not let the relay in").await;
    assert_eq!(relay.get("/readyz").await.0, 503);
    write(&files, "password", "hunter2-new");
    relay.await_log("NATS is back").await;
    relay.signal("TERM").await;
    let (_, log) = relay.ended().await;
    assert_eq!(log.matches("does not let the relay in").count(), 1, "{log}");
    assert_shows_nothing(&log);
}

#[test]
fn contradictions_and_bad_secrets_are_mistakes_of_the_configuration() {
    let files = Authority::new();
    let (seed, empty) = (write(&files, "seed", "SUAhunter2"), write(&files, "empty", "\n"));
    let check = |url: &str, changes: &[Change<'_>], parts: &[&str]| {
        let values = changed(&values("postgres://h/d", url), changes);
        let mistakes = Config::from_values(&values).map(drop).expect_err(url).0;
        for part in parts {
            assert!(mistakes.iter().any(|line| line.contains(part)), "{part}: {mistakes:#?}");
        }
        assert_eq!(mistakes.len(), parts.len(), "{mistakes:#?}");
        assert_shows_nothing(&mistakes.join("\n"));
    };
    let plain = "nats://h";
    check("nats://u:hunter2@h", &[("nats-token", "hunter2")], &["nats-url and nats-token are given"]);
    check(plain, &[("nats-user", "u")], &["needs nats-password"]);
    check(plain, &[("nats-password", "hunter2")], &["option nats-user: is not set"]);
    check(
        plain,
        &[("nats-token", "hunter2"), ("nats-token-file", &seed)],
        &["option nats-token; give only one of them"],
    );
    check(plain, &[("nats-token-file", &empty)], &["it is empty"]);
    check(plain, &[("nats-token-file", "/nowhere")], &["read /nowhere"]);
    check(plain, &[("nats-nkey-seed", "SUAhunter2")], &["option nats-nkey-seed: is not the seed"]);
    check(plain, &[("nats-nkey-seed-file", &seed)], &["option nats-nkey-seed-file: is not the seed"]);
    check(plain, &[("nats-credentials-file", &seed)], &["is no .creds file"]);
    check(plain, &[("nats-cert-file", &files.ca())], &["option nats-key-file: is missing"]);
    check(
        plain,
        &[("nats-ca-file", &seed), ("nats-tls", "maybe")],
        &["no certificate in PEM form", "not one of auto"],
    );
    check(plain, &[("nats-inbox-prefix", "a.>")], &["is not a subject"]);
}
