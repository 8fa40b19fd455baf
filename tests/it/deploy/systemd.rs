//! The relay tells systemd that it is ready, alive, stuck or draining. The tests play systemd.
#![cfg(target_os = "linux")]

use std::{
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram as StdDatagram},
    },
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use oncebox_relay::Values;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, Proxy, Stop, TestEnv, eventually};
use tokio::{
    io::AsyncReadExt as _,
    net::UnixDatagram,
    process::Command,
    time::{Instant, timeout_at},
};

use crate::relay::{
    process::{Process, environment, program},
    support::{LIMIT, await_messages, client, enqueue, values, values_of, with},
};

/// The socket that `NOTIFY_SOCKET` names, and its messages so far.
struct Systemd {
    socket: UnixDatagram,
    name: String,
    _directory: tempfile::TempDir,
}

impl Systemd {
    fn at_a_path() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, name: path.to_str().unwrap().to_owned(), _directory: directory }
    }

    /// A socket with an abstract name instead of a path; `@` stands for the zero byte.
    fn at_an_abstract_name() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("oncebox-test{}", directory.path().display());
        let socket = StdDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UnixDatagram::from_std(socket).unwrap();
        Self { socket, name: format!("@{name}"), _directory: directory }
    }

    /// The next datagram; `None` when none comes until then.
    async fn hear(&self, until: Instant) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = timeout_at(until, self.socket.recv(&mut buffer)).await.ok()?.unwrap();
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    /// Receives datagrams until this line comes; returns all of them.
    async fn await_line(&self, line: &str) -> Vec<String> {
        let until = Instant::now() + LIMIT;
        let mut heard = Vec::new();
        loop {
            let words = self.hear(until).await;
            let words = words.unwrap_or_else(|| panic!("{line:?} was not said, but {heard:?}"));
            let found = words.lines().any(|said| said == line);
            heard.push(words);
            if found {
                return heard;
            }
        }
    }

    /// How many keep-alive lines for the watchdog come from now on.
    async fn count_feeds(&self, during: Duration) -> usize {
        let until = Instant::now() + during;
        let mut feeds = 0;
        while let Some(words) = self.hear(until).await {
            feeds += words.lines().filter(|line| *line == "WATCHDOG=1").count();
        }
        feeds
    }

    /// Starts `oncebox relay` as systemd does.
    fn start(&self, values: &Values, watchdog: Duration) -> Process {
        let microseconds = watchdog.as_micros().to_string();
        let own = [("NOTIFY_SOCKET", &*self.name), ("WATCHDOG_USEC", &microseconds)];
        Process::start(&["relay"], environment(values).chain(own))
    }
}

#[tokio::test]
async fn systemd_hears_of_start_life_outage_and_drain() {
    let env = TestEnv::new().await;
    let port = env.nats_url().rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).await;
    let through_proxy = format!("nats://127.0.0.1:{}", proxy.port());
    let values = with(&values_of(&env), [("nats-url", &*through_proxy), ("http-listen", "127.0.0.1:0")]);
    for systemd in [Systemd::at_a_path(), Systemd::at_an_abstract_name()] {
        let relay = systemd.start(&values, Duration::from_secs(1));
        let heard = systemd.await_line("READY=1").await;
        assert_eq!(heard, ["READY=1\nSTATUS=delivering\nWATCHDOG=1"]);
        // A relay that says it is ready serves HTTP.
        assert_eq!(relay.get("/readyz").await.0, 200);
        // The relay promises two keep-alives per interval, and sends three, so that a late one does
        // no harm.
        let feeds = systemd.count_feeds(Duration::from_secs(5)).await;
        assert!((10..=17).contains(&feeds), "{feeds} in 5 intervals");
        // While NATS is away the keep-alives go on, so that systemd does not restart the relay.
        proxy.refuse(true);
        proxy.cut();
        systemd.await_line("STATUS=NATS is away").await;
        assert!(systemd.count_feeds(Duration::from_secs(3)).await >= 6);
        proxy.refuse(false);
        systemd.await_line("STATUS=delivering").await;
        relay.signal("TERM").await;
        let heard = systemd.await_line("STOPPING=1").await;
        assert!(heard.last().unwrap().contains("STATUS=draining"), "{heard:?}");
        let (status, log) = relay.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("systemd"), "{log}");
    }
}

/// A relay that cannot start ends by itself with an exit code, before systemd kills it for taking
/// too long.
#[tokio::test]
async fn a_relay_that_cannot_start_says_nothing_and_ends_by_itself() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    let values = with(&values_of(&env), [("nats-url", "nats://127.0.0.1:1")]);
    let started = Instant::now();
    let (status, log) = systemd.start(&values, Duration::from_secs(1)).ended().await;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(started.elapsed() < Duration::from_secs(20), "well within TimeoutStartSec");
    assert_eq!(systemd.hear(Instant::now()).await, None);
}

#[tokio::test]
async fn delivery_waits_for_no_systemd() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    // A socket that no process reads: its queue is full at once.
    let deaf = Systemd::at_a_path();
    let microseconds = ("WATCHDOG_USEC", "30000");
    let own = [("NOTIFY_SOCKET", &*deaf.name), microseconds, ("TOKIO_WORKER_THREADS", "1")];
    let values = values_of(&env);
    let relay = Process::start(&["relay"], environment(&values).chain(own));
    relay.await_log("relay is running").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    enqueue(&env.pg().await, &env.subject("a"), "deaf-", 0..500, 0).await;
    await_messages(&stream, 500).await;
    // When the test reads it again, the keep-alives arrive.
    assert!(deaf.count_feeds(Duration::from_secs(2)).await > 20);
    // A socket that is removed, and created again at the same path.
    let Systemd { socket, name, _directory } = deaf;
    drop(socket);
    std::fs::remove_file(&name).unwrap();
    enqueue(&env.pg().await, &env.subject("a"), "gone-", 0..500, 0).await;
    await_messages(&stream, 1_000).await;
    let again = Systemd { socket: UnixDatagram::bind(&name).unwrap(), name, _directory };
    again.await_line("WATCHDOG=1").await;
    relay.signal("TERM").await;
    again.await_line("STOPPING=1").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    // An address that cannot be used is logged once, and delivery goes on.
    let relay = Process::start(&["relay"], environment(&values).chain([("NOTIFY_SOCKET", "vsock:2:9999")]));
    relay.await_log("systemd cannot be told").await;
    relay.await_log("relay is running").await;
    enqueue(&env.pg().await, &env.subject("a"), "never-", 0..500, 0).await;
    await_messages(&stream, 1_500).await;
}

/// Whether a relay whose PostgreSQL has just stopped answering is reported as stuck, and stays so.
/// It is not if the mover or the maintenance had borrowed the only connection at that moment: then
/// the worker fails to connect again and again, which is an outage and not a hang.
async fn stays_stuck(systemd: &Systemd, relay: &Process) -> bool {
    let silent = Instant::now();
    let stuck = loop {
        let Some(words) = systemd.hear(silent + LIMIT).await else { return false };
        if words.contains("STATUS=stuck: a worker has got no further for 10 seconds") {
            break words;
        }
        if silent.elapsed() > LIMIT {
            return false;
        }
    };
    // This report is too early: it is still about the round before.
    if silent.elapsed() < Duration::from_secs(9) {
        return false;
    }
    assert!(!stuck.contains("WATCHDOG=1"), "{stuck}");
    let livez = relay.get("/livez").await;
    if systemd.count_feeds(Duration::from_secs(4)).await > 0 {
        return false;
    }
    assert!(livez.0 == 503 && livez.1.contains("stuck"), "{livez:?}");
    true
}

/// PostgreSQL stops answering, so passes neither succeed nor fail. With this short limit the worker
/// counts as hung. The runtime goes on, so only the workers' own reports can show it.
#[tokio::test]
async fn a_hung_worker_starves_the_watchdog_and_fails_livez() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    let address = env.database_url().split_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::start(address.parse().unwrap()).await;
    let through_proxy = env.database_url().replace(address, &format!("127.0.0.1:{}", proxy.port()));
    let values = with(
        &values(&through_proxy, env.nats_url()),
        // The first worker polls all the time, so it is the one that holds the connection.
        [("http-listen", "127.0.0.1:0"), ("stuck-seconds", "10"), ("poll-max-milliseconds", "5")],
    );
    let relay = systemd.start(&values, Duration::from_secs(1));
    systemd.await_line("READY=1").await;
    eventually("it stays stuck", 6 * LIMIT, async || {
        proxy.stall(true);
        let hangs = stays_stuck(&systemd, &relay).await;
        proxy.stall(false);
        systemd.await_line("WATCHDOG=1").await;
        // Lines of this round must not be read as lines of the next one.
        while systemd.hear(Instant::now()).await.is_some() {}
        hangs.then_some(())
    })
    .await;
    assert_eq!(relay.get("/livez").await.0, 200);
}

/// A thread of the runtime hangs where no deadline helps: it writes a log line to a pipe that no
/// process reads. The watchdog gets no keep-alives, whether the other threads go on or not.
#[tokio::test]
async fn a_blocked_log_starves_the_watchdog() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    // The first worker has nothing to do, and logs that each time.
    let values = with(
        &values_of(&env),
        [
            ("stuck-seconds", "10"),
            ("log", "off,oncebox_relay::pass::runner=debug"),
            ("poll-min-milliseconds", "1"),
            ("poll-max-milliseconds", "1"),
        ],
    );
    let own = [("NOTIFY_SOCKET", &*systemd.name), ("WATCHDOG_USEC", "500000")];
    let mut command = Command::new(program());
    command.arg("relay").env_clear().envs(environment(&values).chain(own));
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut relay = command.spawn().unwrap();
    systemd.await_line("READY=1").await;
    eventually("no keep-alive for six intervals", Duration::from_secs(60), async || {
        (systemd.count_feeds(Duration::from_secs(3)).await == 0).then_some(())
    })
    .await;
    // The test reads the pipe again.
    let mut pipe = relay.stderr.take().unwrap();
    tokio::select! {
        () = async { while pipe.read(&mut [0; 65_536]).await.unwrap() > 0 {} } => panic!("it ended"),
        _ = systemd.await_line("WATCHDOG=1") => {}
    }
}

#[tokio::test]
async fn an_outage_of_postgresql_is_no_reason_to_restart_the_relay() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    let mut server = Postgres::start().await.unwrap();
    migrate(&mut *client(&server.url("postgres")).await, &SchemaName::default(), Lanes::default())
        .await
        .unwrap();
    let values = with(
        &values(&server.url("postgres"), env.nats_url()),
        [("http-listen", "127.0.0.1:0"), ("stuck-seconds", "10")],
    );
    let relay = systemd.start(&values, Duration::from_secs(1));
    systemd.await_line("READY=1").await;
    server.stop(Stop::Fast).await;
    systemd.await_line("STATUS=PostgreSQL is away").await;
    // This is longer than the time after which a worker counts as stuck.
    let feeds = systemd.count_feeds(Duration::from_secs(13)).await;
    assert!(feeds >= 26, "{feeds}");
    assert_eq!(relay.get("/livez").await.0, 200);
    assert_eq!(relay.get("/readyz").await, (503, "PostgreSQL is away\n".to_owned()));
    server.resume().await.unwrap();
    systemd.await_line("STATUS=delivering").await;
    eventually("ready", LIMIT, async || (relay.get("/readyz").await.0 == 200).then_some(())).await;
}
