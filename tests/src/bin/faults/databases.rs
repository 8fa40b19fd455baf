//! One relay process for ten databases, of which one hangs, one has a full stream and one is
//! restored from a copy, while the process is killed.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use oncebox_tests::{Program, Proxy, http_get, pool, within};
use tempfile::NamedTempFile;
use tokio::time::sleep;

use crate::{
    scenarios::{ABSENCE, CALM},
    stage::{POOL_WAIT, Stage},
};

const WAIT_MAX: Duration = Duration::from_secs(60);
const DATABASES: [&str; 9] =
    ["hanging", "filled", "restored", "quiet_1", "quiet_2", "quiet_3", "quiet_4", "quiet_5", "quiet_6"];
/// The number of messages that the full stream takes.
const ROOM: i64 = 5;
const MESSAGES: i32 = 20;
const KILLS: usize = 3;

/// The stage's own database is the tenth, and the one that is counted.
pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    let mut streams = Vec::new();
    for name in DATABASES {
        streams.push(install(stage, name).await?);
    }
    let proxy = Proxy::start(([127, 0, 0, 1], stage.postgres.port()).into()).await;
    let file = write_file(stage, proxy.port())?;
    // The relay of the stage's setting up gives way.
    for mut relay in std::mem::take(&mut stage.relays) {
        relay.stop().await?;
    }
    let path = file.path().to_str().context("a path of text")?;
    let mut environment = vec![("ONCEBOX_HTTP_LISTEN", "127.0.0.1:0".to_owned())];
    environment.extend(stage.recorded());
    stage.relays.push(Program::start("oncebox", &["relay", "--config", path], &environment).await?);
    for (name, stream) in DATABASES.iter().zip(&streams) {
        enqueue(stage, name, "before", ROOM.try_into()?).await?;
        arrive(stream, ROOM).await.with_context(|| (*name).to_owned())?;
    }
    proxy.stall(true);
    restore(stage, &streams[2]).await?;
    for kill in 0..KILLS {
        let prefix = format!("kill{kill}");
        for name in DATABASES {
            enqueue(stage, name, &prefix, MESSAGES).await?;
        }
        stage.mid_batch().await?;
        stage.relays[0].kill().await?;
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.relays[0].restart().await?;
        stage.delivering().await?;
        sleep(CALM).await;
    }
    let all = ROOM + i64::from(MESSAGES) * KILLS as i64;
    arrive(&streams[2], all + i64::from(MESSAGES)).await?;
    for stream in &streams[3..] {
        arrive(stream, all).await?;
    }
    ensure!(
        count(&streams[0]).await? == ROOM && count(&streams[1]).await? == ROOM,
        "two cannot be delivered"
    );
    let address = stage.relays[0].http_address().context("an address in the log")?;
    let ready = http_get(address.port(), "/readyz").await?;
    ensure!(ready.contains("1 of 10 databases: hanging"), "{ready}");
    proxy.stall(false);
    stage.broker.jetstream().await?.update_stream(config("filled", -1)).await?;
    for stream in &streams[..2] {
        arrive(stream, all).await?;
    }
    Ok(format!("ten databases: one hung, one full, one restored; {KILLS} times SIGKILL of their relay"))
}

fn config(name: &str, room: i64) -> Config {
    Config {
        name: name.to_uppercase(),
        subjects: vec![format!("databases.{name}")],
        discard: DiscardPolicy::New,
        max_messages: room,
        ..Config::default()
    }
}

/// A database with an outbox, and its stream.
async fn install(stage: &Stage<'_>, name: &str) -> Result<Stream> {
    stage.connection().await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let (code, said) = stage.oncebox_of(stage.postgres.url(name), &["migrate"]).await?;
    ensure!(code == 0, "{said}");
    stage.broker.create_stream(config(name, if name == "filled" { ROOM } else { -1 })).await
}

fn write_file(stage: &Stage<'_>, hanging: u16) -> Result<NamedTempFile> {
    let mut text = format!("nats_url = {:?}\n", stage.broker.url());
    writeln!(text, "[[database]]\nname = \"counted\"\nurl = {:?}", stage.database_url())?;
    for name in DATABASES {
        let url = stage.postgres.url(name);
        let url = match name {
            "hanging" => url.replace(&stage.postgres.port().to_string(), &hanging.to_string()),
            _ => url,
        };
        writeln!(text, "[[database]]\nname = {name:?}\nurl = {url:?}")?;
    }
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), text)?;
    Ok(file)
}

async fn enqueue(stage: &Stage<'_>, name: &str, prefix: &str, count: i32) -> Result<()> {
    let sql = "SELECT oncebox.enqueue($1 || n, $2, 'p') FROM generate_series(1, $3) AS n";
    let client = pool(&stage.postgres.url(name), 1, POOL_WAIT)?.get().await?;
    client.query(sql, &[&prefix, &format!("databases.{name}"), &count]).await?;
    Ok(())
}

async fn count(stream: &Stream) -> Result<i64> {
    Ok(stream.get_info().await?.state.messages.try_into()?)
}

async fn arrive(stream: &Stream, messages: i64) -> Result<()> {
    let all = async || Ok((count(stream).await? >= messages).then_some(()));
    within(&format!("{messages} messages arrive"), WAIT_MAX, all).await
}

/// The database comes back as it was before its last messages, in the place of the one that the
/// relay serves.
async fn restore(stage: &Stage<'_>, stream: &Stream) -> Result<()> {
    let admin = stage.connection().await?;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'restored'";
    within("the database is free to be copied", WAIT_MAX, async || {
        admin.execute(end, &[]).await?;
        Ok(admin.batch_execute("CREATE DATABASE backup TEMPLATE restored").await.ok())
    })
    .await?;
    enqueue(stage, "restored", "forgotten", MESSAGES).await?;
    arrive(stream, ROOM + i64::from(MESSAGES)).await?;
    admin.batch_execute("DROP DATABASE restored WITH (FORCE)").await?;
    within("the copy takes its place", WAIT_MAX, async || {
        Ok(admin.batch_execute("ALTER DATABASE backup RENAME TO restored").await.ok())
    })
    .await
}
