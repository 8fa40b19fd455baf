//! The scenarios.

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{
    Process, Run, Scratch, TestKit, TestKitError, address,
    database::{Copy, Database, Dump},
    proxy::{Kill, Proxy},
    report::{Failure, Report, Scenario, difference},
};

/// The pause between two deliveries of one message.
const PAUSE: Duration = Duration::from_millis(10);

/// The settings, the database and the process that all scenarios use.
pub(crate) struct Stage<'a, F> {
    pub(crate) kit: &'a TestKit,
    pub(crate) database: Database,
    pub(crate) process: F,
    /// Why the last run that did not end its message failed, for a scenario that does not end.
    pub(crate) last_problem: Mutex<Option<String>>,
}

/// How far the deliveries of some messages have come; kept when a process dies.
struct Progress {
    next: usize,
    deliveries: u64,
}

impl Progress {
    const START: Self = Self { next: 0, deliveries: 1 };
}

/// A process, and the proxy between it and the server.
struct Started<P> {
    proxy: Proxy,
    process: P,
}

impl<P: Process, F: Fn(&Scratch) -> P> Stage<'_, F> {
    pub(crate) async fn check(&self) -> Result<(Report, Dump), TestKitError> {
        let server = address(self.database.config()).await?;
        let order: Vec<usize> = (0..self.kit.messages.len()).collect();
        let expected = self.undisturbed(server, &order).await?;
        let mut report = Report { kills: self.kit.kills, ..Report::default() };
        self.kills(server, &order, &expected, &mut report).await?;

        let duplicates = async |copy: &Copy| {
            let process = self.start(server, copy, None).await?;
            let twice: Vec<usize> = order.iter().flat_map(|number| [*number; 2]).collect();
            self.deliver(&process, &twice, &mut { Progress::START }).await;
            drop(process);
            let process = self.start(server, copy, None).await?;
            self.deliver(&process, &order, &mut Progress { next: 0, deliveries: 2 }).await;
            Ok(())
        };
        self.play(|| Scenario::Duplicates, &expected, &mut report, duplicates).await?;

        let pairs = async |copy: &Copy| {
            let two = [self.start(server, copy, None).await?, self.start(server, copy, None).await?];
            for number in &order {
                join_all(two.iter().map(async |process| {
                    self.deliver(process, &[*number], &mut { Progress::START }).await;
                }))
                .await;
            }
            Ok(())
        };
        self.play(|| Scenario::Pairs, &expected, &mut report, pairs).await?;

        let queues = self.queues();
        let together = async |copy: &Copy| {
            let two = [self.start(server, copy, None).await?, self.start(server, copy, None).await?];
            let all = two.iter().flat_map(|process| queues.iter().map(move |queue| (process, queue)));
            join_all(all.map(async |(process, queue)| {
                self.deliver(process, queue, &mut { Progress::START }).await;
            }))
            .await;
            Ok(())
        };
        self.play(|| Scenario::Together, &expected, &mut report, together).await?;

        for other in orders(&queues, &order) {
            let reordered = async |copy: &Copy| {
                let process = self.start(server, copy, None).await?;
                self.deliver(&process, &other, &mut { Progress::START }).await;
                Ok(())
            };
            self.play(|| Scenario::Order(other.clone()), &expected, &mut report, reordered).await?;
        }
        Ok((report, expected))
    }

    /// Runs the messages without a disturbance; every scenario has to leave the same tables.
    async fn undisturbed(&self, server: SocketAddr, order: &[usize]) -> Result<Dump, TestKitError> {
        let copy = self.database.copy().await?;
        let run = async {
            let process = self.start(server, &copy, None).await?;
            let delivering = async {
                self.deliver(&process, order, &mut { Progress::START }).await;
                Ok(())
            };
            self.settled(delivering).await?.map_err(TestKitError::Undisturbed)?;
            drop(process);
            self.database.dump(&copy).await
        };
        let dump = run.await;
        self.database.delete(copy).await?;
        dump
    }

    /// Kills at the first statement, the second, and so on, until a run ends before its kill.
    async fn kills(
        &self,
        server: SocketAddr,
        order: &[usize],
        expected: &Dump,
        report: &mut Report,
    ) -> Result<(), TestKitError> {
        for statement in 1.. {
            for carried_out in [false, true] {
                let kill = Kill { of: self.kit.kills, statement, carried_out };
                let died_at = OnceLock::new();
                let scenario = || {
                    let text = died_at.get().cloned().unwrap_or_default();
                    Scenario::Kill { statement, text, carried_out }
                };
                let dying = async |copy: &Copy| {
                    let mut progress = Progress::START;
                    let process = self.start(server, copy, Some(kill)).await?;
                    tokio::select! {
                        // The kill is checked first, so that a killed process does nothing more.
                        biased;
                        text = process.proxy.killed() => drop(died_at.set(text)),
                        () = self.deliver(&process, order, &mut progress) => {}
                    }
                    drop(process);
                    progress.deliveries += 1;
                    let next = self.start(server, copy, None).await?;
                    self.deliver(&next, order, &mut progress).await;
                    Ok(())
                };
                if statement > self.kit.kills_max {
                    // This run only shows whether there was one more statement to kill the process
                    // at.
                    let mut unseen = Report::default();
                    self.play(scenario, expected, &mut unseen, dying).await?;
                    report.has_more_statements = died_at.get().is_some();
                    return Ok(());
                }
                self.play(scenario, expected, report, dying).await?;
                if died_at.get().is_none() {
                    return Ok(());
                }
            }
            report.statements = statement;
        }
        Ok(())
    }

    /// Runs one scenario on its own copy of the database, and compares the tables that it leaves.
    async fn play(
        &self,
        scenario: impl Fn() -> Scenario,
        expected: &Dump,
        report: &mut Report,
        act: impl AsyncFnOnce(&Copy) -> Result<(), TestKitError>,
    ) -> Result<(), TestKitError> {
        let copy = self.database.copy().await?;
        let run = async {
            let settled = self.settled(act(&copy)).await?;
            let found = self.database.dump(&copy).await?;
            Ok(settled.err().or_else(|| difference(expected, &found)))
        };
        let difference = run.await;
        self.database.delete(copy).await?;
        report.scenarios += 1;
        report.failures.extend(difference?.map(|difference| Failure { scenario: scenario(), difference }));
        Ok(())
    }

    /// Bounds a scenario; the inner error says that it did not end.
    async fn settled(
        &self,
        act: impl Future<Output = Result<(), TestKitError>>,
    ) -> Result<Result<(), String>, TestKitError> {
        let limit = self.kit.settle_within;
        *self.last_problem() = None;
        match timeout(limit, act).await {
            Ok(result) => result.map(Ok),
            Err(_) => {
                let problem = self.last_problem().take();
                let problem = problem.map(|problem| format!("; the last run failed: {problem}"));
                Ok(Err(format!("  not all messages ended within {limit:?}{}", problem.unwrap_or_default())))
            }
        }
    }

    async fn start(
        &self,
        server: SocketAddr,
        copy: &Copy,
        kill: Option<Kill>,
    ) -> Result<Started<P>, TestKitError> {
        let proxy = Proxy::start(server, kill).await;
        let proxy =
            proxy.map_err(|error| TestKitError::Network("listen for a process's connections", error))?;
        let scratch = Scratch::new(self.database.config(), proxy.port(), &copy.0);
        Ok(Started { proxy, process: (self.process)(&scratch) })
    }

    /// Delivers messages one after another, each one again until it has ended.
    async fn deliver(&self, started: &Started<P>, order: &[usize], progress: &mut Progress) {
        while let Some(number) = order.get(progress.next) {
            let message = self.kit.messages[*number].clone().deliveries(progress.deliveries);
            // Boxed without its type, which in a crate of yours is too deep for the compiler.
            let running: Pin<Box<dyn Future<Output = Run> + Send + '_>> =
                Box::pin(started.process.run(&message));
            match running.await {
                Run::Ended => {
                    *progress = Progress { next: progress.next + 1, deliveries: 1 };
                    continue;
                }
                Run::InFlight => {}
                Run::Retry(reason) => {
                    progress.deliveries += 1;
                    *self.last_problem() = Some(reason);
                }
                Run::Failed(problem) => *self.last_problem() = Some(problem),
            }
            sleep(PAUSE).await;
        }
    }

    fn last_problem(&self) -> MutexGuard<'_, Option<String>> {
        self.last_problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The messages of each ordering key; a message without an ordering key is a queue of its own.
    fn queues(&self) -> Vec<Vec<usize>> {
        let mut queues: Vec<Vec<usize>> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, message) in self.kit.messages.iter().enumerate() {
            match message.ordering_key() {
                Some(key) => {
                    let queue = *known.entry(key).or_insert(queues.len());
                    if queue == queues.len() {
                        queues.push(Vec::new());
                    }
                    queues[queue].push(number);
                }
                None => queues.push(vec![number]),
            }
        }
        queues
    }
}

/// Other orders of the messages, in which each queue keeps its own order: the last queue first, the
/// second half of the queues first, and one message of each queue in turn, beginning with the last
/// queue.
fn orders(queues: &[Vec<usize>], usual: &[usize]) -> Vec<Vec<usize>> {
    let backwards = queues.iter().rev().flatten().copied().collect();
    let (front, back) = queues.split_at(queues.len() / 2);
    let rotated = back.iter().chain(front).flatten().copied().collect();
    let longest = queues.iter().map(Vec::len).max().unwrap_or(0);
    let turns = (0..longest).flat_map(|turn| queues.iter().rev().filter_map(move |queue| queue.get(turn)));
    let mut orders: Vec<Vec<usize>> = vec![backwards, rotated, turns.copied().collect()];
    orders.retain(|order| order != usual);
    orders.dedup();
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_orders_keep_each_queue_in_order() {
        let queues = [vec![0, 2, 4], vec![1], vec![3, 5]];
        let found = orders(&queues, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(found, [[3, 5, 1, 0, 2, 4], [1, 3, 5, 0, 2, 4], [3, 1, 0, 5, 2, 4]]);
        assert_eq!(orders(&[vec![0, 1]], &[0, 1]), [[0_usize; 0]; 0]);
    }
}
