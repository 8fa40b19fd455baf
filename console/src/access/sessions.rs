//! The sessions of people who have signed in: a bounded number, each for a bounded time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::tokens::Role;

/// Sessions at a time; one more takes the place of the oldest.
const SESSIONS_MAX: usize = 1_000;
const LIFE: Duration = Duration::from_secs(12 * 60 * 60);

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The source of a form's token: the session, or how the person is known without one.
    pub(crate) proof: String,
}

struct Session {
    name: String,
    role: Role,
    began: Instant,
}

/// All sessions, by their ids.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    /// The id of a new session: 244 random bits.
    pub(crate) fn begin(&self, name: &str, role: Role) -> String {
        let id = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.began.elapsed() < LIFE);
        let oldest = sessions.iter().min_by_key(|(_, session)| session.began).map(|(id, _)| id.clone());
        if let Some(oldest) = oldest.filter(|_| sessions.len() >= SESSIONS_MAX) {
            sessions.remove(&oldest);
        }
        sessions.insert(id.clone(), Session { name: name.to_owned(), role, began: Instant::now() });
        id
    }

    pub(crate) fn find(&self, id: &str) -> Option<User> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(id).filter(|session| session.began.elapsed() < LIFE)?;
        Some(User { name: session.name.clone(), role: session.role, proof: id.to_owned() })
    }

    pub(crate) fn end(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sessions_end_and_their_number_is_bounded() {
        let sessions = Sessions::default();
        let first = sessions.begin("mina", Role::Operator);
        assert_eq!(
            sessions.find(&first).map(|user| (user.name, user.role)),
            Some(("mina".into(), Role::Operator))
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = sessions.begin("rob", Role::Reader);
        sessions.end(&second);
        assert_eq!(sessions.find(&second), None);
        for _ in 0..SESSIONS_MAX {
            sessions.begin("rob", Role::Reader);
        }
        assert_eq!(sessions.find(&first), None, "the oldest gave way");
        let last = sessions.begin("mina", Role::Operator);
        tokio::time::advance(LIFE).await;
        assert_eq!(sessions.find(&last), None);
    }
}
