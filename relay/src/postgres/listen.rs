//! NOTIFY as a hint: polling remains the truth. And the leader of an outbox's relays, which does
//! the trickle and is woken by producers, while the others are standbys: `pass/quiet.rs`.
//!
//! A connection of its own, since a pool discards notifications; it also holds the lock of the
//! leader, the only relay that listens. With a transaction pooler neither can work; that is noticed
//! at start, or tested here, said once, and then the relay polls, and always works.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use oncebox_connect::postgres::{Connector, typed};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client, Error, SimpleQueryMessage};
use tracing::{debug, info};

use super::{Store, session::Session};
use crate::{backoff::Backoff, delivery::Snapshot, error::StoreError};

const TEST: &str = "test";
const TEST_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to be the leader, in a fleet of a few relays.
const STAND_BY: Duration = Duration::from_millis(800);
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(30) };

/// The news for the workers.
#[derive(Debug)]
pub(crate) struct Told {
    /// Counts wake-ups.
    pub(crate) wake: watch::Sender<u64>,
    pub(crate) leader: watch::Sender<Leader>,
}

type Messages = BoxStream<'static, Result<AsyncMessage, Error>>;

/// Asks to be the leader while this relay is able to work, because there is a connection to NATS,
/// and listens when it is. Losing the connection to PostgreSQL costs
/// latency, never a message.
pub(crate) async fn listen<T: Send + Sync>(
    connector: Connector,
    store: Arc<Store>,
    told: Told,
    mut nats: watch::Receiver<Option<T>>,
) {
    let mut failures = 0;
    if store.is_pooled() {
        // To LISTEN would leave a session listening that belongs to others.
        return std::future::pending().await;
    }
    loop {
        let ended = listen_once(&connector, &store, &told, &mut nats).await;
        // As long as the leader is not known, this relay works.
        told.leader.send_replace(Leader::This);
        match ended {
            Ended::Deaf => {
                info!("LISTEN does not work here; the relay polls");
                store.note_pooler();
                return std::future::pending().await;
            }
            Ended::Lost(worked) => failures = if worked { 0 } else { failures + 1 },
        }
        sleep(RECONNECT.delay(failures)).await;
    }
}

enum Ended {
    /// Connected, but no notification arrives.
    Deaf,
    /// The connection broke, or could not be made; whether it had worked.
    Lost(bool),
}

async fn listen_once<T>(
    connector: &Connector,
    store: &Store,
    told: &Told,
    nats: &mut watch::Receiver<Option<T>>,
) -> Ended {
    let connecting = timeout(connector.connect_timeout(), connector.connect()).await;
    let Ok(Ok((client, mut connection))) = connecting else { return Ended::Lost(false) };
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context)).boxed();
    if !stand_by(&client, &mut messages, store, told, nats).await {
        return Ended::Lost(false);
    }
    info!("this relay is the leader");
    told.leader.send_replace(Leader::This);
    let channel = store.schema();
    // It is at rest most of the time: a limit on idle sessions is not for it.
    let listen = format!("LISTEN \"{channel}\"; SET idle_session_timeout = 0");
    let test = async {
        if client.batch_execute(&listen).await.is_err() || store.notify(TEST).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(test);
    let mut tested = false;
    let mut heard = false;
    loop {
        let message = tokio::select! {
            () = &mut test, if !tested => { tested = true; continue }
            message = timeout(TEST_TIMEOUT, messages.next()) => message,
        };
        match message {
            Ok(Some(Ok(AsyncMessage::Notification(notification)))) => {
                debug!(payload = notification.payload(), "notified");
                heard = true;
                told.wake.send_modify(|count| *count = count.wrapping_add(1));
            }
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(_)) | None) => return Ended::Lost(heard),
            Err(_) if !heard => return if tested { Ended::Deaf } else { Ended::Lost(false) },
            // Without NATS it lets another lead.
            Err(_) if nats.borrow().is_none() => return Ended::Lost(true),
            Err(_) => {}
        }
    }
}

/// Stands by until this relay is the leader; false when the connection was lost.
async fn stand_by<T>(
    client: &Client,
    messages: &mut Messages,
    store: &Store,
    told: &Told,
    nats: &mut watch::Receiver<Option<T>>,
) -> bool {
    loop {
        // Until this relay listens, messages that are committed while it rests wait for its next
        // look. So it asks as soon as it is able, above all when it has just started.
        if driven(messages, nats.wait_for(Option::is_some)).await.is_none() {
            return false;
        }
        if !store.is_pooled() {
            let asking = driven(messages, store.ask_to_lead(client));
            match timeout(ANSWER_TIMEOUT, asking).await {
                Ok(Some(Ok(Leader::This))) => return true,
                Ok(Some(Ok(another))) => told.leader.send_replace(another),
                Ok(Some(Err(_)) | None) | Err(_) => return false,
            };
        }
        if driven(messages, sleep(store.fleet.pause(STAND_BY))).await.is_none() {
            return false;
        }
    }
}

/// Drives the connection until there is an answer; `None` when it was lost before.
async fn driven<T>(messages: &mut Messages, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    loop {
        tokio::select! {
            answer = &mut answer => return Some(answer),
            message = messages.next() => {
                if !matches!(message, Some(Ok(_))) {
                    return None;
                }
            }
        }
    }
}

/// A statement that has taken this time, and whose client takes nothing of the answer, is ended.
const UNREAD_SECONDS: f64 = 18.0;

/// Which relay is the leader.
#[derive(Clone, Debug)]
pub(crate) enum Leader {
    /// This relay, or it is not known: several that work share the lanes as ever.
    This,
    /// Another relay; with a snapshot of now, taken about once a second, or more rarely in a fleet.
    Another(Snapshot),
}

impl Store {
    /// Tries to be the leader for as long as this connection lasts.
    pub(super) async fn ask_to_lead(&self, client: &Client) -> Result<Leader, Error> {
        let answers = client.simple_query(&self.sql.lead).await?;
        let row = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let snapshot = row.filter(|row| row.get("is_own") == Some("f")).and_then(|row| row.get("snapshot"));
        Ok(snapshot.and_then(Snapshot::parse).map_or(Leader::This, Leader::Another))
    }
}

impl Store {
    /// Ends the sessions that hold lanes for a client that reads no more, and returns which.
    pub(crate) async fn end_unread(&self) -> Result<Vec<i32>, StoreError> {
        let connection = self.connection().await?;
        let rows = connection.query_typed(&self.sql.end_unread, &typed(&[&UNREAD_SECONDS])).await;
        let rows = rows.map_err(|source| StoreError::Statement("look for suspended relays", source))?;
        Ok(rows.iter().filter(|row| row.get("ended")).map(|row| row.get("pid")).collect())
    }
}

impl Session {
    /// About how many messages are due, if they are many.
    pub(crate) async fn behind(&self) -> Result<i64, StoreError> {
        let rows = self.query("see how far the relays are behind", &self.store.sql.behind, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get("messages")))
    }
}
