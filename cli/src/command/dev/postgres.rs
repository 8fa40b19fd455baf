//! The PostgreSQL of `oncebox dev`.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use oncebox_connect::{
    config::{Config, Values},
    postgres::connect_postgres,
};
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    find,
    server::{self, Server},
};

/// A first start writes its catalogs, a start after a crash reads its log.
const DEADLINE: Duration = Duration::from_secs(120);
const DATABASE: &str = "dev";

/// Starts one, and makes its data directory and database when they are missing; returns the URL.
pub(super) async fn start(directory: &Path) -> anyhow::Result<(Server, String)> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    ensure!(
        !is_root,
        "PostgreSQL does not run as root: run `oncebox dev` as another user, or give --database-url"
    );
    let (data, secret) = (directory.join("postgres"), directory.join("postgres.password"));
    let of_data = fs::read_to_string(data.join("PG_VERSION")).ok();
    let programs = find::postgres(of_data.as_deref().and_then(|version| version.trim().parse().ok()))?;
    if of_data.is_none() {
        initialize(&programs, &data, &secret).await?;
    }
    let password = fs::read_to_string(&secret).with_context(|| {
        format!("read {}; delete {} to begin anew", secret.display(), directory.display())
    })?;
    Server::end_last("postgres", &data, directory).await?;
    let data = data.to_string_lossy().into_owned();
    server::on_a_port(directory, "postgres", 5432, async |port| {
        let arguments =
            ["-D", &data, "-h", "127.0.0.1", "-p", &port.to_string(), "-c", "unix_socket_directories="];
        let arguments = arguments.map(str::to_owned);
        let server = Server::start("postgres", &programs.join("postgres"), &arguments, directory)?;
        let stop = ["stop", "-D", &data, "-m", "fast", "-s"].map(str::to_owned);
        let mut server = server.stopping_with(programs.join("pg_ctl"), stop.to_vec());
        let url =
            |database: &str| format!("postgres://postgres:{}@127.0.0.1:{port}/{database}", password.trim());
        create_database(&mut server, &url("postgres")).await?;
        Ok((server, url(DATABASE)))
    })
    .await
}

/// A password of its own, since every user of this machine can reach its port.
async fn initialize(programs: &Path, data: &Path, secret: &Path) -> anyhow::Result<()> {
    let password: String = fs::read("/proc/sys/kernel/random/uuid")
        .map(|text| text.into_iter().filter(u8::is_ascii_hexdigit).map(char::from).collect())
        .context("read a random number")?;
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(secret)?;
    fs::write(secret, password)?;
    let mut initdb = Command::new(programs.join("initdb"));
    initdb.args([
        "--username=postgres",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--no-locale",
        "--no-instructions",
    ]);
    // Under its own name only when it is whole: after a start that died here, the next begins anew,
    // in another directory, since an initdb that was left may still write its own.
    let part = data.with_extension(format!("{}.part", std::process::id()));
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("delete {}", part.display()))?;
    }
    initdb.arg("-D").arg(&part).arg("--pwfile").arg(secret);
    let made = initdb.stdin(Stdio::null()).kill_on_drop(true).output().await.context("run initdb")?;
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    ensure!(made.status.success(), "initdb could not make {}: {said}", data.display());
    fs::rename(&part, data).with_context(|| format!("rename {}", part.display()))?;
    Ok(())
}

async fn create_database(server: &mut Server, url: &str) -> anyhow::Result<()> {
    let values =
        Values::from([("database-url", url.to_owned()), ("nats-url", "nats://127.0.0.1".to_owned())]);
    let config = Config::from_values(&values).map_err(|mistakes| anyhow::anyhow!(mistakes.0.join("\n")))?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    let client = loop {
        server.check()?;
        match connect_postgres(config.outbox(), &mut tasks).await {
            Ok(client) => break client,
            Err(error) if begun.elapsed() > DEADLINE => return Err(error).context("connect to PostgreSQL"),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    };
    let is_there =
        client.query_opt("SELECT FROM pg_database WHERE datname = $1", &[&DATABASE]).await?.is_some();
    if !is_there {
        client.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await?;
    }
    Ok(())
}
