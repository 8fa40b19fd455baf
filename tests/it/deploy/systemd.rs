//! What systemd is told of the relay: started, alive, stuck, draining. The test is the systemd.
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

/// The socket that `NOTIFY_SOCKET` names, and what has been heard on it.
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

    /// Of a name that is no file; `@` stands for the zero byte.
    fn at_an_abstract_name() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("oncebox-test{}", directory.path().display());
        let socket = StdDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = UnixDatagram::from_std(socket).unwrap();
        Self { socket, name: format!("@{name}"), _directory: directory }
    }

    /// The next datagram, or none until then.
    async fn hear(&self, until: Instant) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = timeout_at(until, self.socket.recv(&mut buffer)).await.ok()?.unwrap();
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    /// Hears until this line is said; returns all that was.
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

    /// How often the watchdog is fed from now on.
    async fn count_feeds(&self, during: Duration) -> usize {
        let until = Instant::now() + during;
        let mut feeds = 0;
        while let Some(words) = self.hear(until).await {
            feeds += words.lines().filter(|line| *line == "WATCHDOG=1").count();
        }
        feeds
    }

    /// `oncebox relay` as this systemd starts it.
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
        // Who is ready has begun to serve.
        assert_eq!(relay.get("/readyz").await.0, 200);
        // Three times per interval, so that one that comes late does no harm; twice is what is
        // promised.
        let feeds = systemd.count_feeds(Duration::from_secs(5)).await;
        assert!((10..=17).contains(&feeds), "{feeds} in 5 intervals");
        // NATS is away: no reason to be restarted.
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

/// A start that ends by itself, with its exit code, is better than one that is killed for taking
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
    // One that hears nothing: its queue fills at once.
    let deaf = Systemd::at_a_path();
    let microseconds = ("WATCHDOG_USEC", "30000");
    let own = [("NOTIFY_SOCKET", &*deaf.name), microseconds, ("TOKIO_WORKER_THREADS", "1")];
    let values = values_of(&env);
    let relay = Process::start(&["relay"], environment(&values).chain(own));
    relay.await_log("relay is running").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    enqueue(&env.pg().await, &env.subject("a"), "deaf-", 0..500, 0).await;
    await_messages(&stream, 500).await;
    // When it listens again it is told.
    assert!(deaf.count_feeds(Duration::from_secs(2)).await > 20);
    // One that is gone, and comes back at the same place.
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
    // One that cannot be: said, and no more.
    let relay = Process::start(&["relay"], environment(&values).chain([("NOTIFY_SOCKET", "vsock:2:9999")]));
    relay.await_log("systemd cannot be told").await;
    relay.await_log("relay is running").await;
    enqueue(&env.pg().await, &env.subject("a"), "never-", 0..500, 0).await;
    await_messages(&stream, 1_500).await;
}

/// Whether a relay whose PostgreSQL has just fallen silent is called stuck, and stays so. It does
/// not when the mover or the maintenance had borrowed the only connection at that moment: then the
/// worker fails to connect, again and again, which is an outage and no hang.
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
    // Before its time: the silence of the round before.
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

/// Passes that neither succeed nor fail, because PostgreSQL has fallen silent: with so short a
/// limit that is a worker that hangs. The runtime goes on, so only what the workers say of
/// themselves can tell.
#[tokio::test]
async fn a_hung_worker_starves_the_watchdog_and_fails_livez() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    let address = env.database_url().split_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::start(address.parse().unwrap()).await;
    let through_proxy = env.database_url().replace(address, &format!("127.0.0.1:{}", proxy.port()));
    let values = with(
        &values(&through_proxy, env.nats_url()),
        // It looks all the time: so it is the first worker that is caught with the connection.
        [("http-listen", "127.0.0.1:0"), ("stuck-seconds", "10"), ("poll-max-milliseconds", "5")],
    );
    let relay = systemd.start(&values, Duration::from_secs(1));
    systemd.await_line("READY=1").await;
    eventually("it stays stuck", 6 * LIMIT, async || {
        proxy.stall(true);
        let hangs = stays_stuck(&systemd, &relay).await;
        proxy.stall(false);
        systemd.await_line("WATCHDOG=1").await;
        // What was said before must not be taken for news in another round.
        while systemd.hear(Instant::now()).await.is_some() {}
        hangs.then_some(())
    })
    .await;
    assert_eq!(relay.get("/livez").await.0, 200);
}

/// A thread of the runtime hangs where no deadline helps: its log line goes to a pipe that nobody
/// reads. Whether the others go on or not, the watchdog starves.
#[tokio::test]
async fn a_blocked_log_starves_the_watchdog() {
    let env = TestEnv::new().await;
    let systemd = Systemd::at_a_path();
    // The first worker rests all the time, and says so each time.
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
    eventually("no word for six intervals", Duration::from_secs(60), async || {
        (systemd.count_feeds(Duration::from_secs(3)).await == 0).then_some(())
    })
    .await;
    // Somebody reads after all.
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
    // Longer than what counts as stuck.
    let feeds = systemd.count_feeds(Duration::from_secs(13)).await;
    assert!(feeds >= 26, "{feeds}");
    assert_eq!(relay.get("/livez").await.0, 200);
    assert_eq!(relay.get("/readyz").await, (503, "PostgreSQL is away\n".to_owned()));
    server.resume().await.unwrap();
    systemd.await_line("STATUS=delivering").await;
    eventually("ready", LIMIT, async || (relay.get("/readyz").await.0 == 200).then_some(())).await;
}
