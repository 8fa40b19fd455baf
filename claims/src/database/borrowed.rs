//! A connection of the pool in the hands of somebody who may be cut short.

use deadpool_postgres::Object;

use super::discard;

/// A connection that is closed unless it is known to be idle: whoever drops a transaction midway
/// may leave a statement behind that still runs.
#[derive(Debug)]
pub struct Borrowed(Option<Object>);

impl Borrowed {
    /// Holds this connection.
    #[must_use]
    pub fn new(object: Object) -> Self {
        Self(Some(object))
    }

    /// The connection.
    ///
    /// # Panics
    /// Never.
    pub fn object(&mut self) -> &mut Object {
        self.0.as_mut().expect("it is taken by give_back and drop only")
    }

    /// Back to the pool.
    pub fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            discard(object);
        }
    }
}
