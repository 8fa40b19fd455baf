//! Follows sagas from change to change: the production code decides about each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oncebox_saga::{
    Graph,
    rules::{Change, Command, Event, Progress, State, StepProgress, StepState, Verdict as Decided, decide},
};

use super::{
    Rule, Verdict,
    keys::{Keys, Saga},
    numbered::Numbered,
    step::{Step, Steps},
};

/// A change, and the life of an orchestrator that made it.
type Made<'a> = (&'a str, &'a Change);
/// The changes of a saga, by the revision that they replace: one whose commit had no answer may
/// have happened or not.
type Revisions<'a> = BTreeMap<i64, Vec<Made<'a>>>;

pub(super) fn check(ledger: &Keys, steps: &Steps, verdict: &mut Verdict) {
    let mut graphs: HashMap<String, Graph> = HashMap::new();
    let mut sagas: BTreeMap<i64, Revisions<'_>> = BTreeMap::new();
    let mut aside = BTreeSet::new();
    for Numbered { run, rest, .. } in &steps.all {
        match rest {
            Step::Started { definitions } => {
                let drawn = definitions.iter().map(|drawing| drawing.graph());
                graphs.extend(drawn.map(|graph| (graph.fingerprint().to_owned(), graph)));
            }
            Step::Changing(change) => {
                sagas.entry(change.saga).or_default().entry(change.revision).or_default().push((run, change));
            }
            Step::Quarantining { saga } => {
                aside.insert(*saga);
            }
            _ => {}
        }
    }
    for (run, change) in sagas.values().flatten().flat_map(|(_, made)| made) {
        verdict.saw("changes", 1);
        match graphs.get(&change.graph) {
            Some(graph) => decided(run, change, graph, verdict),
            None => verdict.breaks(Rule::Complete, format!("no definition of saga {}", change.saga)),
        }
    }
    for saga in ledger.sagas.values().filter(|saga| !aside.contains(&saga.saga)) {
        let nothing = Revisions::new();
        follow(saga, sagas.get(&saga.saga).unwrap_or(&nothing), &graphs, verdict);
        effects(saga, ledger, verdict);
    }
}

/// A change is the one of the state machine, and no saga changes after its end.
fn decided(run: &str, change: &Change, graph: &Graph, verdict: &mut Verdict) {
    let (mut progress, mut sent, mut is_right) = (change.before.clone(), Vec::new(), true);
    if matches!(progress.state(graph), State::Completed | State::Compensated) {
        verdict.breaks(Rule::Over, format!("{run} changes saga {}, which has ended", change.saga));
    }
    for event in &change.events {
        verdict.saw("deadlines", usize::from(matches!(event, Event::StepLate(_) | Event::Late)));
        let transition = decide(graph, &progress, event);
        is_right &= transition.verdict == Decided::Applied;
        progress = unexplained(transition.progress);
        sent.extend(transition.sendings.iter().map(|sending| sending.command));
    }
    if !is_right || progress != change.after || sent != change.sent {
        let broken = format!("{run}, saga {}, revision {}: {change:?}", change.saga, change.revision);
        verdict.breaks(Rule::Decided, broken);
    }
}

/// Without the texts for people.
fn unexplained(mut progress: Progress) -> Progress {
    progress.reason = None;
    progress.steps.iter_mut().for_each(|step| step.reason = None);
    progress
}

/// Finds the changes that lead to the place where a saga stands.
fn follow(saga: &Saga, revisions: &Revisions<'_>, graphs: &HashMap<String, Graph>, verdict: &mut Verdict) {
    let first = revisions.get(&0).and_then(|made| made.first());
    let Some(graph) = first.and_then(|(_, change)| graphs.get(&change.graph)) else {
        verdict.breaks(Rule::Revision, format!("nobody has begun saga {}", saga.name));
        return;
    };
    verdict.saw("sagas", 1);
    // Backwards, from the change that wrote the last revision.
    let mut found = progress(saga, graph);
    let mut path: Vec<&Made<'_>> = Vec::new();
    for revision in (0..saga.revision).rev() {
        let made = revisions.get(&revision).into_iter().flatten().find(|(_, change)| change.after == found);
        let Some(made) = made else {
            let broken = format!("saga {}: nobody has written revision {}", saga.name, revision + 1);
            verdict.breaks(Rule::Revision, broken);
            return;
        };
        found = made.1.before.clone();
        path.push(made);
    }
    path.reverse();
    let handovers = path.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    verdict.saw("handovers", handovers);
    let mut sent: BTreeSet<(usize, bool, u32)> = BTreeSet::new();
    for (run, change) in path {
        for Command { step, is_undo, attempt } in &change.sent {
            verdict.saw("compensations", usize::from(*is_undo));
            let was_sent = sent.iter().any(|(sent, is_undo, _)| sent == step && !is_undo);
            if !sent.insert((*step, *is_undo, *attempt)) || *is_undo && !was_sent {
                let broken = format!("saga {}: {run} sends {step}, undo {is_undo}", saga.name);
                verdict.breaks(Rule::Undone, broken);
            }
        }
    }
}

/// The progress that the rows of a saga have.
fn progress(saga: &Saga, graph: &Graph) -> Progress {
    let pending = StepProgress {
        state: StepState::Pending,
        attempt: 0,
        undo_attempt: 0,
        in_doubt: false,
        reason: None,
    };
    let steps = graph.steps().map(|name| saga.steps.get(name).unwrap_or(&pending).clone());
    Progress { direction: saga.direction, reason: None, steps: steps.collect() }
}

/// Of the rows that participants have written, one undoes another.
fn effects(saga: &Saga, ledger: &Keys, verdict: &mut Verdict) {
    let of_saga = |name: &str| name.strip_prefix(&saga.name).is_some_and(|rest| rest.starts_with(':'));
    let names: BTreeSet<(&str, &str)> = ledger
        .effects
        .iter()
        .filter(|effect| of_saga(&effect.name))
        .map(|effect| (effect.name.as_str(), effect.what.as_str()))
        .collect();
    for (name, what) in &names {
        if name.strip_suffix(":undo").is_some_and(|action| !names.contains(&(action, *what))) {
            verdict.breaks(Rule::Undone, format!("{name} undoes what nobody has done"));
        }
    }
}
