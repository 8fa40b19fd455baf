//! The clients of the order service: sixteen at once, some of them unpleasant.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use oncebox_examples::order::{Request, place_order};
use oncebox_outbox::Outbox;
use tokio::{sync::Mutex, task::JoinSet, time::sleep};
use tokio_postgres::IsolationLevel;

/// How many clients place orders at the same time.
pub(crate) const CLIENTS: usize = 16;

const CUSTOMERS: usize = 40;
// Customers of long orders: a client's own, since a long order holds its customer's row.
const LONG_CUSTOMERS_FROM: usize = 1_000;
const THINKING_MILLISECONDS: usize = 500;

/// The work of the clients so far; everybody may look at any time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) committed: AtomicUsize,
    pub(crate) rolled_back: AtomicUsize,
    /// How many of both were enqueued in a transaction that stayed open for seconds.
    pub(crate) long: AtomicUsize,
    /// Requests that were sent a second time after they had succeeded.
    pub(crate) retried: AtomicUsize,
    /// Set while the clients are to order without a pause: a process that is killed then is busy.
    pub(crate) rush: AtomicBool,
    /// How often nats-server has lost the end of its stream. A task that reads the stream and
    /// publishes copies holds it meanwhile: a copy of a message lost by then would come before
    /// older ones of its customer.
    pub(crate) losses: Mutex<u32>,
    /// Nothing more is killed.
    pub(crate) is_calm: AtomicBool,
}

impl Progress {
    /// Orders that are over, either way.
    pub(crate) fn ended(&self) -> usize {
        self.committed.load(Ordering::Relaxed) + self.rolled_back.load(Ordering::Relaxed)
    }
}

/// The special case of an order; decided by its place in the row, so that every run has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    rolled_back: bool,
    /// The transaction stays open that long, with a snapshot, after the message was enqueued.
    hold: Option<Duration>,
    /// The client did not get the answer and asks again.
    retried: bool,
}

impl Plan {
    fn of(order: usize) -> Self {
        // One of ten in a row, each time at another place.
        let rolled_back = order % 10 == (order / 10) % 10;
        let hold = (order % 67 == 33).then(|| Duration::from_secs(2 + (order as u64 / 67) % 3));
        Self { rolled_back, hold, retried: !rolled_back && order % 20 == 11 }
    }
}

/// Places this many orders, all clients together.
pub(crate) async fn place_orders(
    pool: Pool,
    subject: String,
    orders: usize,
    progress: Arc<Progress>,
) -> Result<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (pool, subject, progress) = (pool.clone(), subject.clone(), progress.clone());
        clients.spawn(async move {
            for order in (client..orders).step_by(CLIENTS) {
                let plan = Plan::of(order);
                let request = request(client, order, plan);
                place(&pool, &subject, &request, plan, &progress)
                    .await
                    .with_context(|| format!("client {client}, order {}", request.key))?;
                let thinking = THINKING_MILLISECONDS / 2 + scattered(order) % THINKING_MILLISECONDS;
                if !progress.rush.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(thinking as u64)).await;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(())
}

async fn place(pool: &Pool, subject: &str, request: &Request, plan: Plan, progress: &Progress) -> Result<()> {
    let outbox = Outbox::default();
    let mut client = pool.get().await?;
    let builder = client.build_transaction();
    let isolation = match plan.hold {
        // A snapshot that stays: nothing newer than it can be vacuumed, and its message has an old
        // id.
        Some(_) => IsolationLevel::RepeatableRead,
        None => IsolationLevel::ReadCommitted,
    };
    let transaction = builder.isolation_level(isolation).start().await?;
    place_order(&transaction, &outbox, subject, request).await?;
    if let Some(hold) = plan.hold {
        sleep(hold).await;
        progress.long.fetch_add(1, Ordering::Relaxed);
    }
    if plan.rolled_back {
        transaction.rollback().await?;
        progress.rolled_back.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    transaction.commit().await?;
    progress.committed.fetch_add(1, Ordering::Relaxed);
    if plan.retried {
        let transaction = client.transaction().await?;
        place_order(&transaction, &outbox, subject, request).await?;
        transaction.commit().await?;
        progress.retried.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn request(client: usize, order: usize, plan: Plan) -> Request {
    let customer = match plan.hold {
        Some(_) => LONG_CUSTOMERS_FROM + client,
        None => 1 + scattered(order) % CUSTOMERS,
    };
    Request {
        key: format!("request:{order}"),
        customer: i32::try_from(customer).expect("some thousand customers"),
        cents: 100 + order as i64,
    }
}

/// A number that looks random, the same in every run (Knuth's multiplicative hash).
fn scattered(number: usize) -> usize {
    (number.wrapping_mul(2_654_435_761) >> 7) & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_rolled_back_and_every_client_has_its_share() {
        let rolled_back: Vec<usize> = (0..2_000).filter(|order| Plan::of(*order).rolled_back).collect();
        assert_eq!(rolled_back.len(), 200);
        let clients: std::collections::HashSet<usize> =
            rolled_back.iter().map(|order| order % CLIENTS).collect();
        assert_eq!(clients.len(), CLIENTS);
        let long = (0..2_000).filter(|order| Plan::of(*order).hold.is_some()).count();
        assert_eq!(long, 30);
        assert!((0..2_000).any(|order| Plan::of(order).hold.is_some() && Plan::of(order).rolled_back));
    }
}
