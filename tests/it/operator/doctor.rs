//! `oncebox doctor` finds faults on real servers, and changes nothing.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream},
};
use oncebox_tests::{Nats, TestEnv, eventually, oncebox};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio_postgres::Client;

use crate::{
    inbox::{
        consumer::{Running, consumer},
        support::{Does, SCOPE, builder},
    },
    relay::support::{LIMIT, enqueue, fresh_stream, stream_config},
};

/// Runs a command with this environment; returns its exit code and both outputs.
pub(crate) async fn run_with(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    oncebox(arguments, environment).await.unwrap()
}

/// The exit code, and the whole document.
pub(crate) async fn doctor(database_url: &str, nats_url: &str, more: &[(&str, &str)]) -> (i32, Value) {
    let mut environment = vec![("DATABASE_URL", database_url), ("NATS_URL", nats_url)];
    environment.extend(more);
    let (code, output, log) = run_with(&["doctor", "--json"], &environment).await;
    assert!(!output.contains("hunter2") && !log.contains("hunter2"), "{output}{log}");
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}")))
}

pub(super) async fn doctor_of(env: &TestEnv) -> (i32, Value) {
    doctor(env.database_url(), env.nats_url(), &[]).await
}

/// Severity and name of each finding; not those that any test server has.
pub(super) fn found(document: &Value) -> Vec<(String, String)> {
    let all = document["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> = all.map(|found| (text(&found["severity"]), text(&found["check"]))).collect();
    all.retain(|(_, check)| !["superuser", "fsync", "max-payload"].contains(&&**check));
    all
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(severity, check)| ((*severity).to_owned(), (*check).to_owned())).collect()
}

pub(super) fn text_of(document: &Value, check: &str) -> String {
    let all = document["findings"].as_array().unwrap().iter();
    all.filter(|found| found["check"] == check).map(ToString::to_string).collect()
}

/// A stream with nothing to find.
pub(super) fn sound(env: &TestEnv) -> Config {
    Config {
        discard: DiscardPolicy::New,
        duplicate_window: Duration::from_secs(600),
        max_bytes: 50_000_000,
        ..stream_config(env.name(), &env.subject(">"))
    }
}

pub(super) async fn start(env: &TestEnv, config: Config) -> (Stream, Client) {
    let pg = env.pg().await;
    enqueue(&pg, &env.subject("a"), "m-", 0..10, 0).await;
    (fresh_stream(env.nats_url(), config).await, pg)
}

#[tokio::test]
async fn a_sound_pair_has_only_notes_and_exits_0() {
    let env = TestEnv::new().await;
    let (stream, pg) = start(&env, sound(&env)).await;
    let state = "SELECT md5(string_agg(t::text, '' ORDER BY t::text)), last_value
                 FROM oncebox.lane_cursor AS t, oncebox.relay_asleep GROUP BY last_value";
    let before: (String, i64) = pg.query_one(state, &[]).await.map(|row| (row.get(0), row.get(1))).unwrap();
    let (code, seen) = doctor_of(&env).await;
    assert_eq!((code, found(&seen)), (0, vec![]), "{seen}");
    assert_eq!(seen["postgres"]["hears"], true);
    assert_eq!(seen["postgres"]["is_pooled"], false);
    assert_eq!(seen["postgres"]["subjects"][0]["messages"], 10);
    assert_eq!(seen["nats"]["streams"][0]["name"], env.name());
    let skew = seen["postgres"]["clock"]["seconds"].as_f64().unwrap();
    assert!(skew.abs() < 2.0, "one machine has one clock: {skew}");
    assert!(seen["nats"]["clock"]["seconds"].as_f64().is_none_or(|skew| skew.abs() < 2.0), "{seen}");
    assert!(text_of(&seen, "superuser").contains("CREATE ROLE") || seen["postgres"]["is_superuser"] == false);

    let after = pg.query_one(state, &[]).await.map(|row| (row.get(0), row.get(1))).unwrap();
    let info = stream.get_info().await.unwrap();
    assert_eq!((before, info.state.messages, info.state.consumer_count), (after, 0, 0), "nothing is changed");

    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    let (code, text, _) = run_with(&["doctor"], &environment).await;
    assert_eq!(code, 0);
    assert!(
        text.contains("leads to: ") && text.contains("remedy: ") && text.contains("0 problems"),
        "{text}"
    );
    let (code, _, log) = run_with(&["doctor"], &environment[..1]).await;
    assert!(code == 64 && log.contains("NATS_URL"), "{log}");
}

/// A name, a change of a stream, and the findings: severity and subject of each.
type Case = (&'static str, fn(Config) -> Config, &'static [(&'static str, &'static str)]);

#[tokio::test]
async fn settings_of_a_stream_that_lose_or_double_messages_exit_1() {
    let env = TestEnv::new().await;
    let second = Duration::from_secs(1);
    let all: [Case; 8] = [
        (
            "window",
            |c| Config { duplicate_window: Duration::from_secs(5), ..c },
            &[("problem", "duplicate-window")],
        ),
        (
            "default window",
            |c| Config { duplicate_window: Duration::ZERO, ..c },
            &[("note", "duplicate-window")],
        ),
        ("discard", |c| Config { discard: DiscardPolicy::Old, ..c }, &[("problem", "discard")]),
        ("unlimited", |c| Config { discard: DiscardPolicy::Old, max_bytes: -1, ..c }, &[("note", "discard")]),
        ("memory", |c| Config { storage: StorageType::Memory, ..c }, &[("problem", "storage")]),
        ("no_ack", |c| Config { no_ack: true, ..c }, &[("problem", "stream-closed")]),
        ("queue", |c| Config { retention: RetentionPolicy::WorkQueue, ..c }, &[("note", "duplicate-window")]),
        (
            "size and age",
            |c| Config { max_message_size: 100, max_age: Duration::from_secs(3600), ..c },
            &[("note", "max-msg-size"), ("note", "max-age")],
        ),
    ];
    start(&env, sound(&env)).await;
    for (name, change, expected) in all {
        fresh_stream(env.nats_url(), change(sound(&env))).await;
        let (code, seen) = doctor_of(&env).await;
        assert_eq!(found(&seen), pairs(expected), "{name}: {seen}");
        assert_eq!(code, i32::from(expected.iter().any(|(severity, _)| *severity == "problem")), "{name}");
    }
    // An enqueued message is larger than the stream takes, and one message fills it.
    let small = Config { max_message_size: 2, max_messages: 1, ..sound(&env) };
    let stream = fresh_stream(env.nats_url(), small).await;
    let (_, seen) = doctor_of(&env).await;
    assert_eq!(found(&seen), pairs(&[("problem", "max-msg-size")]), "{seen}");
    env.nats().await.request(env.subject("x"), "".into()).await.unwrap();
    eventually("it is stored", LIMIT, async || {
        (stream.get_info().await.unwrap().state.messages == 1).then_some(())
    })
    .await;
    let (code, seen) = doctor_of(&env).await;
    let wanted = [("problem", "stream-full"), ("problem", "max-msg-size"), ("warning", "stream-unconsumed")];
    assert_eq!((code, found(&seen)), (1, pairs(&wanted)), "{seen}");
    // The relay's options are part of it.
    let longer = Config { duplicate_window: 70 * second, ..sound(&env) };
    fresh_stream(env.nats_url(), longer).await;
    let options = [("ONCEBOX_ACK_TIMEOUT_SECONDS", "15"), ("ONCEBOX_RETENTION", "1m")];
    let (_, seen) = doctor(env.database_url(), env.nats_url(), &options).await;
    assert_eq!(found(&seen), pairs(&[("problem", "duplicate-window"), ("warning", "retention")]), "{seen}");
}

/// A consumer says for how long it keeps keys, the configuration how long a saga lasts.
#[tokio::test]
async fn an_inbox_that_forgets_before_a_saga_ends_is_named() {
    let env = TestEnv::new().await;
    let day = Duration::from_secs(24 * 3600);
    let (stream, _) = start(&env, Config { max_age: day, ..sound(&env) }).await;
    let inbox = builder(&env).retention(30 * day).build().unwrap();
    let running = Running::start(consumer(&env).await, inbox, Does::effect());
    eventually("it consumes", LIMIT, async || stream.consumer_info("d").await.ok()).await;
    let with = async |lifetime: &str| {
        let options = [("ONCEBOX_SAGA_LIFETIME", lifetime)];
        doctor(env.database_url(), env.nats_url(), &options).await
    };
    for (lifetime, expected) in [("", 0), ("30d", 0), ("31d", 1)] {
        let (code, seen) = with(lifetime).await;
        let text = text_of(&seen, "inbox-retention");
        assert_eq!((code, found(&seen).len()), (0, 1 + expected), "its max-age is noted: {seen}");
        assert_eq!(text.contains("a saga goes on for 1month 13h"), expected == 1, "{lifetime}: {seen}");
        assert!(expected == 0 || text.contains(SCOPE), "{text}");
    }
    running.stop().await;
    let (code, output, log) = run_with(&["doctor"], &[("ONCEBOX_SAGA_LIFETIME", "forever")]).await;
    assert_eq!(code, 64, "{output}");
    assert!(log.contains("ONCEBOX_SAGA_LIFETIME") && log.contains("from 1m to 3650d"), "{log}");
}

#[tokio::test]
async fn subjects_and_streams_that_do_not_fit_together() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    enqueue(&pg, &env.subject("a"), "a-", 0..10, 0).await;
    enqueue(&pg, &env.subject("b.c"), "b-", 0..3, 0).await;
    fresh_stream(env.nats_url(), Config { subjects: vec![env.subject("*")], ..sound(&env) }).await;
    let (code, seen) = doctor_of(&env).await;
    assert_eq!((code, found(&seen)), (1, pairs(&[("problem", "subject-coverage")])), "{seen}");
    let text = text_of(&seen, "subject-coverage");
    assert!(text.contains(&env.subject("b.c")) && text.contains("which 3 of"), "{text}");

    let expected = [("ONCEBOX_EXPECTED_STREAM", "NOWHERE")];
    let (_, seen) = doctor(env.database_url(), env.nats_url(), &expected).await;
    let wanted =
        [("problem", "stream-missing"), ("problem", "subject-coverage"), ("problem", "expected-stream")];
    assert_eq!(found(&seen), pairs(&wanted), "{seen}");

    // Declared streams: missing, and not as declared, with either policy.
    let name = env.name();
    for (policy, severities, code) in
        [("create", ["note", "warning"], 0), ("verify", ["problem", "problem"], 1)]
    {
        let file = NamedTempFile::new().unwrap();
        let subject = env.subject(">");
        let text = format!(
            "[[stream]]\nname = \"{name}_2\"\nsubjects = [\"{name}x\"]\npolicy = \"{policy}\"\n
             [[stream]]\nname = \"{name}\"\nsubjects = [\"{subject}\"]\npolicy = \"{policy}\"\nmax_bytes = 7\n"
        );
        std::fs::write(file.path(), text).unwrap();
        fresh_stream(env.nats_url(), sound(&env)).await;
        let path = [("ONCEBOX_CONFIG", file.path().to_str().unwrap())];
        let (exit, seen) = doctor(env.database_url(), env.nats_url(), &path).await;
        let mut wanted = pairs(&[(severities[0], "stream-missing"), (severities[1], "stream-declared")]);
        wanted.sort_by_key(|(severity, _)| {
            ["problem", "warning", "note"].iter().position(|one| one == severity)
        });
        assert_eq!((exit, found(&seen)), (code, wanted), "{seen}");
        let context = jetstream::new(env.nats().await);
        assert!(context.get_stream(format!("{name}_2")).await.is_err(), "doctor creates nothing");
    }
}

#[tokio::test]
async fn servers_with_limits_without_jetstream_or_with_few_permissions() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    pg.execute(
        "SELECT oncebox.enqueue('large', $1, convert_to(repeat('x', 6000), 'UTF8'))",
        &[&env.subject("a")],
    )
    .await
    .unwrap();
    let users = "authorization { users = [
        { user: admin, password: hunter2 }
        { user: relay, password: hunter2, permissions = { publish: { deny: [\"$JS.API.STREAM.>\"] } } }
        { user: deaf, password: hunter2, permissions = { subscribe: { deny: [\"_INBOX.>\"] } } }
    ] }\nmax_payload: 5000\n";
    let nats = Nats::start_with(users).await.unwrap();
    let options = async_nats::ConnectOptions::new().user_and_password("admin".into(), "hunter2".into());
    let context = jetstream::new(options.connect(nats.url()).await.unwrap());
    context.create_stream(sound(&env)).await.unwrap();
    let as_user = async |user| {
        let login = [("ONCEBOX_NATS_USER", user), ("ONCEBOX_NATS_PASSWORD", "hunter2")];
        doctor(env.database_url(), &nats.url(), &login).await
    };
    let (code, seen) = as_user("admin").await;
    assert_eq!((code, found(&seen)), (1, vec![]), "{seen}");
    assert!(text_of(&seen, "max-payload").contains("max_payload is 5000"), "{seen}");
    let (_, seen) = as_user("relay").await;
    assert_eq!(found(&seen), pairs(&[("warning", "unasked")]), "{seen}");
    assert!(text_of(&seen, "unasked").contains("$JS.API.STREAM.NAMES"), "{seen}");
    let (code, seen) = as_user("deaf").await;
    assert_eq!((code, found(&seen)), (1, pairs(&[("problem", "jetstream")])), "{seen}");
    assert!(text_of(&seen, "jetstream").contains("inbox"), "{seen}");
    // Refused at the door counts as not reached.
    let (code, seen) = as_user("nobody").await;
    assert_eq!((code, found(&seen)), (69, pairs(&[("problem", "nats")])), "{seen}");
}

#[tokio::test]
async fn a_server_that_is_away_exits_69_and_the_other_is_examined() {
    let env = TestEnv::new().await;
    start(&env, Config { storage: StorageType::Memory, ..sound(&env) }).await;
    let (code, seen) = doctor(env.database_url(), "nats://u:hunter2@127.0.0.1:1", &[]).await;
    assert_eq!((code, found(&seen)), (69, pairs(&[("problem", "nats")])), "{seen}");
    assert_eq!(seen["postgres"]["subjects"][0]["messages"], 10);

    let expected = [("ONCEBOX_EXPECTED_STREAM", env.name())];
    let (code, seen) = doctor("postgres://u:hunter2@127.0.0.1:1/x", env.nats_url(), &expected).await;
    assert_eq!(code, 69);
    assert_eq!(found(&seen), pairs(&[("problem", "postgres"), ("problem", "storage")]), "{seen}");
}

#[tokio::test]
async fn schema_versions_and_read_only_databases() {
    let env = TestEnv::new().await;
    let (_stream, pg) = start(&env, sound(&env)).await;
    for (sql, part) in [
        (
            "UPDATE oncebox.migration SET version = 99, oldest_program = 99 WHERE version = (SELECT max(version) FROM oncebox.migration)",
            "newer",
        ),
        ("DELETE FROM oncebox.migration WHERE version > 3", "oncebox migrate"),
    ] {
        pg.batch_execute(sql).await.unwrap();
        let (code, seen) = doctor_of(&env).await;
        assert_eq!((code, found(&seen)), (1, pairs(&[("problem", "schema-version")])), "{seen}");
        assert!(text_of(&seen, "schema-version").contains(part), "{seen}");
    }
    let elsewhere = [("ONCEBOX_SCHEMA", "elsewhere")];
    let (_, seen) = doctor(env.database_url(), env.nats_url(), &elsewhere).await;
    assert!(text_of(&seen, "schema-version").contains("not installed"), "{seen}");

    let env = TestEnv::new().await;
    let (_stream, pg) = start(&env, sound(&env)).await;
    pg.batch_execute(&format!("ALTER DATABASE \"{}\" SET default_transaction_read_only = on", env.name()))
        .await
        .unwrap();
    let (code, seen) = doctor_of(&env).await;
    assert_eq!((code, found(&seen)), (1, pairs(&[("problem", "read-only")])), "{seen}");
}

#[tokio::test]
async fn the_relays_role_may_do_what_it_needs_and_no_more() {
    let env = TestEnv::new().await;
    let (_stream, pg) = start(&env, sound(&env)).await;
    pg.batch_execute("CREATE TABLE public.orders (id text); CREATE VIEW public.sums AS SELECT 1 AS n")
        .await
        .unwrap();
    let (url, name) = env.login("oncebox_relay").await;
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    assert_eq!((code, found(&seen)), (0, vec![]), "{seen}");
    assert_eq!(seen["postgres"]["role_name"], *name);

    pg.batch_execute(&format!(
        "GRANT SELECT (id) ON public.orders TO {name}; GRANT SELECT ON public.sums TO PUBLIC"
    ))
    .await
    .unwrap();
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    assert_eq!((code, found(&seen)), (0, pairs(&[("warning", "business-tables")])), "{seen}");
    assert!(text_of(&seen, "business-tables").contains("public.orders, public.sums"), "{seen}");

    // Each privilege that the relay's role is granted is one that is missed.
    let granted =
        "SELECT c.relname::text, a.privilege_type, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END
                   FROM pg_class AS c, aclexplode(c.relacl) AS a
                   WHERE c.relnamespace = 'oncebox'::regnamespace AND a.grantee = 'oncebox_relay'::regrole";
    let needed = format!("SET SESSION AUTHORIZATION {name}");
    let as_role = env.pg().await;
    as_role.batch_execute(&needed).await.unwrap();
    let lacking = include_str!("../../../operator/src/doctor/sql/privileges.sql");
    let lacks = async || -> Vec<(String, String)> {
        let rows = as_role.query(lacking, &[&"oncebox", &"oncebox"]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let rows = pg.query(granted, &[]).await.unwrap();
    assert!(rows.len() >= 20, "{rows:?}");
    for row in rows {
        let (table, privilege, kind): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let change = |verb: &str, word: &str| {
            format!("{verb} {privilege} ON {kind}oncebox.{table} {word} oncebox_relay")
        };
        pg.batch_execute(&change("REVOKE", "FROM")).await.unwrap();
        assert_eq!(lacks().await, [(name.clone(), format!("{privilege} on {table}"))]);
        pg.batch_execute(&change("GRANT", "TO")).await.unwrap();
    }

    let granted = "SELECT c.relname::text, a.attname::text
                   FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid, aclexplode(a.attacl) AS l
                   WHERE c.relnamespace = 'oncebox'::regnamespace AND l.grantee = 'oncebox_relay'::regrole
                     AND c.relname IN ('inbox', 'inbox_attempt', 'inbox_snooze', 'dead_letter')";
    let rows = pg.query(granted, &[]).await.unwrap();
    assert!(rows.len() >= 10, "{rows:?}");
    for row in rows {
        let (table, column): (&str, &str) = (row.get(0), row.get(1));
        let what = format!("SELECT ({column}) ON oncebox.{table}");
        pg.batch_execute(&format!("REVOKE {what} FROM oncebox_relay")).await.unwrap();
        assert_eq!(lacks().await, [(name.clone(), format!("SELECT ({column}) on {table}"))]);
        pg.batch_execute(&format!("GRANT {what} TO oncebox_relay")).await.unwrap();
    }

    pg.batch_execute(
        "REVOKE USAGE ON SCHEMA oncebox FROM oncebox_relay; REVOKE SELECT ON oncebox.lane FROM oncebox_relay",
    )
    .await
    .unwrap();
    let (code, seen) = doctor(&url, env.nats_url(), &[]).await;
    assert_eq!(code, 1);
    let text = text_of(&seen, "privileges");
    assert!(text.contains("SELECT on lane; USAGE on schema oncebox") && text.contains("GRANT"), "{seen}");
    drop(as_role);
    pg.batch_execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await.unwrap();
}
