//! Missing rights of the relay's NATS user: each is named once, and stops nothing else.

use async_nats::{ConnectOptions, jetstream};
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, eventually};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, connect, drain, enqueue, stored, stream_config, values, with,
    },
};

/// A user `admin` who may do all, and a relay with these permissions.
fn users(permissions: &str) -> String {
    format!(
        "authorization {{ users = [
           {{ user: admin, password: a }}
           {{ user: relay, password: r, permissions = {{ {permissions} }} }}
         ] }}"
    )
}

fn as_relay(env: &TestEnv, nats: &Nats) -> Values {
    let login = [("nats-user", "relay"), ("nats-password", "r"), ("http-listen", "127.0.0.1:0")];
    with(&values(env.database_url(), &nats.url()), login)
}

async fn admin(nats: &Nats) -> jetstream::Context {
    let options = ConnectOptions::new().user_and_password("admin".into(), "a".into());
    jetstream::new(options.connect(nats.url()).await.unwrap())
}

#[tokio::test]
async fn a_denied_subject_is_parked_with_its_name_and_the_others_flow() {
    let env = TestEnv::new().await;
    let allowed = env.subject("allowed.>");
    let nats = Nats::start_with(&users(&format!("publish: {{ allow: [{allowed:?}] }}"))).await.unwrap();
    let stream = admin(&nats).await.create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let client = env.pg().await;
    let mut keys = enqueue(&client, &env.subject("allowed.a"), "fine-", 0..300, 7).await;
    let denied = env.subject("denied.a");
    let held = enqueue(&client, &denied, "held-", 0..500, 3).await;
    // The server prints these with backslashes before quotes and backslashes.
    let quoted = enqueue(&client, &env.subject(r#"denied."quoted\\"#), "quoted-", 0..20, 0).await;
    // Far more subjects than the log will name, or the client's event queue holds.
    for number in 0..300 {
        enqueue(&client, &env.subject(&format!("denied.many.{number}")), "many-", number..number + 1, 0)
            .await;
    }
    keys.extend(enqueue(&client, &env.subject("allowed.b"), "fine-", 300..600, 7).await);
    let relay = Process::relay(&as_relay(&env, &nats));
    eventually("all that is allowed arrives, the rest is set aside", LIMIT, async || {
        let sql = "SELECT count(*) FROM oncebox.parked WHERE error LIKE 'NATS does not let the relay''s user publish to%'
                                                          OR error LIKE 'waits behind%'";
        let parked: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        let there = stream.get_info().await.unwrap().state.messages;
        (parked == 820 && there >= 600).then_some(())
    })
    .await;
    assert_delivered(&stored(&stream).await, &keys);
    let sql = "SELECT error, attempts FROM oncebox.parked
               WHERE subject = $1 AND attempts > 0 LIMIT 1";
    let row = client.query_one(sql, &[&denied]).await.unwrap();
    assert!(row.get::<_, String>(0).contains(&format!("{denied:?}")), "{row:?}");
    let log = relay.log();
    assert_eq!(log.lines().filter(|line| line.contains("further ones are not named")).count(), 1, "{log}");
    let named = log.lines().filter(|line| line.contains("does not let the relay's user publish")).count();
    assert!((2..=103).contains(&named), "{named}: {log}");
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");

    // The operator grants it; a new relay need not be told.
    let mut nats = nats;
    nats.reconfigure(&users("publish: \">\"")).unwrap();
    nats.restart().await.unwrap();
    let stream = admin(&nats).await.get_stream("S").await.unwrap();
    client
        .batch_execute("UPDATE oncebox.parked SET next_attempt_at = now() WHERE next_attempt_at > now()")
        .await
        .unwrap();
    let relay = Process::relay(&as_relay(&env, &nats));
    await_messages(&stream, 1_420).await;
    keys.extend(held);
    keys.extend(quoted);
    keys.extend((0..300).map(|number| format!("many-{number}")));
    assert_delivered(&stored(&stream).await, &keys);
    relay.kill().await;
}

#[tokio::test]
async fn an_inbox_that_is_denied_is_named_and_another_prefix_helps() {
    let env = TestEnv::new().await;
    let permissions = "publish: \">\", subscribe: { allow: [\"relay_inbox.>\"] }";
    let nats = Nats::start_with(&users(permissions)).await.unwrap();
    let stream = admin(&nats).await.create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let keys = enqueue(&env.pg().await, &env.subject("a"), "m-", 0..20, 0).await;
    let relay = Process::relay(&as_relay(&env, &nats));
    relay.await_log("nats-inbox-prefix").await;
    eventually("it tried again", LIMIT, async || {
        let metrics = relay.get("/metrics").await.1;
        let line = metrics.lines().find(|line| line.starts_with("oncebox_nats_reconnects_total"))?;
        (line.rsplit(' ').next()?.parse::<f64>().ok()? >= 4.0).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    let (_, log) = relay.ended().await;
    assert_eq!(log.matches("nats-inbox-prefix").count(), 1, "{log}");
    assert_eq!(log.matches("NATS is away").count(), 1, "{log}");
    let relay = Process::relay(&with(&as_relay(&env, &nats), [("nats-inbox-prefix", "relay_inbox")]));
    eventually("all is delivered", LIMIT, async || (stored(&stream).await.len() >= 20).then_some(())).await;
    assert_delivered(&stored(&stream).await, &keys);
    relay.kill().await;
}

#[tokio::test]
async fn a_user_who_may_not_ask_about_streams_is_named_and_delivery_goes_on() {
    let env = TestEnv::new().await;
    let mut nats = Nats::start_with(&users("publish: \">\"")).await.unwrap();
    admin(&nats).await.create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let client = env.pg().await;
    let mut keys = enqueue(&client, &env.subject("a"), "before-", 0..20, 3).await;
    drain(&mut connect(&as_relay(&env, &nats)).await.worker()).await;
    nats.reconfigure(&users(&format!("publish: {{ allow: [{:?}] }}", env.subject(">")))).unwrap();
    nats.restart().await.unwrap();
    let relay = Process::relay(&as_relay(&env, &nats));
    keys.extend(enqueue(&client, &env.subject("a"), "after-", 0..20, 3).await);
    let stream = admin(&nats).await.get_stream("S").await.unwrap();
    await_messages(&stream, 40).await;
    relay.await_log("it cannot be checked whether a stream still has all that it acknowledged").await;
    let log = relay.log();
    assert!(log.contains("$JS.API.STREAM.INFO.S"), "it is named: {log}");
    assert_delivered(&stored(&stream).await, &keys);
    relay.kill().await;
}
