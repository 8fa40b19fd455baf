//! The databases of the torture's relays: each relay is one process that serves all three.
//!
//! The first one is that of every scenario. In the second one orders are handled in every mode of
//! the inbox (`beside`); its messages are CloudEvents in atomic batches. The third one comes back
//! from backups (`archive`).

use std::io::Write as _;

use anyhow::Result;
use async_nats::jetstream::stream::Config;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, Postgres, pool};
use tempfile::NamedTempFile;

use crate::{
    archive,
    broker::Broker,
    consumer,
    stage::{POOL_WAIT, STREAM, stream_config},
};

pub(crate) const BESIDE: &str = "beside";
pub(crate) const ARCHIVE: &str = "archive";
/// Of the second database, and of the third one.
pub(crate) const ORDERS: &str = "CHAOS";
pub(crate) const ARCHIVED: &str = "ARCHIVE";

/// Makes the second and the third database, and the third one's stream. The second one's stream is
/// made by those who handle its orders.
pub(crate) async fn install(postgres: &Postgres, broker: &Broker) -> Result<()> {
    let admin = pool(&postgres.url("postgres"), 1, POOL_WAIT)?.get().await?;
    for name in [BESIDE, ARCHIVE] {
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        let mut client = pool(&postgres.url(name), 1, POOL_WAIT)?.get().await?;
        migrate(&mut client, &SchemaName::default(), Lanes::default()).await?;
        if name == ARCHIVE {
            client.batch_execute(archive::TABLE).await?;
        }
    }
    let subjects = vec![archive::SUBJECTS.to_owned()];
    broker.create_stream(Config { name: ARCHIVED.to_owned(), subjects, ..stream_config(0) }).await?;
    Ok(())
}

/// The URL of another database of the same server.
pub(crate) fn url_of(database_url: &str, name: &str) -> String {
    let (server, _) = database_url.rsplit_once('/').unwrap_or((database_url, ""));
    format!("{server}/{name}")
}

/// A relay's file. The streams are there, or others make them.
pub(crate) fn file(database_url: &str, nats_url: &str, is_atomic: bool) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    // The oldest servers have no atomic batches.
    let has_atomic = Nats::version()? >= (2, 12);
    writeln!(file, "nats_url = {nats_url:?}")?;
    let databases = [
        ("counted", database_url.to_owned(), STREAM, consumer::SUBJECTS, is_atomic),
        (BESIDE, url_of(database_url, BESIDE), ORDERS, "chaos.>", has_atomic),
        (ARCHIVE, url_of(database_url, ARCHIVE), ARCHIVED, archive::SUBJECTS, false),
    ];
    for (name, url, stream, subjects, is_atomic) in databases {
        writeln!(file, "[[database]]\nname = {name:?}\nurl = {url:?}")?;
        if name == BESIDE {
            writeln!(file, "cloud_events_source = \"/torture\"")?;
        }
        let publish = if is_atomic { "atomic" } else { "pipelined" };
        writeln!(
            file,
            "[[database.stream]]\nname = {stream:?}\nsubjects = [{subjects:?}]\npublish = {publish:?}\npolicy = \"ignore\""
        )?;
    }
    Ok(file)
}

/// The file of a relay that serves the first database alone; its stream is there already.
pub(crate) fn file_of_one(is_atomic: bool) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    let publish = if is_atomic { "atomic" } else { "pipelined" };
    let subjects = consumer::SUBJECTS;
    write!(
        file,
        "[[stream]]\nname = {STREAM:?}\nsubjects = [{subjects:?}]\npublish = {publish:?}\npolicy = \"ignore\"\n"
    )?;
    Ok(file)
}
