//! Findings, without a database.

use std::time::SystemTime;

use oncebox_relay::facts::InboxStatus;

use super::{
    super::{BlockedKey, ParkedReason},
    *,
};
use crate::Time;

fn holder(application_name: &str, transaction_seconds: Option<f64>) -> Holder {
    let application_name = Some(application_name.to_owned());
    Holder { lanes: vec![3, 4], pid: Some(47), application_name, transaction_seconds, ..Holder::default() }
}

fn check_lock(holder: &Holder, expected: &[&str]) {
    let found = locked(holder, "oncebox relay");
    let text = found.map(|found| found.what + " / " + &found.remedy).unwrap_or_default();
    assert_eq!(expected.is_empty(), text.is_empty(), "{text}");
    expected.iter().for_each(|part| assert!(text.contains(part), "{text}: {part}"));
}

#[test]
fn a_lock_is_a_finding_when_a_stranger_has_it_or_a_relay_for_long() {
    check_lock(&holder("oncebox relay", Some(1.0)), &[]);
    check_lock(&holder("oncebox relay", None), &[]);
    check_lock(&holder("oncebox operator", Some(1.0)), &[]);
    check_lock(&holder("oncebox relay", Some(31.0)), &["lanes 3, 4 are", "31 s", "hangs", "backend(47)"]);
    check_lock(&holder("psql", None), &["pid 47 (psql)", "end its transaction"]);
    let prepared = Holder { prepared: Some("it's".into()), lanes: vec![1], ..Holder::default() };
    check_lock(&prepared, &["lane 1 is", "prepared transaction", "ROLLBACK PREPARED 'it''s'"]);
}

#[test]
fn a_transaction_that_has_enqueued_is_a_finding_after_a_minute() {
    assert_eq!(enqueuing(&holder("psql", Some(59.0))), None);
    let found = enqueuing(&holder("psql", Some(61.0))).unwrap();
    assert!(found.what.contains("pid 47 (psql)") && found.what.contains("61 s"), "{found:?}");
}

/// Keys and subjects come from clients: a quote in one must not end the word of a command that
/// an operator copies.
#[test]
fn remedies_quote_what_clients_have_named() {
    let (key, subject, since) = ("';reboot;'", "a.'b", SystemTime::UNIX_EPOCH);
    let blocked = BlockedKey {
        lane: 0,
        ordering_key: "o".into(),
        key: key.into(),
        subject: subject.into(),
        reason: "no".into(),
        died_at: Time(since),
        behind: 1,
    };
    let reason = |messages| ParkedReason {
        reason: "it's no".into(),
        cause: None,
        subject: subject.into(),
        messages,
        key: key.into(),
        since: Time(since),
    };
    let status =
        Status { blocked: vec![blocked], parked_reasons: vec![reason(1), reason(2)], ..Status::default() };
    let remedies: Vec<String> = findings(&status).into_iter().map(|found| found.remedy).collect();
    let shown = remedies.join("\n");
    assert!(shown.contains(r"dead retry --key ''\'';reboot;'\'''`"), "{shown}");
    assert!(shown.contains(r"parked retry --key ''\'';reboot;'\'''`"), "{shown}");
    assert!(shown.contains(r"parked discard --subject-is 'a.'\''b' --reason-is 'it'\''s no'`"), "{shown}");
}

fn check_stall(lag_seconds: f64, settled_seconds: f64, is_locked: bool, expected: bool) {
    let settled_at = SystemTime::UNIX_EPOCH;
    let lane = LaneStatus {
        lane: 3,
        backlog_messages: 1,
        lag_seconds,
        settled_at: Time(settled_at),
        settled_seconds,
        is_restored: false,
    };
    let mut status = Status { lanes: vec![lane], ..Status::default() };
    assert!(stalled(&status).is_none(), "no relay is another finding");
    status.relays.push(crate::RelaySessions { user_name: None, client: None, sessions: 1, leads: true });
    status.locks.extend(is_locked.then(|| holder("psql", None)));
    assert_eq!(stalled(&status).is_some(), expected, "{lag_seconds} {settled_seconds}");
}

#[test]
fn a_stall_is_due_messages_and_no_settlement() {
    check_stall(11.0, 11.0, false, true);
    check_stall(11.0, 1.0, false, false);
    check_stall(1.0, 11.0, false, false);
    check_stall(11.0, 11.0, true, false);
}

/// A copy sends nothing, so that nothing else of delivery matters before it.
#[test]
fn a_copy_comes_first_and_explains_why_nothing_is_settled() {
    let lane = LaneStatus {
        lane: 3,
        backlog_messages: 1,
        lag_seconds: 60.0,
        settled_at: Time(SystemTime::UNIX_EPOCH),
        settled_seconds: 60.0,
        is_restored: false,
    };
    let relay = crate::RelaySessions { user_name: None, client: None, sessions: 1, leads: true };
    let faults = ["grants", "copy"].map(|name| {
        let mut fault = Fault::default();
        fault.fault = name;
        fault
    });
    let status =
        Status { lanes: vec![lane], relays: vec![relay], faults: faults.to_vec(), ..Status::default() };
    let found = findings(&status);
    assert!(found[0].what.contains("is a copy") && found[0].kind == Some(DOWN), "{found:?}");
    assert!(found.iter().all(|finding| !finding.what.contains("nothing was settled")), "{found:?}");
}

#[test]
fn a_seal_is_no_limit_that_could_be_widened() {
    let remedy = |reason: &str| {
        let (reason, since) = (reason.to_owned(), SystemTime::UNIX_EPOCH);
        let cause = Some("refused".to_owned());
        let (subject, key) = ("a.b".to_owned(), "k".to_owned());
        let group = ParkedReason { reason, cause, subject, messages: 1, key, since: Time(since) };
        findings(&Status { parked_reasons: vec![group], ..Status::default() }).remove(0).remedy
    };
    let sealed = "invalid operation on sealed stream (10109)";
    assert!(
        remedy(&format!("JetStream refused: {sealed}")).starts_with("give the subject to another stream")
    );
    let bucket = remedy(&format!("JetStream refused: object store payloads: {sealed}"));
    assert!(bucket.starts_with("name another bucket with --object-store"), "{bucket}");
    assert!(remedy("JetStream refused: something (10060)").starts_with("mend or widen"));
}

#[test]
fn the_number_of_failing_messages_fits_its_sentence() {
    let told = |number| {
        let mut inbox = InboxStatus::default();
        (inbox.scope, inbox.failing) = (Some("s".to_owned()), number);
        failing(&[inbox]).remove(0).what
    };
    assert!(told(1).starts_with("1 message of the inbox of s failed and is tried again"));
    assert!(told(2).starts_with("2 messages of the inbox of s failed and are tried again"));
}
