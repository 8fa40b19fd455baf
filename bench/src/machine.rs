//! The machine of the measurement. Numbers without it mean nothing.

use anyhow::Context;
use serde::Serialize;

use crate::servers::Servers;

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
