//! The scenarios: faults on purpose.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::stream::Config;
use oncebox_schema::{LATEST_VERSION, SchemaName, migrate_beyond};
use oncebox_tests::{Nats, Postgres, Stop, adversity, within};
use tokio::{process::Command, time::sleep};

use crate::{
    Options, cluster,
    consumer::Handling,
    database, databases, evidence, judging, leaf, network, power_loss,
    report::{Row, Teller},
    stage::{Setup, Stage, stream_config},
    torture,
    twin::Twin,
};

/// Between two faults: enough to recover, or not quite.
pub(crate) const CALM: Duration = Duration::from_millis(700);
/// How long a killed process is missed before it is started again.
pub(crate) const ABSENCE: Duration = Duration::from_millis(300);
const WAIT_MAX: Duration = Duration::from_secs(60);
pub(crate) const USUAL: Setup = Setup {
    relays: 2,
    rate: 300,
    steady: None,
    handling: Handling { concurrency: 8, batch: 1, retention: None },
    is_cluster: false,
    is_leaf: false,
    is_busy: false,
    postgres: &[],
    encoding: None,
    options: &[],
    is_two_phase: false,
    has_proxies: false,
    stream_bytes: 0,
    is_atomic: false,
    is_mixed: false,
    has_fleet: false,
    forgets: false,
};

pub(crate) async fn run(name: &'static str, options: &Options, say: &Teller) -> Result<Row> {
    if name == "nats-busy" && Nats::version()? < (2, 12) {
        return Ok(Row::left_out(name, "nats-server before 2.12 does not refuse what it has no time for"));
    }
    if name == "notify-queue" && Postgres::version()? < (17, 0) {
        return Ok(Row::left_out(name, "the queue of PostgreSQL before 17 is too large to fill"));
    }
    let setup = match name {
        "network" => Setup { relays: 4, has_proxies: true, ..USUAL },
        "relay-hanging" => Setup { relays: 1, rate: 50, has_proxies: true, ..USUAL },
        "nats-busy" => Setup { is_busy: true, ..USUAL },
        "stream-full" => Setup { stream_bytes: 2_000_000, ..USUAL },
        "torture" => {
            let options = torture::OPTIONS;
            Setup { has_proxies: true, is_mixed: true, has_fleet: true, forgets: true, options, ..USUAL }
        }
        "cluster" => Setup { is_cluster: true, rate: 150, ..USUAL },
        // So few that relays sleep in between.
        "two-phase" => {
            Setup { is_two_phase: true, postgres: &[("max_prepared_transactions", "32")], rate: 20, ..USUAL }
        }
        "databases" => Setup { relays: 1, rate: 100, ..USUAL },
        "reader-suspended" => Setup { relays: 1, rate: 50, options: database::LARGE_PASSES, ..USUAL },
        "leaf-node" => Setup { is_leaf: true, ..USUAL },
        "notify-queue" => Setup { postgres: adversity::SMALL_NOTIFY_QUEUE, rate: 20, ..USUAL },
        "unreadable-header" => Setup { encoding: Some("SQL_ASCII"), ..USUAL },
        "subscription" => Setup { forgets: true, postgres: &[("wal_level", "logical")], ..USUAL },
        _ => USUAL,
    };
    let setup = Setup { is_atomic: options.is_atomic, ..setup };
    let mut stage = Stage::start(setup, say).await.context("set the stage")?;
    say.say(format_args!("{} relays deliver", setup.relays));
    let played = play(name, &mut stage, options).await;
    if played.as_ref().map_or(true, |row| !row.problems().is_empty()) {
        evidence::print(&stage).await;
    }
    played
}

async fn play(name: &'static str, stage: &mut Stage<'_>, options: &Options) -> Result<Row> {
    let faults = match name {
        "network" => network_trouble(stage, options.network).await,
        "relay-killed" => relay_killed(stage).await?,
        "relay-suspended" => relay_suspended(stage).await?,
        "relay-hanging" => relay_hanging(stage).await?,
        "consumer-killed" => consumer_killed(stage).await?,
        "nats-busy" => nats_busy(stage).await?,
        "postgres" => postgres(stage).await?,
        "nats-server" => nats_server(stage).await?,
        "power-loss" => power_loss::run(stage).await?,
        "stream-full" => stream_full(stage).await?,
        "cluster" => cluster::run(stage).await?,
        "two-phase" => two_phase(stage).await?,
        "mute-subject" => mute_subject(stage).await?,
        "two-outboxes" => two_outboxes(stage).await?,
        "rolling-deploy" => rolling_deploy(stage).await?,
        "reader-suspended" => database::reader_suspended(stage).await?,
        "leaf-node" => leaf::run(stage).await?,
        "notify-queue" => database::notify_queue(stage).await?,
        "unreadable-header" => database::unreadable_header(stage).await?,
        "subscription" => database::subscription(stage).await?,
        "databases" => databases::run(stage).await?,
        "no-cursors" => database::no_cursors(stage).await?,
        "torture" => torture::run(stage, options.torture.unwrap_or_default()).await?,
        _ => bail!("no scenario {name}"),
    };
    stage.say.say(format_args!("{faults}; waiting for the last messages"));
    let row = stage.finish(name, faults).await?;
    if name == "torture" {
        judging::judge(stage).await?;
    }
    Ok(row)
}

async fn network_trouble(stage: &Stage<'_>, duration: Duration) -> String {
    let network::Trouble { cut, stalled, refused, answers_lost } =
        network::trouble(&stage.lines, duration).await;
    let seconds = duration.as_secs();
    format!("{seconds} s: {cut} cuts, {stalled} stalls, {refused} resets, {answers_lost} commits cut off")
}

async fn relay_killed(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 12;
    for kill in 0..KILLS {
        stage.mid_batch().await?;
        sleep(Duration::from_millis(fastrand::u64(..40))).await;
        // The other one takes over; or none does, until the stream has forgotten its ids.
        let killed = if kill % 3 == 0 { kill % 2..kill % 2 + 1 } else { 0..2 };
        for relay in &mut stage.relays[killed.clone()] {
            relay.kill().await?;
        }
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        for relay in &mut stage.relays[killed] {
            relay.restart().await?;
        }
        sleep(CALM).await;
    }
    Ok(format!("{KILLS} times SIGKILL mid-batch, of one relay or both"))
}

/// Producers prepare all their transactions, while relays sleep, hurry and die.
async fn two_phase(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 6;
    for kill in 0..KILLS {
        // Time to fall asleep, between two transactions.
        sleep(3 * CALM).await;
        stage.mid_batch().await?;
        for relay in &mut stage.relays[..=kill % 2] {
            relay.kill().await?;
        }
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        for relay in &mut stage.relays[..=kill % 2] {
            relay.restart().await?;
        }
    }
    sleep(3 * CALM).await;
    let refused = stage.producing.unprepared();
    ensure!(refused == 0, "PostgreSQL refused to prepare {refused} transactions");
    Ok(format!("PREPARE TRANSACTION throughout, {KILLS} times SIGKILL of one relay or both"))
}

/// A rolling deploy that takes its time: the database is migrated beneath both relays, and the
/// second one starts again and again on the next version.
async fn rolling_deploy(stage: &mut Stage<'_>) -> Result<String> {
    const TIMES: usize = 4;
    const NEXT: &str = "ALTER TABLE {schema}.message_0 ADD COLUMN next text";
    let migrated = migrate_beyond(&mut *stage.pool.get().await?, &SchemaName::default(), NEXT, None).await?;
    ensure!(migrated.to == LATEST_VERSION + 1, "{migrated:?}");
    for _ in 0..TIMES {
        // Each of them takes over from the other in the middle of a batch.
        stage.mid_batch().await?;
        stage.relays[0].suspend(true)?;
        stage.producing.rush(false);
        sleep(Duration::from_millis(2_500)).await;
        stage.relays[0].suspend(false)?;
        stage.mid_batch().await?;
        stage.relays[1].kill().await?;
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.relays[1].restart().await?;
        sleep(CALM).await;
    }
    stage.mid_batch().await?;
    stage.relays.remove(0).kill().await?;
    stage.producing.rush(false);
    Ok(format!(
        "a migration beneath 2 relays, {TIMES} times SIGSTOP of one, SIGKILL of the other; then SIGKILL of the first"
    ))
}

async fn relay_suspended(stage: &mut Stage<'_>) -> Result<String> {
    const TIMES: usize = 4;
    for time in 0..TIMES {
        stage.mid_batch().await?;
        stage.relays[time % 2].suspend(true)?;
        stage.producing.rush(false);
        sleep(Duration::from_millis(2_500)).await;
        stage.relays[time % 2].suspend(false)?;
        sleep(CALM).await;
    }
    Ok(format!("{TIMES} times SIGSTOP mid-batch for 2.5 s"))
}

/// The consumer is dropped where it stands: its next step does not happen.
async fn consumer_killed(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 10;
    for _ in 0..KILLS {
        stage.mid_batch().await?;
        stage.delivering().await?;
        sleep(Duration::from_millis(fastrand::u64(..40))).await;
        stage.kill_consumer().await?;
        stage.producing.rush(false);
        sleep(CALM).await;
    }
    Ok(format!("{KILLS} times the consumer ends mid-message"))
}

/// Suspended until PostgreSQL cuts it off, and another relay takes its lanes over.
async fn relay_hanging(stage: &mut Stage<'_>) -> Result<String> {
    // Only from one that has settled can the recording tell that another has taken over.
    stage.some("a settled lane", "SELECT count(*) FROM oncebox.cursor WHERE number > 1").await?;
    stage.mid_batch().await?;
    // Its messages are held up, so it does wait for NATS; and arrive when it is suspended, so it
    // never learns.
    stage.lines[0].hold_nats(true);
    sleep(CALM).await;
    stage.relays[0].suspend(true)?;
    sleep(CALM).await;
    stage.lines[0].hold_nats(false);
    stage.producing.rush(false);
    ensure!(stage.open_batches().await? > 0, "the relay was not suspended mid-batch");
    stage.add_relay(false).await?;
    within("PostgreSQL cuts the hanging relay off", 2 * WAIT_MAX, async || {
        let is_cut = stage.postgres.log().contains("idle-in-transaction");
        Ok((is_cut && stage.open_batches().await? == 0).then_some(()))
    })
    .await?;
    stage.say.say("PostgreSQL has cut the hanging relay off");
    stage.delivering().await?;
    stage.relays[0].suspend(false)?;
    sleep(CALM).await;
    Ok("SIGSTOP mid-batch until PostgreSQL cuts it off after 20 s, then SIGCONT".to_owned())
}

async fn postgres(stage: &mut Stage<'_>) -> Result<String> {
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        stage.mid_batch().await?;
        stage.postgres.restart(how).await?;
        stage.producing.rush(false);
        stage.delivering().await?;
        sleep(CALM).await;
    }
    for _ in 0..2 {
        stage.mid_batch().await?;
        // A process that dies like this takes all sessions with it: PostgreSQL starts again and
        // recovers.
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'oncebox relay' LIMIT 1";
        let pid: i32 = stage.pool.get().await?.query_one(sql, &[]).await?.get(0);
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status().await?;
        ensure!(killed.success(), "kill a process of PostgreSQL");
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.delivering().await?;
        sleep(CALM).await;
    }
    Ok("restart, immediate shutdown, SIGKILL, twice SIGKILL of one of its processes".to_owned())
}

async fn nats_server(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 4;
    for time in 0..=KILLS {
        stage.mid_batch().await?;
        let server = stage.broker.one();
        if time == 0 {
            server.stop().await;
        } else {
            server.kill().await;
        }
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.broker.one().resume().await?;
        stage.delivering().await?;
        sleep(CALM).await;
    }
    Ok(format!("restart, {KILLS} times SIGKILL"))
}

/// It refuses some messages, and takes later ones: also of the same ordering key, if they were
/// sent.
async fn nats_busy(stage: &Stage<'_>) -> Result<String> {
    const ROUNDS: u32 = 5;
    let sql = "SELECT count(*) FROM oncebox.parked WHERE error LIKE '%(10167)'";
    let mut refused = 0;
    for _ in 0..ROUNDS {
        stage.mid_batch().await?;
        sleep(CALM).await;
        stage.producing.rush(false);
        refused += stage.pool.get().await?.query_one(sql, &[]).await?.get::<_, i64>(0);
        sleep(2 * CALM).await;
    }
    ensure!(refused > 0, "nothing was refused");
    Ok(format!("a sync for each message, {refused} and more refused for now"))
}

async fn stream_full(stage: &Stage<'_>) -> Result<String> {
    const FULL: Duration = Duration::from_secs(5);
    stage.producing.rush(true);
    let sql = "SELECT count(*) FROM oncebox.parked WHERE error LIKE '%(10077)'";
    stage.some("the stream is full", sql).await?;
    stage.producing.rush(false);
    sleep(FULL).await;
    let waiting: i64 =
        stage.pool.get().await?.query_one("SELECT count(*) FROM oncebox.parked", &[]).await?.get(0);
    stage.broker.jetstream().await?.update_stream(stream_config(0)).await?;
    sleep(CALM).await;
    Ok(format!("full for {} s, {waiting} messages waiting", FULL.as_secs()))
}

/// A subject without a stream, whose messages get no answer: a subscriber to everything keeps the
/// server from reporting that there is none.
async fn mute_subject(stage: &mut Stage<'_>) -> Result<String> {
    const ROUNDS: i32 = 5;
    const MESSAGES: i32 = 40;
    let client = async_nats::connect(stage.broker.url()).await?;
    let _everything = client.subscribe(">").await?;
    client.flush().await?;
    let enqueue = "SELECT count(oncebox.enqueue('mute-' || n, 'mute.' || n % 3, '', '{}', 'mute' || n % 7))
                   FROM generate_series($1::int, $2::int) AS n";
    for round in 0..ROUNDS {
        stage.mid_batch().await?;
        let (from, to) = (round * MESSAGES, (round + 1) * MESSAGES - 1);
        stage.pool.get().await?.query_one(enqueue, &[&from, &to]).await?;
        stage.producing.rush(false);
        stage.delivering().await?;
        sleep(CALM).await;
    }
    let parked = "SELECT count(*) FROM oncebox.parked WHERE error LIKE '%no stream stores it%'";
    stage.some("they are set aside", parked).await?;
    let is_away = stage.relays.iter().any(|relay| relay.log().contains("NATS is away"));
    ensure!(!is_away, "a relay gave up its connection to NATS");
    let config = Config { name: "MUTE".into(), subjects: vec!["mute.>".into()], ..Config::default() };
    let late = stage.broker.create_stream(config).await?;
    within("they arrive once there is a stream", 2 * WAIT_MAX, async || {
        let arrived = late.get_info().await?.state.messages;
        Ok((arrived >= (ROUNDS * MESSAGES).unsigned_abs().into()).then_some(()))
    })
    .await?;
    Ok(format!("{} messages to subjects without a stream, beside a subscriber to >", ROUNDS * MESSAGES))
}

/// Relays of both are killed now and then, so that both send messages again that the stream has
/// already.
async fn two_outboxes(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 6;
    let twin = Twin::start(stage, USUAL.rate).await?;
    for kill in 0..KILLS {
        stage.mid_batch().await?;
        let relay = kill % stage.relays.len();
        stage.relays[relay].kill().await?;
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.relays[relay].restart().await?;
        sleep(CALM).await;
    }
    let (messages, shared) = twin.finish(stage).await?;
    ensure!(shared > 0, "the outboxes have no key in common, so nothing is shown");
    Ok(format!(
        "{messages} messages of another outbox, {shared} keys used by both, {KILLS} times SIGKILL of a relay"
    ))
}
