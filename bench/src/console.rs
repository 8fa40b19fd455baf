//! The console over fifty databases, one of them large: the time of each page, and PostgreSQL's
//! cost with one open page and with fifty.

use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};

use crate::{
    backends, config::Config, relay::program, report::Report, scale, servers::Servers, statistics::median,
};

const DATABASES: usize = 50;
const OPEN_PAGES: usize = 50;
const PAGES: [(&str, &str); 6] = [
    ("overview", "/"),
    ("database", "/db/large"),
    ("key", "/key?key=bench.1"),
    ("find", "/find?q=bench.1"),
    ("parked", "/db/large/set-aside"),
    ("audit", "/db/large/audit"),
];
const READS: usize = 20;
const READY_MAX: Duration = Duration::from_secs(120);
const PAGE_MAX: Duration = Duration::from_secs(30);

/// Measures once: rounds differ little, and filling takes minutes.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let large = servers.migrated().await?;
    tracing::info!("console: enqueue {} messages", config.backlog);
    scale::fill(servers, &large, config.backlog, "bench.").await?;
    let mut databases = vec![large.clone()];
    while databases.len() < DATABASES {
        databases.push(servers.migrated().await?);
    }
    let files = tempfile::tempdir()?;
    let fleet = files.path().join("fleet.toml");
    let mut text = format!("schema = {:?}\nnats_url = {:?}\n", servers.schema.as_str(), servers.nats_url());
    for (number, database) in databases.iter().enumerate() {
        let name = if number == 0 { "large".to_owned() } else { format!("small-{number}") };
        writeln!(text, "[[database]]\nname = {name:?}\nurl = {:?}", servers.database_url(database))?;
    }
    fs::write(&fleet, text)?;
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
    let mut console = Command::new(program("oncebox")?)
        .args(["console", "--listen", &address.to_string(), "--config"])
        .arg(&fleet)
        .env("ONCEBOX_LOG", "warn,async_nats=off")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start the console")?;
    let outcome = pages(address, report, config).await;
    let outcome = match outcome {
        Ok(()) => load(servers, &large, address, config, report).await,
        Err(error) => Err(error),
    };
    console.kill().await?;
    for database in &databases {
        servers.drop_database(database).await?;
    }
    outcome
}

/// Reads each page some times, when all databases have answered.
async fn pages(address: SocketAddr, report: &mut Report, config: &Config) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < READY_MAX {
        if read(address, "/api/v1/databases").await.is_ok_and(|text| !text.contains("\"is_known\":false")) {
            break;
        }
        sleep(Duration::from_millis(200)).await;
    }
    let mut slowest: f64 = 0.0;
    for (name, path) in PAGES {
        let mut times = Vec::new();
        for _ in 0..READS {
            let asked = Instant::now();
            read(address, path).await.with_context(|| format!("read {path}"))?;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        let typical = median(times);
        tracing::info!("console: {name} {typical:.1} ms");
        slowest = slowest.max(typical);
    }
    report.add(
        "console_page_ms",
        slowest,
        format!("{DATABASES} databases, one of {} messages", config.backlog),
    );
    Ok(())
}

/// The processor time of PostgreSQL's sessions of the console in the large database.
async fn load(
    servers: &Servers,
    large: &str,
    address: SocketAddr,
    config: &Config,
    report: &mut Report,
) -> anyhow::Result<()> {
    let admin = servers.session(large).await?;
    let mut open = vec![open_page(address).await?];
    let mut percent = Vec::new();
    for pages in [1, OPEN_PAGES] {
        while open.len() < pages {
            open.push(open_page(address).await?);
        }
        let (before, begun) = (backends::of_carrier(&admin, large).await?, Instant::now());
        sleep(config.duration * 2).await;
        let used = before.cpu_since(&admin).await?;
        percent.push(100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64());
    }
    tracing::info!(
        "console: PostgreSQL {:.2} % with one page, {:.2} % with {OPEN_PAGES}",
        percent[0],
        percent[1]
    );
    report.add(
        "console_load_ratio",
        percent[1] / percent[0],
        format!("{:.2} % of a core with one page", percent[0]),
    );
    Ok(())
}

/// The whole answer to a GET.
async fn read(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let reading = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.0 200"), "{}", answer.lines().next().unwrap_or_default());
        Ok(answer)
    };
    timeout(PAGE_MAX, reading).await.context("no answer")?
}

/// The stream of events that the script of a page keeps open.
async fn open_page(address: SocketAddr) -> anyhow::Result<TcpStream> {
    read(address, "/db/large").await?;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    Ok(stream)
}
