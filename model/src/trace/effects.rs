//! Effects: the rows of handlers, and the calls of other systems under a lease.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{
    Rule, Verdict,
    keys::{Call, Effect, Keys},
    step::{Did, Status, Step, Steps},
};

pub(super) fn check(ledger: &Keys, steps: &Steps, verdict: &mut Verdict) {
    rows(ledger, verdict);
    let called = called(steps, verdict);
    for Call { scope, name, effect, times } in &ledger.calls {
        let key = ledger.of(scope, name).map(|key| key.key);
        let is_known = key.is_some_and(|key| called.contains(&(key, effect.as_str())));
        if *times > 1 || *times == 1 && !is_known {
            let broken = format!("{effect} of {name}: {times} times, recorded: {is_known}");
            verdict.breaks(Rule::Effect, broken);
        }
        verdict.saw("effects outside", usize::from(*times > 0));
    }
}

/// A row belongs to the transaction that ended its key, and there is one of a kind.
fn rows(ledger: &Keys, verdict: &mut Verdict) {
    let mut seen = HashSet::new();
    for Effect { scope, name, what, xmin } in &ledger.effects {
        verdict.saw("effects", 1);
        let key = ledger.of(scope, name).filter(|key| key.status != Status::Dead);
        let Some(key) = key else {
            verdict.breaks(Rule::Effect, format!("{what} of {name}, which {scope} has not handled"));
            continue;
        };
        if xmin.is_some_and(|xmin| !key.is_of(xmin)) {
            let broken = format!("{what} of {name}: transaction {xmin:?} wrote it, and {} ended", key.xmin);
            verdict.breaks(Rule::Effect, broken);
        }
        if !seen.insert((scope, name, what)) {
            verdict.breaks(Rule::Effect, format!("{what} of {name}: twice in {scope}"));
        }
    }
}

/// Follows each effect from owner to owner, in the order of their epochs; returns those that were
/// called.
fn called<'a>(steps: &'a Steps, verdict: &mut Verdict) -> HashSet<(i64, &'a str)> {
    let mut all: BTreeMap<(i64, &str), BTreeMap<i64, Vec<Did>>> = BTreeMap::new();
    for numbered in &steps.all {
        if let Step::Effect(effect) = &numbered.rest {
            let epochs = all.entry((effect.key, &effect.effect)).or_default();
            epochs.entry(effect.epoch).or_default().push(effect.did);
        }
    }
    for ((key, effect), epochs) in &all {
        let mut history = History::default();
        for (epoch, steps) in epochs {
            for (rule, broken) in history.owner(steps) {
                verdict.breaks(rule, format!("{effect} of key {key}, epoch {epoch}: {broken}"));
            }
        }
        let seen = |did| epochs.values().flatten().filter(|found| **found == did).count();
        for (did, name) in [
            (Did::Calling, "calls"),
            (Did::Known, "results known"),
            (Did::Open, "calls of unknown outcome"),
            (Did::Forgetting, "calls that failed"),
            (Did::Fenced, "fenced effects"),
        ] {
            verdict.saw(name, seen(did));
        }
    }
    let is_called =
        |epochs: &BTreeMap<i64, Vec<Did>>| epochs.values().flatten().any(|did| *did == Did::Calling);
    all.into_iter().filter(|(_, epochs)| is_called(epochs)).map(|(name, _)| name).collect()
}

/// An effect, as the owners so far have left it.
#[derive(Default)]
struct History {
    /// Its record may be there, and was.
    may_be_begun: bool,
    is_begun: bool,
    may_be_forgotten: bool,
    may_be_remembered: bool,
    is_remembered: bool,
}

impl History {
    /// The steps of the next owner, in their order. Returns the rules that they break.
    fn owner(&mut self, steps: &[Did]) -> BTreeSet<(Rule, &'static str)> {
        let mut broken = BTreeSet::new();
        let (mut may_call, mut may_be_open, mut is_fenced) = (false, false, false);
        let was_remembered = self.is_remembered;
        for did in steps {
            let writes = matches!(did, Did::Begun | Did::BegunAgain | Did::Calling | Did::Remembered);
            if is_fenced && writes {
                broken.insert((Rule::Fence, "goes on after its lease was lost"));
            }
            if was_remembered && (writes || *did == Did::Open) {
                broken.insert((Rule::Fence, "happens again, or an owner before wrote without its lease"));
            }
            match did {
                Did::Beginning => {
                    may_be_open = self.may_be_begun;
                    self.may_be_begun = true;
                }
                Did::Begun => {
                    if self.is_begun && !self.may_be_forgotten {
                        broken.insert((Rule::Effect, "its record is gone"));
                    }
                    (self.is_begun, self.may_be_forgotten, may_call) = (true, false, true);
                }
                Did::BegunAgain => may_call = true,
                Did::Open if !may_be_open => {
                    broken.insert((Rule::Effect, "nobody has begun it"));
                }
                Did::Known if !self.may_be_remembered => {
                    broken.insert((Rule::Effect, "nobody has remembered it"));
                }
                Did::Open | Did::Known => {}
                Did::Calling => {
                    if !std::mem::take(&mut may_call) {
                        broken.insert((Rule::Effect, "is called without a record"));
                    }
                }
                Did::Remembering => self.may_be_remembered = true,
                Did::Remembered => self.is_remembered = true,
                Did::Forgetting => self.may_be_forgotten = true,
                Did::Fenced => is_fenced = true,
            }
        }
        broken
    }
}
