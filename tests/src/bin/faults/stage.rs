//! The stage of every scenario: servers of its own, producers, relays, a consumer; and the count in
//! the end.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use deadpool_postgres::{Object, Pool};
use oncebox_model::trace::Circumstances;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{
    Counts, Log, Postgres, Program, Recording, adversity, diagnosed, is_settled, oncebox, pool,
    traffic::{self, Producing, Steady},
    within,
};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};

use crate::{
    acting::Actor,
    archive::Archive,
    arrival,
    broker::Broker,
    consumer::{self, Consuming, Deliveries, Handling},
    fleet,
    network::Lines,
    report::{Row, Teller},
    servers::{database, servers},
};

pub(crate) const STREAM: &str = "FAULTS";
const IDLE_MAX: Duration = Duration::from_secs(30);
const WAIT_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
pub(crate) const POOL_WAIT: Duration = Duration::from_secs(5);
pub(crate) const CONNECTIONS: usize = 20;

/// The settings of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) relays: usize,
    /// Messages a second.
    pub(crate) rate: u32,
    /// Instead of that rate.
    pub(crate) steady: Option<Steady>,
    pub(crate) handling: Handling,
    /// Three nats-servers, and three replicas of the stream.
    pub(crate) is_cluster: bool,
    /// Relays are at a leaf node, the stream is in the hub's domain.
    pub(crate) is_leaf: bool,
    /// JetStream syncs each message to the disk, and refuses messages that would wait for that in a
    /// long queue.
    pub(crate) is_busy: bool,
    /// More lines for `postgresql.conf`.
    pub(crate) postgres: &'static [(&'static str, &'static str)],
    /// Of the database, when it is not UTF-8.
    pub(crate) encoding: Option<&'static str>,
    /// The relays' options beside the usual ones.
    pub(crate) options: &'static [(&'static str, &'static str)],
    /// Producers commit in two phases.
    pub(crate) is_two_phase: bool,
    /// Relays reach both servers through proxies.
    pub(crate) has_proxies: bool,
    /// How much the stream takes before it refuses; 0 for no limit.
    pub(crate) stream_bytes: i64,
    /// Relays publish in atomic batches.
    pub(crate) is_atomic: bool,
    /// Some payloads are large.
    pub(crate) is_mixed: bool,
    /// Relays serve two more databases.
    pub(crate) has_fleet: bool,
    /// Retention deletes messages, or another program writes the log: so there is no ledger to
    /// check recordings with.
    pub(crate) forgets: bool,
}

pub(crate) struct Stage<'a> {
    pub(crate) say: &'a Teller,
    pub(crate) postgres: Postgres,
    pub(crate) broker: Broker,
    pub(crate) stream: Stream,
    pub(crate) pool: Pool,
    pub(crate) relays: Vec<Program>,
    pub(crate) lines: Vec<Lines>,
    pub(crate) producing: Producing,
    pub(crate) log: Log,
    consuming: Consuming,
    handling: Handling,
    /// The outbox's database.
    database: &'static str,
    /// When servers came back with less.
    pub(crate) restored: Vec<(SystemTime, SystemTime)>,
    /// Alarms without a cause.
    pub(crate) alarms: Vec<String>,
    /// The relays' options beside the usual ones.
    pub(crate) options: &'static [(&'static str, &'static str)],
    is_atomic: bool,
    /// Relays serve two more databases.
    pub(crate) has_fleet: bool,
    /// The configuration files of the relays.
    files: Vec<NamedTempFile>,
    /// The passes of the relays, which the specification has to accept.
    recording: Option<Recording>,
    started: usize,
}

impl<'a> Stage<'a> {
    pub(crate) async fn start(setup: Setup, say: &'a Teller) -> Result<Self> {
        let (postgres, broker) = servers(setup).await?;
        let database = database(&postgres, setup.encoding).await?;
        let pool = pool(&postgres.url(database), CONNECTIONS, POOL_WAIT)?;
        let relays = Vec::new();
        let mut client = pool.get().await?;
        migrate(&mut client, &SchemaName::default(), Lanes::default()).await?;
        client.batch_execute(traffic::TABLES).await?;
        client.batch_execute(consumer::TABLE).await?;
        let config = Config { allow_atomic_publish: setup.is_atomic, ..stream_config(setup.stream_bytes) };
        let stream = broker.create_stream(config).await?;
        if setup.has_fleet {
            fleet::install(&postgres, &broker).await?;
        }
        let log = Log::default();
        let handling = setup.handling;
        let consuming =
            Consuming::start(pool.clone(), &broker, &log, handling, Deliveries::default()).await?;
        let producing = producing(&pool, setup);
        if setup.is_two_phase {
            producing.commit_in_two_phases();
        }
        let lines = Vec::new();
        let options = setup.options;
        let mut stage = Self {
            say,
            postgres,
            broker,
            stream,
            pool,
            relays,
            lines,
            producing,
            log,
            consuming,
            handling,
            database,
            restored: Vec::new(),
            alarms: Vec::new(),
            options,
            is_atomic: setup.is_atomic,
            has_fleet: setup.has_fleet,
            files: Vec::new(),
            recording: if setup.forgets { None } else { Some(Recording::new()?) },
            started: 0,
        };
        while stage.relays.len() < setup.relays {
            stage.add_relay(setup.has_proxies).await?;
        }
        stage.running().await?;
        stage.delivering().await?;
        Ok(stage)
    }

    /// One more relay, the program itself.
    pub(crate) async fn add_relay(&mut self, has_proxies: bool) -> Result<()> {
        self.add_relay_of(self.database_url(), has_proxies).await
    }

    pub(crate) fn database_url(&self) -> String {
        self.postgres.url(self.database)
    }

    /// A connection of its own to the outbox's database.
    pub(crate) async fn connection(&self) -> Result<Object> {
        Ok(pool(&self.database_url(), 1, POOL_WAIT)?.get().await?)
    }

    /// Waits until all relays run. One that finds no server at its start ends with an error: no
    /// scenario tests that.
    pub(crate) async fn running(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            running(relay).await?;
        }
        Ok(())
    }

    /// Runs a command of an operator's; returns its exit code and both outputs.
    pub(crate) async fn oncebox(&self, arguments: &[&str]) -> Result<(i32, String)> {
        self.oncebox_of(self.database_url(), arguments).await
    }

    pub(crate) async fn oncebox_of(&self, database_url: String, arguments: &[&str]) -> Result<(i32, String)> {
        let (code, output, log) = oncebox(arguments, &self.environment_of(database_url)).await?;
        Ok((code, output + &log))
    }

    fn environment_of(&self, database_url: String) -> Vec<(&'static str, String)> {
        let mut environment = environment(database_url, self.broker.url()).to_vec();
        environment.extend(self.options.iter().map(|(name, text)| (*name, (*text).to_owned())));
        environment
    }

    /// An operator of the outbox.
    pub(crate) fn actor(&self) -> Result<Actor> {
        let (database_url, nats_url) = (self.database_url(), self.broker.url());
        let environment = self.environment_of(database_url.clone());
        let archive = Archive::new(database_url, nats_url.clone(), self.postgres.bin(""))?;
        Ok(Actor { pool: self.pool.clone(), environment, nats_url, archive })
    }

    /// The doctor must have a finding of this check that contains the text.
    pub(crate) async fn assert_diagnosed(&self, database_url: String, check: &str, part: &str) -> Result<()> {
        let (_, found) = diagnosed(&environment(database_url, self.broker.url()), check).await?;
        ensure!(found.iter().any(|text| text.contains(part)), "the doctor says nothing of {part}: {found:?}");
        Ok(())
    }

    pub(crate) async fn add_relay_of(&mut self, mut database_url: String, has_proxies: bool) -> Result<()> {
        let mut nats_url = self.broker.url();
        if has_proxies {
            let lines = Lines::start(self.postgres.port(), self.broker.one().port()).await;
            (database_url, nats_url) = lines.urls();
            self.lines.push(lines);
        }
        let file = match self.has_fleet {
            true => fleet::file(&database_url, &nats_url, self.is_atomic)?,
            false => fleet::file_of_one(self.is_atomic)?,
        };
        // A file with databases names the servers.
        let servers = environment(database_url, nats_url);
        let mut environment = servers[if self.has_fleet { 2 } else { 0 }..].to_vec();
        environment.extend(self.recorded());
        environment.extend(self.options.iter().map(|(name, text)| (*name, (*text).to_owned())));
        let path = file.path().to_str().context("a path of text")?;
        self.relays.push(Program::start("oncebox", &["relay", "--config", path], &environment).await?);
        self.files.push(file);
        Ok(())
    }

    /// The setting that makes one more relay record its passes.
    pub(crate) fn recorded(&mut self) -> Option<(&'static str, String)> {
        self.started += 1;
        Some(("ONCEBOX_TRACE_FILE", self.recording.as_ref()?.file(self.started)))
    }

    /// Waits until more messages have had their effect.
    pub(crate) async fn delivering(&mut self) -> Result<()> {
        let before = self.latest_effect().await;
        let deadline = Instant::now() + WAIT_MAX;
        while self.latest_effect().await <= before.max(0) {
            self.relays.iter_mut().try_for_each(Program::check)?;
            // Its error is told, and another one begins, as with a supervisor; any other end is
            // wrong.
            if let Some(error) = self.consuming.ended()? {
                let error = anyhow::Error::from(error);
                self.say.say(format_args!("the consumer has ended, another one begins: {error:#}"));
                self.kill_consumer().await?;
            }
            ensure!(Instant::now() < deadline, "nothing was delivered for {WAIT_MAX:?}");
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Lets the producers hurry, and waits until a relay has messages under way, in an open
    /// transaction.
    pub(crate) async fn mid_batch(&self) -> Result<()> {
        self.producing.rush(true);
        let deadline = Instant::now() + WAIT_MAX;
        while self.open_batches().await.unwrap_or(0) == 0 {
            ensure!(Instant::now() < deadline, "no relay has anything under way for {WAIT_MAX:?}");
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Waits until a count in the outbox's database is above 0.
    pub(crate) async fn some(&self, what: &str, count: &str) -> Result<()> {
        within(what, WAIT_MAX, async || {
            let counted: i64 = self.pool.get().await?.query_one(count, &[]).await?.get(0);
            Ok((counted > 0).then_some(()))
        })
        .await
    }

    /// Transactions of relays that wait for NATS.
    pub(crate) async fn open_batches(&self) -> Result<i64> {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = 'oncebox relay' AND state = 'idle in transaction'
                     AND datname = current_database()";
        Ok(self.pool.get().await?.query_one(sql, &[]).await?.get(0))
    }

    /// The consumer ends as it stands; another one takes over.
    pub(crate) async fn kill_consumer(&mut self) -> Result<()> {
        self.consuming.kill().await;
        let (pool, before) = (self.pool.clone(), self.consuming.deliveries());
        self.consuming = Consuming::start(pool, &self.broker, &self.log, self.handling, before).await?;
        Ok(())
    }

    /// How the deliveries to the consumer ended so far.
    pub(crate) fn deliveries(&self) -> Deliveries {
        self.consuming.deliveries()
    }

    /// Ends everything in order, and counts.
    pub(crate) async fn finish(&mut self, name: &'static str, faults: String) -> Result<Row> {
        let absorbed = self.rest().await?;
        let placed = traffic::placed(&self.pool).await?;
        let stream = traffic::stream_keys(&self.stream, consumer::SUBJECTS).await?;
        let counts = Counts::new(&placed, &stream, &consumer::effects(&self.pool).await?);
        let memory_peak = self.relays.iter().map(Program::memory_peak).max().unwrap_or(0);
        if let Some(recording) = self.recording.take() {
            let actions = recording.accepted(&**self.connection().await?, circumstances(name)).await?;
            self.say.say(format_args!("the specification accepts {actions}"));
        }
        let alarms = std::mem::take(&mut self.alarms);
        Ok(Row { name, faults, counts, absorbed, memory_peak, alarms, broken: None })
    }

    /// Ends everything in order, when all messages have arrived; returns how many duplicates the
    /// consumer has absorbed.
    pub(crate) async fn rest(&mut self) -> Result<u64> {
        self.producing.rush(false);
        self.producing.stop().await?;
        let (committed, arrived) = arrival::catch_up(&self.pool, &mut self.relays).await?;
        self.say.say(format_args!("{committed} messages committed, {arrived} arrived"));
        for relay in &mut self.relays {
            relay.stop().await?;
        }
        let deadline = Instant::now() + IDLE_MAX;
        while !is_settled(&self.stream, consumer::DURABLE).await && Instant::now() < deadline {
            sleep(PAUSE).await;
        }
        let unnoted: i64 = self.connection().await?.query_one(adversity::UNNOTED, &[]).await?.get(0);
        ensure!(unnoted == 0, "{unnoted} parked messages were stored of which the cursors know nothing");
        self.consuming.stop().await
    }

    async fn latest_effect(&self) -> i64 {
        consumer::latest(&self.pool).await.unwrap_or(-1)
    }
}

fn producing(pool: &Pool, setup: Setup) -> Producing {
    let seed = fastrand::u64(..);
    match setup.steady {
        Some(steady) => Producing::start_steady(pool, steady, consumer::small_message, seed),
        None if setup.is_mixed => Producing::start(pool, setup.rate, consumer::mixed_message, seed),
        None => Producing::start(pool, setup.rate, consumer::message, seed),
    }
}

fn circumstances(name: &str) -> Circumstances {
    // Without its cursors a lane begins again, as after a crash that took back all settlements.
    let postgres_crashed = ["postgres", "no-cursors"].contains(&name);
    let stream_lost = ["power-loss", "leaf-node"].contains(&name);
    Circumstances { postgres_crashed, stream_lost, expected: &[] }
}

/// How a relay reaches both servers.
fn environment(database_url: String, nats_url: String) -> [(&'static str, String); 3] {
    [
        ("DATABASE_URL", database_url),
        ("NATS_URL", nats_url),
        ("ONCEBOX_HTTP_LISTEN", "127.0.0.1:0".to_owned()),
    ]
}

async fn running(relay: &mut Program) -> Result<()> {
    let deadline = Instant::now() + WAIT_MAX;
    while !relay.log().contains("relay is running") {
        relay.check()?;
        ensure!(Instant::now() < deadline, "a relay has not started within {WAIT_MAX:?}");
        sleep(PAUSE).await;
    }
    Ok(())
}

/// A duplicate window too short to hide copies: a message sent twice is stored twice, and the inbox
/// must notice.
pub(crate) fn stream_config(bytes: i64) -> Config {
    Config {
        name: STREAM.to_owned(),
        subjects: vec![consumer::SUBJECTS.to_owned()],
        duplicate_window: Duration::from_millis(100),
        discard: DiscardPolicy::New,
        max_bytes: if bytes > 0 { bytes } else { -1 },
        ..Config::default()
    }
}
