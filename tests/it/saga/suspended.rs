//! Processes that are suspended in the midst of a transaction: another goes on within half a
//! minute, and the first changes nothing when it is continued.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use async_nats::{HeaderMap, jetstream};
use oncebox_inbox::Consumer;
use oncebox_saga::{Definition, Orchestrator, Step};
use oncebox_tests::{TestEnv, eventually};
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{OrderData, PARTICIPANT, Shop, data};

/// How long another process may take to go on.
const LIMIT: Duration = Duration::from_secs(30);
/// After this time a process goes on by itself, so that no thread of a test waits for ever.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// The first that comes here stops, with its thread, and so with all of its runtime: connections,
/// heartbeats, timers. That is a process under SIGSTOP.
#[derive(Clone)]
pub(crate) struct Freeze {
    gate: Arc<Mutex<Option<Receiver<()>>>>,
    has_stopped: Arc<AtomicBool>,
}

impl Freeze {
    /// With this the stopped one is continued.
    pub(crate) fn new() -> (Self, Sender<()>) {
        let (go_on, gate) = channel();
        (Self { gate: Arc::new(Mutex::new(Some(gate))), has_stopped: Arc::default() }, go_on)
    }

    pub(crate) fn pass(&self) {
        let gate = self.gate.lock().unwrap().take();
        if let Some(gate) = gate {
            self.has_stopped.store(true, Ordering::SeqCst);
            let _ = gate.recv_timeout(FORGOTTEN);
        }
    }

    pub(crate) async fn has_stopped(&self) {
        let probe = async || self.has_stopped.load(Ordering::SeqCst).then_some(());
        eventually("it is suspended", LIMIT, probe).await;
    }
}

/// A process: a thread with a runtime of its own, until its future ends.
pub(crate) fn process<F: Future<Output = ()>>(
    run: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run());
    })
}

/// An orchestrator that hears answers on the test's stream.
fn lead(env: &TestEnv, orchestrator: &Orchestrator, shutdown: &CancellationToken) -> thread::JoinHandle<()> {
    let (url, stream, pool) = (env.nats_url().to_owned(), env.name().to_owned(), env.pool(4));
    let (orchestrator, shutdown) = (orchestrator.clone(), shutdown.clone());
    process(async move || {
        let jetstream = jetstream::new(async_nats::connect(url).await.unwrap());
        let replies = Consumer::new(jetstream, stream, "replies").ack_wait(Duration::from_secs(2));
        // The one that was suspended may find that its connections are gone.
        let _ = Box::pin(orchestrator.run(pool, replies, None, shutdown)).await;
    })
}

/// The code of a definition runs while the saga's row is locked and nothing is written.
#[tokio::test]
async fn an_answer_that_a_suspended_process_holds_is_applied_by_another() {
    let mut shop = Shop::new(&[]).await;
    let (freeze, go_on) = Freeze::new();
    let (learns, cents) = (freeze.clone(), |order: &OrderData| order.cents);
    let reserve = Step::new("reserve", "reserve.do", cents).scope(PARTICIPANT).no_compensation();
    let reserve = reserve.on_done(move |order: &mut OrderData, reservation: i64| {
        learns.pass();
        order.reservation = Some(reservation);
    });
    let pay = Step::new("pay", "pay.do", cents).scope(PARTICIPANT).pivot();
    shop.order = Definition::builder("order", 3).step(reserve).step(pay).build().unwrap();
    let subject = shop.env.subject("replies");
    shop.orchestrator =
        Orchestrator::builder(subject.parse().unwrap()).definition(&shop.order).build().unwrap();
    shop.start("o-1", &data(500)).await.unwrap();
    shop.env.stream().await;
    let headers = [
        ("Idempotency-Key", "o-1:order:reserve:reply"),
        ("In-Reply-To", "o-1:order:reserve"),
        ("Reply-Outcome", "done"),
    ];
    let headers: HeaderMap =
        headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).into_iter().collect();
    let jetstream = shop.env.jetstream().await;
    jetstream.publish_with_headers(subject, headers, "7".into()).await.unwrap().await.unwrap();

    let (first_ends, second_ends) = (CancellationToken::new(), CancellationToken::new());
    let first = lead(&shop.env, &shop.orchestrator, &first_ends);
    freeze.has_stopped().await;
    let second = lead(&shop.env, &shop.orchestrator, &second_ends);
    let has_gone_on = async || (shop.sent("o-1").await == ["reserve", "pay"]).then_some(());
    eventually("another goes on", LIMIT, has_gone_on).await;
    let before = shop.everything().await;
    first_ends.cancel();
    go_on.send(()).unwrap();
    let ended = async || first.is_finished().then_some(());
    eventually("the first has gone on, and ended", FORGOTTEN, ended).await;
    assert_eq!(shop.everything().await, before);
    second_ends.cancel();
    tokio::task::spawn_blocking(move || second.join().unwrap()).await.unwrap();
}
