use tokio::time::advance;

use super::{
    front::HOLD,
    group::GROUPS_MAX,
    subjects::{SILENT_FOR, SILENT_MAX},
    *,
};
use crate::delivery::{
    decision::{Decision, Outcome},
    message::Message,
};

const DELAY: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);

fn refused(err_code: u64, description: &str) -> Failure {
    Failure::Refused { err_code, description: description.into(), stream: None }
}

/// A front whose smallest message has this number of bytes.
fn front(smallest: i64) -> Front<'static> {
    Front { subjects: vec!["a"], smallest, ..Front::default() }
}

#[test]
fn one_stream_or_one_subject_refuses_others_too() {
    let of = |failure: &Failure| Circuit::of(failure, "a.b").map(|circuit| circuit.to_string());
    let of_stream = |description: &str, stream: Option<&str>| Failure::Refused {
        err_code: 10077,
        description: description.into(),
        stream: stream.map(Into::into),
    };
    assert_eq!(of(&of_stream("maximum messages exceeded", Some("S"))).unwrap(), "stream S");
    assert_eq!(of(&of_stream("maximum messages exceeded", None)).unwrap(), "subject a.b");
    assert_eq!(of(&of_stream("maximum messages per subject exceeded", Some("S"))).unwrap(), "subject a.b");
    assert_eq!(of(&Failure::NoLeader { stream: "S".into() }).unwrap(), "stream S");
    assert_eq!(of(&Failure::NoResponders).unwrap(), "subject a.b");
    let other = refused(10060, "does not match").knowing(Some("ORDERS"));
    assert_eq!(of(&other), of(&refused(10060, "does not match")));
    assert_eq!(of(&refused(10054, "message size exceeds maximum allowed")), None);
    assert_eq!(of(&Failure::NotJetStream), None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_subject_is_refused_unsent_then_asked_about_or_sent() {
    let breaker = Breaker::default();
    let refuse = |failure: &Failure| Sending::Refuse(failure.clone());
    assert_eq!(breaker.sending("a.b"), Sending::Publish);
    let (stalled, unnamed) = (Failure::Silent { stream: Some("S".into()) }, Failure::Silent { stream: None });
    let no_ack = Failure::NeverAcknowledges { stream: "T".into() };
    breaker.open_subjects(vec!["a.b".into()], stalled.clone());
    breaker.open_subjects(vec!["c.>".into(), "d".into()], no_ack.clone());
    assert_eq!(breaker.sending("a.b"), refuse(&stalled));
    assert_eq!(breaker.sending("c.x"), refuse(&no_ack));
    assert_eq!(breaker.sending("a.c"), Sending::Publish);
    advance(SILENT_FOR).await;
    assert_eq!(breaker.sending("a.b"), Sending::Publish, "only sending it tells");
    assert_eq!(breaker.sending("d"), Sending::Ask);
    breaker.open_subjects(vec!["c.>".into(), "d".into()], unnamed.clone());
    assert_eq!(breaker.sending("d"), refuse(&unnamed));
    advance(SILENT_FOR).await;
    assert_eq!(breaker.sending("d"), Sending::Ask, "the earlier answer still holds");
    breaker.close_subject("c.y");
    assert_eq!(breaker.sending("d"), Sending::Publish);
    for number in 0..=SILENT_MAX {
        breaker.open_subjects(vec![format!("s.{number}")], Failure::OnlySubscribers);
    }
    assert_eq!(breaker.sending("s.0"), Sending::Publish, "so many are remembered");
    assert_ne!(breaker.sending("s.1"), Sending::Publish);
}

#[tokio::test(start_paused = true)]
async fn the_breaker_knows_whether_nats_has_answered_lately() {
    let breaker = Breaker::default();
    assert!(!breaker.was_heard_within(DELAY * 5));
    advance(DELAY).await;
    breaker.heard(Instant::now());
    advance(DELAY * 5).await;
    assert!(breaker.was_heard_within(DELAY * 5) && !breaker.was_heard_within(DELAY * 4));
}

#[test]
fn a_lane_is_held_up_where_nothing_is_taken_any_more() {
    let full = |err_code| Outcome::Failed(Decision::Wait, refused(err_code, "maximum messages exceeded"));
    let now = Instant::now();
    let taken = || Outcome::Stored {
        duplicate: false,
        stream: "S".into(),
        sequence: 1,
        sent_at: now,
        acknowledged_at: now,
    };
    let check = |outcomes: &[Outcome], expected| {
        let message = Message::example();
        let front = Front::of(outcomes.iter().map(|outcome| (&message, outcome)));
        assert_eq!(front.map(|front| front.before), expected, "{outcomes:?}");
    };
    check(&[full(10077), Outcome::Behind, full(10002), Outcome::Unknown], Some(0));
    check(&[taken(), taken(), full(10077)], Some(2));
    check(&[full(10077), taken()], None);
    check(&[full(10077), full(10054)], None);
    check(&[Outcome::Behind, full(10158)], None);
    check(&[], None);
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_held_for_longer_each_time_and_half_open_in_between() {
    let breaker = Breaker::default();
    let (open, half_open, closed) = ((vec![3], false), (vec![], true), (vec![], false));
    assert!(breaker.hold(3, &front(9)), "for the first time");
    assert_eq!(breaker.held_lanes(), open);
    advance(HOLD.first * 2).await;
    assert_eq!(breaker.held_lanes(), half_open);
    assert!(!breaker.hold(3, &front(9)));
    for _ in 0..20 {
        breaker.hold(3, &front(9));
    }
    advance(HOLD.max / 3).await;
    assert_eq!(breaker.held_lanes(), open);
    advance(HOLD.max * 2).await;
    assert_eq!(breaker.held_lanes(), half_open);
    breaker.close_lane(3);
    assert_eq!(breaker.held_lanes(), closed);
    breaker.hold(3, &front(9));
    advance(HOLD.first * 2 + FORGOTTEN).await;
    assert_eq!(breaker.held_lanes(), closed, "another relay has delivered it");
    assert!(breaker.holds_none());
}

#[tokio::test(start_paused = true)]
async fn smaller_messages_get_past_after_some_tries_in_vain() {
    let breaker = Breaker::default();
    let smaller_than = |bytes| breaker.smaller_than(3, &front(bytes));
    for bytes in [20, 10, 30, 15] {
        assert_eq!(smaller_than(bytes), None, "too early");
        breaker.hold(3, &front(bytes));
    }
    assert_eq!(smaller_than(12), Some(12), "those before are still there");
    assert_eq!(smaller_than(0), None, "fewer bytes do not help");
    breaker.park_larger(3, 12);
    assert_eq!(breaker.held_lanes(), (vec![], true), "the next are tried at once");
    breaker.hold(3, &front(0));
    assert_eq!(smaller_than(40), Some(12), "smaller than what is parked");
    advance(HOUR).await;
    assert_eq!(smaller_than(40), Some(40), "not for ever");
    breaker.park_larger(3, 40);
    breaker.has_room(3);
    assert_eq!(smaller_than(50), Some(50), "one of them was stored");
    breaker.park_larger(3, 50);
    let moving = Front { before: 1, ..front(60) };
    assert_eq!(breaker.smaller_than(3, &moving), None, "some of the lane were taken");
    breaker.hold(3, &moving);
    assert_eq!(smaller_than(60), None, "the tries count from there");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_few_of_each_group_are_probes() {
    let breaker = Breaker::default();
    let place = |waits_for, id| breaker.place(0, waits_for, id, DELAY);
    for id in 11..15 {
        assert_eq!(place("stream S", id), Place::Probe);
    }
    assert_eq!(place("stream S", 15), Place::Waits);
    assert_eq!(place("stream S", 14), Place::Probe, "refused again");
    assert_eq!(place("stream S", 1), Place::Probe, "older than the others");
    assert_eq!(place("stream S", 14), Place::Waits, "there are four others");
    assert_eq!(place("stream T", 16), Place::Probe, "another group");
    assert_eq!(breaker.place(1, "stream S", 17, DELAY), Place::Probe, "another lane");
    breaker.leave(0, "stream S", 1);
    assert_eq!(place("stream S", 18), Place::Probe);
    assert_eq!(place("stream S", 19), Place::Waits);
    advance(DELAY + FORGOTTEN).await;
    assert_eq!(place("stream S", 19), Place::Probe, "nobody has seen the others again");
}

#[tokio::test(start_paused = true)]
async fn the_groups_of_a_lane_are_bounded() {
    let breaker = Breaker::default();
    let place = |number: usize| breaker.place(0, &format!("subject {number}"), 1, DELAY);
    for number in 0..GROUPS_MAX {
        assert_eq!(place(number), Place::Probe);
    }
    assert_eq!(place(GROUPS_MAX), Place::Alone);
    advance(DELAY + FORGOTTEN).await;
    assert_eq!(place(GROUPS_MAX), Place::Probe);
}

#[test]
fn many_follow_where_none_is_refused() {
    let tried = |stored, refused, left| Tried { stored, refused, left, too_large: 0 };
    let freed = |stored, refused, left| tried(stored, refused, left).freed();
    assert_eq!(freed(4, 0, 0), 8);
    assert_eq!(freed(4, 1, 0), 4, "room for no more than come");
    assert_eq!(freed(0, 4, 1), 1);
    assert_eq!(freed(0, 4, 0), 0);
    assert_eq!(Tried { too_large: 3, ..tried(0, 4, 0) }.freed(), 1, "perhaps a smaller one");
    assert_eq!(Tried { too_large: 3, ..tried(1, 4, 0) }.freed(), 1);
}
