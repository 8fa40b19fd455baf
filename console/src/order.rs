//! The actions of operators: reading them from a form or a document, counting the things that they
//! would change, doing them. The words are those of the command line.

mod edit;
mod run;
mod verb;

use oncebox_operator::{
    DeadLetterSelection, DelayedSelection, FailingId, FailingSelection, ParkedSelection, SagaSelection,
    Shown, SubjectPattern,
};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::{
    edit::{Payload, edit_of, unfolded},
    run::Counted,
    verb::Verb,
};
use crate::{fields::Fields, problem::Problem};

/// The most rows that are chosen one by one: a page has no more.
pub(crate) const CHOSEN_MAX: usize = 100;
pub(crate) const NOTE_BYTES_MAX: usize = 1_000;

/// Something to do in one database.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    /// The selection: names of options and their values. A key may be given several times.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) note: Option<String>,
    /// Limit of changes a second.
    pub(crate) rate: Option<f64>,
    /// The rows that were shown, which alone are meant.
    #[serde(skip)]
    pub(crate) shown: Option<Shown>,
    /// Of an edit: the new payload.
    #[serde(skip)]
    pub(crate) payload: Option<Payload>,
}

impl Order {
    /// Reads it from the fields of an address, a form or a document.
    pub(crate) fn parse(fields: &Fields) -> Result<Self, Problem> {
        let [kind, action] = ["kind", "action"].map(|name| fields.get(name).unwrap_or_default());
        let verb = Verb::of(kind, action)
            .ok_or_else(|| Problem::Bad(format!("there is no action {action:?} on {kind:?}")))?;
        let (mut selected, mut is_all, mut payload) = (Vec::new(), false, None);
        for (name, value) in fields.given() {
            match name.as_str() {
                "kind" | "action" | "token" | "note" | "rate" | "shown" | "word" => {}
                "payload" if verb.is_edit() => payload = Some(Payload::new(value)?),
                "all" => {
                    is_all = match value.as_str() {
                        "1" | "true" => true,
                        "0" | "false" => false,
                        _ => return Err(Problem::Bad(format!("all: {value:?} is neither true nor false"))),
                    }
                }
                name if verb.takes(name) && Fields::is_exact(name) => {
                    selected.push((name.to_owned(), value.clone()));
                }
                name if verb.takes(name) => selected.push((name.to_owned(), value.trim().to_owned())),
                name => return Err(Problem::Bad(format!("{name}: {} takes no such field", verb.words()))),
            }
        }
        // The rest of a pause says how, not which.
        let selects = selected.iter().any(|(name, _)| verb.selects(name));
        if is_all == selects {
            let problem = if is_all {
                "all, or a selection, not both"
            } else {
                "nothing is selected: name a key, a subject or another part; for all of them choose all (`all=1`)"
            };
            return Err(Problem::Bad(problem.to_owned()));
        }
        if selected.iter().filter(|(name, _)| is_chosen(name)).count() > CHOSEN_MAX {
            return Err(Problem::Bad(format!("more than {CHOSEN_MAX} rows are chosen")));
        }
        let note = fields.text("note");
        if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(Problem::Bad(format!("the note has more than {NOTE_BYTES_MAX} bytes")));
        }
        let rate = fields.parsed::<f64>("rate")?;
        if rate.is_some_and(|rate| !(0.001..=1e6).contains(&rate)) {
            return Err(Problem::Bad("the rate is not a number of messages a second".to_owned()));
        }
        if rate.is_some() && !verb.has_rate() {
            return Err(Problem::Bad(format!("rate: {} takes no such field", verb.words())));
        }
        if rate.is_some() && selected.iter().any(|(name, _)| name == CANARY) {
            return Err(Problem::Bad("rate: a canary goes at its own pace".to_owned()));
        }
        let shown = fields.parsed::<Shown>("shown")?;
        let order = Self { verb, fields: selected, note, rate, shown, payload };
        order.edit()?;
        // The patterns and numbers of a selection are checked before anything is done.
        order.parts().iter().try_for_each(|part| part.check(verb))?;
        Ok(order)
    }

    /// Whether the rows are retried by a canary.
    pub(crate) fn is_canary(&self) -> bool {
        self.fields.iter().any(|(name, _)| name == CANARY)
    }

    /// One order for each row that is chosen; else one for the whole selection.
    fn parts(&self) -> Vec<Part> {
        let (chosen, rest): (Vec<_>, Vec<_>) =
            self.fields.iter().cloned().partition(|(name, _)| is_chosen(name));
        match chosen.len() {
            0 => vec![Part(Fields(rest))],
            _ => chosen.into_iter().map(|one| Part(Fields([vec![one], rest.clone()].concat()))).collect(),
        }
    }

    /// The fields of a form, or of an address, that asks for the same.
    pub(crate) fn hidden(&self) -> Vec<(String, String)> {
        let [kind, action] = self.verb.names();
        let mut all = vec![("kind".to_owned(), kind.to_owned()), ("action".to_owned(), action.to_owned())];
        all.extend(self.fields.clone());
        if !self.fields.iter().any(|(name, _)| self.verb.selects(name)) {
            all.push(("all".to_owned(), "1".to_owned()));
        }
        all
    }

    /// The commands that do the same; one alone confirms the rows that are shown.
    pub(crate) fn commands(&self, by: &str, database: &str, shown: Option<&str>) -> Vec<Vec<String>> {
        // An undo means its rows anyway.
        let shown = shown.filter(|_| self.parts().len() == 1 && !self.verb.takes_id_alone());
        let command = |part: &Part| {
            let mut words: Vec<String> = self.verb.command().split(' ').map(str::to_owned).collect();
            for (name, value) in &part.0.0 {
                words.extend(
                    Some(format!("--{name}")).filter(|_| !self.verb.takes_id_alone() || !is_chosen(name)),
                );
                // The others have a value.
                words.extend(Some(value.clone()).filter(|_| ![CANARY, "unseen"].contains(&name.as_str())));
            }
            if self.payload.is_some() {
                words.extend(["--payload".to_owned(), "FILE".to_owned()]);
            }
            if !part.0.0.iter().any(|(name, _)| self.verb.selects(name)) {
                words.push("--all".to_owned());
            }
            words.extend(shown.iter().flat_map(|token| ["--confirm".to_owned(), (*token).to_owned()]));
            words.extend(self.rate.iter().flat_map(|rate| ["--rate".to_owned(), rate.to_string()]));
            words.extend(["--database".to_owned(), database.to_owned(), "--by".to_owned(), by.to_owned()]);
            words.extend(self.note.iter().flat_map(|note| ["--note".to_owned(), note.clone()]));
            words
        };
        self.parts().iter().map(command).collect()
    }
}

/// The field that has rows retried by a canary.
pub(crate) const CANARY: &str = "canary";

/// Whether a field means one row, and may be given several times.
pub(crate) fn is_chosen(name: &str) -> bool {
    ["key", "id"].contains(&name)
}

/// A selection, in the types of the operator's library.
struct Part(Fields);

impl Part {
    fn check(&self, verb: Verb) -> Result<(), Problem> {
        self.subject()?;
        self.moment("since").and(self.moment("until"))?;
        match verb {
            Verb::RetryFailing | Verb::BuryFailing => self.0.parsed::<FailingId>("id").map(drop),
            _ => self.0.parsed::<i64>("id").map(drop),
        }
    }

    fn subject(&self) -> Result<Option<SubjectPattern>, Problem> {
        subject(&self.0)
    }

    fn letters(&self) -> Result<DeadLetterSelection, Problem> {
        letters(&self.0)
    }
}

/// The pattern of subjects among some fields.
pub(crate) fn subject(fields: &Fields) -> Result<Option<SubjectPattern>, Problem> {
    fields.get("subject").map(|text| text.parse().map_err(Problem::Bad)).transpose()
}

pub(crate) fn messages(fields: &Fields) -> Result<ParkedSelection, Problem> {
    Ok(ParkedSelection {
        id: fields.parsed("id")?,
        reason_is: fields.exact("reason-is"),
        subject_is: fields.exact("subject-is"),
        key: fields.text("key"),
        subject: subject(fields)?,
        reason: fields.text("reason"),
        ordering_key: fields.text("ordering-key"),
        request: fields.text("request"),
        after: 0,
    })
}

pub(crate) fn letters(fields: &Fields) -> Result<DeadLetterSelection, Problem> {
    Ok(DeadLetterSelection {
        id: fields.parsed("id")?,
        reason_is: fields.exact("reason-is"),
        subject_is: fields.exact("subject-is"),
        key: fields.text("key"),
        scope: fields.text("scope"),
        subject: subject(fields)?,
        reason: fields.text("reason"),
        ..DeadLetterSelection::default()
    })
}

pub(crate) fn failing(fields: &Fields) -> Result<FailingSelection, Problem> {
    Ok(FailingSelection {
        id: fields.parsed("id")?,
        reason_is: fields.exact("reason-is"),
        subject_is: fields.exact("subject-is"),
        key: fields.text("key"),
        scope: fields.text("scope"),
        subject: subject(fields)?,
        reason: fields.text("reason"),
        after: Default::default(),
    })
}

pub(crate) fn delayed(fields: &Fields) -> Result<DelayedSelection, Problem> {
    Ok(DelayedSelection {
        key: fields.text("key"),
        subject: subject(fields)?,
        ordering_key: fields.text("ordering-key"),
        after: None,
    })
}

pub(crate) fn sagas(fields: &Fields) -> SagaSelection {
    SagaSelection {
        key: fields.text("key"),
        saga_type: fields.text("type"),
        state: fields.text("state"),
        ..SagaSelection::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: Result<usize, &str>) {
        match (Order::parse(&Fields::parse(query)), expected) {
            (Ok(order), Ok(parts)) => assert_eq!(order.parts().len(), parts, "{query}"),
            (Err(problem), Err(part)) => {
                assert!(problem.text().contains(part), "{query}: {}", problem.text())
            }
            (found, _) => panic!("{query}: {found:?}"),
        }
    }

    #[test]
    fn an_order_selects_some_or_says_that_it_means_all() {
        check("kind=dead&action=retry&all=1", Ok(1));
        check("kind=dead&action=retry&key=a&key=b&note=INC-7&rate=5", Ok(2));
        check("kind=dead&action=retry&reason=no+stream&subject=a.*", Ok(1));
        check("kind=pauses&action=pause&subject=a.>&for=2h", Ok(1));
        check("kind=pauses&action=pause&for=2h", Err("nothing is selected"));
        check("kind=dead&action=retry", Err("nothing is selected"));
        check("kind=dead&action=retry&all=true", Ok(1));
        check("kind=dead&action=retry&all=false", Err("nothing is selected"));
        check("kind=dead&action=retry&all=no", Err("neither true nor false"));
        check("kind=dead&action=retry&reason=", Err("nothing is selected"));
        check("kind=dead&action=retry&all=1&key=a", Err("not both"));
        check("kind=dead&action=retry&scope=a", Err("takes no such field"));
        check("kind=dead&action=bury&all=1", Err("there is no action"));
        check("kind=dead&action=retry&subject=a..b", Err("empty token"));
        check("kind=dead-letters&action=retry&id=x", Err("id:"));
        check("kind=dead&action=retry&all=1&rate=0", Err("rate"));
        check("kind=dead&action=retry&canary=1", Err("nothing is selected"));
        check("kind=dead&action=retry&all=1&canary=1&rate=5", Err("its own pace"));
        check("kind=dead&action=discard&all=1&canary=1", Err("takes no such field"));
        check("kind=canaries&action=stop&id=7", Ok(1));
        check("kind=dead-letters&action=edit&id=7&payload={}&header=a=b&header=c=d&remove-header=e", Ok(1));
        check("kind=dead-letters&action=edit&id=7&id=8&payload={}", Err("one at a time"));
        check("kind=dead&action=edit&all=1&payload={}", Err("one at a time"));
        check("kind=dead&action=edit&key=k&header=a", Err("NAME=VALUE"));
        check("kind=dead&action=edit&key=k&rate=5", Err("rate"));
        let many = "&id=7".repeat(101);
        check(&format!("kind=dead&action=retry{many}"), Err("more than 100 rows"));
        check("kind=dead&action=retry&id=7&id=8", Ok(2));
        check("kind=failing&action=bury&id=[\"s\",\"\",\"k\"]", Ok(1));
        check("kind=failing&action=bury&id=7", Err("id:"));
        check("kind=replays&action=replay&since=24h&until=2030-01-31T08:00:00Z", Ok(1));
        check("kind=replays&action=replay&until=yesterday", Err("until:"));
        // A group without a reason is one, too.
        check("kind=dead-letters&action=discard&reason-is=", Ok(1));
        check("kind=dead&action=retry&id=7&shown=x", Err("shown:"));
        check("kind=sagas&action=abandon&all=1&rate=5", Err("takes no such field"));
        check("kind=pauses&action=pause&all=1&rate=5", Err("takes no such field"));
    }
}
