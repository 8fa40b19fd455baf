//! Sagas of random shapes in a random world, against the properties of every saga: commands and
//! answers come late, twice and in any order, participants say no and die, deadlines pass at any
//! moment, transitions are lost with their process, operators retry. In the end every effect is
//! there, or none.

use super::*;

const CASES: u64 = 10_000;
const STEPS_MAX: usize = 6;
/// How often operators intervene before everything works.
const BAD_ROUNDS: usize = 3;

/// The state of an action, as the barrier stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    None,
    /// A leased run has died. Only its participant can find out whether it had an effect.
    Acting {
        attempt: u32,
        has_acted: bool,
    },
    Acted,
    Rejected {
        attempt: u32,
    },
    Gone,
}

/// A message on its way to a participant, or to the orchestrator.
#[derive(Clone, Debug)]
enum Traffic {
    Command(Command),
    Answer(Command, Answer),
}

struct World {
    run: Run,
    random: fastrand::Rng,
    rows: Vec<Row>,
    /// The answer that a participant's inbox gives to a copy of a command.
    answered: Vec<(Command, Answer)>,
    traffic: Vec<Traffic>,
    seen_commands: usize,
    /// Events that came too early, and are tried again after each other event.
    waiting: Vec<Event>,
    works: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let run = Run::new(&shape(&mut random));
        let rows = vec![Row::None; run.graph.nodes.len()];
        let (answered, traffic, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Self { run, random, rows, answered, traffic, seen_commands: 0, waiting, works: false }
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(0..100) < percent
    }

    /// Delivers messages and lets deadlines pass, until no message and no deadline is left.
    fn settle(&mut self) {
        loop {
            self.collect_commands();
            let is_patient = self.traffic.is_empty();
            if self.chance(if is_patient { 100 } else { 3 }) && !self.deadline_passes() && is_patient {
                return;
            }
            if !self.traffic.is_empty() {
                let at = self.random.usize(0..self.traffic.len());
                let one = self.traffic[at].clone();
                if !self.chance(20) {
                    self.traffic.swap_remove(at);
                }
                match one {
                    Traffic::Command(command) => self.participate(command),
                    Traffic::Answer(command, answer) => self.tell(Event::Answered(command, answer)),
                }
            }
        }
    }

    /// Lets the deadline of a step, or of the whole saga, pass. Returns whether one was left.
    fn deadline_passes(&mut self) -> bool {
        if self.chance(5) && self.run.happens(&Event::Late) == Verdict::Applied {
            return true;
        }
        let awaited: Vec<usize> =
            (0..self.rows.len()).filter(|step| self.run.progress.is_awaited(*step)).collect();
        let Some(step) = self.random.choice(&awaited) else { return false };
        self.run.happens(&Event::StepLate(*step)) == Verdict::Applied
    }

    fn tell(&mut self, event: Event) {
        // The process dies before it commits, and the event comes again.
        if self.chance(10) {
            decide(&self.run.graph, &self.run.progress, &event);
        }
        if self.run.happens(&event) == Verdict::Early {
            self.waiting.push(event);
        } else {
            let waiting = std::mem::take(&mut self.waiting);
            self.waiting =
                waiting.into_iter().filter(|event| self.run.happens(event) == Verdict::Early).collect();
        }
    }

    /// The commands sent since the last look, checked against their order.
    fn collect_commands(&mut self) {
        for command in self.run.sent.clone().into_iter().skip(self.seen_commands) {
            let nodes = &self.run.graph.nodes;
            if command.is_undo {
                let stands = |step: usize| nodes[step].compensation.is_some() && self.may_stand(step);
                assert!(!nodes[command.step].descendants.iter().any(stands), "{command:?} before its turn");
                assert!(nodes[command.step].compensation.is_some(), "{command:?} undoes what cannot be");
            } else {
                let is_done = |step: usize| self.rows[step] == Row::Acted;
                assert!(nodes[command.step].after.iter().all(is_done), "{command:?} before its turn");
            }
            self.traffic.push(Traffic::Command(command));
            self.seen_commands += 1;
        }
    }

    /// Whether an effect of this step is there, or may come.
    fn may_stand(&self, step: usize) -> bool {
        let was_sent = self.run.sent.iter().any(|command| command.step == step && !command.is_undo);
        match self.rows[step] {
            Row::None => was_sent,
            Row::Acting { .. } | Row::Acted => true,
            Row::Rejected { attempt } => self.run.progress.steps[step].attempt > attempt,
            Row::Gone => false,
        }
    }

    /// A command arrives at its participant, which has an inbox and a barrier.
    fn participate(&mut self, command: Command) {
        let known =
            self.answered.iter().find(|(other, _)| *other == command).map(|(_, answer)| answer.clone());
        let answer = match known {
            Some(answer) => answer,
            None if command.is_undo => self.undo(command),
            None => self.act(command),
        };
        // A dead command is sometimes retried by the participant's operator.
        if matches!(answer, Answer::Dead { .. }) && !command.is_undo && self.chance(20) {
            self.answered.retain(|(other, _)| *other != command);
            self.traffic.push(Traffic::Command(command));
        } else {
            self.answered.push((command, answer.clone()));
        }
        self.traffic.push(Traffic::Answer(command, answer));
        // Another service has the same subject, and gives its copy up.
        if self.chance(10) {
            let foreign = Answer::Dead { scope: "audit".to_owned(), reason: "why".to_owned() };
            self.traffic.push(Traffic::Answer(command, foreign));
        }
    }

    fn act(&mut self, command: Command) -> Answer {
        let row = self.rows[command.step];
        match row {
            Row::Acted => return Answer::Done,
            Row::Gone => return Answer::Rejected,
            Row::Acting { attempt, .. } if attempt != command.attempt => return Answer::Rejected,
            Row::Rejected { attempt } if attempt > command.attempt => return Answer::Rejected,
            Row::Acting { has_acted: true, .. } => {
                self.rows[command.step] = Row::Acted;
                return Answer::Done;
            }
            Row::Acting { .. } | Row::Rejected { .. } | Row::None => {}
        }
        let dead = self.dead(command);
        match if self.works { 0 } else { self.random.u8(0..10) } {
            0..=6 => {
                self.rows[command.step] = Row::Acted;
                Answer::Done
            }
            7 => {
                self.rows[command.step] = Row::Rejected { attempt: command.attempt };
                Answer::Rejected
            }
            8 => dead,
            _ => {
                let has_acted = self.random.bool();
                self.rows[command.step] = Row::Acting { attempt: command.attempt, has_acted };
                dead
            }
        }
    }

    fn dead(&self, command: Command) -> Answer {
        let scope = self.run.graph.nodes[command.step].scope(command.is_undo).to_owned();
        Answer::Dead { scope, reason: "why".to_owned() }
    }

    fn undo(&mut self, command: Command) -> Answer {
        let step = command.step;
        if matches!(self.rows[step], Row::Acting { .. }) {
            return self.dead(command);
        }
        match if self.works { 0 } else { self.random.u8(0..10) } {
            0..=7 => {
                self.rows[step] = Row::Gone;
                Answer::Done
            }
            8 => Answer::Rejected,
            _ => self.dead(command),
        }
    }

    /// Operators find dead commands, and retry stuck steps.
    fn operators_intervene(&mut self) {
        for step in 0..self.rows.len() {
            if let Row::Acting { attempt, has_acted } = self.rows[step] {
                let row = if has_acted { Row::Acted } else { Row::Rejected { attempt } };
                self.rows[step] = row;
                let answer = if has_acted { Answer::Done } else { Answer::Rejected };
                let command = Command { step, is_undo: false, attempt };
                self.answered.retain(|(other, _)| *other != command);
                self.answered.push((command, answer.clone()));
                self.traffic.push(Traffic::Answer(command, answer));
            }
            let progress = &self.run.progress.steps[step];
            let is_undo = self.run.progress.direction == Direction::Backward;
            let attempt = if is_undo { progress.undo_attempt } else { progress.attempt };
            self.run.happens(&Event::Retry(Command { step, is_undo, attempt }));
        }
    }

    /// Checks that every effect is there, or that none is there which can be undone.
    fn assert_balanced(&self) {
        let nodes = self.run.graph.nodes.iter().zip(&self.rows);
        match self.run.state() {
            State::Completed => assert!(self.rows.iter().all(|row| *row == Row::Acted), "{:?}", self.rows),
            State::Compensated => {
                for (at, (node, row)) in nodes.enumerate() {
                    let is_clear = node.compensation.is_none() && !node.is_pivot || !self.may_stand(at);
                    assert!(is_clear, "step {at} is {row:?}");
                    assert!(!node.is_forward_only || *row == Row::None, "step {at} after the pivot");
                }
            }
            other => panic!("it ends as {other:?}: {:?}", self.run.progress),
        }
    }
}

/// Steps in a random order, some of them parallel, perhaps with a pivot.
fn shape(random: &mut fastrand::Rng) -> Vec<Draft> {
    let count = random.usize(1..=STEPS_MAX);
    let pivot_at = random.usize(0..2 * count);
    let names: Vec<String> = (0..count).map(|at| format!("s{at}")).collect();
    (0..count)
        .map(|at| {
            let is_after = |before: &usize| at == pivot_at || at > pivot_at && *before == pivot_at;
            let after: Vec<&str> = (0..at)
                .filter(|before| is_after(before) || random.bool())
                .map(|before| names[before].as_str())
                .collect();
            let mut step = draft(&names[at], &after);
            step.attempts = random.u32(1..=3);
            step.is_pivot = at == pivot_at;
            match random.u8(0..5) {
                _ if at > pivot_at => step.undo = Undo::Unsaid,
                0 => step.undo = Undo::NotNeeded,
                _ => {}
            }
            step
        })
        .collect()
}

#[test]
fn every_effect_is_there_in_the_end_or_none() {
    let mut ends = [0; 2];
    for seed in 0..CASES {
        let mut world = World::new(seed);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0.. {
                world.settle();
                if !matches!(world.run.state(), State::Stuck) && world.traffic.is_empty() {
                    break;
                }
                assert!(round < 20 * BAD_ROUNDS, "it never ends: {:?}", world.run.progress);
                world.works = round >= BAD_ROUNDS;
                world.operators_intervene();
            }
            world.assert_balanced();
            world.run.state()
        }));
        match ended {
            Ok(State::Completed) => ends[0] += 1,
            Ok(_) => ends[1] += 1,
            Err(_) => panic!("seed {seed}, sent {:?}", world.run.sent()),
        }
    }
    assert!(ends.iter().all(|count| *count > CASES / 10), "both ends are met: {ends:?}");
}
