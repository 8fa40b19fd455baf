//! The harness itself: servers that start, restart, and die with their owner.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use oncebox_tests::{Browser, Nats, Postgres, Stop, TestEnv, eventually};
use tokio_postgres::{Client, NoTls};

const LIMIT: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // The connection ends with its client, and with the test's runtime at the latest.
    tokio::task::spawn_local(connection);
    client
}

#[tokio::test]
async fn postgres_keeps_its_port_and_its_data_however_it_is_stopped() {
    tokio::task::LocalSet::new()
        .run_until(async {
            let mut postgres = Postgres::start_with(&[("work_mem", "'5MB'")]).await.unwrap();
            let url = postgres.url("postgres");
            connect(&url).await.batch_execute("CREATE TABLE kept (n int)").await.unwrap();
            for (n, how) in [Stop::Fast, Stop::Immediate, Stop::Kill].into_iter().enumerate() {
                let pid = postgres.pid();
                let client = connect(&url).await;
                client.execute("INSERT INTO kept VALUES (1)", &[]).await.unwrap();
                postgres.restart(how).await.unwrap();
                assert_ne!(postgres.pid(), pid, "{how:?}");
                assert!(client.execute("SELECT", &[]).await.is_err(), "{how:?} ends the old connections");
                let client = connect(&url).await;
                let rows: i64 = client.query_one("SELECT count(*) FROM kept", &[]).await.unwrap().get(0);
                assert_eq!(usize::try_from(rows).unwrap(), n + 1, "{how:?} keeps what was committed");
                let setting: String = client.query_one("SHOW work_mem", &[]).await.unwrap().get(0);
                assert_eq!(setting, "5MB");
            }
        })
        .await;
}

#[tokio::test]
async fn nats_keeps_its_port_and_its_store_when_killed() {
    let mut nats = Nats::start_with("max_payload: 4096").await.unwrap();
    let url = nats.url();
    for round in 1..=3 {
        let client = async_nats::connect(&url).await.unwrap();
        assert_eq!(client.server_info().max_payload, 4096);
        let jetstream = async_nats::jetstream::new(client);
        let config = async_nats::jetstream::stream::Config {
            name: "KEPT".to_owned(),
            subjects: vec!["kept".to_owned()],
            ..Default::default()
        };
        let stream = jetstream.get_or_create_stream(config).await.unwrap();
        jetstream.publish("kept", "x".into()).await.unwrap().await.unwrap();
        assert_eq!(stream.get_info().await.unwrap().state.messages, round);
        if round == 1 {
            nats.kill().await;
            assert!(async_nats::connect(&url).await.is_err());
            nats.resume().await.unwrap();
        } else {
            nats.restart().await.unwrap();
        }
    }
}

#[tokio::test]
async fn tests_do_not_see_each_other() {
    let (one, other) = (TestEnv::new().await, TestEnv::new().await);
    let enqueue = one.schema.sql("SELECT {schema}.enqueue('k', 's', 'p')");
    for env in [&one, &other] {
        let row = env.pg().await.query_one(&enqueue, &[]).await.unwrap();
        assert_eq!(row.get::<_, Option<i64>>(0), Some(1), "the key is free in each database");
        assert!(env.messages().await.is_empty());
    }
    let jetstream = one.jetstream().await;
    for n in 0..300 {
        let payload = n.to_string().into();
        jetstream.publish(one.subject(&format!("s.{n}")), payload).await.unwrap().await.unwrap();
    }
    one.stream().await.delete_message(2).await.unwrap();
    let messages = one.messages().await;
    assert_eq!(messages.len(), 299);
    assert!(messages.iter().map(|message| message.sequence).is_sorted());
    assert_eq!(messages[1].payload, "2");
    assert!(other.messages().await.is_empty());
}

#[tokio::test]
async fn a_passed_test_leaves_no_database_and_no_stream() {
    let env = TestEnv::new().await;
    let gone = TestEnv::new().await;
    let name = gone.name().to_owned();
    gone.stream().await;
    let held = gone.pool(2).get().await.unwrap();
    drop(gone);
    let client = env.pg().await;
    let left = client.query_opt("SELECT FROM pg_database WHERE datname = $1", &[&name]).await.unwrap();
    assert!(left.is_none(), "deleted, although a pool still held a connection");
    assert!(env.jetstream().await.get_stream(&name).await.is_err());
    drop(held);
}

/// Started by the test below as a process of its own, to be killed. Passes at once when started by
/// hand.
#[tokio::test]
async fn owner_to_be_killed() {
    #[expect(clippy::disallowed_methods, reason = "the parent test names the file that way")]
    let Ok(report) = std::env::var("ONCEBOX_TEST_OWNER_REPORT") else { return };
    let (postgres, nats) = (Postgres::start().await.unwrap(), Nats::start().await.unwrap());
    let pids = format!("{} {} {}", postgres.pid(), nats.pid(), std::env::temp_dir().display());
    std::fs::write(format!("{report}.new"), pids).unwrap();
    std::fs::rename(format!("{report}.new"), report).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn servers_die_with_an_owner_that_is_killed() {
    for signal in ["KILL", "INT", "TERM"] {
        if signal == "INT" && ignores_interrupts() {
            // A job in the background of a shell; its children inherit it, and would not die of
            // that.
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        // PostgreSQL's account must be able to enter it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let report = directory.path().join("report");
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "harness::owner_to_be_killed", "--nocapture"])
            .env("ONCEBOX_TEST_OWNER_REPORT", &report)
            .env("TMPDIR", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pids =
            eventually("both servers run", LIMIT, async || std::fs::read_to_string(&report).ok()).await;
        let pids: Vec<&str> = pids.split(' ').take(2).collect();
        assert!(pids.iter().all(|pid| is_running(pid)), "both run before the owner is killed");
        let directories = || {
            let entries = std::fs::read_dir(directory.path()).unwrap().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("oncebox-")).count()
        };
        assert!(directories() >= 2);
        let killed = Command::new("kill").arg(format!("-{signal}")).arg(owner.id().to_string()).status();
        assert!(killed.unwrap().success());
        eventually("the owner has ended", LIMIT, async || owner.try_wait().unwrap()).await;
        eventually("both servers are gone", LIMIT, async || {
            pids.iter().all(|pid| !is_running(pid)).then_some(())
        })
        .await;
        eventually("the directories are gone", LIMIT, async || (directories() == 0).then_some(())).await;
    }
}

/// Its driver ends at once; a browser would run on beside all later tests.
#[tokio::test]
async fn a_browser_ends_with_its_driver() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let directory = browser.directory().to_str().unwrap().to_owned();
    let browsers = || {
        let named = |pid: &Path| std::fs::read(pid.join("cmdline")).unwrap_or_default();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.map(|process| String::from_utf8_lossy(&named(&process.path())).into_owned());
        lines.filter(|line| line.contains(&format!("--user-data-dir={directory}"))).count()
    };
    assert!(browsers() > 0);
    drop(browser);
    eventually("they have ended", LIMIT, async || (browsers() == 0).then_some(())).await;
}

/// Whether this process was started with SIGINT ignored.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(ignored, 16).unwrap() & 0b10 != 0
}

fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    // The state follows the name in parentheses; Z has ended and waits for its parent.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
