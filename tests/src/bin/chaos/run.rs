//! From the first order to the last count.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use futures_util::future::try_join_all;
use oncebox_model::trace::Rule;
use oncebox_tests::traffic::{self, Make, Producing};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
    try_join,
};

use crate::{
    Options,
    audit::Facts,
    books,
    copies::Copier,
    counted,
    member::{Harm, Kind, Member},
    order::{COPIED, RECEIPT, WRITTEN, direct, written},
    report::Report,
    stage::{DURABLES, Stage},
};

/// Printed when trouble may begin.
const SET: &str = "the stage is set";
/// Orders a second.
const RATE: u32 = 40;
/// Beside another program, which needs the processors too.
const RATE_BESIDE: u32 = 15;
/// When all runs again and nothing is written any more: messages that are not handled by then count
/// as lost.
const DRAIN_MAX: Duration = Duration::from_secs(300);
const READ_MAX: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(15);
const FORGET_EVERY: Duration = Duration::from_millis(500);

/// True when all was right; with sabotage, when all was found wrong.
pub(crate) async fn run(options: Options) -> Result<bool> {
    let Options { duration, seed, is_sabotage, ref beside } = options;
    let started = Instant::now();
    println!("{} s of chaos, seed {seed}; again with --seed {seed}", duration.as_secs());
    let mut stage = Stage::start(beside.as_ref()).await.context("set the stage")?;
    println!("{SET}");
    let mut rng = Rng::with_seed(seed);
    let copier = beside.is_none().then(|| Copier::start(stage.jetstream.clone(), rng.fork()));
    let (rate, message): (_, Make) = if copier.is_some() { (RATE, written) } else { (RATE_BESIDE, direct) };
    let mut producing = Producing::start(&stage.pool, rate, message, rng.u64(..));

    let mut members = std::mem::take(&mut stage.members);
    let until = Instant::now() + duration;
    let suffering = try_join_all(members.iter_mut().map(|member| member.suffer(until, rng.fork())));
    let trouble = async {
        let copier = copier.as_ref();
        let (suffered, said, forgotten) =
            tokio::join!(suffering, say(&stage, copier, started, until), forget(&stage, is_sabotage, until));
        suffered.and(said).and(forgotten)
    };
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = trouble => ended?,
        _ = terminate.recv() => {}
    }
    try_join_all(members.iter_mut().map(Member::revive)).await?;
    producing.stop().await?;

    println!("{:4} s  no more orders, no more trouble; draining", started.elapsed().as_secs());
    let drained = tokio::select! {
        drained = timeout(DRAIN_MAX, drain(&stage, copier.as_ref())) => drained,
        ended = keep_up(&mut members), if beside.is_some() => return Err(ended),
    };
    let late = if drained.is_ok() { None } else { Some(DRAIN_MAX) };
    for relay in members.iter_mut().filter(|member| member.kind == Kind::Relay) {
        relay.program.stop().await.context("stop a relay")?;
    }
    let copies = match copier {
        Some(copier) if late.is_none() => copier.stop().await?,
        copier => copier.map_or(0, |copier| copier.published()),
    };
    // Copies of messages that a relay sent a second time at the very end.
    let late = if timeout(READ_MAX, idle(&stage)).await.is_err() { Some(DRAIN_MAX) } else { late };

    for member in members.iter_mut().filter(|member| member.kind != Kind::Relay) {
        if beside.is_some() {
            member.revive().await?;
        }
        member.program.stop().await.with_context(|| format!("stop one of the {}", member.kind.name()))?;
    }
    // No process is left that could still ask the gateway for something.
    let has_copies = beside.is_none();
    let facts = timeout(READ_MAX, read(&stage, has_copies)).await.context("read what was done")??;
    stage.gateway.stop().await.context("stop the gateway")?;
    members.iter_mut().for_each(Member::note_caught);
    if beside.is_some() {
        return Ok(Report::new(options, started.elapsed(), copies, late, facts, &members).print());
    }
    let consumers = stage.of_consumers(&counted::read(&stage, &facts).await?).await?;
    if is_sabotage {
        let is_caught = consumers.broken.contains_key(&Rule::Ended);
        ensure!(is_caught, "keys were forgotten, and the specification accepts it: {consumers}");
    } else if late.is_some() {
        match stage.of_consumers_right(&consumers) {
            Ok(actions) => println!("the specification accepts of consumers {actions}"),
            Err(rejected) => println!("{rejected}"),
        }
    } else {
        let [relays, consumers] = stage.accepted(&consumers).await?;
        println!("the specification accepts of relays {relays}; of consumers {consumers}");
    }
    let report = Report::new(options, started.elapsed(), copies, late, facts, &members);
    Ok(report.print())
}

/// Starts processes that end although all is calm here: beside another program, servers may still
/// be harmed. Returns when one does not stay up.
async fn keep_up(members: &mut [Member]) -> anyhow::Error {
    loop {
        sleep(Duration::from_secs(1)).await;
        if let Err(ended) = try_join_all(members.iter_mut().map(Member::revive)).await {
            return ended;
        }
    }
}

/// How it goes.
async fn say(stage: &Stage, copier: Option<&Copier>, started: Instant, until: Instant) -> Result<()> {
    while Instant::now() + SAY_EVERY < until {
        sleep(SAY_EVERY).await;
        let (copies, seconds) = (copier.map_or(0, Copier::published), started.elapsed().as_secs());
        let counts = try_join!(stage.count("placed"), stage.count("effect"), stage.count("settlement"));
        // Another program may have ended PostgreSQL for a while.
        let Ok((orders, effects, settled)) = counts else { continue };
        println!("{seconds:4} s  {orders} orders, {copies} copies, {effects} effects, {settled} settlements");
    }
    Ok(())
}

/// Breaks the promise, when it is to be broken: deletes handled keys.
async fn forget(stage: &Stage, is_sabotage: bool, until: Instant) -> Result<()> {
    while is_sabotage && Instant::now() < until {
        sleep(FORGET_EVERY).await;
        stage.pool.get().await?.execute("DELETE FROM oncebox.inbox", &[]).await?;
    }
    Ok(())
}

/// Until every order has come, was copied and handled, the handlers' messages have come too, and
/// every saga has finished.
async fn drain(stage: &Stage, copier: Option<&Copier>) {
    while !copier.is_none_or(|copier| copier.is_done()) || !all_came(stage, copier).await.unwrap_or(false) {
        sleep(PAUSE).await;
    }
    idle(stage).await;
    // A saga that has not finished has something in the outbox or in the stream, and sends more.
    while !is_finished(stage).await.unwrap_or(false) {
        sleep(PAUSE).await;
    }
    // The last messages of sagas.
    idle(stage).await;
}

async fn all_came(stage: &Stage, copier: Option<&Copier>) -> Result<bool> {
    let placed = usize::try_from(stage.count("placed").await?)?;
    Ok(copier.is_none_or(|copier| copier.keys() >= placed))
}

async fn is_finished(stage: &Stage) -> Result<bool> {
    let running = stage.count("oncebox.saga WHERE finished_at IS NULL").await?;
    Ok(running + stage.backlog().await? == 0)
}

async fn idle(stage: &Stage) {
    while !stage.is_idle().await {
        sleep(PAUSE).await;
    }
}

async fn read(stage: &Stage, has_copies: bool) -> Result<Facts> {
    let client = stage.pool.get().await?;
    let pairs = async |sql: &str| {
        let rows = client.query(sql, &[]).await.context(sql.to_owned())?;
        anyhow::Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(String, String)>>())
    };
    let steps = "SELECT e.key, e.step
                 FROM (SELECT key, step, sum(change) AS change FROM step_effect GROUP BY key, step) AS e
                 CROSS JOIN generate_series(1, abs(e.change))";
    let letters = "SELECT scope, coalesce(key, '') FROM oncebox.dead_letter";
    let outcomes = "SELECT scope::text, status || ' ' || key FROM oncebox.inbox";
    let settlements = client.query("SELECT order_id, charge, payout FROM settlement", &[]).await?;
    let mut leftovers = vec![("messages in the outbox".to_owned(), stage.backlog().await?)];
    for table in ["oncebox.inbox_claim", "oncebox.inbox_effect", "oncebox.inbox_batch", "oncebox.saga_event"]
    {
        leftovers.push((format!("rows in {table}"), stage.count(table).await?));
    }
    let mut deliveries = Vec::new();
    for durable in DURABLES {
        deliveries.push(stage.deliveries(durable).await?);
    }
    Ok(Facts {
        placed: traffic::placed(&stage.pool).await?.into_iter().map(|placed| placed.key).collect(),
        written: traffic::stream_keys(
            &stage.stream,
            &format!("{}>", if has_copies { WRITTEN } else { COPIED }),
        )
        .await?,
        copied: match has_copies {
            true => Some(traffic::stream_keys(&stage.stream, &format!("{COPIED}>")).await?),
            false => None,
        },
        receipts: traffic::stream_keys(&stage.stream, RECEIPT).await?,
        effects: pairs("SELECT scope, key FROM effect").await?,
        sagas: pairs("SELECT state::text, business_id::text FROM oncebox.saga").await?,
        steps: pairs(steps).await?,
        letters: pairs(letters).await?,
        outcomes: pairs(outcomes).await?,
        settlements: settlements.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(),
        books: books::read(stage.gateway_port).await?,
        leftovers,
        deliveries,
    })
}

/// The faults of all processes of a kind.
pub(crate) fn harm(members: &[Member], kind: Kind) -> Harm {
    members.iter().filter(|member| member.kind == kind).fold(Harm::default(), |mut sum, member| {
        sum += member.harm;
        sum
    })
}
