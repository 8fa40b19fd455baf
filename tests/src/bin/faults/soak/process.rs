//! The memory and the processor time of a process, as Linux counts them.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};

/// USER_HZ of Linux: the unit of process times in `/proc`, the same on every architecture we build
/// for.
const TICKS_PER_SECOND: u64 = 100;

/// The bytes that are resident.
pub(crate) fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read the state of a process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("find VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().context("read VmRSS")?;
    Ok(kilobytes * 1024)
}

/// Used since its start, in user and kernel mode.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the state of a process")?;
    // The name in parentheses may hold anything; utime and stime are the 12th and 13th fields after
    // it.
    let (_, fields) = text.rsplit_once(") ").context("read the state of a process")?;
    let ticks: Vec<u64> = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse().ok()).collect();
    ensure!(ticks.len() == 2, "process {pid} has no times");
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 1_000 / TICKS_PER_SECOND))
}
