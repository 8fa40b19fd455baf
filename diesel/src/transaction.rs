//! The transaction that a handler gets.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use diesel_async::{AsyncPgConnection, pooled_connection::deadpool::Object};

const OPEN: &str = "the connection is taken by finish and drop only";

/// An open transaction on a connection of the pool. It can be used like the connection: statements
/// run on [`Context::transaction`](oncebox_inbox::Context::transaction). If it is dropped
/// before it has ended, the connection is closed, so that PostgreSQL rolls back at once.
pub struct Transaction(Option<Object<AsyncPgConnection>>);

impl Transaction {
    pub(crate) fn new(object: Object<AsyncPgConnection>) -> Self {
        Self(Some(object))
    }

    /// The transaction has ended: the connection goes back to the pool.
    #[doc(hidden)]
    pub fn finish(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Transaction {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.0.as_ref().expect(OPEN)
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.0.as_mut().expect(OPEN)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The pool takes every connection back, and checks it only when it is used again: until
        // then the transaction would stay open and keep the lock on the key.
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}
