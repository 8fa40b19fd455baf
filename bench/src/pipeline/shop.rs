//! One way with everything that it needs: its database and stream, its program, and a relay.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

use super::Way;
use crate::{
    machine::{cpu, cpu_with_children},
    relay::{self, Relay},
    servers::{Servers, Session},
};

/// Orders a second; 0 is as fast as it can.
pub(super) const RATES: [u32; 3] = [0, 200, 2_000];
/// Acknowledgements, completions and settlements are written after the last effect.
const SETTLES_WITHIN: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(3_600);

/// Of some orders of a way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sale {
    /// Orders a second, from the first transaction until the last effect.
    pub(super) rate: f64,
    /// Milliseconds from the return of COMMIT until the handler begins.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Microseconds of processor time an order.
    pub(super) postgres: f64,
    programs: f64,
    /// For an order, too.
    transactions: f64,
    wal_bytes: f64,
}

impl Sale {
    /// Each figure with its name in `results.json`.
    #[expect(clippy::type_complexity, reason = "a table of names and fields")]
    pub(super) const VALUES: [(&str, fn(&Self) -> f64); 7] = [
        ("rate", |sale| sale.rate),
        ("p50_ms", |sale| sale.p50),
        ("p99_ms", |sale| sale.p99),
        ("postgres_us", |sale| sale.postgres),
        ("programs_us", |sale| sale.programs),
        ("transactions", |sale| sale.transactions),
        ("wal_bytes", |sale| sale.wal_bytes),
    ];
}

pub(super) struct Shop {
    database: String,
    session: Session,
    relay: Option<Relay>,
    program: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    postmaster: u32,
    /// The way's program, the relay and nats-server.
    programs: Vec<u32>,
    orders: usize,
}

impl Shop {
    pub(super) async fn open(servers: &Servers, peers: &Path, way: Way) -> Result<Self> {
        servers.fresh_stream().await?;
        let database = if way.is_oncebox { servers.migrated().await? } else { servers.empty().await? };
        let session = servers.session(&database).await?;
        session.batch_execute(include_str!("../sql/order_tables.sql")).await?;
        if way.is_unique {
            session.batch_execute(include_str!("../sql/order_unique.sql")).await?;
        }
        // The pages that earlier turns have changed are no work of this one.
        session.batch_execute("CHECKPOINT").await?;
        let relay = way.is_oncebox.then(|| Relay::start(servers, &database)).transpose()?;
        let file =
            if way.program == "orders-rust" { relay::program(way.program)? } else { peers.join(way.program) };
        let mut program = Command::new(file)
            .arg(way.name)
            .env("DATABASE_URL", servers.database_url(&database))
            .env("NATS_URL", servers.nats_url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", way.program))?;
        let input = program.stdin.take().context("write to the program")?;
        let mut output = BufReader::new(program.stdout.take().context("read from the program")?).lines();
        ensure!(output.next_line().await?.as_deref() == Some("ready"), "{} is not ready", way.program);
        let mut programs = vec![servers.nats_pid(), program.id().context("read the program's id")?];
        programs.extend(relay.as_ref().map(Relay::pid));
        let postmaster = servers.postgres_pid();
        Ok(Self { database, session, relay, program, input, output, postmaster, programs, orders: 0 })
    }

    /// The first orders connect everybody. Then the planner learns of tables that are not empty, as
    /// it has in a service that runs: else queries of a queue read all of its jobs.
    pub(super) async fn warm_up(&mut self, orders: usize) -> Result<()> {
        self.sell(orders, 0).await?;
        self.session.batch_execute("ANALYZE").await?;
        Ok(())
    }

    pub(super) async fn sell(&mut self, orders: usize, rate: u32) -> Result<Sale> {
        let before = self.spent().await?;
        self.input.write_all(format!("{orders} {rate}\n").as_bytes()).await?;
        let line = timeout(LIMIT, self.output.next_line()).await.context("the program has not ended")??;
        let line = line.context("the program has ended")?;
        self.orders += orders;
        sleep(SETTLES_WITHIN).await;
        let after = self.spent().await?;
        let numbers: Result<Vec<f64>, _> = line.split(' ').map(str::parse).collect();
        let [seconds, p50, p99] = numbers?[..] else { anyhow::bail!("the program printed {line:?}") };
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53")]
        let orders = orders as f64;
        let [postgres, programs, transactions, wal_bytes] =
            std::array::from_fn(|n| (after[n] - before[n]) / orders);
        Ok(Sale { rate: orders / seconds, p50, p99, postgres, programs, transactions, wal_bytes })
    }

    /// So far: the microseconds of PostgreSQL and of the programs, transactions, and bytes of WAL.
    async fn spent(&self) -> Result<[f64; 4]> {
        let row = self.session.query_one(include_str!("../sql/order_written.sql"), &[]).await?;
        let (transactions, wal): (i64, i64) = (row.get(0), row.get(1));
        let programs: Result<Vec<Duration>> = self.programs.iter().map(|pid| cpu(*pid)).collect();
        let programs: Duration = programs?.iter().sum();
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53")]
        let counts = [transactions as f64, wal as f64];
        Ok([microseconds(cpu_with_children(self.postmaster)?), microseconds(programs), counts[0], counts[1]])
    }

    pub(super) async fn mib(&self) -> Result<f64> {
        let row = self.session.query_one(include_str!("../sql/order_size.sql"), &[]).await?;
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53")]
        Ok(row.get::<_, i64>(0) as f64 / f64::from(1 << 20))
    }

    /// Ends it, after each order has had one effect.
    pub(super) async fn close(mut self, servers: &Servers) -> Result<()> {
        let row = self.session.query_one(include_str!("../sql/order_judge.sql"), &[]).await?;
        let (wrong, orders): (i64, i64) = (row.get(0), row.get(1));
        ensure!(wrong == 0, "{wrong} of {orders} orders have no effect, or several");
        ensure!(usize::try_from(orders)? == self.orders, "{orders} orders instead of {}", self.orders);
        drop(self.input);
        let ended = self.program.wait().await?;
        ensure!(ended.success(), "the program: {ended}");
        if let Some(relay) = self.relay {
            relay.stop().await?;
        }
        servers.delete_stream().await?;
        servers.drop_database(&self.database).await
    }
}
