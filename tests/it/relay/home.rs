//! A copied database stays silent until an operator adopts it; one that has moved goes on by
//! itself. The table of docs/backup.md has these cases.

use std::{process::Stdio, time::Duration};

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, Postgres, Stop, TestEnv, diagnosed, eventually};
use tokio::{process::Command, time::Instant};

use super::{
    process::{self, Process, run},
    support::{
        LIMIT, Running, assert_delivered, await_messages, client, count, enqueue, fresh_stream, stored,
        stream_config, values, with,
    },
};

/// A production database with a relay, that has sent messages, and has a backlog.
struct Production {
    env: TestEnv,
    server: Postgres,
    stream: Stream,
    keys: Vec<String>,
}

impl Production {
    /// Two messages are sent, two are due and one is delayed; no relay runs.
    async fn new() -> Self {
        let (env, server) = (TestEnv::new().await, Postgres::start().await.unwrap());
        let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
        create(&server, "orders").await;
        let url = server.url("orders");
        migrate(&mut *client(&url).await, &SchemaName::default(), Lanes::default()).await.unwrap();
        let production = Self { env, server, stream, keys: Vec::new() };
        let relay = Running::start(&production.values(&url));
        let mut keys = production.enqueue(&url, "sent-", 2).await;
        await_messages(&production.stream, 2).await;
        relay.stop().await;
        let relays = client(&url).await.query_one("SELECT count(*) FROM oncebox.relay", &[]).await.unwrap();
        assert_eq!(relays.get::<_, i64>(0), 0, "a relay that has ended takes its row with it");
        keys.extend(production.enqueue(&url, "due-", 2).await);
        let delayed = "SELECT oncebox.enqueue_at('delayed', $1, '', clock_timestamp() + interval '1 hour')";
        client(&url).await.execute(delayed, &[&production.env.subject("a")]).await.unwrap();
        Self { keys, ..production }
    }

    fn values(&self, url: &str) -> Values {
        values(url, self.env.nats_url())
    }

    async fn enqueue(&self, url: &str, prefix: &str, messages: i32) -> Vec<String> {
        enqueue(&**client(url).await, &self.env.subject("a"), prefix, 0..messages, 0).await
    }

    /// A relay of this database sends nothing and says why.
    async fn assert_silent(&self, url: &str, reason: &str) -> Process {
        let before = count(&self.stream).await;
        let relay = Process::relay(&self.values(url));
        relay.await_log(reason).await;
        assert_eq!(count(&self.stream).await, before, "nothing was sent");
        relay
    }

    /// A relay of this database sends the due messages, under the identity of the original.
    async fn assert_goes_on(&self, url: &str) {
        let relay = Running::start(&self.values(url));
        await_messages(&self.stream, 4).await;
        assert_eq!(assert_delivered(&stored(&self.stream).await, &self.keys), 0);
        let ids: Vec<String> = stored(&self.stream).await.into_iter().map(|stored| stored.msg_id).collect();
        assert!(ids.iter().all(|id| id[..12] == ids[0][..12]), "{ids:?}");
        relay.stop().await;
    }
}

async fn create(server: &Postgres, database: &str) {
    let sql = format!("CREATE DATABASE {database}");
    client(&server.url("postgres")).await.batch_execute(&sql).await.unwrap();
}

/// Dumps a database.
async fn dump(server: &Postgres, database: &str) -> String {
    let dumping = Command::new(server.bin("pg_dump")).arg(server.url(database)).output().await.unwrap();
    assert!(dumping.status.success(), "{}", String::from_utf8_lossy(&dumping.stderr));
    String::from_utf8(dumping.stdout).unwrap()
}

/// Restores it into a fresh database; the roles of its grants are missing in another cluster.
async fn restore(server: &Postgres, database: &str, dump: &str) {
    create(server, database).await;
    let file = server.write("dump.sql", dump).unwrap();
    let mut psql = Command::new(server.bin("psql"));
    psql.args(["--no-psqlrc", "--quiet", "--file"]).arg(file).arg(server.url(database));
    let status = psql.stdout(Stdio::null()).stderr(Stdio::null()).status().await.unwrap();
    assert!(status.success(), "restore {database}");
    migrate(&mut *client(&server.url(database)).await, &SchemaName::default(), Lanes::default())
        .await
        .unwrap();
}

async fn command(url: &str, arguments: &[&str]) -> (i32, String) {
    let (code, output, error) = run(url, arguments).await;
    (code, output + &error)
}

#[tokio::test]
async fn a_copy_under_another_name_is_silent_until_it_is_adopted_as_its_own() {
    let production = Production::new().await;
    restore(&production.server, "staging", &dump(&production.server, "orders").await).await;
    let url = production.server.url("staging");
    let relay = Process::relay(&with(&production.values(&url), [("http-listen", "127.0.0.1:0")]));
    eventually("it is not ready", LIMIT, async || {
        let (status, text) = relay.get("/readyz").await;
        (status == 503 && text.contains("is a copy")).then_some(())
    })
    .await;
    assert_eq!(relay.metric("oncebox_silent").await, 1.0);
    let (_, text) = command(&url, &["status"]).await;
    assert!(text.contains("this outbox is a copy") && text.contains("oncebox adopt"), "{text}");
    let (code, text) = command(&url, &["adopt"]).await;
    assert!(code != 0 && text.contains("--discard-backlog"), "{text}");
    assert_eq!(count(&production.stream).await, 2, "nothing was sent");
    let (code, text) = command(&url, &["adopt", "--discard-backlog", "--dry-run"]).await;
    let would = "would be the home of an outbox of its own: 3 messages of its backlog would be given up";
    assert!(code == 0 && text.contains(would), "{text}");
    let (_, text) = command(&url, &["status"]).await;
    assert!(text.contains("this outbox is a copy"), "a dry run changes nothing: {text}");
    let (code, text) = command(&url, &["adopt", "--discard-backlog", "--by", "mina"]).await;
    assert!(code == 0 && text.contains("3 messages of its backlog are given up"), "{text}");
    production.enqueue(&url, "own-", 2).await;
    await_messages(&production.stream, 4).await;
    let all = stored(&production.stream).await;
    let own: Vec<_> = all.iter().filter(|stored| stored.key.starts_with("own-")).collect();
    assert_eq!(own.len(), 2, "its own messages, and nothing of the backlog: {all:?}");
    assert_ne!(own[0].msg_id[..12], all[0].msg_id[..12], "its messages have other ids");
    let env = &production.env;
    let verify = ["outbox", "verify", "--stream", env.name(), "--nats-url", env.nats_url()];
    let (code, text) = command(&url, &verify).await;
    assert!(code == 0 && text.contains("0 missing"), "the others were the original's to send: {text}");
    let sql = "SELECT operator, reason FROM oncebox.audit WHERE action = 'adopt'";
    let row = client(&url).await.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "mina");
    assert!(row.get::<_, &str>(1).contains("3 messages of the backlog were discarded"), "{row:?}");
    let (_, text) = command(&url, &["trace", "due-0"]).await;
    assert!(text.contains("discarded") && !text.contains("settled"), "{text}");
    assert!(text.contains("mina") && text.contains("the backlog of a copy that was adopted"), "{text}");
    let (_, text) = command(&url, &["why", "due-0"]).await;
    assert!(text.contains("discarded by mina"), "{text}");
    let (_, text) = command(&url, &["why", "sent-0", "--nats-url", production.env.nats_url()]).await;
    assert!(text.contains("identity of the original") && !text.contains("lost"), "{text}");
    let acts = "SELECT string_agg(concat_ws(' ', action, key), ', ' ORDER BY key)
                FROM oncebox.audit WHERE operator = 'mina' AND action <> 'adopt'";
    let acts: String = client(&url).await.query_one(acts, &[]).await.unwrap().get(0);
    assert_eq!(acts, "cancel delayed, discard due-0, discard due-1");
    let replay = ["outbox", "replay", "--key", "due-0", "--request", "again", "--dry-run"];
    let (_, text) = command(&url, &replay).await;
    assert!(text.contains("0 messages"), "given up is given up: {text}");
    let (code, text) = command(&url, &["adopt", "--send-backlog"]).await;
    assert!(code == 1 && text.contains("nothing to adopt, and nothing was done"), "{text}");
    assert!(!text.contains("OB013") && text.contains("oncebox status"), "{text}");
    relay.signal("TERM").await;
    assert_eq!(relay.log().matches("Nothing is sent").count(), 1, "{}", relay.log());
    // The original goes on as ever.
    production.enqueue(&production.server.url("orders"), "more-", 1).await;
    let relay = Running::start(&production.values(&production.server.url("orders")));
    await_messages(&production.stream, 7).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_copy_in_another_cluster_under_another_name_sends_its_backlog_only_when_told() {
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    restore(&other, "staging", &dump(&production.server, "orders").await).await;
    let url = other.url("staging");
    let relay = production.assert_silent(&url, "is a copy").await;
    let (code, text) = command(&url, &["adopt", "--send-backlog", "--dry-run"]).await;
    assert!(code == 0 && text.contains("3 messages of its backlog would be kept"), "{text}");
    let token = text.split("--confirm ").nth(1).unwrap().trim().to_owned();
    let confirmed = ["adopt", "--send-backlog", "--confirm", &token];
    client(&url).await.execute("SELECT oncebox.enqueue('more', 's', 'p')", &[]).await.unwrap();
    let (code, text) = command(&url, &confirmed).await;
    assert!(code != 0 && text.contains("3 then, 4 of them now"), "{text}");
    client(&url).await.execute("DELETE FROM oncebox.message_0 WHERE key = 'more'", &[]).await.unwrap();
    let (code, text) = command(&url, &["adopt", "--discard-backlog", "--confirm", &token]).await;
    assert!(code != 0 && text.contains("another selection or command"), "{text}");
    let (code, text) = command(&url, &confirmed).await;
    assert!(code == 0 && text.contains("3 messages of its backlog are kept"), "{text}");
    await_messages(&production.stream, 4).await;
    let all = stored(&production.stream).await;
    assert_eq!(assert_delivered(&all, &production.keys), 0);
    let of = |prefix: &str| {
        all.iter().find(|stored| stored.key.starts_with(prefix)).unwrap().msg_id[..12].to_owned()
    };
    assert_ne!(of("sent-"), of("due-"), "it has another identity");
    relay.signal("TERM").await;
}

#[tokio::test]
async fn one_that_was_moved_under_another_name_goes_on_when_told() {
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    restore(&other, "orders_new", &dump(&production.server, "orders").await).await;
    let url = other.url("orders_new");
    let relay = production.assert_silent(&url, "is a copy").await;
    relay.signal("TERM").await;
    let (code, text) = command(&url, &["adopt", "--move"]).await;
    assert_eq!(code, 0, "{text}");
    production.assert_goes_on(&url).await;
    // Its old place stays silent from then on, also when a relay of it comes back.
    let relay = Running::start(&production.values(&url));
    production.enqueue(&url, "here-", 1).await;
    await_messages(&production.stream, 5).await;
    let old = production.server.url("orders");
    production.enqueue(&old, "there-", 1).await;
    let left = production.assert_silent(&old, "another relay serves this outbox").await;
    production.enqueue(&url, "on-", 1).await;
    await_messages(&production.stream, 6).await;
    left.signal("TERM").await;
    relay.stop().await;
}

/// The last word of an operator decides; a relay that has served until then sends nothing more.
#[tokio::test]
async fn a_relay_that_falls_silent_sends_nothing_more() {
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    restore(&other, "orders_new", &dump(&production.server, "orders").await).await;
    let (old, new) = (production.server.url("orders"), other.url("orders_new"));
    let moves = async |url: &str| assert_eq!(command(url, &["adopt", "--move"]).await.0, 0);
    moves(&new).await;
    moves(&new).await;
    production.assert_goes_on(&new).await;
    let has = async |prefix: &str| {
        stored(&production.stream).await.iter().any(|stored| stored.key.starts_with(prefix)).then_some(())
    };
    // First the old place, whose relay knows nothing of the move; then the new one, after an
    // operator has moved back while the old place served.
    for (silent, home, round) in [(&old, &new, 1), (&new, &old, 2)] {
        let relay = Process::relay(&production.values(silent));
        let [before, lost, after] = ["before", "lost", "after"].map(|word| format!("{word}-{round}-"));
        production.enqueue(silent, &before, 1).await;
        eventually("it serves", LIMIT, async || has(&before).await).await;
        if home == &old {
            moves(&old).await;
        }
        let senior = Running::start(&production.values(home));
        relay.await_log("another relay serves this outbox").await;
        production.enqueue(silent, &lost, 3).await;
        production.enqueue(home, &after, 1).await;
        eventually("the other one serves", LIMIT, async || has(&after).await).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(has(&lost).await, None, "a silent relay has sent");
        relay.signal("TERM").await;
        senior.stop().await;
        // As after more than a minute.
        let forget = "UPDATE oncebox.home SET rival = NULL, rival_since = NULL, rival_seen_at = NULL";
        client(silent).await.batch_execute(forget).await.unwrap();
    }
}

/// The dump has the row of the relay that asks.
#[tokio::test]
async fn a_relay_that_was_at_work_during_the_dump_falls_silent_too() {
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    let (old, new) = (production.server.url("orders"), other.url("orders_new"));
    let relay = Process::relay(&production.values(&old));
    await_messages(&production.stream, 4).await;
    restore(&other, "orders_new", &dump(&production.server, "orders").await).await;
    // As after the time that this takes with a real database.
    let older = "UPDATE oncebox.relay SET seen_at = seen_at - interval '1 minute'";
    client(&new).await.batch_execute(older).await.unwrap();
    relay.signal("STOP").await;
    let stopped = Instant::now();
    assert_eq!(command(&new, &["adopt", "--move"]).await.0, 0);
    let senior = Running::start(&production.values(&new));
    production.enqueue(&new, "here-", 1).await;
    await_messages(&production.stream, 5).await;
    production.enqueue(&old, "there-", 3).await;
    let left = Duration::from_secs(16).saturating_sub(stopped.elapsed());
    tokio::time::sleep(left).await;
    relay.signal("CONT").await;
    relay.await_log("another relay serves this outbox").await;
    assert_eq!(count(&production.stream).await, 5, "it asks before it sends");
    relay.signal("TERM").await;
    senior.stop().await;
}

#[tokio::test]
async fn a_copy_in_another_cluster_under_the_same_name_hears_the_original() {
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    let copy = dump(&production.server, "orders").await;
    let original = Running::start(&production.values(&production.server.url("orders")));
    await_messages(&production.stream, 4).await;
    restore(&other, "orders", &copy).await;
    let url = other.url("orders");
    let relay = production.assert_silent(&url, "another relay serves this outbox").await;
    let (_, text) = command(&url, &["status"]).await;
    assert!(text.contains("this outbox is a copy"), "{text}");
    relay.signal("TERM").await;
    let (code, text) = command(&url, &["adopt", "--move"]).await;
    assert!(code == 0 && text.contains("within the last minute"), "{text}");
    production.enqueue(&production.server.url("orders"), "more-", 1).await;
    await_messages(&production.stream, 5).await;
    original.stop().await;
}

/// As after `pg_upgrade`, or a restore of a cluster that was lost.
#[tokio::test]
async fn another_cluster_goes_on_under_the_same_name_when_the_original_is_gone() {
    let (mut production, other) = (Production::new().await, Postgres::start().await.unwrap());
    restore(&other, "orders", &dump(&production.server, "orders").await).await;
    production.server.stop(Stop::Fast).await;
    production.assert_goes_on(&other.url("orders")).await;
}

#[tokio::test]
async fn a_dump_restored_in_place_goes_on() {
    let production = Production::new().await;
    let copy = dump(&production.server, "orders").await;
    let admin = client(&production.server.url("postgres")).await;
    admin.batch_execute("DROP DATABASE orders WITH (FORCE)").await.unwrap();
    restore(&production.server, "orders", &copy).await;
    production.assert_goes_on(&production.server.url("orders")).await;
}

#[tokio::test]
async fn a_renamed_host_and_a_renamed_database_go_on() {
    let production = Production::new().await;
    let admin = client(&production.server.url("postgres")).await;
    admin.batch_execute("ALTER DATABASE orders RENAME TO orders_2030").await.unwrap();
    let url = production.server.url("orders_2030").replace("127.0.0.1", "localhost");
    production.assert_goes_on(&url).await;
}

#[tokio::test]
async fn a_promoted_standby_goes_on_at_once_when_the_original_is_gone() {
    let mut production = Production::new().await;
    let standby = production.server.start_standby().await.unwrap();
    production.server.stop(Stop::Kill).await;
    promote(&standby).await;
    production.assert_goes_on(&standby.url("orders")).await;
}

/// The files of both are the same: only the original's relay tells.
#[tokio::test]
async fn a_copy_of_the_files_beside_the_original_is_silent() {
    let production = Production::new().await;
    let standby = production.server.start_standby().await.unwrap();
    let original = Running::start(&production.values(&production.server.url("orders")));
    await_messages(&production.stream, 4).await;
    promote(&standby).await;
    let relay = production.assert_silent(&standby.url("orders"), "another relay serves this outbox").await;
    relay.signal("TERM").await;
    original.stop().await;
    // It does not begin by itself when the original is stopped for a moment.
    let relay = production.assert_silent(&standby.url("orders"), "another relay serves this outbox").await;
    relay.signal("TERM").await;
}

async fn promote(standby: &Postgres) {
    let client = client(&standby.url("postgres")).await;
    assert!(client.query_one("SELECT pg_promote()", &[]).await.unwrap().get::<_, bool>(0));
}

/// Without the right to ask, the noted place decides: the same place goes on, another one waits for
/// an operator.
#[tokio::test]
async fn a_relay_that_may_not_ask_goes_by_the_noted_place() {
    let permissions = r#"publish: { deny: ["_ONCEBOX.>"] }, subscribe: { deny: ["_ONCEBOX.>"] }"#;
    let users = format!(
        "authorization {{ users = [ {{ user: relay, password: r, permissions = {{ {permissions} }} }} ] }}"
    );
    let nats = Nats::start_with(&users).await.unwrap();
    let (production, other) = (Production::new().await, Postgres::start().await.unwrap());
    let options = async_nats::ConnectOptions::new().user_and_password("relay".into(), "r".into());
    let context = async_nats::jetstream::new(options.connect(nats.url()).await.unwrap());
    let stream = context.create_stream(stream_config("S", &production.env.subject(">"))).await.unwrap();
    let login = [("nats-user", "relay"), ("nats-password", "r")];
    let relay = Process::relay(&with(&values(&production.server.url("orders"), &nats.url()), login));
    await_messages(&stream, 2).await;
    let log = relay.log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    relay.signal("TERM").await;
    let environment = with(&values(&production.server.url("orders"), &nats.url()), login);
    let environment: Vec<_> = process::environment(&environment).collect();
    let (_, found) = diagnosed(&environment, "copy-unasked").await.unwrap();
    assert!(found.len() == 1 && found[0].contains("_ONCEBOX.home.>"), "{found:?}");
    restore(&other, "orders", &dump(&production.server, "orders").await).await;
    let relay = Process::relay(&with(&values(&other.url("orders"), &nats.url()), login));
    relay.await_log("publish and subscribe to _ONCEBOX.home.>").await;
    assert_eq!(count(&stream).await, 2);
}
