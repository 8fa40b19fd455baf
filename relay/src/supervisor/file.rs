//! Notices that the configuration file has changed, by reading it: a look at its time would miss a
//! change of the files that it names, and is no cheaper than a file of a few kilobytes.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tracing::debug;

use crate::config::{Settings, Sources};

const READ_EVERY: Duration = Duration::from_secs(1);

/// All that a file says of databases, and its mistakes.
type Said = (Vec<(String, Settings)>, Vec<String>);

/// Tells each change. A change counts when it is read the second time: the first time the file may
/// have been half written.
pub(super) async fn watch(mut sources: Sources, changes: mpsc::Sender<Sources>) {
    let mut looks = interval(READ_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut news) = (said(&sources), None);
    loop {
        looks.tick().await;
        let read = spawn_blocking(move || {
            let now = sources.read_again();
            let said = said(&now);
            (now, said)
        });
        let (now, said) = match read.await {
            Ok(read) => read,
            Err(error) => return debug!(%error, "the configuration file is read no more"),
        };
        sources = now;
        if known == said {
            news = None;
        } else if news.as_ref() == Some(&said) {
            (known, news) = (said, None);
            if changes.send(sources.clone()).await.is_err() {
                return;
            }
        } else {
            news = Some(said);
        }
    }
}

fn said(sources: &Sources) -> Said {
    let databases = sources.databases().into_iter().map(|(name, sources)| (name, sources.settings()));
    (databases.collect(), sources.mistakes().to_vec())
}
