//! The table in the end, the faults, and the one line.

use std::time::Duration;

use oncebox_tests::Program;

use crate::{
    Options,
    audit::{Facts, Judged},
    member::{Harm, Kind, Member},
    run::harm,
    stage::DURABLES,
};

/// A process's words when it continues a message of another, and when it finds that another has
/// continued its own.
const TAKEN_OVER: &str = "taken over from a process whose lease ended";
const LOST: &str = "the lease is lost";
/// A run of two minutes with fewer faults than these proves nothing.
const KILLS_MIN: u32 = 15;
const COMMITS_MIN: u32 = 10;
const PAUSES_MIN: u32 = 15;
const TAKEOVERS_MIN: u32 = 30;
const LEASES_LOST_MIN: u32 = 10;
const TWO_MINUTES: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Report {
    options: Options,
    took: Duration,
    copies: usize,
    /// It was not done in this time.
    late: Option<Duration>,
    facts: Facts,
    harm: Vec<(Kind, Harm)>,
    taken_over: u32,
    leases_lost: u32,
    panics: u32,
}

impl Report {
    pub(crate) fn new(
        options: Options,
        took: Duration,
        copies: usize,
        late: Option<Duration>,
        facts: Facts,
        members: &[Member],
    ) -> Self {
        let logs: Vec<String> = members.iter().map(|member| Program::log(&member.program)).collect();
        let said = |text: &str| {
            let count = logs.iter().map(|log| log.matches(text).count()).sum::<usize>();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        Self {
            options,
            took,
            copies,
            late,
            facts,
            harm: Kind::ALL
                .into_iter()
                .filter(|kind| members.iter().any(|member| member.kind == *kind))
                .map(|kind| (kind, harm(members, kind)))
                .collect(),
            taken_over: said(TAKEN_OVER),
            leases_lost: said(LOST),
            panics: said("panicked at"),
        }
    }

    /// Prints it; true when all is right, or was to be wrong and is.
    pub(crate) fn print(&self) -> bool {
        println!();
        self.print_harm();
        let lines = self.facts.audit();
        println!("\n| what was to happen once | orders | lost | doubled | invented |\n|---|---|---|---|---|");
        for Judged { what, counts } in &lines {
            let (lost, doubled, invented) = (counts.lost, counts.doubled, counts.invented);
            println!("| {what} | {} | {lost} | {doubled} | {invented} |", counts.messages);
        }
        println!();
        if self.options.is_sabotage {
            return self.print_caught(&lines);
        }
        let problems = self.problems();
        for problem in &problems {
            println!("WRONG: {problem}");
        }
        let verdict = if problems.is_empty() { "exactly once" } else { "NOT exactly once" };
        let sum = |of: fn(&Judged) -> usize| lines.iter().map(of).sum::<usize>();
        println!(
            "{verdict}: {} orders, {} effects, {} payments, {} duplicate deliveries absorbed, {} lost, {} doubled, {} s",
            self.facts.placed.len(),
            self.facts.effects.len(),
            self.facts.books.charges.len() + self.facts.books.payouts.len(),
            self.absorbed(),
            sum(|line| line.counts.lost),
            sum(|line| line.counts.doubled),
            self.took.as_secs(),
        );
        problems.is_empty()
    }

    /// With handled keys forgotten, every mode must have done something twice.
    fn print_caught(&self, lines: &[Judged]) -> bool {
        let modes = [
            "effects, a transaction each",
            "effects, in batches",
            "payouts at the gateway",
            "settlements booked",
        ];
        let missed: Vec<&str> = modes
            .into_iter()
            .filter(|mode| !lines.iter().any(|line| line.what == *mode && line.counts.doubled > 0))
            .collect();
        if missed.is_empty() {
            println!(
                "caught: without the inbox's memory every mode does things twice, and the count shows it"
            );
        } else {
            println!(
                "NOT caught: the inbox's memory was deleted, and nothing was doubled in: {}",
                missed.join("; ")
            );
        }
        missed.is_empty()
    }

    fn print_harm(&self) {
        println!(
            "| processes | SIGKILL | paused past the lease | cut off | COMMIT never sent | COMMIT's answer lost |"
        );
        println!("|---|---|---|---|---|---|");
        for (kind, harm) in &self.harm {
            let Harm { kills, pauses, cuts, unsent, unanswered, .. } = harm;
            println!("| {} | {kills} | {pauses} | {cuts} | {unsent} | {unanswered} |", kind.name());
        }
        let books = &self.facts.books;
        let requests: u64 =
            books.charges.values().chain(books.payouts.values()).map(|line| line.requests).sum();
        let deliveries = DURABLES.iter().zip(&self.facts.deliveries);
        let deliveries: Vec<String> = deliveries.map(|(name, count)| format!("{name} {count}")).collect();
        let retries: u32 = self.harm.iter().map(|(_, harm)| harm.retries).sum();
        println!();
        println!("orders committed        {}", self.facts.placed.len());
        println!("delivered by relays     {}", self.facts.written.len());
        println!("copies published        {}, in an order of their own", self.copies);
        println!("deliveries              {}", deliveries.join(", "));
        println!("duplicates absorbed     {}", self.absorbed());
        println!(
            "leases taken over       {}, and {} found lost by their owners",
            self.taken_over, self.leases_lost
        );
        println!(
            "requests at the gateway {requests}: {} refused, {} answers lost, {} late",
            books.refused, books.lost, books.late
        );
        println!("started again           {retries} that found no database when they started");
    }

    /// Deliveries beyond the one that each order needs in each mode; the others left no further
    /// effect.
    fn absorbed(&self) -> u64 {
        let needed = self.facts.outcomes.len() as u64;
        self.facts.deliveries.iter().sum::<u64>().saturating_sub(needed)
    }

    /// The faults, a line each; also when there was too little chaos.
    fn problems(&self) -> Vec<String> {
        let mut problems = self.facts.problems();
        let mut check = |is_right: bool, problem: String| {
            if !is_right {
                problems.push(problem);
            }
        };
        if let Some(limit) = self.late {
            check(false, format!("not everything was done {limit:?} after the last order"));
        }
        check(self.panics == 0, format!("{} panics", self.panics));
        check(!self.facts.placed.is_empty(), "nothing was ordered".to_owned());
        let share = self.options.duration.as_secs_f64() / TWO_MINUTES.as_secs_f64();
        // Beside another program, which takes servers and processors away.
        let share = if self.options.beside.is_some() { share.min(0.1) } else { share.min(1.0) };
        let enough = |count: u32, min: u32| f64::from(count) >= f64::from(min) * share;
        for (kind, Harm { kills, pauses, unsent, unanswered, .. }) in &self.harm {
            let name = kind.name();
            check(enough(*kills, KILLS_MIN), format!("too little chaos: {kills} of the {name} were killed"));
            check(
                enough(*unsent, COMMITS_MIN),
                format!("too little chaos: {unsent} commits of {name} not sent"),
            );
            check(
                enough(*unanswered, COMMITS_MIN),
                format!("too little chaos: {unanswered} commits of {name} without answer"),
            );
            let is_paused = *kind != Kind::Cashier || enough(*pauses, PAUSES_MIN);
            check(is_paused, format!("too little chaos: {pauses} pauses of {name}"));
        }
        let (taken_over, lost) = (self.taken_over, self.leases_lost);
        check(enough(taken_over, TAKEOVERS_MIN), format!("too little chaos: {taken_over} leases taken over"));
        check(enough(lost, LEASES_LOST_MIN), format!("too little chaos: {lost} leases lost to others"));
        problems
    }
}
