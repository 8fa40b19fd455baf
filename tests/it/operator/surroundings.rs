//! The findings of `oncebox doctor` about things around the outbox: an account's limits, a work
//! queue, a stream with schedules or delete markers, standbys that commits wait for, a pooler.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::pull,
    stream::{Config, DiscardPolicy, RetentionPolicy},
};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, PgBouncer, Postgres, TestEnv, eventually, pool};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio_postgres::{Client, NoTls};

use super::doctor::{doctor, doctor_of, found, sound, start, text_of};
use crate::relay::support::{LIMIT, enqueue, fresh_stream};

/// Whether it is the only problem or warning of this name, and has these words.
fn says(seen: &Value, severity: &str, check: &str, parts: &[&str]) {
    let all = found(seen).into_iter().filter(|(_, name)| name == check).collect::<Vec<_>>();
    assert_eq!(all, [(severity.to_owned(), check.to_owned())], "{seen}");
    let text = text_of(seen, check);
    parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
}

#[tokio::test]
async fn an_account_that_asks_for_limits_or_has_used_its_own() {
    let env = TestEnv::new().await;
    let accounts = "accounts { A {
        jetstream { max_file: 4M, max_mem: 4M, max_bytes_required: true }
        users: [ { user: relay, password: hunter2 } ]
    } }\n";
    let nats = Nats::start_with(accounts).await.unwrap();
    let options = async_nats::ConnectOptions::new().user_and_password("relay".into(), "hunter2".into());
    let context = jetstream::new(options.connect(nats.url()).await.unwrap());
    context.create_stream(Config { max_bytes: 3_900_000, ..sound(&env) }).await.unwrap();
    let declare = |limit: &str| {
        let file = NamedTempFile::new().unwrap();
        let stream = format!("[[stream]]\nname = \"MADE\"\nsubjects = [\"{}\"]\n{limit}", env.name());
        std::fs::write(file.path(), stream).unwrap();
        file
    };
    let look = async |file: &NamedTempFile| {
        let login = [
            ("ONCEBOX_NATS_USER", "relay"),
            ("ONCEBOX_NATS_PASSWORD", "hunter2"),
            ("ONCEBOX_CONFIG", file.path().to_str().unwrap()),
        ];
        doctor(env.database_url(), &nats.url(), &login).await
    };
    let (code, seen) = look(&declare("")).await;
    assert_eq!(code, 1, "{seen}");
    says(&seen, "problem", "account", &["max_bytes", "MADE"]);
    let (code, seen) = look(&declare("max_bytes = 1000\n")).await;
    assert_eq!((code, text_of(&seen, "account").as_str()), (0, ""), "{seen}");
    for n in 0..36 {
        context
            .publish(env.subject("a"), vec![0; 100_000].into())
            .await
            .unwrap()
            .await
            .unwrap_or_else(|error| panic!("message {n}: {error}"));
    }
    let (code, seen) = look(&declare("max_bytes = 1000\n")).await;
    assert_eq!(code, 0, "{seen}");
    says(&seen, "warning", "account", &["of the disk that it may use", "nats account info"]);
}

/// The filter of its only consumer moves while messages wait.
#[tokio::test]
async fn a_work_queue_of_which_a_subject_has_no_consumer_any_more() {
    let env = TestEnv::new().await;
    let queue = Config { retention: RetentionPolicy::WorkQueue, ..sound(&env) };
    let (stream, _) = start(&env, queue).await;
    let config = |subject: &str| pull::Config {
        durable_name: Some("d".to_owned()),
        filter_subject: env.subject(subject),
        ..pull::Config::default()
    };
    stream.create_consumer(config("a")).await.unwrap();
    let (_, seen) = doctor_of(&env).await;
    assert_eq!(text_of(&seen, "subject-unconsumed"), "", "{seen}");
    stream.create_consumer(config("b")).await.unwrap();
    let (code, seen) = doctor_of(&env).await;
    assert_eq!(code, 0, "messages reach their stream: {seen}");
    says(
        &seen,
        "warning",
        "subject-unconsumed",
        &["work queue", &env.subject("a"), "until the stream is full"],
    );
}

#[tokio::test]
async fn streams_with_schedules_and_with_delete_markers() {
    if Nats::version().unwrap() < (2, 12) {
        return;
    }
    let env = TestEnv::new().await;
    start(&env, sound(&env)).await;
    let scheduling = Config { allow_message_schedules: true, allow_message_ttl: true, ..sound(&env) };
    let context = jetstream::new(env.nats().await);
    let refused =
        context.create_stream(Config { name: format!("{}x", env.name()), ..scheduling.clone() }).await;
    assert!(refused.is_err(), "a stream with schedules cannot refuse messages");
    fresh_stream(env.nats_url(), Config { discard: DiscardPolicy::Old, ..scheduling }).await;
    let (_, seen) = doctor_of(&env).await;
    says(&seen, "problem", "discard", &["schedules to a stream of their own", "enqueue_at"]);
    let marking = Config {
        subject_delete_marker_ttl: Some(Duration::from_secs(120)),
        allow_message_ttl: true,
        allow_rollup: true,
        ..sound(&env)
    };
    fresh_stream(env.nats_url(), marking).await;
    let (_, seen) = doctor_of(&env).await;
    says(&seen, "note", "delete-markers", &["for 2m", "Nats-Marker-Reason"]);
}

async fn admin(env: &TestEnv, postgres: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url("postgres"), NoTls).await.unwrap();
    env.keep(async move { drop(connection.await) });
    client
}

/// Changes settings without a commit, which would wait.
async fn set(admin: &Client, settings: &[&str]) {
    for setting in settings {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
}

#[tokio::test]
async fn standbys_that_commits_wait_for() {
    let env = TestEnv::new().await;
    env.stream().await;
    let primary = Postgres::start().await.unwrap();
    let mut pg = admin(&env, &primary).await;
    migrate(&mut pg, &SchemaName::default(), Lanes::default()).await.unwrap();
    let url = primary.url("postgres");
    let look = async || doctor(&url, env.nats_url(), &[]).await;
    let expect = async |text: Option<(&str, &[&str])>| {
        eventually("doctor says what is so", LIMIT, async || {
            let (_, seen) = look().await;
            let Some((severity, parts)) = text else {
                return text_of(&seen, "standbys").is_empty().then_some(());
            };
            (!text_of(&seen, "standbys").is_empty()).then(|| says(&seen, severity, "standbys", parts))
        })
        .await;
    };
    expect(None).await;
    set(&pg, &["synchronous_standby_names = 'FIRST 1 (*)'"]).await;
    expect(Some(("problem", &["1 standby", "FIRST 1 (*)", "0 of them are", "hang"]))).await;
    let standby = primary.start_standby().await.unwrap();
    expect(None).await;
    set(&pg, &["synchronous_standby_names = '2 (*)'"]).await;
    expect(Some(("problem", &["2 standbys", "1 of them is connected"]))).await;
    set(&pg, &["synchronous_standby_names = '*'", "synchronous_commit = remote_apply"]).await;
    expect(None).await;
    admin(&env, &standby).await.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    pg.batch_execute("SET synchronous_commit = local").await.unwrap();
    // Text that does not compress: 20 MiB.
    let sql = "CREATE TABLE filler AS SELECT string_agg(md5(random()::text), '') AS text
               FROM generate_series(1, 6000) AS n, generate_series(1, 110) AS m GROUP BY n";
    pg.batch_execute(sql).await.unwrap();
    expect(Some(("warning", &["remote_apply", "MiB still to apply", "paused"]))).await;
}

#[tokio::test]
async fn a_pooler_in_statement_mode_is_one_problem() {
    let env = TestEnv::new().await;
    let (_stream, pg) = start(&env, sound(&env)).await;
    enqueue(&pg, &env.subject("a"), "more-", 0..2, 0).await;
    let Some(pooler) = PgBouncer::start_in(env.database_url(), 2, "statement").await.unwrap() else { return };
    let (code, seen) = doctor(&pooler.url(env.name()), env.nats_url(), &[]).await;
    assert_eq!(code, 1, "{seen}");
    says(&seen, "problem", "pooler", &["statement pooling", "pool_mode = transaction"]);
    assert_eq!(text_of(&seen, "unasked"), "", "one cause is one finding: {seen}");
}

/// The doctor of an operator needs no relay's privileges, and names those that a connected relay
/// lacks.
#[tokio::test]
async fn an_operator_sees_what_relays_lack() {
    let env = TestEnv::new().await;
    let (_stream, pg) = start(&env, sound(&env)).await;
    let (url, operator) = env.login("oncebox_operator").await;
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    assert_eq!((code, found(&seen)), (0, vec![]), "{seen}");
    let (relay_url, relay) = env.login("oncebox_relay").await;
    let separator = if relay_url.contains('?') { '&' } else { '?' };
    let named = format!("{relay_url}{separator}application_name=oncebox%20relay");
    let pool = pool(&named, 1, LIMIT).unwrap();
    let session = pool.get().await.unwrap();
    pg.batch_execute("REVOKE DELETE ON oncebox.parked FROM oncebox_relay").await.unwrap();
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    assert_eq!((code, found(&seen).len()), (1, 1), "{seen}");
    says(&seen, "problem", "privileges", &[&relay, "lacks DELETE on parked"]);
    drop(session);
    pool.close();
    let roles = format!("DROP OWNED BY {operator}, {relay}; DROP ROLE {operator}, {relay}");
    pg.batch_execute(&roles).await.unwrap();
}
