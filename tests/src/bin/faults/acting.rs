//! Operators and producers who do all that there is to do, while faults happen: each act in turn,
//! again and again. One that a fault interrupts is done again later.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::{self, stream::Config};
use deadpool_postgres::Pool;
use oncebox_tests::oncebox;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::archive::Archive;

/// The stream of messages that are dead until an operator retries them.
const SMALL: &str = "SMALL";
const SMALL_BYTES: i32 = 1_000;
const ACT_MAX: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(100);
const LOOKS_MAX: usize = 300;
const PAUSE: Duration = Duration::from_millis(300);
/// Rounds in calm, until each act was done once.
const LAST_ROUNDS: usize = 3;

/// One of the things to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Delay,
    Cancel,
    Replay,
    Pause,
    Throttle,
    Discard,
    Retry,
    Restore,
}

pub(crate) const ALL: [(Act, &str); 8] = [
    (Act::Delay, "delayed"),
    (Act::Cancel, "delayed and cancelled"),
    (Act::Replay, "replayed"),
    (Act::Pause, "paused and resumed"),
    (Act::Throttle, "throttled and resumed"),
    (Act::Discard, "parked and discarded"),
    (Act::Retry, "dead and retried"),
    (Act::Restore, "restored with their database"),
];

/// The acts that were done, and how often.
type Done = BTreeMap<Act, usize>;

/// Acts until it is stopped.
#[derive(Debug)]
pub(crate) struct Acting {
    stop: CancellationToken,
    task: JoinSet<Result<Done>>,
    now: Now,
}

/// The act that is under way.
type Now = Arc<Mutex<Option<Act>>>;

/// Who acts, on which servers.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) pool: Pool,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) nats_url: String,
    pub(crate) archive: Archive,
}

impl Acting {
    pub(crate) fn start(actor: Actor) -> Self {
        let (stop, mut task, now) = (CancellationToken::new(), JoinSet::new(), Now::default());
        task.spawn(actor.act(stop.clone(), Arc::clone(&now)));
        Self { stop, task, now }
    }

    /// The act that is under way, if there is one.
    pub(crate) fn now(&self) -> Option<Act> {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops, when each act was done; says how often each was.
    ///
    /// # Errors
    /// One was never done, also when all was calm.
    pub(crate) async fn stop(self) -> Result<String> {
        self.stop.cancel();
        let done = self.task.join_all().await.into_iter().next().context("an actor acts")??;
        let undone: Vec<&str> =
            ALL.iter().filter(|(act, _)| !done.contains_key(act)).map(|(_, name)| *name).collect();
        ensure!(undone.is_empty(), "no message was ever {}", undone.join(", nor "));
        let told = ALL.iter().map(|(act, name)| format!("{} times {name}", done.get(act).unwrap_or(&0)));
        Ok(told.collect::<Vec<_>>().join(", "))
    }
}

impl Actor {
    async fn act(self, stop: CancellationToken, now: Now) -> Result<Done> {
        let (mut done, mut round, mut last_rounds) = (Done::new(), 0, 0);
        loop {
            let is_over = stop.is_cancelled();
            if is_over && (done.len() == ALL.len() || last_rounds == LAST_ROUNDS) {
                self.tidy_up().await?;
                return Ok(done);
            }
            last_rounds += usize::from(is_over);
            round += 1;
            for (act, _) in ALL {
                if is_over && done.contains_key(&act) {
                    continue;
                }
                *now.lock().unwrap_or_else(PoisonError::into_inner) = Some(act);
                let acted = timeout(ACT_MAX, self.act_once(act, round)).await;
                *now.lock().unwrap_or_else(PoisonError::into_inner) = None;
                if let Ok(Ok(())) = acted {
                    *done.entry(act).or_default() += 1;
                }
                if stop.is_cancelled() != is_over {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn act_once(&self, act: Act, round: usize) -> Result<()> {
        match act {
            Act::Delay => self.delay(round).await,
            Act::Cancel => self.cancel(round).await,
            Act::Replay => self.replay().await,
            Act::Pause => self.hold_up(&["pause"]).await,
            Act::Throttle => self.hold_up(&["throttle", "--rate", "100"]).await,
            Act::Discard => self.discard(round).await,
            Act::Retry => self.retry(round).await,
            Act::Restore => self.archive.restore_once(round).await,
        }
    }

    /// In calm, so that nothing is left of acts that a fault has interrupted.
    async fn tidy_up(&self) -> Result<()> {
        self.archive.judge().await?;
        for (what, subject) in [("parked", "nowhere.>"), ("dead", "small.>")] {
            let arguments = ["outbox", what, "discard", "--subject", subject];
            let (code, output, log) = oncebox(&arguments, &self.environment).await?;
            // 1 says that there was nothing.
            ensure!(code <= 1, "oncebox {arguments:?} ended with {code}: {output}{log}");
        }
        Ok(())
    }

    /// Messages for the next seconds; the judge counts them as all others.
    async fn delay(&self, round: usize) -> Result<()> {
        self.enqueue_delayed(&format!("delayed-{round}-"), 3.0).await.map(drop)
    }

    /// Messages for later, which are cancelled; those whose time came all the same are counted.
    async fn cancel(&self, round: usize) -> Result<()> {
        let prefix = format!("cancelled-{round}-");
        self.enqueue_delayed(&prefix, 10.0).await?;
        let cancel = "DELETE FROM placed WHERE key LIKE $1 || '%' AND oncebox.cancel_delayed(key)";
        let cancelled = self.pool.get().await?.execute(cancel, &[&prefix]).await?;
        ensure!(cancelled > 0, "all of them had been sent");
        Ok(())
    }

    async fn enqueue_delayed(&self, prefix: &str, seconds: f64) -> Result<()> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let sql = "WITH n AS (SELECT $1 || n AS key FROM generate_series(1, 10) AS n),
                   p AS (INSERT INTO placed (key) SELECT key FROM n)
                   SELECT oncebox.enqueue_json_at(key, 'faults.message', '{\"filler\": \"later\"}',
                     clock_timestamp() + make_interval(secs => $2 * (0.5 + random()))) FROM n";
        transaction.query(sql, &[&prefix, &seconds]).await?;
        Ok(transaction.commit().await?)
    }

    /// A message that was handled is sent again; the inbox absorbs it.
    async fn replay(&self) -> Result<()> {
        let sql = "SELECT key FROM effect ORDER BY id DESC OFFSET 50 LIMIT 1";
        let row = self.pool.get().await?.query_opt(sql, &[]).await?.context("nothing to replay yet")?;
        self.command(&["outbox", "replay", "--key", row.get(0)]).await
    }

    async fn hold_up(&self, how: &[&str]) -> Result<()> {
        let all = ["--subject", "faults.>"];
        self.command(&[&["outbox"], how, &all[..], &["--for", "4s"]].concat()).await?;
        sleep(Duration::from_secs(1)).await;
        self.command(&[&["outbox", "resume"], &all[..]].concat()).await
    }

    /// Messages to a subject that no stream takes are given up.
    async fn discard(&self, round: usize) -> Result<()> {
        let subject = format!("nowhere.r{round}");
        self.enqueue(&format!("nowhere-{round}"), &subject, 10).await?;
        self.wait_for(
            "no stream takes it",
            "SELECT count(*) FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id)
                       WHERE m.subject = $1 AND p.dead_at IS NULL",
            &subject,
        )
        .await?;
        self.command(&["outbox", "parked", "discard", "--subject", &subject]).await
    }

    /// A message that is too large for its stream dies at once; it is retried when there is room.
    async fn retry(&self, round: usize) -> Result<()> {
        let jetstream = jetstream::new(async_nats::connect(&self.nats_url).await?);
        let config = |bytes| Config {
            name: SMALL.to_owned(),
            subjects: vec!["small.>".to_owned()],
            max_message_size: bytes,
            ..Config::default()
        };
        let mut stream = jetstream.get_or_create_stream(config(SMALL_BYTES)).await?;
        jetstream.update_stream(config(SMALL_BYTES)).await?;
        let before = stream.info().await?.state.messages;
        let subject = format!("small.r{round}");
        self.enqueue(&format!("small-{round}"), &subject, SMALL_BYTES).await?;
        self.wait_for(
            "it is dead",
            "SELECT count(*) FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id)
                       WHERE m.subject = $1 AND p.dead_at IS NOT NULL",
            &subject,
        )
        .await?;
        jetstream.update_stream(config(-1)).await?;
        self.command(&["outbox", "dead", "retry", "--subject", "small.>"]).await?;
        for _ in 0..LOOKS_MAX {
            if stream.info().await?.state.messages > before {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        bail!("it is not stored")
    }

    async fn enqueue(&self, key: &str, subject: &str, bytes: i32) -> Result<()> {
        let sql = "SELECT oncebox.enqueue($1, $2, convert_to(repeat('x', $3), 'UTF8'))";
        self.pool.get().await?.execute(sql, &[&key, &subject, &bytes]).await?;
        Ok(())
    }

    async fn wait_for(&self, what: &str, count: &str, subject: &str) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            let counted: i64 = self.pool.get().await?.query_one(count, &[&subject]).await?.get(0);
            if counted > 0 {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        bail!("never: {what}")
    }

    async fn command(&self, arguments: &[&str]) -> Result<()> {
        let (code, output, log) = oncebox(arguments, &self.environment).await?;
        ensure!(code == 0, "oncebox {arguments:?} ended with {code}: {output}{log}");
        Ok(())
    }
}
