//! The data of a saga that a file leads: that of its start, and the replies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::pointer::Pointer;

/// Kept as text, so that no number loses a digit on its way from the database and back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) data: Box<RawValue>,
    #[serde(default)]
    pub(super) replies: BTreeMap<String, Box<RawValue>>,
    /// The replies of participants that said no: for operators, since no payload reads them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) refusals: BTreeMap<String, Box<RawValue>>,
}

impl Document {
    pub(super) fn find(&self, pointer: &Pointer) -> Option<&RawValue> {
        match pointer.0.as_slice() {
            [first, rest @ ..] if first == "data" => Pointer::find(rest, &self.data),
            [first, step, rest @ ..] if first == "replies" => Pointer::find(rest, self.replies.get(step)?),
            _ => None,
        }
    }
}
