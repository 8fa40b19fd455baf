//! The machine of the measurement. Numbers without it mean nothing.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::servers::Servers;

/// USER_HZ of Linux: the unit of process times in `/proc`, the same on every architecture we build
/// for.
const TICKS_PER_SECOND: u64 = 100;

/// Goes into the report and into `results.json` as it is.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) postgresql: String,
    pub(crate) nats_server: String,
    /// False in the smoke test; such numbers say nothing.
    pub(crate) optimised: bool,
}

/// Asks the servers and `/proc`.
pub(crate) async fn describe(servers: &Servers) -> anyhow::Result<Machine> {
    let session = servers.admin().await?;
    let postgresql = session.query_one("SHOW server_version", &[]).await?.get(0);
    let kib = field("/proc/meminfo", "MemTotal:")?;
    let kib: u64 = kib.trim_end_matches("kB").trim().parse().context("read MemTotal")?;
    Ok(Machine {
        cores: std::thread::available_parallelism()?.get(),
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|_| std::env::consts::ARCH.to_owned()),
        memory_gib: (kib + 512 * 1024) / (1024 * 1024),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("read the kernel")?
            .trim()
            .to_owned(),
        postgresql,
        nats_server: servers.nats().await?.server_info().version,
        optimised: !cfg!(debug_assertions),
    })
}

/// The rest of the first line of `file` that begins with `name`.
pub(crate) fn field(file: &str, name: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.with_context(|| format!("find {name} in {file}"))?;
    Ok(value.trim_start_matches([':', '\t', ' ']).trim().to_owned())
}

/// The processor time that a process has used so far, in user and kernel mode.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    Ok(time(&stat(pid)?[11..13]))
}

/// The processor time of a process and of its children, also of those that have ended.
pub(crate) fn cpu_with_children(pid: u32) -> anyhow::Result<Duration> {
    let mut used = time(&stat(pid)?[11..15]);
    for entry in std::fs::read_dir("/proc").context("list the processes")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has just ended is counted by its parent, the next time.
        if let Ok(fields) = stat(child)
            && fields[1] == u64::from(pid)
        {
            used += time(&fields[11..13]);
        }
    }
    Ok(used)
}

fn time(ticks: &[u64]) -> Duration {
    Duration::from_millis(ticks.iter().sum::<u64>() * 1_000 / TICKS_PER_SECOND)
}

/// The fields after the name, which stands in parentheses and may hold anything; those that are no
/// numbers are 0. The second is the parent, the 12th to 15th are the times in user and kernel mode:
/// its own and its ended children's.
fn stat(pid: u32) -> anyhow::Result<Vec<u64>> {
    let file = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let (_, fields) = text.rsplit_once(") ").context("read the process state")?;
    let fields: Vec<u64> = fields.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    ensure!(fields.len() > 15, "{file} has no process times");
    Ok(fields)
}
