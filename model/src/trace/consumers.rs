//! Replays the steps of messages, and judges them beside the keys that have ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Rule, Verdict, effects,
    keys::{Key, Keys},
    numbered::Numbered,
    sagas,
    step::{Claimed, Ending, How, Of, Status, Step, Steps},
};

/// A life of a consumer.
type Run<'a> = &'a str;

/// A commit that ends a key, or sets a message aside.
struct Commit<'a> {
    run: Run<'a>,
    ending: &'a Ending,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The process died, or the answer did not come.
    Unknown,
    Committed,
    /// It has no effect.
    None,
}

/// The facts that a life of a consumer knows of a message for certain.
#[derive(Clone, Copy, Default)]
struct Proof {
    is_done: bool,
    is_given_up: bool,
}

#[derive(Default)]
struct Replay<'a> {
    commits: Vec<Commit<'a>>,
    /// The owners of each key under a lease, by epoch.
    owners: BTreeMap<i64, BTreeMap<i64, Run<'a>>>,
    /// The last claim of each message, and its open commit.
    claims: HashMap<(Run<'a>, Of), &'a Claimed>,
    open: HashMap<(Run<'a>, Of), usize>,
    proofs: HashMap<(Run<'a>, Option<u64>), Proof>,
    verdict: Verdict,
}

pub(super) fn check(ledger: &Keys, steps: &Steps, expected: &[&'static str]) -> Verdict {
    let mut replay = Replay::default();
    for mistake in &steps.mistakes {
        replay.verdict.breaks(Rule::Complete, mistake);
    }
    for Numbered { run, rest, .. } in &steps.all {
        replay.take(run, rest, ledger);
    }
    replay.ended(ledger);
    let Replay { mut verdict, .. } = replay;
    effects::check(ledger, steps, &mut verdict);
    sagas::check(ledger, steps, &mut verdict);
    for action in ["claims", "commits", "acks"].iter().chain(expected) {
        if verdict.actions.get(action).is_none_or(|times| *times == 0) {
            verdict.breaks(Rule::Vacuous, format!("no {action}"));
        }
    }
    verdict
}

impl<'a> Replay<'a> {
    fn take(&mut self, run: Run<'a>, step: &'a Step, ledger: &Keys) {
        match step {
            Step::Started { .. } | Step::Effect(_) | Step::Changing(_) | Step::Quarantining { .. } => {}
            Step::Claimed(claimed) => self.claimed(run, claimed, ledger),
            Step::Failed {} => self.verdict.saw("failures", 1),
            Step::Released {} => self.verdict.saw("releases", 1),
            Step::Committing(ending) => self.committing(run, ending),
            Step::Committed(of) => self.answered(run, *of, Outcome::Committed, "commits"),
            Step::Lost(of) => self.answered(run, *of, Outcome::Unknown, "commits without an answer"),
            Step::Refused(of) => self.answered(run, *of, Outcome::None, "refused commits"),
            Step::Fenced(of) => self.answered(run, *of, Outcome::None, "fenced commits"),
            Step::Answering { message, answer } => self.answering(run, *message, answer),
        }
    }

    fn claimed(&mut self, run: Run<'a>, claimed: &'a Claimed, ledger: &Keys) {
        let Claimed { of, how, .. } = claimed;
        self.claims.insert((run, *of), claimed);
        self.open.remove(&(run, *of));
        let Some(key) = of.key else { return };
        match how {
            How::Won => {
                self.verdict.saw("claims", 1);
                self.verdict.saw("takeovers", usize::from(claimed.taken_over));
                if let Some(epoch) = claimed.epoch
                    && let Some(other) = self.owners.entry(key).or_default().insert(epoch, run)
                {
                    let twice = format!("key {key}: {other} and {run} both own epoch {epoch}");
                    self.verdict.breaks(Rule::Fence, twice);
                }
            }
            How::Stored => {
                self.verdict.saw("copies", 1);
                let known = ledger.keys.get(&key);
                let is_first =
                    known.is_some_and(|of| Some(of.status) == claimed.status && of.reply == claimed.reply);
                if !is_first {
                    self.verdict.breaks(
                        Rule::Replayed,
                        format!("{run} answers {of:?} with {claimed:?}, not {known:?}"),
                    );
                }
                let proof = self.proofs.entry((run, of.message)).or_default();
                match claimed.status {
                    Some(Status::Completed | Status::Rejected) => proof.is_done = true,
                    Some(Status::Dead | Status::Aside) | None => proof.is_given_up = true,
                }
            }
            How::InFlight => self.verdict.saw("in flight", 1),
            How::Mismatch | How::Again => {}
        }
    }

    fn committing(&mut self, run: Run<'a>, ending: &'a Ending) {
        let at = (run, ending.of);
        if !self.may_end(at, ending) {
            self.verdict.breaks(Rule::Claimed, format!("{run} ends {:?} without a claim", ending.of));
        }
        self.open.insert(at, self.commits.len());
        self.commits.push(Commit { run, ending, outcome: Outcome::Unknown });
    }

    /// Whether the last claim of a message allows it to end so. A message is set aside only if it
    /// has no key, or if its key has another payload.
    fn may_end(&self, at: (Run<'a>, Of), ending: &Ending) -> bool {
        let claim = self.claims.get(&at);
        if ending.status == Status::Aside {
            return ending.of.key.is_none() || claim.is_some_and(|claim| claim.how == How::Mismatch);
        }
        claim.filter(|claim| claim.how == How::Won).is_some_and(|won| match ending.epoch {
            Some(epoch) => won.epoch == Some(epoch),
            None => won.xact.is_some() && won.xact == ending.xact,
        })
    }

    fn answered(&mut self, run: Run<'a>, of: Of, outcome: Outcome, name: &'static str) {
        self.verdict.saw(name, 1);
        let Some(at) = self.open.remove(&(run, of)) else {
            self.verdict.breaks(Rule::Complete, format!("{run}: the answer to no commit of {of:?}"));
            return;
        };
        self.commits[at].outcome = outcome;
        if outcome == Outcome::Committed && self.may_end((run, of), self.commits[at].ending) {
            let proof = self.proofs.entry((run, of.message)).or_default();
            match self.commits[at].ending.status {
                Status::Completed | Status::Rejected => proof.is_done = true,
                Status::Dead | Status::Aside => proof.is_given_up = true,
            }
        }
    }

    fn answering(&mut self, run: Run<'a>, message: Option<u64>, answer: &str) {
        let proof = self.proofs.get(&(run, message)).copied().unwrap_or_default();
        let is_right = match answer {
            "ack" => {
                self.verdict.saw("acks", 1);
                proof.is_done
            }
            "term" => {
                self.verdict.saw("terms", 1);
                proof.is_given_up
            }
            _ => {
                self.verdict.saw("naks", 1);
                true
            }
        };
        if !is_right {
            let answered = format!("{run} sends {answer} for message {message:?} before its end is known");
            self.verdict.breaks(Rule::Answered, answered);
        }
    }

    /// The commits that may have written the row of a key. Of those that do not tell their
    /// transaction, one that was answered goes before those that were not, and of these the last:
    /// no consumer would have claimed an ended key again.
    fn writers(&self, commits: &[usize], key: &Key) -> Vec<usize> {
        let mut writers = commits.to_vec();
        writers.retain(|at| is_writer(&self.commits[*at], key));
        if writers.len() > 1 && writers.iter().all(|at| self.commits[*at].ending.xact.is_none()) {
            let is_answered = |at: &usize| self.commits[*at].outcome == Outcome::Committed;
            let last = writers.iter().copied().max_by_key(|at| self.commits[*at].ending.epoch);
            writers.retain(is_answered);
            if writers.is_empty() {
                writers.extend(last);
            }
        }
        writers
    }

    /// Each key that has ended was ended by one of these commits, and none of them is missing.
    fn ended(&mut self, ledger: &Keys) {
        let mut of_key: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (at, commit) in self.commits.iter().enumerate() {
            if let Some(key) = commit.ending.of.key.filter(|_| commit.ending.status != Status::Aside) {
                of_key.entry(key).or_default().push(at);
            }
        }
        for key in ledger.keys.values() {
            let commits = of_key.get(&key.key).map_or(&[][..], Vec::as_slice);
            let writers = self.writers(commits, key);
            let named = format!("{} of {}", key.name, key.scope);
            let [writer] = writers[..] else {
                let broken = format!("{named}: ended by {} recorded commits", writers.len());
                self.verdict.breaks(Rule::Ended, broken);
                continue;
            };
            let Commit { run, ending, .. } = &self.commits[writer];
            if ending.status != key.status || ending.reply != key.reply {
                self.verdict.breaks(Rule::Ended, format!("{named}: {run} wrote {ending:?}, found {key:?}"));
            }
            let newest = self.owners.get(&key.key).and_then(|owners| owners.last_key_value());
            if let Some((newest, owner)) = newest.filter(|(newest, _)| ending.epoch != Some(**newest)) {
                let stale = format!("{named}: ended by {run} in epoch {:?}, but", ending.epoch);
                self.verdict.breaks(Rule::Fence, format!("{stale} {owner} owns it in epoch {newest}"));
            }
            let statuses = [(Status::Rejected, "rejections"), (Status::Dead, "deaths")];
            for (_, name) in statuses.iter().filter(|(status, _)| *status == key.status) {
                self.verdict.saw(name, 1);
            }
        }
        let is_kept = |commit: &Commit<'_>| {
            let key = commit.ending.of.key.and_then(|key| ledger.keys.get(&key));
            key.is_some_and(|key| is_writer(commit, key))
        };
        let lost: BTreeSet<String> = self
            .commits
            .iter()
            .filter(|commit| commit.outcome == Outcome::Committed && commit.ending.status != Status::Aside)
            .filter(|commit| !is_kept(commit))
            .map(|commit| format!("{} has committed {:?}, which is not there", commit.run, commit.ending))
            .collect();
        lost.iter().for_each(|lost| self.verdict.breaks(Rule::Ended, lost));
    }
}

/// Whether a commit may have written the row of a key. That of a dead key under a lease does not
/// tell its transaction.
fn is_writer(commit: &Commit<'_>, key: &Key) -> bool {
    let Commit { ending, outcome, .. } = commit;
    match ending.xact {
        Some(xact) => key.is_of(xact),
        None => *outcome != Outcome::None && key.status == Status::Dead && ending.status == Status::Dead,
    }
}
