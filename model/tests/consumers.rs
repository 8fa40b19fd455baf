//! The checker of recordings of consumers and orchestrators rejects each violation, by the rule
//! that it breaks.

use std::{collections::BTreeMap, fs, path::Path};

use oncebox_model::trace::{Keys, Rule, Steps, Verdict, check_consumers, check_kept, minimised};

/// Key 1 is handled in a transaction, and comes again; 2 is given up; 3 is handled under a lease
/// that is taken over; 4 is declined, and known to another process. The saga is undone when its
/// second step is late.
const LEDGER: &str = r#"
{"of":"key","key":1,"scope":"each","name":"a","status":"completed","reply":"r1","xmin":11}
{"of":"key","key":2,"scope":"each","name":"b","status":"dead","reply":null,"xmin":13}
{"of":"key","key":3,"scope":"pay","name":"a","status":"completed","reply":null,"xmin":15}
{"of":"key","key":4,"scope":"each","name":"c","status":"rejected","reply":"r4","xmin":16}
{"of":"effect","scope":"each","name":"a","what":"row","xmin":11}
{"of":"effect","scope":"each","name":"c","what":"row","xmin":null}
{"of":"effect","scope":"each","name":"c","what":"other row","xmin":16}
{"of":"call","scope":"pay","name":"a","effect":"charge","times":1}
{"of":"saga","saga":7,"name":"o:order","revision":4,"direction":"backward","steps":{"reserve":{"state":"undone","attempt":1,"undo_attempt":1,"in_doubt":false},"charge":{"state":"undone","attempt":1,"undo_attempt":1,"in_doubt":false}}}"#;

const EACH: &str = r#"
{"run":"a","line":1,"step":"started","scope":"each","mode":"transaction"}
{"run":"a","line":2,"step":"claimed","message":1,"key":1,"how":"won","xact":10}
{"run":"a","line":3,"step":"failed","message":1,"key":1,"how":"conflict"}
{"run":"a","line":4,"step":"claimed","message":1,"key":1,"how":"won","xact":4294967307}
{"run":"a","line":5,"step":"committing","message":1,"key":1,"status":"completed","reply":"r1","xact":4294967307,"epoch":null}
{"run":"a","line":6,"step":"committed","message":1,"key":1}
{"run":"a","line":7,"step":"answering","message":1,"answer":"ack"}
{"run":"a","line":8,"step":"claimed","message":2,"key":1,"how":"stored","status":"completed","reply":"r1"}
{"run":"a","line":9,"step":"answering","message":2,"answer":"ack"}
{"run":"a","line":10,"step":"claimed","message":3,"key":2,"how":"won","xact":12}
{"run":"a","line":11,"step":"failed","message":3,"key":2,"how":"dead"}
{"run":"a","line":12,"step":"claimed","message":3,"key":2,"how":"won","xact":13}
{"run":"a","line":13,"step":"committing","message":3,"key":2,"status":"dead","reply":null,"xact":13,"epoch":null}
{"run":"a","line":14,"step":"committed","message":3,"key":2}
{"run":"a","line":15,"step":"answering","message":3,"answer":"term"}
{"run":"a","line":16,"step":"claimed","message":4,"key":4,"how":"won","xact":16}
{"run":"a","line":17,"step":"committing","message":4,"key":4,"status":"rejected","reply":"r4","xact":16,"epoch":null}
{"run":"a","line":18,"step":"lost","message":4,"key":4}
{"run":"a","line":19,"step":"answering","message":4,"answer":"nak"}
{"run":"a","line":20,"st"#;

const AGAIN: &str = r#"
{"run":"b","line":1,"step":"started","scope":"each","mode":"transaction"}
{"run":"b","line":2,"step":"claimed","message":4,"key":4,"how":"stored","status":"rejected","reply":"r4"}
{"run":"b","line":3,"step":"answering","message":4,"answer":"ack"}
{"run":"b","line":4,"step":"claimed","message":5,"key":1,"how":"mismatch"}
{"run":"b","line":5,"step":"committing","message":5,"key":1,"status":"aside","reply":null,"xact":null,"epoch":null}
{"run":"b","line":6,"step":"committed","message":5,"key":1}
{"run":"b","line":7,"step":"answering","message":5,"answer":"term"}
"#;

const LEASED: &str = r#"
{"run":"c","line":1,"step":"started","scope":"pay","mode":"lease"}
{"run":"c","line":2,"step":"claimed","message":1,"key":3,"how":"won","epoch":1,"taken_over":false}
{"run":"c","line":3,"step":"effect","key":3,"epoch":1,"effect":"charge","did":"beginning"}
{"run":"c","line":4,"step":"effect","key":3,"epoch":1,"effect":"charge","did":"begun"}
{"run":"c","line":5,"step":"effect","key":3,"epoch":1,"effect":"charge","did":"calling"}
{"run":"d","line":1,"step":"started","scope":"pay","mode":"lease"}
{"run":"d","line":2,"step":"claimed","message":1,"key":3,"how":"in_flight"}
{"run":"d","line":3,"step":"claimed","message":1,"key":3,"how":"won","epoch":2,"taken_over":true}
{"run":"d","line":4,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"beginning"}
{"run":"d","line":5,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"open"}
{"run":"d","line":6,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"begun_again"}
{"run":"d","line":7,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"calling"}
{"run":"d","line":8,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"remembering"}
{"run":"d","line":9,"step":"effect","key":3,"epoch":2,"effect":"charge","did":"remembered"}
{"run":"d","line":10,"step":"released","message":1,"key":3,"epoch":2}
{"run":"d","line":11,"step":"claimed","message":1,"key":3,"how":"won","epoch":3,"taken_over":false}
{"run":"d","line":12,"step":"effect","key":3,"epoch":3,"effect":"charge","did":"beginning"}
{"run":"d","line":13,"step":"effect","key":3,"epoch":3,"effect":"charge","did":"known"}
{"run":"d","line":14,"step":"committing","message":1,"key":3,"status":"completed","reply":null,"xact":15,"epoch":3}
{"run":"d","line":15,"step":"committed","message":1,"key":3}
{"run":"d","line":16,"step":"answering","message":1,"answer":"ack"}
{"run":"c","line":6,"step":"effect","key":3,"epoch":1,"effect":"charge","did":"remembering"}
{"run":"c","line":7,"step":"effect","key":3,"epoch":1,"effect":"charge","did":"fenced"}
"#;

const SAGA: &str = r#"
{"run":"e","line":1,"step":"started","scope":"saga","definitions":[{"fingerprint":"f","name":"order","version":1,"steps":[{"name":"reserve","scope":"s","undo_scope":"s","subject":"do.r","compensation":"undo.r","is_pivot":false,"attempts":1,"after":[],"descendants":[1]},{"name":"charge","scope":"s","undo_scope":"s","subject":"do.c","compensation":"undo.c","is_pivot":false,"attempts":1,"after":[0],"descendants":[]}]}]}
{"run":"e","line":2,"step":"changing","saga":7,"graph":"f","revision":0,"before":{"direction":"forward","steps":[P,P]},"events":["started"],"after":{"direction":"forward","steps":[S,P]},"sent":[{"step":0,"is_undo":false,"attempt":1}]}
{"run":"e","line":3,"step":"changing","saga":7,"graph":"f","revision":1,"before":{"direction":"forward","steps":[S,P]},"events":[{"answered":[{"step":0,"is_undo":false,"attempt":1},"done"]}],"after":{"direction":"forward","steps":[D,S]},"sent":[{"step":1,"is_undo":false,"attempt":1}]}
{"run":"f","line":1,"step":"started","scope":"saga"}
{"run":"f","line":2,"step":"changing","saga":7,"graph":"f","revision":2,"before":{"direction":"forward","steps":[D,S]},"events":[{"step-late":1}],"after":{"direction":"backward","steps":[D,U]},"sent":[{"step":1,"is_undo":true,"attempt":1}]}
{"run":"f","line":3,"step":"changing","saga":7,"graph":"f","revision":3,"before":{"direction":"backward","steps":[D,U]},"events":[{"answered":[{"step":1,"is_undo":true,"attempt":1},"done"]}],"after":{"direction":"backward","steps":[U,X]},"sent":[{"step":0,"is_undo":true,"attempt":1}]}
{"run":"f","line":4,"step":"changing","saga":7,"graph":"f","revision":4,"before":{"direction":"backward","steps":[U,X]},"events":[{"answered":[{"step":0,"is_undo":true,"attempt":1},"done"]}],"after":{"direction":"backward","steps":[X,X]},"sent":[]}
"#;

/// The places of steps, which would make the lines of sagas too long to read.
const PLACES: [(char, &str, u8, u8); 5] = [
    ('P', "pending", 0, 0),
    ('S', "sent", 1, 0),
    ('D', "done", 1, 0),
    ('U', "undoing", 1, 1),
    ('X', "undone", 1, 1),
];

/// A text with the places of steps.
fn placed(text: &str) -> String {
    PLACES.iter().fold(text.to_owned(), |text, (place, state, attempt, undo_attempt)| {
        let step = format!(
            r#"{{"state":"{state}","attempt":{attempt},"undo_attempt":{undo_attempt},"in_doubt":false}}"#
        );
        text.replace(&format!("[{place},"), &format!("[{step},"))
            .replace(&format!(",{place}]"), &format!(",{step}]"))
    })
}

/// Ledger and recordings after an edit.
fn edited(from: &str, to: &str) -> (String, Vec<String>) {
    let saga = placed(SAGA);
    let ledger = LEDGER.replace("\"revision\":4", "\"revision\":5");
    let texts = [ledger.as_str(), EACH, AGAIN, LEASED, &saga];
    assert!(texts.iter().any(|text| text.contains(from)), "{from}");
    let mut edited = texts.iter().map(|text| text.replace(from, to));
    (edited.next().expect("the ledger"), edited.collect())
}

fn verdict(from: &str, to: &str) -> Verdict {
    let (ledger, recordings) = edited(from, to);
    let ledger = Keys::parse(ledger.lines().filter(|line| !line.is_empty())).expect("it is one");
    let mut steps = Steps::default();
    recordings.iter().for_each(|text| steps.add(text));
    check_consumers(
        &ledger,
        &steps,
        &["copies", "takeovers", "terms", "deadlines", "compensations", "handovers"],
    )
}

#[test]
fn a_right_recording_is_accepted() {
    let verdict = verdict("run", "run");
    assert!(verdict.is_right(), "{verdict}");
}

#[track_caller]
fn rejected(rule: Rule, from: &str, to: &str) {
    let verdict = verdict(from, to);
    assert!(verdict.broken.contains_key(&rule), "{rule:?}, {from} -> {to}: {verdict}");
}

#[test]
fn each_edit_of_messages_is_rejected_by_the_rule_that_it_breaks() {
    rejected(Rule::Complete, r#"{"run":"a","line":9,"step":"answering","message":2,"answer":"ack"}"#, "");
    rejected(Rule::Vacuous, r#""how":"stored""#, r#""how":"in_flight""#);
    // A commit of another transaction than the one that has claimed, and of a lease's other owner.
    rejected(Rule::Claimed, r#""how":"won","xact":13"#, r#""how":"won","xact":14"#);
    rejected(Rule::Claimed, r#""xact":15,"epoch":3"#, r#""xact":15,"epoch":2"#);
    rejected(
        Rule::Claimed,
        r#""step":"claimed","message":4,"key":4,"how":"won","xact":16"#,
        r#""step":"claimed","message":4,"key":4,"how":"in_flight""#,
    );
    // A key that no consumer has ended, one that is not there, one that was ended otherwise.
    rejected(Rule::Ended, r#""xmin":13"#, r#""xmin":14"#);
    rejected(
        Rule::Ended,
        r#"{"of":"key","key":3,"scope":"pay","name":"a","status":"completed","reply":null,"xmin":15}"#,
        "",
    );
    rejected(Rule::Ended, r#""reply":"r1","xmin""#, r#""reply":"r2","xmin""#);
    // An effect of another transaction, one without a key, two of one kind, a second call.
    rejected(Rule::Effect, r#""what":"row","xmin":11"#, r#""what":"row","xmin":10"#);
    rejected(Rule::Effect, r#""scope":"each","name":"a","what""#, r#""scope":"each","name":"x","what""#);
    rejected(Rule::Effect, r#""other row""#, r#""row""#);
    rejected(Rule::Effect, r#""times":1"#, r#""times":2"#);
    // A call without a record, and a record that is gone.
    rejected(
        Rule::Effect,
        r#""epoch":1,"effect":"charge","did":"begun""#,
        r#""epoch":1,"effect":"charge","did":"open""#,
    );
    rejected(
        Rule::Effect,
        r#""epoch":1,"effect":"charge","did":"beginning""#,
        r#""epoch":1,"effect":"charge","did":"forgetting""#,
    );
    rejected(Rule::Effect, r#""did":"open""#, r#""did":"begun""#);
    rejected(Rule::Effect, r#""did":"begun_again""#, r#""did":"open""#);
    rejected(Rule::Effect, r#""did":"remembering""#, r#""did":"open""#);
    // The old owner writes; goes on; ends the key; two own it at once.
    rejected(
        Rule::Fence,
        r#""epoch":1,"effect":"charge","did":"fenced""#,
        r#""epoch":1,"effect":"charge","did":"remembered""#,
    );
    rejected(
        Rule::Fence,
        r#""epoch":1,"effect":"charge","did":"begun""#,
        r#""epoch":1,"effect":"charge","did":"fenced""#,
    );
    rejected(Rule::Fence, r#""xact":15,"epoch":3"#, r#""xact":15,"epoch":2"#);
    rejected(Rule::Fence, r#""how":"won","epoch":2"#, r#""how":"won","epoch":1"#);
    // An acknowledgement before the commit, after one without an answer, of one in flight.
    rejected(
        Rule::Answered,
        r#""line":7,"step":"answering","message":1"#,
        r#""line":7,"step":"answering","message":3"#,
    );
    rejected(Rule::Answered, r#""message":4,"answer":"nak""#, r#""message":4,"answer":"ack""#);
    rejected(Rule::Answered, r#"2,"key":1,"how":"stored""#, r#"2,"key":1,"how":"in_flight""#);
    rejected(Rule::Answered, r#""message":1,"answer":"ack""#, r#""message":1,"answer":"term""#);
    // A message set aside while its key is in flight, or although it has claimed that.
    rejected(Rule::Answered, r#"5,"key":1,"how":"mismatch""#, r#"5,"key":1,"how":"in_flight""#);
    rejected(Rule::Claimed, r#"5,"key":1,"how":"mismatch""#, r#"5,"key":1,"how":"in_flight""#);
    rejected(
        Rule::Answered,
        r#""status":"dead","reply":null,"xact":13"#,
        r#""status":"aside","reply":null,"xact":13"#,
    );
    rejected(Rule::Replayed, r#""status":"rejected","reply":"r4"}"#, r#""status":"rejected","reply":"r5"}"#);
    rejected(
        Rule::Replayed,
        r#""how":"stored","status":"completed""#,
        r#""how":"stored","status":"rejected""#,
    );
}

#[test]
fn each_edit_of_sagas_is_rejected_by_the_rule_that_it_breaks() {
    // Another answer, and a command that is not sent.
    rejected(
        Rule::Decided,
        r#"[{"answered":[{"step":0,"is_undo":false,"attempt":1},"done"]}]"#,
        r#"[{"answered":[{"step":0,"is_undo":false,"attempt":1},"rejected"]}]"#,
    );
    rejected(Rule::Decided, r#""sent":[{"step":0,"is_undo":true,"attempt":1}]"#, r#""sent":[]"#);
    // Two have read one revision, and one that was never written.
    rejected(Rule::Revision, r#""revision":2,"#, r#""revision":1,"#);
    rejected(Rule::Revision, r#""revision":5,"#, r#""revision":6,"#);
    rejected(Rule::Revision, r#""charge":{"state":"undone""#, r#""charge":{"state":"failed""#);
    // A compensation again, and one of a step that was not sent.
    rejected(
        Rule::Undone,
        r#""sent":[{"step":0,"is_undo":true,"attempt":1}]"#,
        r#""sent":[{"step":1,"is_undo":true,"attempt":1}]"#,
    );
    rejected(Rule::Undone, r#""sent":[{"step":1,"is_undo":false,"attempt":1}]"#, r#""sent":[]"#);
    rejected(
        Rule::Undone,
        r#""scope":"each","name":"c","what":"other row""#,
        r#""scope":"each","name":"o:order:pay:undo","what":"other row""#,
    );
    rejected(
        Rule::Over,
        r#"{"run":"f","line":4"#,
        &format!("{}\n{{\"run\":\"f\",\"line\":5", placed(AFTER).trim()),
    );
}

/// A change after the end.
const AFTER: &str = r#"
{"run":"f","line":4,"step":"changing","saga":7,"graph":"f","revision":5,"before":{"direction":"backward","steps":[X,X]},"events":["started"],"after":{"direction":"backward","steps":[X,X]},"sent":[]}
"#;

#[test]
fn a_rejected_recording_becomes_the_lines_of_one_key() {
    let (ledger, recordings) = edited(r#""message":4,"answer":"nak""#, r#""message":4,"answer":"ack""#);
    let ledger: Vec<&str> = ledger.lines().filter(|line| !line.is_empty()).collect();
    let found = minimised(&ledger, &recordings).expect("they are lines");
    let rules: Vec<&Rule> = found.keys().collect();
    assert_eq!(rules, [&Rule::Answered], "{found:?}");
    let kept = &found[&Rule::Answered];
    assert!(kept.contains(r#""key":4"#) && !kept.contains(r#""key":1"#), "{kept}");
    assert_eq!(check_kept(kept).expect("it was written").broken.len(), 1, "{kept}");
}

/// A key under a lease is given up twice: the first commit had no answer and no effect. As a real
/// process recorded it. Two commits that were answered are one too many.
#[test]
fn a_death_whose_first_commit_was_lost_is_accepted() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/accepted/death-after-a-lost-commit.jsonl");
    let text = fs::read_to_string(path).expect("it is text");
    let broken = |text: &str| check_kept(text).expect("lines").broken;
    assert!(broken(&text).is_empty(), "{:?}", broken(&text));
    let unanswered = text.replace(r#""step":"committed""#, r#""step":"lost""#);
    assert!(!broken(&unanswered).contains_key(&Rule::Ended), "the last one has ended it");
    let twice = text.replace(r#""step":"lost""#, r#""step":"committed""#);
    assert!(broken(&twice).contains_key(&Rule::Ended));
}

/// Recordings of real processes with a mistake, as `minimised` left them: `RULE-mistake.jsonl`.
#[test]
fn kept_recordings_are_rejected_by_the_rules_that_name_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept");
    let mut seen = BTreeMap::new();
    for file in fs::read_dir(folder).expect("there is a folder") {
        let path = file.expect("it can be read").path();
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let verdict = check_kept(&fs::read_to_string(&path).expect("it is text")).expect("lines");
        let rules: Vec<String> =
            verdict.broken.keys().map(|rule| format!("{rule:?}").to_lowercase()).collect();
        let expected = name.split('-').next().unwrap_or_default().to_owned();
        assert!(rules.contains(&expected), "{name}: {verdict}");
        seen.insert(name, rules);
    }
    assert!(!seen.is_empty());
}
