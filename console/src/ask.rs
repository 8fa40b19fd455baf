//! A request of somebody, and the console that it is to.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{
        sessions::{Sessions, User},
        tokens::{Key, Role},
    },
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
    pub(crate) shutdown: CancellationToken,
}

/// The fields of an address, or of a form; each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

/// A request.
pub(crate) struct Ask {
    pub(crate) console: Arc<Console>,
    pub(crate) user: User,
    /// The address, for links back to it.
    pub(crate) path: String,
    pub(crate) query: Fields,
    params: Vec<(String, String)>,
}

impl Fields {
    pub(crate) fn parse(text: &str) -> Self {
        let decoded = |part: &str| {
            let part = part.replace('+', " ");
            percent_decode_str(&part).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Self(pairs.collect())
    }

    /// A field that is given and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// A field of another type, if it is given.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let text = self.get(name);
        let wrong = |text: &str| Problem::Bad(format!("{name}: {text:?} is none"));
        text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    /// The address with these fields.
    pub(crate) fn link(path: &str, fields: &[(&str, &str)]) -> String {
        let given = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// A text as part of an address.
pub(crate) fn encoded(text: &str) -> String {
    const RESERVED: AsciiSet = CONTROLS
        .add(b' ')
        .add(b'"')
        .add(b'#')
        .add(b'%')
        .add(b'&')
        .add(b'\'')
        .add(b'+')
        .add(b'/')
        .add(b'<')
        .add(b'=')
        .add(b'>')
        .add(b'?')
        .add(b'\\');
    utf8_percent_encode(text, &RESERVED).to_string()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_there_and_back() {
        for text in ["a b", "a+b&c=d", "order:1%3A2#x?y/z\\", "é<\"'>", ".."] {
            let link = Fields::link("/key", &[("key", text), ("empty", "")]);
            let query = link.split_once('?').unwrap().1;
            assert_eq!(Fields::parse(query).get("key"), Some(text), "{link}");
            assert_eq!(Fields::parse(query).0.len(), 1);
        }
        let fields = Fields::parse("a=1&b=&c&a=2&n=x");
        assert_eq!((fields.get("a"), fields.get("b"), fields.get("c")), (Some("1"), None, None));
        assert!(fields.parsed::<i64>("n").is_err());
        assert_eq!(fields.parsed::<i64>("a"), Ok(Some(1)));
    }
}
