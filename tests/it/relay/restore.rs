//! A dump restored into another cluster, whose transaction ids mean something else: due messages
//! are sent, once, and no settled ones.

mod old;

use std::{collections::HashMap, process::Stdio};

use deadpool_postgres::Object;
use oncebox_relay::{Values, parts::Pass};
use oncebox_tests::{Log, Postgres, TestEnv};
use tokio::io::AsyncWriteExt;

use crate::relay::support::{
    assert_delivered, client, connect, drain, enqueue, fresh_stream, stored, stream_config, values, with,
};
use old::Dump;

#[tokio::test]
async fn a_dump_restored_into_another_cluster_sends_what_is_due_once() {
    let env = TestEnv::new().await;
    let (log, _guard) = Log::of_this_thread();
    let (old, new) = tokio::try_join!(Postgres::start(), Postgres::start()).unwrap();
    let burner = client(&new.url("postgres")).await;
    burn_to(&client(&old.url("postgres")).await, 20_000).await;
    let dumps = [old::half_settled(&old, &env).await, old::frozen_drain(&old, &env).await];
    // Transaction ids of the new cluster below all of the dump's, among them, above them.
    let (first, last) = (dumps[0].first_xact, dumps[1].last_xact);
    let mut ids: HashMap<&str, Vec<HashMap<String, String>>> = HashMap::new();
    for (place, next_xact) in [("below", 0), ("among", first.midpoint(last)), ("above", last + 1_000)] {
        burn_to(&burner, next_xact).await;
        for dump in &dumps {
            let database = format!("{}_{place}", dump.name);
            restore(&new, dump, &database).await;
            log.clear();
            ids.entry(dump.name).or_default().push(check(&env, &new.url(&database), dump).await);
            assert_one_warning_per_lane(&log, &database);
        }
    }
    // The same cluster: its transaction ids still mean the same, and no lane is reset.
    for dump in &dumps {
        let database = format!("{}_beside", dump.name);
        restore(&old, dump, &database).await;
        log.clear();
        ids.entry(dump.name).or_default().push(check(&env, &old.url(&database), dump).await);
        assert_eq!(log.count("WARN"), 0, "{}", log.text());
        let sql = "SELECT count(*) FROM oncebox.lane_cursor WHERE floor > 0";
        let resets = client(&old.url(&database)).await.query_one(sql, &[]).await.unwrap();
        assert_eq!(resets.get::<_, i64>(0), 0, "{database}");
    }
    for (name, ids) in ids {
        assert_eq!(ids.len(), 4);
        assert!(ids.windows(2).all(|two| two[0] == two[1]), "{name}: a dump keeps the ids of its messages");
    }
}

/// Relays a restored database while producers go on, in passes small enough to have many; returns
/// the broker's ids of the messages that the dump had not sent.
async fn check(env: &TestEnv, url: &str, dump: &Dump) -> HashMap<String, String> {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
    let (producer, mut holder, mut late_holder) = (client(url).await, client(url).await, client(url).await);
    let mut expected = dump.due.clone();
    expected.extend(enqueue(&**producer, &dump.subject, "before-", 0..30, 3).await);
    let late = late_holder.transaction().await.unwrap();
    expected.extend(enqueue(&*late, &dump.subject, "last-", 0..20, 2).await);
    let held = holder.transaction().await.unwrap();
    expected.extend(enqueue(&*held, &dump.subject, "held-", 0..20, 2).await);
    expected.extend(enqueue(&**producer, &dump.subject, "after-", 0..30, 3).await);
    let mut settled = 0;
    for round in 0..6 {
        settled += passes(&values(url, env.nats_url()), 3).await;
        expected.extend(enqueue(&**producer, &dump.subject, &format!("during-{round}-"), 0..10, 2).await);
    }
    held.commit().await.unwrap();
    settled += passes(&values(url, env.nats_url()), usize::MAX).await;
    // All is settled, and producers go on: with ids above all others, and with those that a
    // transaction has had since before the first relay looked.
    expected.extend(enqueue(&**producer, &dump.subject, "then-", 0..20, 2).await);
    settled += passes(&values(url, env.nats_url()), usize::MAX).await;
    late.commit().await.unwrap();
    settled += passes(&values(url, env.nats_url()), usize::MAX).await;
    let stored = stored(&stream).await;
    assert_eq!(assert_delivered(&stored, &expected), 0, "{url}");
    assert_eq!(
        settled,
        expected.len(),
        "{url}: settled once each, so nothing hides behind the duplicate window"
    );
    let of_dump = stored.into_iter().filter(|message| dump.due.contains(&message.key));
    of_dump.map(|message| (message.key, message.msg_id)).collect()
}

/// Each call is another relay, with another limit.
async fn passes(values: &Values, most: usize) -> usize {
    let limit = fastrand::usize(3..9).to_string();
    let mut worker =
        connect(&with(values, [("batch-messages", &limit), ("batch-lanes", "3")])).await.worker();
    if most == usize::MAX {
        return drain(&mut worker).await;
    }
    let mut settled = 0;
    for _ in 0..most {
        if let Pass::Settled { messages, .. } = worker.run_once().await.unwrap() {
            settled += messages;
        }
    }
    settled
}

/// Uses up transaction ids, one transaction each.
async fn burn_to(client: &Object, xact: i64) {
    let sql = format!(
        "DO $$ BEGIN WHILE pg_current_xact_id()::text::bigint < {xact} LOOP COMMIT; END LOOP; END $$"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn restore(server: &Postgres, dump: &Dump, database: &str) {
    client(&server.url("postgres"))
        .await
        .batch_execute(&format!("CREATE DATABASE {database}"))
        .await
        .unwrap();
    let mut psql = tokio::process::Command::new(server.bin("psql"))
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", &server.url(database)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = psql.stdin.take().unwrap();
    input.write_all(&dump.sql).await.unwrap();
    drop(input);
    assert!(psql.wait().await.unwrap().success(), "restore {database}");
}

fn assert_one_warning_per_lane(log: &Log, database: &str) {
    let text = log.text();
    let mut lanes: HashMap<&str, usize> = HashMap::new();
    for line in text.lines().filter(|line| line.contains("WARN")) {
        let lane = line.split_once("lane=").unwrap_or_else(|| panic!("another warning: {line}")).1;
        *lanes.entry(lane.split(' ').next().unwrap()).or_default() += 1;
    }
    assert_eq!(lanes.len(), 16, "{database}: every lane says that it was restored");
    assert!(lanes.values().all(|count| *count == 1), "{database}: {lanes:?}");
}
