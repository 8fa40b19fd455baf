//! One request at a time per key, within this process.
//!
//! Without it ten thousand requests with one key would each take a connection only to learn that
//! the key is in flight. The first one goes on; the others wait here, without a connection, for its
//! result.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use oncebox_schema::Key;
use tokio::sync::watch;

use crate::stored_response::StoredResponse;

/// Whose key it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) scope: String,
    pub(crate) tenant: String,
    pub(crate) key: Key,
}

/// A committed response, and the request that it belongs to.
#[derive(Debug)]
pub(crate) struct CommittedResponse {
    pub(crate) fingerprint: Vec<u8>,
    /// `None` when the row holds no response of ours: nothing to replay, but nothing to run either.
    pub(crate) kept: Option<StoredResponse>,
}

/// The requests that wait for the first one see this: nothing yet, or the committed response.
type News = Option<Arc<CommittedResponse>>;

/// The keys that this process works on right now: as many as there are requests at most.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight {
    working: Mutex<HashMap<Arc<Name>, watch::Receiver<News>>>,
}

/// Who a request is among those with its key.
pub(crate) enum Entry {
    /// It goes on.
    Leader(Permit),
    /// It waits for the leader.
    Follower(Follower),
}

impl SingleFlight {
    pub(crate) fn enter(self: &Arc<Self>, name: &Arc<Name>) -> Entry {
        let mut working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(news) = working.get(name) {
            return Entry::Follower(Follower(news.clone()));
        }
        let (news, receiver) = watch::channel(None);
        working.insert(Arc::clone(name), receiver);
        Entry::Leader(Permit { single_flight: Arc::clone(self), name: Arc::clone(name), news })
    }
}

/// Held by the leader. Dropped without a response, it lets one of the followers lead.
#[derive(Debug)]
pub(crate) struct Permit {
    single_flight: Arc<SingleFlight>,
    name: Arc<Name>,
    /// The requests that wait have the receivers.
    news: watch::Sender<News>,
}

impl Permit {
    /// Gives the followers the committed response.
    pub(crate) fn publish(&self, found: Arc<CommittedResponse>) {
        self.news.send_replace(Some(found));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.single_flight.working.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

/// Waits for the leader's result.
pub(crate) struct Follower(watch::Receiver<News>);

impl Follower {
    /// The response that the leader found, or `None` when it gave the key up.
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

    fn found() -> Arc<CommittedResponse> {
        Arc::new(CommittedResponse { fingerprint: vec![1], kept: None })
    }

    #[tokio::test]
    async fn those_behind_see_what_the_first_found() {
        let single_flight = Arc::new(SingleFlight::default());
        let Entry::Leader(permit) = single_flight.enter(&name("a", "k")) else { panic!("nobody was there") };
        let Entry::Follower(mut follower) = single_flight.enter(&name("a", "k")) else {
            panic!("two are first")
        };
        assert!(matches!(single_flight.enter(&name("b", "k")), Entry::Leader(_)), "tenants do not meet");
        permit.publish(found());
        drop(permit);
        assert_eq!(follower.news().await.unwrap().fingerprint, [1]);
        assert!(matches!(single_flight.enter(&name("a", "k")), Entry::Leader(_)));
    }

    #[tokio::test]
    async fn when_the_first_gives_up_another_is_first() {
        let single_flight = Arc::new(SingleFlight::default());
        let Entry::Leader(permit) = single_flight.enter(&name("a", "k")) else { panic!("nobody was there") };
        let Entry::Follower(mut follower) = single_flight.enter(&name("a", "k")) else {
            panic!("two are first")
        };
        drop(permit);
        assert!(follower.news().await.is_none());
        assert!(matches!(single_flight.enter(&name("a", "k")), Entry::Leader(_)));
        assert!(single_flight.working.lock().unwrap().is_empty(), "nothing is left behind");
    }
}
