//! An order: an action, and which things it is about, as names of fields and their values.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{catalogue::Verb, kind::Kind};
use crate::{
    CANARY_WITHIN,
    edit::{EDITABLE_BYTES_MAX, Edit, EditOf},
    selection::Selection,
    shown::Shown,
};

/// The most rows that are chosen one by one.
pub const CHOSEN_MAX: usize = 100;
/// The most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 1_000;

/// Something to do in one database.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Order {
    /// Which action.
    pub verb: Verb,
    /// The selection: names of options and their values. A key may be given several times.
    pub fields: Vec<(String, String)>,
    /// Why, for the audit.
    pub note: Option<String>,
    /// Limit of changes a second.
    pub rate: Option<f64>,
    /// The rows that were shown, which alone are meant.
    #[serde(skip)]
    pub shown: Option<Shown>,
    /// The most things that it changes.
    #[serde(skip)]
    pub limit: Option<u64>,
    /// Of a canary: how long a row may be without a verdict.
    #[serde(skip)]
    pub canary: Option<Duration>,
    /// Of an edit: the new payload.
    #[serde(skip)]
    pub payload: Option<Payload>,
    /// The name under which a replay is asked for, unless it has one.
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    selections: Vec<Selection>,
}

/// A new payload; no page of a job, and no log, shows it.
#[derive(Clone)]
#[expect(clippy::exhaustive_structs, reason = "it is its bytes")]
pub struct Payload(pub Vec<u8>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Whether a field means one row, and may be given several times.
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    ["id", "key"].contains(&name)
}

impl Order {
    /// Reads an order from the names of fields and their values. All things of a kind are meant
    /// only where the caller says so.
    ///
    /// # Errors
    /// The name of a field, and why its value, or the selection, is wrong. Nothing has to be asked
    /// for that.
    pub fn new(verb: Verb, is_all: bool, fields: Vec<(String, String)>) -> Result<Self, String> {
        if let Some((name, _)) = fields.iter().find(|(name, _)| !verb.takes(name)) {
            return Err(format!("{name}: {} takes no such field", verb.command));
        }
        let (mut payloads, fields): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(name, _)| name == "payload");
        let mut order = Self {
            verb,
            canary: fields.iter().any(|(name, _)| name == "canary").then_some(CANARY_WITHIN),
            payload: payloads.pop().map(|(_, text)| payload(text)).transpose()?,
            fields,
            note: None,
            rate: None,
            shown: None,
            limit: None,
            name: format!(
                "replay-{}-{}",
                humantime::format_rfc3339_nanos(SystemTime::now()),
                std::process::id()
            ),
            selections: Vec::new(),
        };
        order.edit()?;
        // The rest, such as that of a pause, says how, not which.
        match (is_all, order.selects()) {
            (true, true) => return Err("all, or a selection, not both".to_owned()),
            (false, false) => {
                return Err("nothing is selected: name a key, a subject or another part; for all of \
                            them choose all (`all=1`)"
                    .to_owned());
            }
            (true, false) if verb.takes_id_alone() || verb.kind == Kind::Losses => {
                return Err(format!("{}: which one?", verb.selectors()[0].name));
            }
            _ => {}
        }
        let parts = order.parts();
        if parts.len() > CHOSEN_MAX {
            return Err(format!("more than {CHOSEN_MAX} rows are chosen"));
        }
        order.selections = parts.iter().map(|part| selection(verb, part)).collect::<Result<_, _>>()?;
        Ok(order)
    }

    /// Whether it says which things are meant.
    #[must_use]
    pub fn selects(&self) -> bool {
        self.fields.iter().any(|(name, _)| self.verb.selects(name))
    }

    /// The fields of one selection for each row that is chosen; else of the whole one.
    #[must_use]
    pub fn parts(&self) -> Vec<Vec<(String, String)>> {
        let (chosen, rest): (Vec<_>, Vec<_>) =
            self.fields.iter().cloned().partition(|(name, _)| is_chosen(name));
        let mut parts = vec![rest];
        for name in ["key", "id"] {
            let values: Vec<_> = chosen.iter().filter(|(known, _)| known == name).collect();
            if !values.is_empty() && parts.len() <= CHOSEN_MAX {
                let with = |part: &Vec<_>| {
                    let part = part.clone();
                    values
                        .iter()
                        .map(move |one| [vec![(*one).clone()], part.clone()].concat())
                        .collect::<Vec<_>>()
                };
                parts = parts.iter().flat_map(with).collect();
            }
        }
        parts
    }

    /// The selections, with times instead of spans before `now`.
    pub(super) fn selections(&self, now: SystemTime) -> Vec<Selection> {
        let mut all: Vec<Selection> = self.selections.iter().map(|of| of.at(now)).collect();
        if self.verb == Verb::Replay {
            all.iter_mut().for_each(|of| of.request = Some(self.request()));
        }
        all
    }

    /// The name of a replay's request. Shown rows are replayed once: a row that was asked for under
    /// the name of their token is left out a second time.
    #[must_use]
    pub fn request(&self) -> String {
        let given = self.selections.first().and_then(|of| of.request.clone());
        let confirmed = || self.shown.map(|token| format!("confirm {token}"));
        given.or_else(confirmed).unwrap_or_else(|| self.name.clone())
    }

    /// The message that is edited, and its change; `None` for every other action.
    ///
    /// # Errors
    /// It is not one message, or not a change of one.
    pub fn edit(&self) -> Result<Option<(EditOf, Edit)>, String> {
        if !self.verb.is_edit() {
            return Ok(None);
        }
        let named = |name: &'static str| self.fields.iter().filter(move |(known, _)| known == name);
        let chosen = self.fields.iter().filter(|(name, _)| is_chosen(name)).collect::<Vec<_>>();
        let [(name, which)] = chosen[..] else {
            return Err("messages are edited one at a time: name its id or key".to_owned());
        };
        let of = match self.verb {
            Verb::EditLetter => {
                EditOf::Letter(which.parse().map_err(|_| format!("{name}: {which:?} is none"))?)
            }
            _ => EditOf::Message(which.clone()),
        };
        let pair = |(_, text): &(String, String)| {
            let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            pair.ok_or_else(|| format!("header: {text:?} is not NAME=VALUE"))
        };
        let edit = Edit {
            payload: self.payload.as_ref().map(|payload| payload.0.clone()),
            headers: named("header").map(pair).collect::<Result<_, _>>()?,
            removed: named("remove-header").map(|(_, name)| name.clone()).collect(),
        };
        Ok(Some((of, edit)))
    }
}

fn payload(text: String) -> Result<Payload, String> {
    match text.len() <= EDITABLE_BYTES_MAX {
        true => Ok(Payload(text.into_bytes())),
        false => {
            Err(format!("payload: more than {} KiB; the command takes a file", EDITABLE_BYTES_MAX / 1024))
        }
    }
}

fn selection(verb: Verb, part: &[(String, String)]) -> Result<Selection, String> {
    let mut selection = Selection::of(verb.kind);
    for (place, (name, value)) in part.iter().enumerate() {
        if !name.ends_with("header") && part[..place].iter().any(|(other, _)| other == name) {
            return Err(format!("{name}: given twice"));
        }
        selection.set(name, value).map_err(|problem| format!("{name}: {problem}"))?;
    }
    match verb {
        Verb::SkipStep if selection.step.is_none() => Err("step: which one?".to_owned()),
        _ => Ok(selection),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    fn check(kind: &str, word: &str, fields: &[(&str, &str)], expected: Result<usize, &str>) {
        let verb = Action::named(kind, word).expect("an action");
        let (all, fields): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == "all");
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match (Order::new(verb, !all.is_empty(), fields.collect()), expected) {
            (Ok(order), Ok(parts)) => assert_eq!(order.selections.len(), parts, "{order:?}"),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
            (found, _) => panic!("{kind} {word}: {found:?}"),
        }
    }

    #[test]
    fn an_order_selects_some_or_says_that_it_means_all() {
        let all = ("all", "1");
        check("dead", "retry", &[all], Ok(1));
        check("dead", "retry", &[("key", "a"), ("key", "b")], Ok(2));
        check("dead", "retry", &[("id", "7"), ("id", "8"), ("reason", "no stream")], Ok(2));
        // Both have to match.
        check("dead", "retry", &[("id", "7"), ("key", "a")], Ok(1));
        check("dead", "retry", &[], Err("nothing is selected"));
        check("dead", "retry", &[("canary", "1")], Err("nothing is selected"));
        check("dead", "discard", &[("reason", "")], Err("empty text"));
        check("dead", "retry", &[all, ("key", "a")], Err("not both"));
        check("dead", "retry", &[("scope", "a")], Err("takes no such field"));
        check("dead", "retry", &[("subject", "a..b")], Err("empty token"));
        check("dead", "retry", &[("subject", "a"), ("subject", "b")], Err("given twice"));
        check("dead", "retry", &[("id", "7"); 101], Err("more than 100 rows"));
        check("dead", "discard", &[all, ("canary", "1")], Err("takes no such field"));
        check("dead", "edit", &[all, ("payload", "{}")], Err("one at a time"));
        check("dead", "edit", &[("key", "k"), ("header", "a")], Err("NAME=VALUE"));
        check("dead-letters", "retry", &[("id", "x")], Err("id:"));
        check("dead-letters", "retry", &[("no-key", "0")], Err("no-key:"));
        // A group without a reason is one, too.
        check("dead-letters", "discard", &[("reason-is", "")], Ok(1));
        let edit =
            [("id", "7"), ("payload", "{}"), ("header", "a=b"), ("header", "c=d"), ("remove-header", "e")];
        check("dead-letters", "edit", &edit, Ok(1));
        check("dead-letters", "edit", &[("id", "7"), ("id", "8")], Err("one at a time"));
        check("failing", "bury", &[("id", "[\"s\",\"\",\"k\"]")], Ok(1));
        check("failing", "bury", &[("id", "7")], Err("id:"));
        check("pauses", "pause", &[("subject", "a.>"), ("for", "2h")], Ok(1));
        check("pauses", "pause", &[("for", "2h")], Err("nothing is selected"));
        check("canaries", "stop", &[("id", "7")], Ok(1));
        check("canaries", "stop", &[all], Err("which one"));
        check("losses", "resend", &[all], Err("which one"));
        check("sagas", "skip", &[all], Err("step: which one"));
        check("replays", "replay", &[("since", "24h"), ("until", "2030-01-31T08:00:00Z")], Ok(1));
        check("replays", "replay", &[("until", "yesterday")], Err("until:"));
    }
}
