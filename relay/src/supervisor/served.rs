//! Which databases the relays of this process serve: two names in a file may mean the same one, and
//! its messages would go to either's NATS by chance.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::relay::Place;

/// The databases that are served, with their names. Clones share the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(Arc<Mutex<HashMap<Place, String>>>);

/// While it lives, nobody else serves this database.
#[derive(Debug)]
pub(super) struct Serving {
    served: Served,
    place: Place,
}

impl Served {
    /// Begins to serve a database under a name.
    ///
    /// # Errors
    /// It is served already; the text names both names.
    pub(super) fn enter(&self, place: Place, name: &str) -> Result<Serving, String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = all.get(&place) {
            return Err(format!(
                "{name} is the same database as {other}, with the same schema: its messages would go to the NATS of one or \
                 the other; take one of the two out of the configuration file"
            ));
        }
        all.insert(place.clone(), name.to_owned());
        Ok(Serving { served: self.clone(), place })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.served.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place);
    }
}
