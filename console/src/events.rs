//! `/events`: a stream that says of which databases there is news, at most once a second.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::sleep,
};

use crate::ask::Console;

/// Streams at a time; a page beyond them is not live.
pub(crate) const STREAMS_MAX: usize = 128;
/// Between two events of a stream.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn serve(State(console): State<Arc<Console>>) -> Response {
    let Ok(permit) = Arc::clone(&console.streams).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are live\n").into_response();
    };
    let state = (console.fleet.changes.subscribe(), permit, console);
    let events = stream::unfold(state, async |(mut changes, permit, console)| {
        console.fleet.is_seen();
        let names = tokio::select! {
            names = next(&mut changes) => names?,
            () = console.shutdown.cancelled() => return None,
        };
        let event = Bytes::from(format!("data: {names}\n\n"));
        Some((Ok::<_, Infallible>(event), (changes, permit, console)))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

/// The names of databases of which there is news, gathered for a moment; `*` for all.
async fn next(changes: &mut Receiver<Arc<str>>) -> Option<String> {
    let mut names = BTreeSet::new();
    let mut received = changes.recv().await;
    sleep(PAUSE).await;
    loop {
        match received {
            Ok(name) => drop(names.insert(name)),
            Err(RecvError::Lagged(_)) => drop(names.insert("*".into())),
            Err(RecvError::Closed) => return None,
        }
        if changes.is_empty() {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            return Some(names.join(" "));
        }
        received = changes.recv().await;
    }
}
