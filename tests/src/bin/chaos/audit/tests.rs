use super::*;

/// Two thousand orders, all done right.
fn right() -> Facts {
    let mut facts = Facts::default();
    let mut copied = Vec::new();
    for n in 0..2_000 {
        let key = format!("p{}-{n}-1", n % 4);
        let order = Order::of(&key).unwrap();
        facts.written.push(key.clone());
        copied.extend(vec![key.clone(); COPIES]);
        let status = if order.is_dead() { "dead" } else { "completed" };
        for scope in [EACH, BATCH] {
            facts.outcomes.push((scope.to_owned(), format!("{status} {key}")));
            let done = if order.is_dead() { &mut facts.letters } else { &mut facts.effects };
            done.push((scope.to_owned(), key.clone()));
        }
        if !order.is_dead() {
            facts.receipts.push(format!("{key}:{RECEIPT_STEP}"));
        }
        if order.is_card() {
            let status = if order.is_declined() { "rejected" } else { status };
            facts.outcomes.push((CASHIER.to_owned(), format!("{status} {key}")));
            if order.is_dead() {
                facts.letters.push((CASHIER.to_owned(), key.clone()));
            } else if !order.is_declined() {
                let line = |number| Line { requests: 3, made: vec![number] };
                facts.books.charges.insert(format!("{key}:charge"), line(2 * n));
                facts.books.payouts.insert(format!("{key}:pay-out"), line(2 * n + 1));
                facts.settlements.push((order.order, 2 * n, 2 * n + 1));
            }
        }
        if order.is_card() && !order.is_dead() {
            let state = if order.is_declined() { "compensated" } else { "completed" };
            facts.sagas.push((state.to_owned(), key.clone()));
            let done = if order.is_declined() { &[][..] } else { &STEPS };
            facts.steps.extend(done.iter().map(|step| (key.clone(), (*step).to_owned())));
        }
        facts.placed.push(key);
    }
    facts.copied = Some(copied);
    facts
}

#[test]
fn what_was_done_right_is_right() {
    assert!(right().problems().is_empty(), "{:?}", right().problems());
    assert!(right().audit().iter().all(|line| line.counts.messages > 1));
}

#[test]
fn every_kind_of_wrong_is_found_and_named() {
    let check = |tamper: fn(&mut Facts), part: &str| {
        let mut facts = right();
        tamper(&mut facts);
        let problems = facts.problems();
        assert!(problems.iter().any(|problem| problem.contains(part)), "\"{part}\" is not in {problems:?}");
    };
    check(|facts| drop(facts.written.pop()), "messages relayed: 1 lost");
    check(|facts| drop(facts.copied.as_mut().unwrap().pop()), "5999 copies");
    check(|facts| drop(facts.effects.remove(0)), "effects, a transaction each: 1 lost");
    check(|facts| facts.effects.push(facts.effects[1].clone()), "effects, in batches: 0 lost, 1 doubled");
    check(|facts| facts.effects[0].1 = "x".to_owned(), "1 lost, 0 doubled, 1 invented");
    check(|facts| drop(facts.sagas.pop()), "sagas, completed or compensated: 1 lost");
    check(|facts| facts.sagas[0].0 = "stuck".to_owned(), "compensated: 1 lost, 0 doubled, 1 invented");
    check(|facts| drop(facts.steps.pop()), "effects of sagas' steps: 1 lost");
    check(|facts| facts.steps.push(facts.steps[0].clone()), "steps: 0 lost, 1 doubled");
    check(|facts| drop(facts.receipts.pop()), "receipts, by handlers' outbox: 1 lost");
    check(
        |facts| facts.letters.push(facts.letters[0].clone()),
        "dead letters, a transaction each: 0 lost, 1 doubled",
    );
    check(
        |facts| facts.letters.push((CASHIER.to_owned(), "p0-0-1".to_owned())),
        "dead letters, under leases",
    );
    check(|facts| drop(facts.outcomes.pop()), "outcomes, ");
    check(|facts| facts.settlements.push(facts.settlements[0]), "settlements booked: 0 lost, 1 doubled");
    check(|facts| facts.settlements[0].1 += 1, "1 settlements with numbers");
    check(|facts| facts.leftovers.push(("messages in the outbox".to_owned(), 2)), "2 messages in the outbox");
    check(
        |facts| facts.books.charges.values_mut().for_each(|line| line.made.push(7)),
        "charges at the gateway: 0 lost",
    );
    check(|facts| drop(facts.books.payouts.pop_first()), "payouts at the gateway: 1 lost");
    let asked = |facts: &mut Facts| drop(facts.books.charges.insert("x".to_owned(), Line::default()));
    check(asked, "1 keys at the gateway");
}
