//! An edit among the orders: one message, its new payload and headers.

use std::fmt;

use oncebox_operator::{EDITABLE_BYTES_MAX, Edit, EditOf};

use super::{Order, Verb, is_chosen};
use crate::{fields::Fields, problem::Problem};

/// A new payload; no page of a job, and no log, shows it.
#[derive(Clone)]
pub(crate) struct Payload(pub(crate) String);

impl Payload {
    pub(super) fn new(text: &str) -> Result<Self, Problem> {
        match text.len() <= EDITABLE_BYTES_MAX {
            true => Ok(Self(text.to_owned())),
            false => Err(Problem::Bad(format!(
                "payload: more than {} KiB; the command takes a file",
                EDITABLE_BYTES_MAX / 1024
            ))),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The text as it was before a form has folded its line ends.
pub(crate) fn unfolded(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// The message that a form edits.
pub(crate) fn edit_of(fields: &Fields) -> Result<EditOf, Problem> {
    let of = match fields.get("kind") {
        Some("dead-letters") => fields.parsed("id")?.map(EditOf::Letter),
        _ => fields.text("key").map(EditOf::Message),
    };
    of.ok_or_else(|| Problem::Bad("a dead letter is edited by its id, a dead message by its key".to_owned()))
}

impl Verb {
    pub(crate) fn is_edit(self) -> bool {
        matches!(self, Self::EditDead | Self::EditLetter)
    }
}

impl Order {
    /// The message and its change; `None` for every other action.
    pub(crate) fn edit(&self) -> Result<Option<(EditOf, Edit)>, Problem> {
        if !self.verb.is_edit() {
            return Ok(None);
        }
        if self.fields.iter().filter(|(name, _)| is_chosen(name)).count() != 1 {
            return Err(Problem::Bad("messages are edited one at a time: name its id or key".to_owned()));
        }
        let kind = if self.verb == Verb::EditLetter { "dead-letters" } else { "dead" };
        let mut fields = Fields(self.fields.clone());
        fields.0.push(("kind".to_owned(), kind.to_owned()));
        let of = edit_of(&fields)?;
        let named = |name: &'static str| self.fields.iter().filter(move |(known, _)| known == name);
        let pair = |(_, text): &(String, String)| {
            let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            pair.ok_or_else(|| Problem::Bad(format!("header: {text:?} is not NAME=VALUE")))
        };
        let edit = Edit {
            payload: self.payload.as_ref().map(|payload| payload.0.clone().into_bytes()),
            headers: named("header").map(pair).collect::<Result<_, _>>()?,
            removed: named("remove-header").map(|(_, name)| name.clone()).collect(),
        };
        Ok(Some((of, edit)))
    }
}
