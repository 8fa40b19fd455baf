//! The books in the end, and their faults.

use std::time::Duration;

use oncebox_examples::{
    fulfilment::ledger::{Fraud, Ledger},
    gateway::Books,
};

use super::deaths::Deaths;

/// Everything that the act has counted.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) orders: usize,
    /// Orders that were sent once more after they had been taken.
    pub(crate) asked_twice: usize,
    pub(crate) deaths: Deaths,
    pub(crate) servers_are_ours: bool,
    pub(crate) gateway: Books,
    pub(crate) ledger: Ledger,
    /// How many kinds of errors the books showed when they were planted.
    pub(crate) planted_found: usize,
    pub(crate) took: Duration,
}

impl Verdict {
    /// The books, their faults, and the one line; true when there is none.
    pub(crate) fn print(&self) -> bool {
        let Self { ledger, gateway, deaths, .. } = self;
        let (shipped, undone) = (ledger.ended("completed"), ledger.ended("compensated"));
        let undone_by = ["reserve", "charge", "ship"].map(|step| ledger.undone_by(step));
        let [sold_out, declined, unreachable] = undone_by;
        let Deaths { relays, services, orchestrators, nats } = deaths;
        let Books { requests, refused, lost, late, .. } = gateway;
        let (stock, money) = (ledger.sum(|entry| entry.stock), ledger.sum(|entry| entry.money));
        let parcels = ledger.sum(|entry| entry.parcels).done;
        println!();
        println!(
            "  orders      {:6}  {} of them asked for twice, at both processes",
            self.orders, self.asked_twice
        );
        println!("  shipped     {shipped:6}");
        println!(
            "  undone      {undone:6}  {sold_out} sold out, {declined} declined, {unreachable} where no parcel goes"
        );
        println!(
            "  killed      {:6}  {relays} relays, {services} services, {orchestrators} orchestrators; nats-server restarted {nats} times",
            deaths.processes(),
        );
        println!("  gateway     {requests:6}  requests: {refused} refused, {lost} answers lost, {late} late");
        println!();
        println!("  stock       {:6}  reserved = {parcels} shipped + {} released", stock.done, stock.undone);
        println!(
            "  money   {:10}  captured = {} for what was shipped + {} refunded",
            euros(money.done),
            euros(self.shipped_cents()),
            euros(money.undone),
        );
        println!("  refunds     {:6}  = {unreachable} undone after they were charged", ledger.refunded());
        println!(
            "  planted     {:6}  of {} errors found by these books",
            self.planted_found,
            Fraud::ALL.len()
        );
        println!();
        let problems = self.problems();
        for problem in &problems {
            println!("WRONG: {problem}");
        }
        let verdict = if problems.is_empty() { "the books balance" } else { "the books do NOT balance" };
        let (stuck, seconds) = (ledger.orders.len() - shipped - undone, self.took.as_secs());
        println!(
            "{verdict}: {} orders, {shipped} shipped, {undone} undone, {stuck} stuck; {} processes killed in {seconds} s",
            self.orders,
            deaths.processes(),
        );
        println!();
        problems.is_empty()
    }

    fn shipped_cents(&self) -> i64 {
        let orders = self.ledger.orders.values();
        orders.filter(|entry| entry.state == "completed").map(|entry| entry.cents).sum()
    }

    /// The faults, a line each.
    fn problems(&self) -> Vec<String> {
        let Self { ledger, deaths, orders, .. } = self;
        let mut problems = ledger.findings();
        let is_right_so_far = problems.is_empty();
        let mut check = |is_right: bool, problem: String| {
            if !is_right {
                problems.push(problem);
            }
        };
        let (stock, money) = (ledger.sum(|entry| entry.stock), ledger.sum(|entry| entry.money));
        let parcels = ledger.sum(|entry| entry.parcels);
        check(
            ledger.orders.len() == *orders,
            format!("{orders} orders were taken, {} have a saga or a book", ledger.orders.len()),
        );
        check(
            stock.done == parcels.done + stock.undone,
            format!("{} reserved, {} shipped and {} released", stock.done, parcels.done, stock.undone),
        );
        check(
            money.done - money.undone == self.shipped_cents(),
            format!("{} captured, {} shipped", euros(money.done - money.undone), euros(self.shipped_cents())),
        );
        let unreachable = ledger.undone_by("ship");
        check(
            ledger.refunded() == unreachable,
            format!("{} refunds for {unreachable} orders that failed at shipping", ledger.refunded()),
        );
        check(
            self.planted_found == Fraud::ALL.len() || !is_right_so_far,
            format!("of {} planted errors only {} were found", Fraud::ALL.len(), self.planted_found),
        );
        // Too little trouble proves too little.
        for step in ["reserve", "charge", "ship"] {
            check(ledger.undone_by(step) > 0, format!("no order was undone because of step \"{step}\""));
        }
        let Deaths { relays, services, orchestrators, nats } = *deaths;
        let is_killed = relays.min(services).min(orchestrators) > 0;
        check(is_killed, "not everybody was killed".to_owned());
        check(nats > 0 || !self.servers_are_ours, "nats-server was not restarted".to_owned());
        problems
    }
}

fn euros(cents: i64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}
