//! The checker of recordings rejects each violation, by the rule that it breaks.

use oncebox_model::trace::{Circumstances, Ledger, Passes, Rule, Verdict, check};

/// A transaction is open while the first relay reads, and late for the second one.
const LEDGER: &str = r#"{"of":"outbox","id":"o"}
{"of":"message","lane":0,"id":1,"xact":"10","ordering_key":"k","is_aside":false}
{"of":"message","lane":0,"id":2,"xact":"10","ordering_key":"k","is_aside":false}
{"of":"message","lane":0,"id":3,"xact":"11","ordering_key":null,"is_aside":false}
{"of":"message","lane":0,"id":4,"xact":"12","ordering_key":null,"is_aside":false}
{"of":"message","lane":0,"id":5,"xact":"13","ordering_key":"d","is_aside":true}
{"of":"cursor","lane":0,"number":2,"floor":0,"high":5,"snap":"14:14:","target":null,"after":null,"reset_until":null}"#;

const FIRST: &str = r#"
{"run":"a","line":1,"pass":0,"step":"started","outbox":"o"}
{"run":"a","line":2,"pass":1,"step":"claimed","lanes":[{"lane":0,"number":0,"floor":0,"high":0,"target":null,"after":null,"reset_until":null,"snapshot":"11:13:11"}],"rows":[[0,1,""],[0,2,""],[0,4,""]]}
{"run":"a","line":3,"pass":1,"step":"acknowledged","answers":[[0,1,"S",1,false],[0,2,"S",2,false],[0,4,"S",3,false]]}
{"run":"a","line":4,"pass":1,"step":"settling","lanes":[{"lane":0,"number":0,"floor":0,"high":4,"snap":"11:13:11","target":null,"after":null,"reset_until":null}],"reads":[[0,3,false]],"parked":[]}
{"run":"a","line":5,"pass":1,"step":"settled"}
{"run":"a","line":6,"pa"#;

const SECOND: &str = r#"
{"run":"b","line":1,"pass":0,"step":"started","outbox":"o"}
{"run":"b","line":2,"pass":1,"step":"claimed","lanes":[{"lane":0,"number":1,"floor":0,"high":4,"target":null,"after":null,"reset_until":null,"snapshot":"13:13:"}],"rows":[[0,3,""]]}
{"run":"b","line":3,"pass":1,"step":"acknowledged","answers":[[0,3,"S",4,false]]}
{"run":"b","line":4,"pass":1,"step":"read_on","snapshot":"14:14:","rows":[[0,5,"b"]]}
{"run":"b","line":5,"pass":1,"step":"settling","lanes":[{"lane":0,"number":1,"floor":0,"high":5,"snap":"14:14:","target":null,"after":null,"reset_until":null}],"reads":[[0,2,false]],"parked":[[0,5]]}
{"run":"b","line":6,"pass":1,"step":"settled"}
"#;

/// The verdict after an edit of the three.
fn edited(from: &str, to: &str) -> Verdict {
    let edit = |text: &str| text.replace(from, to);
    let is_found = [LEDGER, FIRST, SECOND].iter().any(|text| text.contains(from));
    assert!(is_found, "{from}");
    let mut passes = Passes::default();
    passes.add(&edit(FIRST));
    passes.add(&edit(SECOND));
    let expected = &["late reads", "further rounds", "set aside"];
    let of = Circumstances { expected, ..Circumstances::default() };
    check(&Ledger::parse(edit(LEDGER).lines()).expect("it is one"), &passes, of)
}

#[test]
fn a_right_recording_is_accepted() {
    let verdict = edited("S", "S");
    assert!(verdict.is_right(), "{verdict}");
    assert_eq!(verdict.actions["takeovers"], 1, "{verdict}");
}

#[track_caller]
fn rejected(rule: Rule, from: &str, to: &str) {
    let verdict = edited(from, to);
    assert!(verdict.broken.contains_key(&rule), "{rule:?}, {from} -> {to}: {verdict}");
}

#[test]
fn each_edit_is_rejected_by_the_rule_that_it_breaks() {
    // A line that could not be written, and one that was cut by hand.
    rejected(
        Rule::Complete,
        r#""line":4,"pass":1,"step":"settling""#,
        r#""line":5,"pass":1,"step":"settling""#,
    );
    rejected(Rule::Complete, r#"{"run":"b","line":4,"#, r#"{"run":"b","#);
    // No late row, no takeover.
    rejected(Rule::Vacuous, r#"[[0,3,""]]"#, "[]");
    rejected(Rule::Vacuous, r#""run":"b""#, r#""run":"a""#);
    // The second relay starts from a cursor that no relay wrote.
    rejected(Rule::Chain, r#""number":1,"floor":0,"high":4"#, r#""number":1,"floor":0,"high":3"#);
    rejected(
        Rule::Chain,
        r#""number":2,"floor":0,"high":5,"snap":"14:14:""#,
        r#""number":2,"floor":0,"high":5,"snap":"15:15:""#,
    );
    // Two relays settle one cursor.
    rejected(Rule::Chain, r#"[0,3,"S",4,false]"#, r#"[0,3,"S",4,false],[1,7,"S",5,false]"#);
    rejected(Rule::Once, r#""number":1,"#, r#""number":0,"#);
    // A message that no transaction committed; one whose transaction was open.
    rejected(Rule::Committed, r#"[0,4,""]"#, r#"[0,9,""]"#);
    rejected(Rule::Committed, r#""snapshot":"11:13:11""#, r#""snapshot":"11:13:11,12""#);
    // A due message is left out; a settled one is read again.
    rejected(Rule::Due, r#"[0,2,""],"#, "");
    rejected(Rule::Due, r#"[[0,3,""]]"#, r#"[[0,2,""],[0,3,""]]"#);
    // No answer, or less.
    rejected(Rule::Acknowledged, r#"[0,2,"S",2,false],"#, "");
    rejected(Rule::Acknowledged, r#""parked":[[0,5]]"#, r#""parked":[]"#);
    // The snapshot of a settlement is newer than its read: the open transaction is passed.
    rejected(Rule::Open, r#""high":4,"snap":"11:13:11""#, r#""high":4,"snap":"14:14:""#);
    rejected(Rule::Advance, r#""high":4,"snap":"11:13:11""#, r#""high":4,"snap":"14:14:""#);
    rejected(Rule::Advance, r#"[[0,3,false]]"#, r#"[[0,2,false]]"#);
    // The second message of an ordering key comes first; one is sent that waits.
    rejected(Rule::Order, r#"[0,1,"S",1,false]"#, r#"[0,1,"S",9,false]"#);
    rejected(Rule::Order, r#"[0,3,"S",4,false]"#, r#"[0,3,"S",4,false],[0,5,"S",5,false]"#);
    // In the end a message is neither acknowledged nor set aside, or not settled.
    rejected(Rule::Delivered, r#""is_aside":true"#, r#""is_aside":false"#);
    rejected(Rule::Delivered, r#""number":2,"floor":0,"high":5"#, r#""number":2,"floor":0,"high":3"#);
}

/// A relay died before the commit of its settlement, and another one wrote that number: the next
/// claim has found the second one.
#[test]
fn a_settlement_that_never_happened_is_not_taken_for_the_one_that_did() {
    const DIED: &str = r#"
{"run":"0","line":1,"pass":0,"step":"started","outbox":"o"}
{"run":"0","line":2,"pass":1,"step":"claimed","lanes":[{"lane":0,"number":0,"floor":0,"high":0,"target":null,"after":null,"reset_until":null,"snapshot":"10:13:10,11"}],"rows":[[0,4,""]]}
{"run":"0","line":3,"pass":1,"step":"acknowledged","answers":[[0,4,"S",3,false]]}
{"run":"0","line":4,"pass":1,"step":"settling","lanes":[{"lane":0,"number":0,"floor":0,"high":4,"snap":"10:13:10,11","target":null,"after":null,"reset_until":null}],"reads":[[0,1,false]],"parked":[]}
"#;
    let mut passes = Passes::default();
    [DIED, FIRST, SECOND].into_iter().for_each(|text| passes.add(text));
    let verdict =
        check(&Ledger::parse(LEDGER.lines()).expect("it is one"), &passes, Circumstances::default());
    assert!(verdict.is_right(), "{verdict}");
}

/// The cursors were emptied by hand: a message that is parked, and due, is also read from the log,
/// where it waits for itself.
#[test]
fn a_parked_message_is_sent_though_the_log_shows_it_again() {
    let order = |parked: &str| {
        let rows = format!(r#"[[0,5,"b"],{parked}]"#);
        let second = SECOND.replace(r#"[[0,5,"b"]]"#, &rows);
        let second = second.replace(r#"[0,3,"S",4,false]"#, r#"[0,3,"S",4,false],[0,5,"S",5,false]"#);
        let mut passes = Passes::default();
        [FIRST, &second].into_iter().for_each(|text| passes.add(text));
        let ledger = Ledger::parse(LEDGER.lines()).expect("it is one");
        check(&ledger, &passes, Circumstances::default()).broken.contains_key(&Rule::Order)
    };
    assert!(!order(r#"[0,5,"p"]"#));
    assert!(order(r#"[0,5,"pb"]"#), "a parked message that waits for another one is not sent");
}

#[test]
fn a_recording_of_another_outbox_shows_nothing() {
    assert!(edited(r#""id":"o""#, r#""id":"p""#).broken.contains_key(&Rule::Vacuous));
}

#[test]
fn a_crash_of_postgresql_may_take_back_settlements() {
    let mut passes = Passes::default();
    passes.add(FIRST);
    passes.add(&FIRST.replace(r#""run":"a""#, r#""run":"c""#));
    passes.add(SECOND);
    let ledger = Ledger::parse(LEDGER.lines()).unwrap();
    for postgres_crashed in [true, false] {
        let verdict = check(&ledger, &passes, Circumstances { postgres_crashed, ..Circumstances::default() });
        assert_eq!(verdict.is_right(), postgres_crashed, "{verdict}");
    }
}

/// Another relay has stored the first two messages, and died before it wrote their answers: the
/// stream takes the first one for new, and knows the second one.
#[test]
fn of_a_message_without_an_answer_the_first_copy_is_not_known() {
    let dead = r#"
{"run":"z","line":1,"pass":0,"step":"started","outbox":"o"}
{"run":"z","line":2,"pass":1,"step":"claimed","lanes":[{"lane":0,"number":0,"floor":0,"high":0,"target":null,"after":null,"reset_until":null,"snapshot":"11:13:11"}],"rows":[[0,1,""],[0,2,""],[0,4,""]]}"#;
    let first =
        FIRST.replace(r#"[0,1,"S",1,false],[0,2,"S",2,false]"#, r#"[0,1,"S",9,false],[0,2,"S",2,true]"#);
    let verdict = |texts: &[&str]| {
        let mut passes = Passes::default();
        texts.iter().for_each(|text| passes.add(text));
        let ledger = Ledger::parse(LEDGER.lines()).expect("it is one");
        check(&ledger, &passes, Circumstances::default())
    };
    let found = verdict(&[dead, &first, SECOND]);
    assert!(!found.broken.contains_key(&Rule::Order), "{found}");
    assert!(verdict(&[&first, SECOND]).broken.contains_key(&Rule::Order));
}
