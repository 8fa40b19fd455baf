//! A saga from its start to its end in four transactions, without messages on the way: through the
//! orchestrator, and written by hand.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Pool, Transaction};
use oncebox_inbox::{Answer, Inbox, Received, Verdict};
use oncebox_saga::{Definition, Orchestrator};
use tokio_util::sync::CancellationToken;

use super::{Order, REPLIES, STEPS, definition, subject};
use crate::{servers::Servers, workers::Side};

/// By the orchestrator.
pub(super) struct Led {
    pool: Pool,
    inbox: Inbox,
    definition: Definition<Order>,
    orchestrator: Orchestrator,
    number: AtomicI64,
}

impl Led {
    pub(super) fn new(pool: Pool) -> Result<Self> {
        let definition = definition()?;
        let orchestrator = Orchestrator::builder(REPLIES.parse()?).definition(&definition).build()?;
        let inbox = Inbox::builder(pool.clone()).scope("saga:replies").single_tenant().build()?;
        Ok(Self { pool, inbox, definition, orchestrator, number: AtomicI64::new(0) })
    }

    /// How many it has led to their end, when no worker is under way.
    pub(super) fn completed(&self) -> i64 {
        self.number.load(Relaxed)
    }

    /// Looks for due sagas, as one of these does beside its answers.
    pub(super) async fn watch(&self) {
        self.orchestrator.timers(self.pool.clone()).run(CancellationToken::new()).await;
    }
}

impl Side for Led {
    async fn once(&self, worker: usize) -> Result<()> {
        let (number, customer) = (self.number.fetch_add(1, Relaxed), i64::try_from(worker)?);
        let id = format!("{:016x}", number.cast_unsigned().reverse_bits());
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.orchestrator.start(&transaction, &self.definition, &id, &Order::new(customer)).await?;
        transaction.commit().await?;
        drop(client);
        for step in STEPS {
            let key = format!("{id}:bench:{step}");
            let reply = Received::new(REPLIES, "null")
                .header("Idempotency-Key", format!("{key}:reply"))
                .header("In-Reply-To", key)
                .header("Reply-Outcome", "done");
            let verdict = self.inbox.run(&self.orchestrator.replies(), &reply).await?;
            ensure!(
                matches!(verdict, Verdict::Handled(Answer::Done(()))),
                "an answer was not applied: {verdict:?}"
            );
        }
        Ok(())
    }
}

/// The same transactions as a programmer writes them by hand for this one process: each statement
/// prepared, and awaited; a state and a row for each step; no deadline, no early answers, no way
/// back.
pub(super) struct ByHand {
    pool: Pool,
    claim: String,
    enqueue: String,
    number: AtomicI64,
}

impl ByHand {
    pub(super) fn new(servers: &Servers, pool: Pool) -> Self {
        let sql = |text| servers.schema.sql(text);
        Self {
            pool,
            claim: sql(include_str!("../sql/by_hand.sql")),
            enqueue: sql(include_str!("../sql/enqueue.sql")),
            number: AtomicI64::new(0),
        }
    }

    async fn send(&self, transaction: &Transaction<'_>, saga: i64, id: &str, step: &str) -> Result<()> {
        let order: serde_json::Value = {
            let read = transaction.prepare_cached(include_str!("../sql/hand_read.sql")).await?;
            serde_json::from_str(transaction.query_one(&read, &[&saga]).await?.get(0))?
        };
        let payload = serde_json::to_vec(&order)?;
        let insert = transaction.prepare_cached(include_str!("../sql/hand_step.sql")).await?;
        transaction.execute(&insert, &[&saga, &step, &payload]).await?;
        let enqueue = transaction.prepare_cached(&self.enqueue).await?;
        let key = format!("{id}:hand:{step}");
        transaction.query_one(&enqueue, &[&key, &subject(step), &payload]).await?;
        Ok(())
    }

    async fn start(&self, id: &str, order: &Order) -> Result<i64> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let insert = transaction.prepare_cached(include_str!("../sql/hand_start.sql")).await?;
        let saga = transaction.query_one(&insert, &[&id, &serde_json::to_string(order)?]).await?.get(0);
        self.send(&transaction, saga, id, STEPS[0]).await?;
        transaction.commit().await?;
        Ok(saga)
    }

    async fn answered(&self, saga: i64, id: &str, place: usize) -> Result<()> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let claim = transaction.prepare_cached(&self.claim).await?;
        let key = format!("{id}:hand:{}:reply", STEPS[place]);
        let claimed = transaction.execute(&claim, &[&key, &[7_u8; 32].as_slice()]).await?;
        ensure!(claimed == 1, "a new key was not inserted");
        let done = transaction.prepare_cached(include_str!("../sql/hand_done.sql")).await?;
        transaction.execute(&done, &[&saga, &STEPS[place]]).await?;
        let next = STEPS.get(place + 1);
        let save = transaction.prepare_cached(include_str!("../sql/hand_save.sql")).await?;
        let state = if next.is_some() { "running" } else { "completed" };
        transaction.execute(&save, &[&saga, &state]).await?;
        if let Some(step) = next {
            self.send(&transaction, saga, id, step).await?;
        }
        transaction.commit().await.context("commit")
    }
}

impl Side for ByHand {
    async fn once(&self, worker: usize) -> Result<()> {
        let (number, customer) = (self.number.fetch_add(1, Relaxed), i64::try_from(worker)?);
        let id = format!("{:016x}", number.cast_unsigned().reverse_bits());
        let saga = self.start(&id, &Order::new(customer)).await?;
        for place in 0..STEPS.len() {
            self.answered(saga, &id, place).await?;
        }
        Ok(())
    }
}
