//! A user's request, and the console that it is to.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{
        sessions::{Sessions, User},
        tokens::{Key, Role},
    },
    fields::Fields,
    fleet::{Database, Fleet},
    jobs::Jobs,
    problem::Problem,
    settings::Settings,
};

/// Everything that requests share.
pub(crate) struct Console {
    pub(crate) settings: Settings,
    pub(crate) fleet: Fleet,
    pub(crate) sessions: Sessions,
    pub(crate) key: Key,
    pub(crate) jobs: Jobs,
    /// The streams of events that may be open.
    pub(crate) streams: Arc<Semaphore>,
    /// The number of wrong secrets; the lock is held while one is refused.
    pub(crate) wrong_secrets: tokio::sync::Mutex<u64>,
    pub(crate) shutdown: CancellationToken,
}

/// A request.
pub(crate) struct Ask {
    pub(crate) console: Arc<Console>,
    pub(crate) user: User,
    /// The address, for links back to it.
    pub(crate) path: String,
    pub(crate) query: Fields,
    params: Vec<(String, String)>,
}

impl Ask {
    /// The database that the address names.
    pub(crate) fn database(&self) -> Result<&Database, Problem> {
        self.console.fleet.find(self.param("name"))
    }

    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }

    /// Whether this person may act here.
    pub(crate) fn may_act(&self) -> bool {
        self.console.settings.allows_actions && self.user.role == Role::Operator
    }

    /// The token that this person's forms carry.
    pub(crate) fn form_token(&self) -> String {
        self.console.key.sign(&format!("form {}", self.user.proof))
    }
}

impl FromRequestParts<Arc<Console>> for Ask {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<Console>) -> Result<Self, Self::Rejection> {
        let params = RawPathParams::from_request_parts(parts, console).await;
        let params = params.iter().flatten().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let user = parts.extensions.get::<User>().cloned();
        Ok(Self {
            console: Arc::clone(console),
            user: user.expect("the guard lets nobody through whom it does not know"),
            path: parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            query: Fields::parse(parts.uri.query().unwrap_or_default()),
            params: params.collect(),
        })
    }
}
