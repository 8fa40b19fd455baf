//! The answers of the servers, from which the rest of "why" draws its conclusions.

use std::collections::HashMap;

use super::copy::Stored;
use crate::{
    TracedMessage,
    pause_row::PauseRow,
    rows::from_row,
    status::{RecentSubject, Status},
};

/// The answers of one database, and of the streams that it fills.
pub(super) struct Look {
    pub(super) status: Status,
    pub(super) pauses: Vec<PauseRow>,
    /// Messages that others wait for, by their keys.
    pub(super) heads: HashMap<String, TracedMessage>,
    /// Where streams have messages, by lane and id.
    pub(super) stored: HashMap<(i16, i64), Stored>,
}

/// All that databases know about handlers, beside the traces.
#[derive(Default)]
pub(super) struct Inboxes {
    pub(super) running: Vec<Running>,
    pub(super) letters: Vec<Letter>,
}

/// A dead letter.
pub(super) struct Letter {
    pub(super) id: i64,
    pub(super) key: String,
    pub(super) scope: String,
    pub(super) tenant: String,
    pub(super) deliveries: i64,
    pub(super) reason: String,
    /// Its inbox knows its key by another message.
    pub(super) is_other: bool,
}

/// A session that runs a handler in a transaction.
pub(super) struct Running {
    pub(super) key: String,
    pub(super) scope: String,
    pub(super) pid: i32,
    pub(super) application_name: Option<String>,
    /// How long its transaction has been open, if the role may see it.
    pub(super) seconds: Option<f64>,
}

from_row!(Letter: id, key, scope, tenant, deliveries, reason, is_other);
from_row!(Running: key, scope, pid, application_name, seconds);

impl Look {
    /// The subject among those of recent messages, which have the sizes of messages.
    pub(super) fn subject(&self, subject: &str) -> RecentSubject {
        let known = self.status.subjects.iter().find(|recent| recent.subject == subject);
        known.cloned().unwrap_or(RecentSubject { subject: subject.to_owned(), messages: 1, bytes_max: 0 })
    }
}
