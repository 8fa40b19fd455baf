//! Oncebox in the browser: pages over all databases, and a JSON API of the same data.
//!
//! One task looks at each database, for any number of open pages, and pages show its last
//! answers. A page with a question of its own asks within a limit, a few at a time. So no page
//! loads a database, and none waits for one that is away.
//!
//! Everything stands on `oncebox-operator`: pages show, and the API serialises, the values that the
//! commands print. A console changes nothing unless its settings allow actions, and can do nothing
//! that its database role cannot.

mod settings;
mod access;
mod problem;
mod fields;
mod history;
mod sampler;
mod fleet;
mod ask;
mod form;
mod order;
mod jobs;
mod html;
mod api;
mod view;
mod pages;
mod events;
mod sign_in;
mod routes;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper_util::service::TowerToHyperService;
use oncebox_connect::http;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub use self::{
    access::tokens::{Role, Token},
    settings::{Member, Proxy, Settings},
};
use self::{
    access::{guard::Peer, sessions::Sessions, tokens::Key},
    ask::Console,
    fleet::Fleet,
    jobs::Jobs,
};

/// Beside the streams of events there is room for requests.
const LIMITS: http::Limits =
    http::Limits { connections_max: events::STREAMS_MAX + 128, life: Duration::from_secs(300) };

/// Serves the console until `shutdown` resolves.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(
    settings: Settings,
    members: Vec<Member>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(settings.listen).await?;
    let address = listener.local_addr()?;
    let actions = settings.allows_actions;
    tracing::info!(address = %address, databases = members.len(), actions, "the console serves http://{address}/");
    let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
    let console = Arc::new(Console {
        fleet: Fleet::new(members, &mut tasks),
        settings: Settings { listen: address, ..settings },
        sessions: Sessions::default(),
        key: Key::new(),
        jobs: Jobs::default(),
        streams: Arc::new(Semaphore::new(events::STREAMS_MAX)),
        wrong_secrets: tokio::sync::Mutex::default(),
        shutdown: over.clone(),
    });
    let router = routes::router(console);
    let service = |peer| TowerToHyperService::new(of_peer(&router, peer));
    let serving = http::serve(listener, LIMITS, service, over.clone());
    tokio::pin!(serving, shutdown);
    tokio::select! {
        () = &mut shutdown => {}
        () = &mut serving => return Ok(()),
    }
    over.cancel();
    serving.await;
    Ok(())
}

fn of_peer(router: &Router, peer: SocketAddr) -> Router {
    router.clone().layer(Extension(Peer(peer.ip())))
}
