//! Which subjects a change of their contracts breaks, and for which consumers.
//!
//! A change breaks nothing only if that is proven: the difference of the two schemas, as sets of
//! values, is empty. A change that cannot be decided counts as breaking.

use std::collections::BTreeSet;

use jsonschema::{
    Draft, PatternOptions,
    canonical::{CanonicalSchema, CanonicalizationError, Containment, Satisfiability},
};
use serde_json::{Value, json};

use crate::{Contract, Contracts, breach::bounded, pattern};

/// Examples, and items of a list, near which a message that breaks is sought.
const EXAMPLES_MAX: usize = 8;
/// A longer example is left out of that.
const EXAMPLE_BYTES_MAX: usize = 16 * 1024;
/// About this number of values near an example are tried; if none of them proves it, the schemas
/// decide.
const VARIANTS_MAX: usize = 10_000;
/// The name of a property that no schema has.
const UNKNOWN: &str = "unknown-property";

/// Whose messages and whose consumers meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Consumers written for the new contracts read messages of the old ones.
    Backward,
    /// Consumers of the old contracts read messages of the new ones.
    Forward,
}

/// How a change ends for a subject in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Consumers meet such messages, which their contract refuses.
    Breaks(String),
    /// It cannot be decided: this counts as breaking.
    CannotTell(String),
}

/// A subject that a change breaks, or may break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The subject, or the pattern, of the old contract.
    pub subject: String,
    /// Whose messages and whose consumers meet.
    pub direction: Direction,
    /// The consequence.
    pub verdict: Verdict,
    /// The consumers that it is for.
    pub consumers: Vec<String>,
}

impl Contracts {
    /// The breaks of a change from these contracts to others; none where it is safe.
    #[must_use]
    pub fn diff(&self, new: &Self) -> Vec<Change> {
        self.all.iter().flat_map(|old| changes(old, &new.all)).collect()
    }
}

fn changes(old: &Contract, new: &[Contract]) -> Vec<Change> {
    let mut found = Vec::new();
    let change = |direction, verdict, of: &Contract| Change {
        subject: old.subject.clone(),
        direction,
        verdict,
        consumers: of.consumers.clone(),
    };
    if !new.iter().any(|new| pattern::covers(&new.subject, &old.subject)) {
        let problem = "no contract has all of these subjects any more, so any message may come".to_owned();
        found.push(change(Direction::Forward, Verdict::Breaks(problem), old));
    }
    for new in new.iter().filter(|new| pattern::overlap(&new.subject, &old.subject)) {
        let backward = refused(old, new).map(|verdict| change(Direction::Backward, verdict, new));
        let forward = refused(new, old).map(|verdict| change(Direction::Forward, verdict, old));
        found.extend(backward.into_iter().chain(forward));
    }
    found
}

/// The messages that one contract has and the other refuses; `None` if there is none.
fn refused(sent: &Contract, read: &Contract) -> Option<Verdict> {
    if sent.schema.whole == read.schema.whole {
        return None;
    }
    if let Some(message) = witness(sent, read) {
        return Some(Verdict::Breaks(format!("for example {}", bounded(&message.to_string()))));
    }
    let both = canonical(sent).and_then(|sent| Ok((sent, canonical(read)?)));
    let judged = both.and_then(|(sent, read)| match read.covers(&sent)? {
        Containment::Yes => Ok(None),
        Containment::No | Containment::Unknown => sent.subtract(&read).map(Some),
    });
    let refused = match judged {
        Ok(refused) => refused?,
        Err(error) => return Some(Verdict::CannotTell(bounded(&error.to_string()))),
    };
    let mut messages = refused.to_json_schema();
    if let Some(object) = messages.as_object_mut() {
        object.remove("$schema");
    }
    let messages = format!("those that fit {}", bounded(&messages.to_string()));
    match refused.satisfiability() {
        Satisfiability::No => None,
        Satisfiability::Yes => Some(Verdict::Breaks(messages)),
        Satisfiability::Unknown => Some(Verdict::CannotTell(messages)),
    }
}

/// A message that one contract has and the other refuses, if one is near the examples.
fn witness(sent: &Contract, read: &Contract) -> Option<Value> {
    let empty = [json!({})];
    let names: BTreeSet<&str> =
        [sent, read].iter().flat_map(|one| &one.schema.names).map(String::as_str).collect();
    let small = |example: &&Value| example.to_string().len() <= EXAMPLE_BYTES_MAX;
    let examples = sent.examples.iter().chain(&read.examples).filter(small);
    let bases = examples.take(EXAMPLES_MAX).chain(&empty);
    let mut near = bases.flat_map(|base| std::iter::once(base.clone()).chain(variants(base, &names)));
    near.find(|message| sent.schema.fits(message) && !read.schema.fits(message))
}

/// Values that differ from another at one place.
fn variants(value: &Value, names: &BTreeSet<&str>) -> Vec<Value> {
    let small = json!([null, true, -1, 0, 1, 0.5, "", "x", [], {}]);
    let mut all: Vec<Value> = small.as_array().cloned().unwrap_or_default();
    match value {
        Value::Object(object) => {
            let known = object.keys().map(String::as_str);
            for name in known.chain([UNKNOWN]).chain(names.iter().copied()) {
                if all.len() >= VARIANTS_MAX {
                    break;
                }
                for inner in variants(object.get(name).unwrap_or(&Value::Null), names) {
                    let mut changed = object.clone();
                    changed.insert(name.to_owned(), inner);
                    all.push(changed.into());
                }
                let mut without = object.clone();
                without.remove(name);
                all.push(without.into());
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate().take(EXAMPLES_MAX) {
                if all.len() >= VARIANTS_MAX {
                    break;
                }
                all.extend(variants(item, names).into_iter().map(|inner| {
                    let mut changed = items.clone();
                    changed[at] = inner;
                    changed.into()
                }));
            }
        }
        _ => {}
    }
    all
}

fn canonical(contract: &Contract) -> Result<CanonicalSchema, CanonicalizationError> {
    jsonschema::canonical::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(false)
        .with_pattern_options(PatternOptions::regex())
        .offline()
        .canonicalize(&contract.schema.whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tests::schema;

    #[derive(Debug, PartialEq, Eq)]
    enum Said {
        Safe,
        Breaks,
        CannotTell,
    }
    use Said::{Breaks, CannotTell, Safe};

    fn contract(subject: &str, rules: &Value) -> Contract {
        Contract {
            subject: subject.to_owned(),
            consumers: vec![format!("reads {rules}")],
            examples: Vec::new(),
            schema: schema(rules),
        }
    }

    fn said(verdict: Option<&Verdict>) -> Said {
        match verdict {
            None => Safe,
            Some(Verdict::Breaks(_)) => Breaks,
            Some(Verdict::CannotTell(_)) => CannotTell,
        }
    }

    /// `witness` fits one of the two schemas alone, where such a value exists.
    fn check(rule: &str, old: &Value, new: &Value, expected: [Said; 2], witness: &Value) {
        let (old, new) = (contract("a", old), contract("a", new));
        let found = [refused(&old, &new), refused(&new, &old)];
        let [backward, forward] = found.each_ref().map(|found| said(found.as_ref()));
        assert_eq!([&backward, &forward], [&expected[0], &expected[1]], "{rule}: {found:?}");
        let fits = |of: &Contract| of.schema.fits(witness);
        let breaks = [fits(&old) && !fits(&new), fits(&new) && !fits(&old)];
        for (breaks, found) in breaks.into_iter().zip([&backward, &forward]) {
            assert!(!breaks || *found != Safe, "{rule}: {witness} breaks it");
        }
        assert!(backward != Breaks || forward == Breaks || breaks[0], "{rule}: the witness is none");
        assert!(forward != Breaks || backward == Breaks || breaks[1], "{rule}: the witness is none");
    }

    #[test]
    fn each_rule_breaks_its_direction_and_no_other() {
        let object = |rule: Value| {
            let mut whole = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
            whole.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
            whole
        };
        let a = |rule: Value| json!({"type": "object", "properties": {"a": rule}});
        let plain = &object(json!({}));
        let required = &object(json!({"required": ["a"]}));
        let closed = &object(json!({"additionalProperties": false}));
        let wider = &json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": true},
            "additionalProperties": false});
        check("nothing", plain, plain, [Safe, Safe], &json!({}));
        check("a title", plain, &object(json!({"title": "new"})), [Safe, Safe], &json!({}));
        check("required added", plain, required, [Breaks, Safe], &json!({}));
        check("required removed", required, plain, [Safe, Breaks], &json!({}));
        check("closed", plain, closed, [Breaks, Safe], &json!({"x": 1}));
        check("property added to a closed object", closed, wider, [Safe, Breaks], &json!({"b": 1}));
        check("property removed from a closed object", wider, closed, [Breaks, Safe], &json!({"b": 1}));
        let (integer, number) = (&a(json!({"type": "integer"})), &a(json!({"type": "number"})));
        check("type widened", integer, number, [Safe, Breaks], &json!({"a": 0.5}));
        check("type narrowed", number, integer, [Breaks, Safe], &json!({"a": 0.5}));
        let text = &a(json!({"type": "string"}));
        check("another type", integer, text, [Breaks, Breaks], &json!({"a": 1}));
        let (few, many) = (&a(json!({"enum": ["x"]})), &a(json!({"enum": ["x", "y"]})));
        check("enum value added", few, many, [Safe, Breaks], &json!({"a": "y"}));
        check("enum value removed", many, few, [Breaks, Safe], &json!({"a": "y"}));
        for (loose, tight, witness) in [
            (json!({"minimum": 0}), json!({"minimum": 1}), json!({"a": 0})),
            (json!({"maximum": 9}), json!({"exclusiveMaximum": 9}), json!({"a": 9})),
            (json!({"maxLength": 9}), json!({"maxLength": 8}), json!({"a": "123456789"})),
            (json!({"minItems": 1}), json!({"minItems": 2}), json!({"a": [1]})),
            (json!({}), json!({"multipleOf": 5}), json!({"a": 3})),
            (json!({}), json!({"const": 5}), json!({"a": 3})),
        ] {
            let (loose, tight) = (&a(loose), &a(tight));
            check("bound tightened", loose, tight, [Breaks, Safe], &witness);
            check("bound loosened", tight, loose, [Safe, Breaks], &witness);
        }
        let defined = |rule: Value| json!({"$ref": "#/$defs/a", "$defs": {"a": rule}});
        let (old, new) = (&defined(json!({"type": "integer"})), &defined(json!({"type": "number"})));
        check("below a reference", old, new, [Safe, Breaks], &json!(0.5));
        let recursive = |most: i32| json!({"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"maximum": most}}});
        let (old, new) = (&recursive(700), &recursive(500));
        check("not judged", old, new, [CannotTell, CannotTell], &json!({"a": 600}));
    }

    #[test]
    fn the_values_near_an_example_are_bounded() {
        let names: Vec<String> = (0..5_000).map(|n| format!("name-{n}")).collect();
        let names = names.iter().map(String::as_str).collect();
        let deep = json!({"name-1": {"name-2": [{"name-3": 1}]}});
        let found = variants(&deep, &names).len();
        assert!((VARIANTS_MAX..3 * VARIANTS_MAX).contains(&found), "{found}");
    }

    #[test]
    fn subjects_are_compared_with_those_that_they_share() {
        let check = |old: Vec<Contract>, new: Vec<Contract>, expected: &[(&str, Direction, &str)]| {
            let contracts = |all| Contracts::new(String::new(), String::new(), all);
            let found = contracts(old).diff(&contracts(new));
            let found: Vec<_> = found
                .iter()
                .map(|change| (change.subject.as_str(), change.direction, change.consumers[0].as_str()))
                .collect();
            assert_eq!(found, expected);
        };
        let (any, none) =
            (|subject| contract(subject, &json!(true)), |subject| contract(subject, &json!(false)));
        check(vec![any("a")], vec![any("a"), any("b")], &[]);
        check(vec![any("a")], vec![], &[("a", Direction::Forward, "reads true")]);
        check(vec![any("a.b")], vec![any("a.>")], &[]);
        check(vec![any("a.b")], vec![none("a.*")], &[("a.b", Direction::Backward, "reads false")]);
        check(vec![none("a.b")], vec![any("a.*")], &[("a.b", Direction::Forward, "reads false")]);
        let narrowed = ("a.*", Direction::Forward, "reads true");
        check(vec![any("a.*")], vec![any("a.b")], &[narrowed]);
    }
}
