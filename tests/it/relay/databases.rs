//! One relay process for several databases: a fault of one harms no other, and they come and go
//! with the file.

use std::{fs, path::PathBuf, time::Duration};

use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tempfile::TempDir;

use crate::relay::{
    process::Process,
    support::{LIMIT, await_messages, count, enqueue, fresh_stream, stream_config, through_proxy},
};

/// A service: its database and its stream.
struct Service {
    name: &'static str,
    env: TestEnv,
    stream: Stream,
    url: String,
}

impl Service {
    async fn new(name: &'static str) -> Self {
        let env = TestEnv::new().await;
        let (stream, url) = (env.stream().await, env.database_url().to_owned());
        Self { name, env, stream, url }
    }

    /// One whose database is reached through a proxy.
    async fn behind_proxy(name: &'static str) -> (Self, Proxy) {
        let mut service = Self::new(name).await;
        let (proxy, url) = through_proxy(service.env.database_url()).await;
        service.url = url;
        (service, proxy)
    }

    async fn enqueue(&self, prefix: &str) {
        enqueue(&self.env.pg().await, &self.env.subject("a"), prefix, 0..10, 2).await;
    }

    async fn delivers(&self, prefix: &str, all: usize) {
        self.enqueue(prefix).await;
        await_messages(&self.stream, all).await;
    }

    /// Sessions of the relay in this database.
    async fn sessions(&self) -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = 'oncebox relay'";
        self.env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// A configuration file in a directory of its own.
struct File {
    _directory: TempDir,
    path: PathBuf,
}

impl File {
    fn new(services: &[&Service]) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("fleet.toml");
        let file = Self { _directory: directory, path };
        file.write(services, "");
        file
    }

    fn write(&self, services: &[&Service], more: &str) {
        let table = |service: &&Service| {
            let Service { name, url, env, .. } = service;
            format!("[[database]]\nname = {name:?}\nurl = {url:?}\nnats_url = {:?}\n{more}", env.nats_url())
        };
        let text: String = services.iter().map(table).collect();
        fs::write(&self.path, text).unwrap();
    }

    fn start(&self) -> Process {
        let path = self.path.to_str().unwrap();
        Process::start(&["relay", "--config", path, "--http-listen", "127.0.0.1:0"], [])
    }
}

/// The value of a metric of a database.
async fn metric(relay: &Process, name: &str, database: &str) -> f64 {
    let (_, text) = relay.get("/metrics").await;
    let begin = format!("{name}{{database=\"{database}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&begin));
    value.unwrap_or_else(|| panic!("no {begin}in {text}")).parse().unwrap()
}

/// A start takes some thirty round trips: only silence ends it.
#[tokio::test]
async fn a_database_that_answers_late_is_served() {
    let (far, proxy) = Service::behind_proxy("far").await;
    proxy.slow(0, Duration::from_millis(650));
    let file = File::new(&[&far]);
    let relay = file.start();
    let told = || relay.log().contains("relay is running") || relay.log().contains("no relay serves");
    eventually("it starts, or says why not", LIMIT * 4, async || told().then_some(())).await;
    assert!(!relay.log().contains("no relay serves"), "{}", relay.log());
    far.enqueue("m-").await;
    // Some twenty round trips of 1.3 s, of which each waits for the one before.
    eventually("10 messages in the stream", LIMIT * 4, async || {
        (count(&far.stream).await == 10).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_of_three_is_out_of_reach_until_it_comes() {
    let (orders, stock) = (Service::new("orders").await, Service::new("stock").await);
    let (lost, proxy) = Service::behind_proxy("lost").await;
    proxy.refuse(true);
    let file = File::new(&[&orders, &lost, &stock]);
    let relay = file.start();
    orders.delivers("m-", 10).await;
    stock.delivers("m-", 10).await;
    relay.await_log("no relay serves this database").await;
    let (code, text) = relay.get("/readyz").await;
    assert!(
        code == 200 && text.starts_with("not all are ready: 1 of 3 databases: lost: PostgreSQL at "),
        "{text}"
    );
    let serving = async |name| metric(&relay, "oncebox_serving", name).await;
    assert_eq!((serving("orders").await, serving("lost").await), (1.0, 0.0));
    assert_eq!(metric(&relay, "oncebox_published_total", "stock").await, 10.0);
    assert!(relay.log().contains("database{name=lost}"), "{}", relay.log());
    proxy.refuse(false);
    lost.delivers("m-", 10).await;
    eventually("all are ready", LIMIT, async || (relay.get("/readyz").await.1 == "ok\n").then_some(())).await;
    assert_eq!(relay.get("/livez").await.0, 200);
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!((status.code(), log.matches("relay has drained").count()), (Some(0), 3), "{log}");
}

#[tokio::test]
async fn databases_come_and_go_with_the_file() {
    let (orders, stock, late) =
        (Service::new("orders").await, Service::new("stock").await, Service::new("late").await);
    let file = File::new(&[&orders, &stock]);
    let relay = file.start();
    orders.delivers("m-", 10).await;
    stock.delivers("m-", 10).await;
    file.write(&[&orders, &late], "");
    late.delivers("m-", 10).await;
    relay.await_log("its relay drains").await;
    eventually("the relay has left", LIMIT, async || (stock.sessions().await == 0).then_some(())).await;
    stock.enqueue("later-").await;
    // A file with a mistake changes nothing, nor does one that names no database.
    file.write(&[&orders, &stock, &late, &late], "");
    relay.await_log("database late is named twice").await;
    fs::write(&file.path, "").unwrap();
    relay.await_log("names no database any more").await;
    orders.delivers("later-", 20).await;
    late.delivers("later-", 20).await;
    assert_eq!(count(&stock.stream).await, 10);
    // It comes back, and the others are as before, apart from one whose settings change.
    file.write(&[&orders, &stock, &late], "");
    await_messages(&stock.stream, 20).await;
    assert_eq!(relay.log().matches("relay is running").count(), 4, "{}", relay.log());
    file.write(&[&orders, &stock, &late], "workers = 2\n");
    relay.await_log("its settings have changed").await;
    eventually("all run again", LIMIT, async || {
        (relay.log().matches("relay is running").count() == 7).then_some(())
    })
    .await;
    orders.delivers("last-", 30).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn one_that_hangs_harms_no_other() {
    let (orders, stock) = (Service::new("orders").await, Service::new("stock").await);
    let (hanging, proxy) = Service::behind_proxy("hanging").await;
    let file = File::new(&[&orders, &hanging, &stock]);
    let relay = file.start();
    hanging.delivers("m-", 10).await;
    proxy.stall(true);
    hanging.enqueue("later-").await;
    for round in 1..=5 {
        orders.delivers(&format!("{round}-"), round * 10).await;
        stock.delivers(&format!("{round}-"), round * 10).await;
    }
    // A scrape waits for it, and has the others.
    assert_eq!(metric(&relay, "oncebox_published_total", "orders").await, 50.0);
    assert_eq!(relay.get("/livez").await.0, 200);
    assert_eq!(count(&hanging.stream).await, 10);
    // It goes while it hangs, and comes back.
    file.write(&[&orders, &stock], "");
    relay.await_log("its relay drains").await;
    orders.delivers("gone-", 60).await;
    file.write(&[&orders, &hanging, &stock], "");
    proxy.stall(false);
    await_messages(&hanging.stream, 20).await;
    stock.delivers("last-", 60).await;
}

#[tokio::test]
async fn one_that_is_full_harms_no_other() {
    let orders = Service::new("orders").await;
    let mut full = Service::new("full").await;
    let limited = Config {
        max_messages: 5,
        discard: DiscardPolicy::New,
        ..stream_config(full.env.name(), &full.env.subject(">"))
    };
    full.stream = fresh_stream(full.env.nats_url(), limited).await;
    let file = File::new(&[&full, &orders]);
    let relay = file.start();
    full.enqueue("m-").await;
    await_messages(&full.stream, 5).await;
    for round in 1..=5 {
        orders.delivers(&format!("{round}-"), round * 10).await;
    }
    assert_eq!((count(&full.stream).await, &*relay.get("/readyz").await.1), (5, "ok\n"));
    full.stream.purge().await.unwrap();
    await_messages(&full.stream, 5).await;
}

/// On a slow line, where looks that do not take turns overlap, and take a connection each.
#[tokio::test]
async fn an_idle_database_costs_two_connections() {
    let (service, proxy) = Service::behind_proxy("idle").await;
    let file = File::new(&[&service]);
    let relay = file.start();
    service.delivers("m-", 10).await;
    proxy.slow(0, Duration::from_millis(15));
    let calm = async || (service.sessions().await == 2).then_some(());
    eventually("two connections", LIMIT, calm).await;
    let claims = async || metric(&relay, "oncebox_claim_seconds_count", "idle").await;
    let claimed = claims().await;
    let (mut seen, mut more) = (0, 0);
    eventually("claims", LIMIT, async || {
        seen += 1;
        more += i32::from(service.sessions().await > 2);
        (claims().await >= claimed + 4.0).then_some(())
    })
    .await;
    assert!(more * 2 < seen, "more than two connections in {more} of {seen} looks");
}

/// Its messages would go to the NATS of one name or the other, and losses be noted that are none.
#[tokio::test]
async fn one_database_under_two_names_is_refused_with_both_names() {
    let mut one = Service::new("orders").await;
    let url = one.url.clone();
    let start = |other: &str| {
        let table = |name: &str, url: &str| {
            format!("[[database]]\nname = {name:?}\nurl = {url:?}\nnats_url = {:?}\n", one.env.nats_url())
        };
        let file = File::new(&[]);
        fs::write(&file.path, table("orders", &url) + &table("billing", other)).unwrap();
        (file.start(), file)
    };
    let (relay, _file) = start(&url);
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(64), "{log}");
    assert!(log.contains("the databases orders and billing are the same one"), "{log}");
    // By another address only a relay that has connected can tell.
    let (relay, _file) = start(&url.replace("127.0.0.1", "localhost"));
    relay.await_log("is the same database as").await;
    let log = relay.log();
    assert!(
        log.contains("billing is the same database as orders")
            || log.contains("orders is the same database as billing")
    );
    one.url = url;
    one.delivers("still-", 10).await;
}

/// Each sleeps by itself; the file wakes them, as a change of settings does.
#[tokio::test]
async fn databases_without_work_are_left_alone_until_the_file_changes() {
    let services = [Service::new("one").await, Service::new("two").await];
    let [one, two] = &services;
    let file = File::new(&[one, two]);
    file.write(&[one, two], "sleep_after = \"1s\"\n");
    let relay = file.start();
    one.delivers("m-", 10).await;
    for service in &services {
        eventually("it sleeps", LIMIT, async || {
            let asleep = metric(&relay, "oncebox_asleep", service.name).await > 0.0;
            (asleep && service.sessions().await == 0).then_some(())
        })
        .await;
    }
    assert_eq!(relay.get("/readyz").await.0, 200);
    assert_eq!(one.sessions().await + two.sessions().await, 0, "probes and scrapes wake none");
    one.enqueue("n-").await;
    file.write(&[one, two], "");
    await_messages(&one.stream, 20).await;
    two.delivers("m-", 10).await;
    relay.signal("TERM").await;
    assert!(relay.ended().await.0.success());
}
