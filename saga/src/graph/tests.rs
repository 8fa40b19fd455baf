//! Definitions that cannot work say so, all at once.

use std::time::Duration;

use super::*;

/// A step that has a compensation, and comes after these.
pub(crate) fn draft(name: &str, after: &[&str]) -> Draft {
    Draft {
        name: name.to_owned(),
        subject: format!("{name}.do"),
        scope: format!("{name} service"),
        undo: Undo::Subject(format!("{name}.undo")),
        undo_scope: None,
        after: after.iter().map(ToString::to_string).collect(),
        is_pivot: false,
        deadline: Duration::from_secs(60),
        attempts: 1,
        pause: Duration::ZERO,
    }
}

pub(crate) fn pivot(name: &str, after: &[&str]) -> Draft {
    Draft { is_pivot: true, undo: Undo::Unsaid, ..draft(name, after) }
}

fn forward(name: &str, after: &[&str]) -> Draft {
    Draft { undo: Undo::Unsaid, ..draft(name, after) }
}

fn mistakes(drafts: &[Draft]) -> Vec<Mistake> {
    checked("order", 1, drafts, None).err().map(|invalid| invalid.mistakes).unwrap_or_default()
}

#[test]
fn each_mistake_is_named() {
    let name = |name: &str| name.to_owned();
    let undefined = Mistake::Undefined { step: name("b"), after: name("x") };
    assert_eq!(mistakes(&[draft("a", &[]), draft("b", &["x"])]), [undefined]);
    assert_eq!(mistakes(&[draft("a", &[]), draft("a", &[])]), [Mistake::Duplicate(name("a"))]);
    assert_eq!(
        mistakes(&[draft("a", &[]), draft("b", &["c"]), draft("c", &["a", "b"]), draft("d", &["c"])]),
        [Mistake::Cycle(vec![name("b"), name("c")]), Mistake::Unreachable(name("d"))]
    );
    assert_eq!(mistakes(&[draft("a", &["a"])]), [Mistake::Cycle(vec![name("a")])]);
    assert_eq!(
        mistakes(&[pivot("a", &[]), draft("b", &["a"])]),
        [Mistake::CompensationAfterPivot(name("b"))]
    );
    assert_eq!(mistakes(&[forward("a", &[])]), [Mistake::Unsaid(name("a"))]);
    assert_eq!(mistakes(&[pivot("a", &[]), pivot("b", &["a"])]), [Mistake::TwoPivots(name("a"), name("b"))]);
    assert_eq!(
        mistakes(&[draft("a", &[]), pivot("b", &["a"]), draft("c", &["a"])]),
        [Mistake::BesidePivot { step: name("c"), pivot: name("b") }]
    );
    assert_eq!(mistakes(&[]), [Mistake::StepCount(0)]);
    let many: Vec<Draft> = (0..65).map(|number| draft(&format!("s{number}"), &[])).collect();
    assert_eq!(mistakes(&many), [Mistake::StepCount(65)]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let bad = Draft {
        name: "undo".to_owned(),
        subject: "a.*".to_owned(),
        scope: String::new(),
        undo_scope: Some("a\nb".to_owned()),
        deadline: Duration::ZERO,
        attempts: 0,
        ..draft("a", &["x"])
    };
    let told = checked("order", 7, &[bad], None).unwrap_err().to_string();
    for part in [
        "\"order\", version 7",
        "its name",
        "not defined",
        "\"a.*\"",
        "\"\" is not the scope",
        "\"a\\nb\"",
        "deadline",
        "attempts",
    ] {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
}

#[test]
fn what_comes_after_the_pivot_goes_forward_only() {
    let drafts = [
        draft("a", &[]),
        draft("b", &["a"]),
        draft("c", &["a"]),
        pivot("d", &["b", "c"]),
        forward("e", &["d"]),
    ];
    let graph = checked("order", 1, &drafts, None).unwrap();
    let only: Vec<bool> = graph.nodes.iter().map(|node| node.is_forward_only).collect();
    assert_eq!(only, [false, false, false, false, true]);
    assert_eq!(graph.nodes[0].descendants.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(graph.nodes[1].descendants.iter().collect::<Vec<_>>(), [3, 4]);
}

/// The fingerprint decides whether instances in flight find their definition: it must never change
/// by itself.
#[test]
fn the_shape_has_a_fingerprint_that_is_pinned() {
    let drafts = [draft("a", &[]), pivot("b", &["a"])];
    let graph = |drafts: &[Draft], version| checked("order", version, drafts, None).unwrap();
    let first = graph(&drafts, 1);
    assert_eq!(first.fingerprint(), "1591c45dca779cf9b04b0eda5674878a");
    let with = |change: fn(&mut Draft)| {
        let mut drafts = drafts.clone();
        change(&mut drafts[0]);
        graph(&drafts, 1).fingerprint().to_owned()
    };
    for other in [
        graph(&drafts, 2).fingerprint().to_owned(),
        with(|draft| draft.subject = "z".to_owned()),
        with(|draft| draft.undo = Undo::NotNeeded),
        with(|draft| draft.undo = Undo::Subject("z".to_owned())),
    ] {
        assert_ne!(other, first.fingerprint());
    }
    assert_eq!(with(|draft| draft.deadline *= 2), first.fingerprint(), "deadlines may change");
    assert_eq!(with(|draft| draft.attempts = 3), first.fingerprint(), "so may attempts");
    assert_eq!(with(|draft| draft.scope = "z".to_owned()), first.fingerprint(), "and who takes part");
}

#[test]
fn each_command_has_the_scope_of_its_participant() {
    let other = Draft { undo_scope: Some("refunds".to_owned()), ..draft("b", &["a"]) };
    let graph = checked("order", 1, &[draft("a", &[]), other], None).unwrap();
    for (command, scope) in [
        ("a", Some("a service")),
        ("a:#2:undo", Some("a service")),
        ("b:#2", Some("b service")),
        ("b:undo", Some("refunds")),
        ("c", None),
        ("a:b", None),
        ("a b", None),
    ] {
        assert_eq!(graph.scope(command), scope, "{command}");
    }
}

#[test]
fn the_graph_is_drawn() {
    let drafts = [draft("a", &[]), pivot("b", &["a"])];
    let drawn = checked("order", 3, &drafts, None).unwrap().mermaid();
    let expected = "flowchart LR
  start([\"order 3\"])
  s0[\"a<br/>a.do\"]
  s0 -.-> u0([\"a.undo\"])
  s1{{\"b<br/>b.do\"}}
  start --> s0
  s0 --> s1
";
    assert_eq!(drawn, expected);
}
