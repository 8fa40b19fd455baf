//! One request at a time per key, within this process.
//!
//! Without it ten thousand requests with one key would each take a connection only to learn that the key is in flight. The
//! first one goes on; those behind it wait here, without a connection, for what it found.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use oncebox_schema::Key;
use tokio::sync::watch;

use crate::kept::Kept;

/// Whose key it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) scope: String,
    pub(crate) tenant: String,
    pub(crate) key: Key,
}

/// A committed response, and the request that it belongs to.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) fingerprint: Vec<u8>,
    /// `None` when the row holds no response of ours: nothing to replay, but nothing to run either.
    pub(crate) kept: Option<Kept>,
}

/// What those behind the first get to see: nothing yet, or the committed response.
type News = Option<Arc<Found>>;

/// The keys that this process works on right now: as many as there are requests at most.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    working: Mutex<HashMap<Arc<Name>, watch::Receiver<News>>>,
}

/// Who one is at a gate.
pub(crate) enum Arrival {
    First(Pass),
    Behind(Behind),
}

impl Gates {
    pub(crate) fn arrive(self: &Arc<Self>, name: &Arc<Name>) -> Arrival {
        let mut working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(news) = working.get(name) {
            return Arrival::Behind(Behind(news.clone()));
        }
        let (news, receiver) = watch::channel(None);
        working.insert(Arc::clone(name), receiver);
        Arrival::First(Pass { gates: Arc::clone(self), name: Arc::clone(name), news })
    }
}

/// Held by the first. Dropped without news, it lets one of those behind go first.
#[derive(Debug)]
pub(crate) struct Pass {
    gates: Arc<Gates>,
    name: Arc<Name>,
    /// The receivers are with those behind.
    news: watch::Sender<News>,
}

impl Pass {
    /// Tells those behind what is committed.
    pub(crate) fn tell(&self, found: Arc<Found>) {
        self.news.send_replace(Some(found));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gates.working.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

pub(crate) struct Behind(watch::Receiver<News>);

impl Behind {
    /// What the first found, or `None` when it gave the key up.
    pub(crate) async fn news(&mut self) -> News {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(tenant: &str, key: &str) -> Arc<Name> {
        let key = Key::root(key).unwrap();
        Arc::new(Name { scope: "s".to_owned(), tenant: tenant.to_owned(), key })
    }

    fn found() -> Arc<Found> {
        Arc::new(Found { fingerprint: vec![1], kept: None })
    }

    #[tokio::test]
    async fn those_behind_see_what_the_first_found() {
        let gates = Arc::new(Gates::default());
        let Arrival::First(pass) = gates.arrive(&name("a", "k")) else { panic!("nobody was there") };
        let Arrival::Behind(mut behind) = gates.arrive(&name("a", "k")) else { panic!("two are first") };
        assert!(matches!(gates.arrive(&name("b", "k")), Arrival::First(_)), "tenants do not meet");
        pass.tell(found());
        drop(pass);
        assert_eq!(behind.news().await.unwrap().fingerprint, [1]);
        assert!(matches!(gates.arrive(&name("a", "k")), Arrival::First(_)));
    }

    #[tokio::test]
    async fn when_the_first_gives_up_another_is_first() {
        let gates = Arc::new(Gates::default());
        let Arrival::First(pass) = gates.arrive(&name("a", "k")) else { panic!("nobody was there") };
        let Arrival::Behind(mut behind) = gates.arrive(&name("a", "k")) else { panic!("two are first") };
        drop(pass);
        assert!(behind.news().await.is_none());
        assert!(matches!(gates.arrive(&name("a", "k")), Arrival::First(_)));
        assert!(gates.working.lock().unwrap().is_empty(), "nothing is left behind");
    }
}
