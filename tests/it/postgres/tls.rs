//! TLS to PostgreSQL: each `sslmode` against a server that demands it and one that has none.

use std::fs;

use oncebox_connect::error::error_chain;
use oncebox_relay::{Config, Relay, RelayError, Values};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, eventually};
use tokio_postgres::{Client, NoTls};

use crate::{
    certificates::{Authority, Signed},
    relay::{
        process::Process,
        support::{LIMIT, Running, await_messages, enqueue, values, with},
    },
};

/// Only TLS, and for one role only with a certificate of its name.
const HBA: &str = "hostssl all with_cert 127.0.0.1/32 scram-sha-256 clientcert=verify-full
hostssl all with_cert ::1/128 scram-sha-256 clientcert=verify-full
hostssl all all 127.0.0.1/32 scram-sha-256
hostssl all all ::1/128 scram-sha-256
";

struct Guarded {
    postgres: Postgres,
    authority: Authority,
    /// Superuser, connected before TLS was demanded.
    client: Client,
    /// Certificate of the role `with_cert`.
    identity: Signed,
    env: TestEnv,
}

/// A migrated database; the server's certificate is for `localhost`, not for 127.0.0.1.
/// `None` where no PostgreSQL has TLS.
async fn guarded() -> Option<Guarded> {
    let env = TestEnv::new().await;
    let postgres = Postgres::start_with_tls().await.unwrap()?;
    let authority = Authority::new();
    let (mut client, connection) = tokio_postgres::connect(&postgres.url("postgres"), NoTls).await.unwrap();
    env.keep(async move { drop(connection.await) });
    migrate(&mut client, &SchemaName::default(), Lanes::default()).await.unwrap();
    let server = authority.sign("server", &["localhost"]);
    for (name, file) in [("server.crt", &server.cert), ("server.key", &server.key)] {
        postgres.write(name, &fs::read_to_string(file).unwrap()).unwrap();
    }
    postgres.write("ca.crt", &fs::read_to_string(authority.ca()).unwrap()).unwrap();
    postgres.write("pg_hba.conf", HBA).unwrap();
    let settings = "CREATE ROLE relay LOGIN PASSWORD 'secret-word' IN ROLE oncebox_postgres_relay, oncebox_postgres_producer;
                    CREATE ROLE with_cert LOGIN PASSWORD 'secret-word' IN ROLE oncebox_postgres_relay";
    client.batch_execute(settings).await.unwrap();
    for setting in ["ssl = on", "ssl_ca_file = 'ca.crt'"] {
        client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let plain = format!("postgres://relay:secret-word@127.0.0.1:{}/postgres", postgres.port());
    eventually("the server demands TLS", LIMIT, async || {
        let refused = tokio_postgres::connect(&plain, NoTls).await.err()?;
        refused.as_db_error()?.message().contains("no encryption").then_some(())
    })
    .await;
    let identity = authority.sign("with_cert", &[]);
    Some(Guarded { postgres, authority, client, identity, env })
}

impl Guarded {
    fn values(&self, user: &str, host: &str, tail: &str) -> Values {
        let url = format!("postgres://{user}:secret-word@{host}:{}/postgres{tail}", self.postgres.port());
        values(&url, self.env.nats_url())
    }
}

async fn connects(values: &Values) -> Result<Relay, String> {
    let config = Config::from_values(values).map_err(|error| error.to_string())?;
    Relay::connect(config).await.map_err(|error: RelayError| error_chain(&error))
}

async fn check(values: &Values, expected: Result<(), &str>) {
    let found = connects(values).await.map(drop);
    match (&found, expected) {
        (Ok(()), Ok(())) => {}
        (Err(found), Err(part)) if found.contains(part) => assert!(!found.contains("secret-word"), "{found}"),
        _ => panic!("{}: {found:?}, not {expected:?}", values["database-url"]),
    }
}

#[tokio::test]
async fn every_sslmode_is_honoured_and_none_is_silently_plaintext() {
    let Some(server) = guarded().await else { return };
    let ca = server.authority.ca();
    let stranger = Authority::new();
    let in_url = |mode: &str, ca: &str| format!("?sslmode={mode}&sslrootcert={ca}");
    // The server insists: without TLS no client gets in.
    check(&server.values("relay", "localhost", ""), Err("no encryption")).await;
    check(&server.values("relay", "localhost", "?sslmode=disable"), Err("no encryption")).await;
    check(&server.values("relay", "127.0.0.1", "?sslmode=prefer"), Ok(())).await;
    check(&server.values("relay", "127.0.0.1", "?sslmode=require"), Ok(())).await;
    // A CA: the name counts, unless only the CA is asked for.
    for tail in ["", "?sslmode=require", "?sslmode=verify-full"] {
        let with_ca = |host, ca| with(&server.values("relay", host, tail), [("database-ca-file", ca)]);
        check(&with_ca("localhost", &ca), Ok(())).await;
        check(&with_ca("127.0.0.1", &ca), Err("not valid for name")).await;
        check(&with_ca("localhost", &stranger.ca()), Err("invalid peer certificate")).await;
    }
    check(&server.values("relay", "127.0.0.1", &in_url("verify-ca", &ca)), Ok(())).await;
    check(
        &server.values("relay", "127.0.0.1", &in_url("verify-ca", &stranger.ca())),
        Err("invalid peer certificate"),
    )
    .await;
    check(&server.values("relay", "localhost", &in_url("verify-full", &ca)), Ok(())).await;
    check(&server.values("relay", "127.0.0.1", &in_url("verify-full", &ca)), Err("not valid for name")).await;
    // The authorities of this system have not signed it.
    check(&server.values("relay", "localhost", "?sslmode=verify-full"), Err("")).await;
    // A server without TLS.
    let plain = server.env.database_url();
    for mode in ["require", "verify-full"] {
        let url = format!("{plain}?sslmode={mode}");
        let values = with(&values(&url, server.env.nats_url()), [("database-ca-file", &ca)]);
        check(&values, Err("server does not support TLS")).await;
    }
    for mode in ["disable", "prefer"] {
        check(&values(&format!("{plain}?sslmode={mode}"), server.env.nats_url()), Ok(())).await;
    }
}

#[tokio::test]
async fn a_server_without_tls_is_said_to_answer_without_it() {
    let env = TestEnv::new().await;
    let url = format!("{}?sslmode=require", env.database_url());
    for command in ["relay", "status", "migrate"] {
        let environment = [("DATABASE_URL", &*url), ("NATS_URL", env.nats_url())];
        let (status, log) = Process::start(&[command], environment).ended().await;
        assert_eq!(status.code(), Some(69), "{command}: {log}");
        assert!(log.contains("answers, but does not speak TLS") && log.contains("sslmode=disable"), "{log}");
        assert!(!log.contains("cannot be reached") && !log.contains("object"), "{log}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_every_connection_is_encrypted() {
    let Some(server) = guarded().await else { return };
    let ca = server.authority.ca();
    let values = with(&server.values("with_cert", "localhost", ""), [("database-ca-file", &ca)]);
    check(&values, Err("valid client certificate")).await;
    let identity = &server.identity;
    let with_cert = [("database-cert-file", identity.cert()), ("database-key-file", identity.key())];
    let values = with(&values, with_cert);
    let in_url = format!("?sslrootcert={ca}&sslcert={}&sslkey={}", identity.cert(), identity.key());
    check(&server.values("with_cert", "localhost", &in_url), Ok(())).await;
    let other = server.authority.sign("somebody", &[]);
    let as_other = [("database-cert-file", other.cert()), ("database-key-file", other.key())];
    check(&with(&values, as_other), Err("authentication failed")).await;

    let stream = server.env.stream().await;
    let relay = Running::start(&values);
    enqueue(&server.client, &server.env.subject("a"), "m-", 0..100, 0).await;
    await_messages(&stream, 100).await;
    // Workers, and the one that listens.
    let sql =
        "SELECT count(*) FILTER (WHERE NOT s.ssl), count(*), coalesce(bool_or(a.query ~ '^LISTEN'), false)
               FROM pg_stat_activity AS a JOIN pg_stat_ssl AS s USING (pid) WHERE a.usename = 'with_cert'";
    eventually("every connection is there, encrypted", LIMIT, async || {
        let row = server.client.query_one(sql, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0, "in plaintext");
        (row.get::<_, i64>(1) >= 2 && row.get(2)).then_some(())
    })
    .await;
    // A producer's NOTIFY arrives on it.
    relay.stop().await;
}

#[tokio::test]
async fn the_program_migrates_and_fails_over_tls_without_showing_the_password() {
    let Some(server) = guarded().await else { return };
    let ca = server.authority.ca();
    let password = server.authority.path("password");
    fs::write(&password, "secret-word\n").unwrap();
    let url = format!("postgres://relay@localhost:{}/postgres?application_name=x", server.postgres.port());
    let environment = [
        ("DATABASE_URL", &*url),
        ("ONCEBOX_DATABASE_CA_FILE", &*ca),
        ("ONCEBOX_DATABASE_PASSWORD_FILE", password.to_str().unwrap()),
    ];
    server
        .client
        .batch_execute("GRANT postgres TO relay; ALTER ROLE relay SET role = postgres")
        .await
        .unwrap();
    let (status, log) = Process::start(&["migrate"], environment).ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    fs::write(&password, "secret-word-but-wrong").unwrap();
    let (status, log) = Process::start(&["migrate"], environment).ended().await;
    assert_eq!(status.code(), Some(77), "{log}");
    assert!(log.contains("refuses the login") && !log.contains("cannot be reached"), "{log}");
    assert!(log.contains("password authentication failed") && !log.contains("secret-word"), "{log}");
}

#[test]
fn contradictions_and_bad_files_are_mistakes_of_the_configuration() {
    let authority = Authority::new();
    let (ca, identity) = (authority.ca(), authority.sign("c", &[]));
    let (other, empty) = (authority.sign("d", &[]), authority.path("empty"));
    fs::write(&empty, "no certificate").unwrap();
    let empty = empty.to_str().unwrap();
    let check = |url: &str, changes: &[(&'static str, &str)], parts: &[&str]| {
        let mut values = values(url, "nats://h");
        values.extend(changes.iter().map(|(name, text)| (*name, (*text).to_owned())));
        let mistakes = Config::from_values(&values).map(drop).expect_err(url).0;
        for part in parts {
            assert!(mistakes.iter().any(|line| line.contains(part)), "{part}: {mistakes:#?}");
        }
        assert_eq!(mistakes.len(), parts.len(), "{mistakes:#?}");
        assert!(!mistakes.join("\n").contains("hunter2"), "{mistakes:#?}");
    };
    let plain = "postgres://u:hunter2@h/d";
    let mode = |mode: &str| format!("{plain}?sslmode={mode}");
    check(&mode("disable"), &[("database-ca-file", &ca)], &["sslmode=disable, but files"]);
    check(&mode("prefer"), &[("database-ca-file", &ca)], &["may end without TLS"]);
    check(&mode("allow"), &[], &["not one of disable, prefer"]);
    check(&mode("verify-ca"), &[], &["needs the option database-ca-file"]);
    check("host=h sslmode=verify-full", &[], &["need a URL"]);
    check(plain, &[("database-ca-file", empty)], &["no certificate in PEM form"]);
    check(plain, &[("database-ca-file", "/nowhere/ca")], &["read /nowhere/ca"]);
    check(&format!("{plain}?sslrootcert={ca}"), &[("database-ca-file", &ca)], &["names such a file too"]);
    check(plain, &[("database-cert-file", identity.cert())], &["option database-key-file: is missing"]);
    check(plain, &[("database-key-file", identity.key())], &["option database-cert-file: is missing"]);
    let mixed = [("database-cert-file", identity.cert()), ("database-key-file", other.key())];
    check(plain, &mixed, &["do not go together"]);
    let swapped = [("database-cert-file", identity.key()), ("database-key-file", identity.cert())];
    check(plain, &swapped, &["holds no certificate", "holds no private key"]);
    check("postgres://u@%2Ftmp/d?sslmode=require", &[], &["Unix socket"]);
    check(plain, &[("database-password-file", &ca)], &["has a password too"]);
    check("postgres://a,b,c,d,e,f,g/d", &[], &["7 hosts; 6 at most"]);
    check("postgres://a,b/d?target_session_attrs=read-only", &[], &["a relay writes"]);
}
