//! The state machine by its rules, one by one; `model` runs it at random.

mod model;

use super::*;
use crate::{
    graph::{
        Draft, Undo, checked,
        tests::{draft, pivot},
    },
    progress::State,
};

/// An instance, and the commands that were sent for it.
pub(super) struct Run {
    pub(super) graph: Graph,
    pub(super) progress: Progress,
    pub(super) sent: Vec<Command>,
}

impl Run {
    pub(super) fn new(drafts: &[Draft]) -> Self {
        let graph = checked("order", 1, drafts, None).unwrap();
        let progress = Progress::new(&graph);
        let mut run = Self { graph, progress, sent: Vec::new() };
        assert_eq!(run.happens(&Event::Started), Verdict::Applied);
        run
    }

    pub(super) fn happens(&mut self, event: &Event) -> Verdict {
        let transition = decide(&self.graph, &self.progress, event);
        if transition.verdict != Verdict::Applied {
            assert_eq!(transition.progress, self.progress, "{event:?} changes nothing");
            assert!(transition.sendings.is_empty(), "{event:?} sends nothing");
        }
        self.progress = transition.progress;
        self.sent.extend(transition.sendings.iter().map(|sending| sending.command));
        transition.verdict
    }

    pub(super) fn state(&self) -> State {
        self.progress.state(&self.graph)
    }

    fn command(&self, text: &str) -> Command {
        let (text, is_undo) = text.strip_suffix(":undo").map_or((text, false), |text| (text, true));
        let (name, attempt) = text.split_once(":#").map_or((text, 1), |(name, n)| (name, n.parse().unwrap()));
        Command { step: self.graph.step(name).unwrap(), is_undo, attempt }
    }

    fn answer(&mut self, text: &str, answer: Answer) -> Verdict {
        let command = self.command(text);
        self.happens(&Event::Answered(command, answer))
    }

    fn done(&mut self, text: &str) -> Verdict {
        self.answer(text, Answer::Done)
    }

    fn rejected(&mut self, text: &str) -> Verdict {
        self.answer(text, Answer::Rejected)
    }

    fn dead(&mut self, text: &str) -> Verdict {
        let scope = self.graph.scope(text).unwrap().to_owned();
        self.answer(text, Answer::Dead { scope, reason: "why".to_owned() })
    }

    fn late(&mut self, name: &str) -> Verdict {
        let step = self.graph.step(name).unwrap();
        self.happens(&Event::StepLate(step))
    }

    /// The commands sent so far, as keys.
    fn sent(&self) -> Vec<String> {
        let text = |command: &Command| {
            let number = if command.attempt > 1 { format!(":#{}", command.attempt) } else { String::new() };
            let undo = if command.is_undo { ":undo" } else { "" };
            format!("{}{number}{undo}", self.graph.nodes[command.step].name)
        };
        self.sent.iter().map(text).collect()
    }
}

fn chain() -> Vec<Draft> {
    let tell = Draft { undo: Undo::Unsaid, ..draft("tell", &["ship"]) };
    vec![draft("reserve", &[]), draft("pay", &["reserve"]), pivot("ship", &["pay"]), tell]
}

#[test]
fn steps_follow_one_another_to_the_end() {
    let mut run = Run::new(&chain());
    for step in ["reserve", "pay", "ship", "tell"] {
        assert_eq!(run.state(), State::Running);
        assert_eq!(run.done(step), Verdict::Applied);
    }
    assert_eq!(run.state(), State::Completed);
    assert_eq!(run.sent(), ["reserve", "pay", "ship", "tell"]);
}

#[test]
fn a_rejection_undoes_what_came_before_in_reverse_and_not_itself() {
    let mut run = Run::new(&chain());
    run.done("reserve");
    run.done("pay");
    run.rejected("ship");
    assert_eq!((run.state(), run.sent().last().unwrap().as_str()), (State::Compensating, "pay:undo"));
    run.done("pay:undo");
    run.done("reserve:undo");
    assert_eq!(run.state(), State::Compensated);
    assert_eq!(run.sent(), ["reserve", "pay", "ship", "pay:undo", "reserve:undo"]);
    assert_eq!(run.progress.reason.as_deref(), Some("step \"ship\": rejected by the participant"));
}

#[test]
fn a_step_whose_outcome_is_unknown_is_undone_first() {
    for fails in [Run::late, Run::dead] {
        let mut run = Run::new(&chain());
        run.done("reserve");
        fails(&mut run, "pay");
        assert_eq!(run.sent().last().unwrap(), "pay:undo");
        // A late answer changes nothing.
        assert_eq!(run.done("pay"), Verdict::Late);
        assert_eq!(run.done("pay:undo"), Verdict::Applied);
        assert_eq!(run.done("pay:undo"), Verdict::Duplicate);
        assert_eq!(run.sent().last().unwrap(), "reserve:undo");
    }
}

#[test]
fn parallel_steps_are_undone_at_once_also_those_under_way() {
    let drafts = [
        draft("a", &[]),
        draft("b", &["a"]),
        draft("c", &["a"]),
        draft("d", &["a"]),
        draft("e", &["b", "c", "d"]),
    ];
    let mut run = Run::new(&drafts);
    run.done("a");
    assert_eq!(run.sent(), ["a", "b", "c", "d"]);
    run.done("b");
    run.rejected("c");
    assert_eq!(run.sent()[4..], ["b:undo", "d:undo"], "c had no effect, and d may have one");
    assert_eq!(run.rejected("d"), Verdict::Late);
    run.done("b:undo");
    assert_eq!(run.sent().len(), 6, "a waits until all behind it is undone");
    run.done("d:undo");
    assert_eq!(run.sent().last().unwrap(), "a:undo");
    run.done("a:undo");
    assert_eq!(run.state(), State::Compensated);
}

/// Others consume the subjects of commands too, and give their copies up.
#[test]
fn a_death_counts_only_when_it_is_the_participants() {
    let mut drafts = chain();
    drafts[1].undo_scope = Some("refunds".to_owned());
    let mut run = Run::new(&drafts);
    run.done("reserve");
    let dead = |run: &mut Run, command: &str, scope: &str| {
        run.answer(command, Answer::Dead { scope: scope.to_owned(), reason: "why".to_owned() })
    };
    for command in ["pay", "pay:#2", "ship", "pay:undo", "reserve"] {
        assert_eq!(dead(&mut run, command, "analytics:audit"), Verdict::Foreign, "{command}");
    }
    assert_eq!(dead(&mut run, "pay", "refunds"), Verdict::Foreign, "it takes the compensation only");
    assert_eq!(run.sent(), ["reserve", "pay"]);
    assert_eq!(dead(&mut run, "pay", "pay service"), Verdict::Applied);
    assert_eq!(dead(&mut run, "pay:undo", "pay service"), Verdict::Foreign);
    assert_eq!(dead(&mut run, "pay:undo", "refunds"), Verdict::Applied);
    assert_eq!(run.state(), State::Stuck);
}

/// An operator may skip a step under way whose answer put the saga into quarantine.
#[test]
fn what_is_under_way_can_be_skipped() {
    let mut run = Run::new(&chain());
    let skip = Event::Skip(run.command("reserve"));
    assert_eq!(run.happens(&skip), Verdict::Applied);
    assert_eq!(run.happens(&skip), Verdict::Late);
    assert_eq!(run.sent(), ["reserve", "pay"]);
    run.rejected("pay");
    let skip = Event::Skip(run.command("reserve:undo"));
    assert_eq!(run.happens(&Event::Skip(run.command("reserve"))), Verdict::Late, "it is being undone");
    assert_eq!(run.happens(&skip), Verdict::Applied);
    assert_eq!(run.state(), State::Compensated);
}

#[test]
fn answers_to_what_was_not_sent_are_early() {
    let mut run = Run::new(&chain());
    for early in ["pay", "reserve:#2", "reserve:undo"] {
        assert_eq!(run.done(early), Verdict::Early, "{early}");
    }
    run.done("reserve");
    assert_eq!(run.done("reserve"), Verdict::Duplicate);
    assert_eq!(run.rejected("reserve"), Verdict::Late);
    assert_eq!(run.dead("reserve"), Verdict::Late);
}

#[test]
fn attempts_follow_known_failures_and_never_lateness() {
    let mut drafts = chain();
    drafts[1].attempts = 3;
    let mut run = Run::new(&drafts);
    run.done("reserve");
    run.dead("pay");
    assert_eq!(run.dead("pay"), Verdict::Late, "the second death of the first attempt");
    run.rejected("pay:#2");
    assert_eq!(run.sent(), ["reserve", "pay", "pay:#2", "pay:#3"]);
    let mut other = Run::new(&drafts);
    other.done("reserve");
    other.dead("pay");
    other.late("pay");
    assert_eq!(other.sent(), ["reserve", "pay", "pay:#2", "pay:undo"]);
    // The last one says no, but the outcome of the first is unknown: it is undone.
    run.rejected("pay:#3");
    assert_eq!(run.sent().last().unwrap(), "pay:undo");
}

#[test]
fn a_success_of_any_attempt_counts() {
    let mut drafts = chain();
    drafts[1].attempts = 2;
    let mut run = Run::new(&drafts);
    run.done("reserve");
    run.dead("pay");
    assert_eq!(run.done("pay"), Verdict::Applied, "its operator has retried the letter");
    assert_eq!(run.rejected("pay:#2"), Verdict::Late);
    assert_eq!(run.sent().last().unwrap(), "ship");
}

#[test]
fn after_the_pivot_failures_wait_for_an_operator() {
    let mut run = Run::new(&chain());
    run.done("reserve");
    run.done("pay");
    run.done("ship");
    run.late("tell");
    assert_eq!(run.state(), State::Stuck);
    assert_eq!(run.happens(&Event::Late), Verdict::Late, "there is no way back");
    let retry = Event::Retry(run.command("tell"));
    assert_eq!(run.happens(&retry), Verdict::Applied);
    assert_eq!(run.happens(&retry), Verdict::Late, "the same request again");
    assert_eq!((run.state(), run.sent().last().unwrap().as_str()), (State::Running, "tell:#2"));
    run.rejected("tell:#2");
    let skip = Event::Skip(run.command("tell:#2"));
    assert_eq!(run.happens(&skip), Verdict::Applied);
    assert_eq!(run.state(), State::Completed);
}

#[test]
fn a_late_success_frees_what_is_stuck() {
    let mut run = Run::new(&chain());
    run.done("reserve");
    run.done("pay");
    run.late("ship");
    assert_eq!(run.state(), State::Stuck, "a pivot that cannot be undone, and may be done");
    assert_eq!(run.happens(&Event::Late), Verdict::Late);
    assert_eq!(run.done("ship"), Verdict::Applied);
    assert_eq!(run.sent().last().unwrap(), "tell");
    // And a late no turns it back.
    let mut run = Run::new(&chain());
    run.done("reserve");
    run.done("pay");
    run.late("ship");
    assert_eq!(run.rejected("ship"), Verdict::Applied);
    assert_eq!(run.sent().last().unwrap(), "pay:undo");
}

#[test]
fn a_pivot_of_which_an_attempt_is_in_doubt_does_not_turn_back() {
    let mut drafts = chain();
    drafts[2].attempts = 2;
    let mut run = Run::new(&drafts);
    run.done("reserve");
    run.done("pay");
    run.dead("ship");
    run.rejected("ship:#2");
    assert_eq!(run.state(), State::Stuck);
    // With a way to undo it, it does.
    drafts[2].undo = Undo::Subject("ship.undo".to_owned());
    let mut run = Run::new(&drafts);
    run.done("reserve");
    run.done("pay");
    run.dead("ship");
    run.rejected("ship:#2");
    assert_eq!(run.sent().last().unwrap(), "ship:undo");
}

#[test]
fn a_compensation_that_fails_waits_and_its_retry_has_a_key_of_its_own() {
    let mut run = Run::new(&chain());
    run.done("reserve");
    run.rejected("pay");
    run.dead("reserve:undo");
    assert_eq!(run.state(), State::Stuck);
    assert_eq!(run.dead("reserve:undo"), Verdict::Duplicate);
    let retry = Event::Retry(run.command("reserve:undo"));
    run.happens(&retry);
    assert_eq!((run.state(), run.sent().last().unwrap().as_str()), (State::Compensating, "reserve:#2:undo"));
    run.late("reserve");
    assert_eq!(run.state(), State::Stuck);
    // The first attempt comes through after all.
    assert_eq!(run.done("reserve:undo"), Verdict::Applied);
    assert_eq!(run.state(), State::Compensated);
}

#[test]
fn the_deadline_of_the_whole_turns_back_what_has_a_way_back() {
    let mut run = Run::new(&chain());
    run.done("reserve");
    assert_eq!(run.happens(&Event::Late), Verdict::Applied);
    assert_eq!(run.sent().last().unwrap(), "pay:undo");
    assert_eq!(run.happens(&Event::Late), Verdict::Late);
    // Nor does it turn back a complete saga.
    let mut run = Run::new(&[draft("a", &[])]);
    run.done("a");
    assert_eq!((run.happens(&Event::Late), run.state()), (Verdict::Late, State::Completed));
}
