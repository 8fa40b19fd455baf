//! The actions of operators: reading them from a form or a document, counting the things that they
//! would change, doing them. The words are those of the command line.

mod run;
mod verb;

use oncebox_operator::{
    DeadLetterSelection, DelayedSelection, FailingSelection, ParkedSelection, SagaSelection, SubjectPattern,
};
use serde::Serialize;

pub(crate) use self::verb::Verb;
use crate::{fields::Fields, problem::Problem};

/// Keys that are chosen one by one, at most: a page has no more.
const KEYS_MAX: usize = 100;
const NOTE_BYTES_MAX: usize = 1_000;

/// Something to do in one database.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    /// The selection: names of options and their values. A key may be given several times.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) note: Option<String>,
    /// So many a second at most.
    pub(crate) rate: Option<f64>,
}

impl Order {
    /// Reads it from the fields of an address, a form or a document.
    pub(crate) fn parse(fields: &Fields) -> Result<Self, Problem> {
        let [kind, action] = ["kind", "action"].map(|name| fields.get(name).unwrap_or_default());
        let verb = Verb::of(kind, action)
            .ok_or_else(|| Problem::Bad(format!("there is no action {action:?} on {kind:?}")))?;
        let (mut selected, mut is_all) = (Vec::new(), false);
        for (name, value) in fields.0.iter().filter(|(_, value)| !value.trim().is_empty()) {
            match name.as_str() {
                "kind" | "action" | "token" | "note" | "rate" | "confirm" => {}
                "all" => is_all = true,
                name if verb.takes(name) => selected.push((name.to_owned(), value.trim().to_owned())),
                name => return Err(Problem::Bad(format!("{name}: {} takes no such field", verb.words()))),
            }
        }
        // The rest of a pause says how, not which.
        let selects = selected.iter().any(|(name, _)| verb.selects(name));
        if is_all == selects {
            let problem =
                if is_all { "all, or a selection, not both" } else { "nothing is selected; all is `all=1`" };
            return Err(Problem::Bad(problem.to_owned()));
        }
        if selected.iter().filter(|(name, _)| name == "key").count() > KEYS_MAX {
            return Err(Problem::Bad(format!("more than {KEYS_MAX} keys")));
        }
        let note = fields.text("note");
        if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(Problem::Bad(format!("the note has more than {NOTE_BYTES_MAX} bytes")));
        }
        let rate = fields.parsed::<f64>("rate")?;
        if rate.is_some_and(|rate| !(0.001..=1e6).contains(&rate)) {
            return Err(Problem::Bad("the rate is not a number of messages a second".to_owned()));
        }
        let order = Self { verb, fields: selected, note, rate };
        // The patterns and numbers of a selection are checked before anything is done.
        order.parts().iter().try_for_each(|part| part.check())?;
        Ok(order)
    }

    /// One order for each key that is chosen; else one for the whole selection.
    fn parts(&self) -> Vec<Part> {
        let (keys, rest): (Vec<_>, Vec<_>) = self.fields.iter().cloned().partition(|(name, _)| name == "key");
        match keys.len() {
            0 => vec![Part(Fields(rest))],
            _ => keys.into_iter().map(|key| Part(Fields([vec![key], rest.clone()].concat()))).collect(),
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

    /// The commands that do the same.
    pub(crate) fn commands(&self, by: &str, database: &str) -> Vec<Vec<String>> {
        let command = |part: &Part| {
            let mut words: Vec<String> = self.verb.command().split(' ').map(str::to_owned).collect();
            let given = part.0.0.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]);
            words.extend(given);
            if !part.0.0.iter().any(|(name, _)| self.verb.selects(name)) {
                words.push("--all".to_owned());
            }
            words.extend(self.rate.iter().flat_map(|rate| ["--rate".to_owned(), rate.to_string()]));
            words.extend(["--database".to_owned(), database.to_owned(), "--by".to_owned(), by.to_owned()]);
            words.extend(self.note.iter().flat_map(|note| ["--note".to_owned(), note.clone()]));
            words
        };
        self.parts().iter().map(command).collect()
    }
}

/// A selection, in the types of the operator's library.
struct Part(Fields);

impl Part {
    fn check(&self) -> Result<(), Problem> {
        self.subject()?;
        self.0.parsed::<i64>("id")?;
        self.0.parsed::<f64>("rate")?;
        Ok(())
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
        key: fields.text("key"),
        scope: fields.text("scope"),
        subject: subject(fields)?,
        reason: fields.text("reason"),
        after: 0,
    })
}

pub(crate) fn failing(fields: &Fields) -> Result<FailingSelection, Problem> {
    Ok(FailingSelection {
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
        after: 0,
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
        check("kind=dead&action=retry&reason=", Err("nothing is selected"));
        check("kind=dead&action=retry&all=1&key=a", Err("not both"));
        check("kind=dead&action=retry&scope=a", Err("takes no such field"));
        check("kind=dead&action=bury&all=1", Err("there is no action"));
        check("kind=dead&action=retry&subject=a..b", Err("empty token"));
        check("kind=dead-letters&action=retry&id=x", Err("id:"));
        check("kind=dead&action=retry&all=1&rate=0", Err("rate"));
        let many = "&key=k".repeat(101);
        check(&format!("kind=dead&action=retry{many}"), Err("more than 100 keys"));
    }
}
