//! A program of ours as a process that can be killed, suspended and started again.

use std::{
    ffi::OsStr,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::guardian::Guardian;

const COMMAND_DEADLINE: Duration = Duration::from_secs(30);
const STOP_MAX: Duration = Duration::from_secs(30);

/// A process of one of the programs that are built beside this one, with nothing but the
/// environment it is given.
///
/// It ends when this value is dropped and when this process dies by any means.
#[derive(Debug)]
pub struct Program {
    guardian: Guardian,
    memory_peak: u64,
}

impl Program {
    /// Starts a program, such as `oncebox`.
    ///
    /// # Errors
    /// It is not built, or does not start.
    pub async fn start(program: &str, arguments: &[&str], environment: &[(&str, String)]) -> Result<Self> {
        Self::start_file(&program_file(program)?, arguments, environment).await
    }

    /// Starts the program in this file, such as one in another language.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_file(path: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Result<Self> {
        let program = path.file_name().and_then(OsStr::to_str).context("a program has a name")?;
        let guardian = Guardian::new(program, "KILL", None, |_| {
            let variables = environment.iter().map(|(name, value)| format!("{name}={value}").into());
            let command = ["env".into(), "-i".into()].into_iter().chain(variables);
            command.chain([path.into()]).chain(arguments.iter().map(Into::into)).collect()
        })?;
        let mut process = Self { guardian, memory_peak: 0 };
        process.restart().await?;
        Ok(process)
    }

    /// Starts it again after [`Program::kill`] or [`Program::stop`].
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.guardian.start().await
    }

    /// SIGKILL, and waits until it has ended.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn kill(&mut self) -> Result<()> {
        self.check()?;
        self.guardian.signal("KILL")?;
        self.guardian.ended().await
    }

    /// SIGSTOP, or SIGCONT.
    ///
    /// # Errors
    /// It has ended.
    pub fn suspend(&mut self, on: bool) -> Result<()> {
        self.check()?;
        self.guardian.signal(if on { "STOP" } else { "CONT" })
    }

    /// SIGTERM, and waits until it has ended, at most 30 seconds.
    ///
    /// # Errors
    /// It had ended before, ends late, or with another code than 0; with the end of its log.
    pub async fn stop(&mut self) -> Result<()> {
        self.stop_within(STOP_MAX).await
    }

    /// As [`Program::stop`], with another limit.
    ///
    /// # Errors
    /// As there.
    pub async fn stop_within(&mut self, limit: Duration) -> Result<()> {
        self.check()?;
        self.guardian.signal("TERM")?;
        self.guardian.ended_within(limit).await?;
        let status = self.guardian.status();
        ensure!(status == Some(0), "ended with {status:?}; its last lines:\n{}", self.tail());
        Ok(())
    }

    /// Notes how much memory it has used.
    ///
    /// # Errors
    /// It has ended without being told to; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.guardian.has_ended();
        ensure!(!ended, "ended by itself, {:?}; its last lines:\n{}", self.guardian.status(), self.tail());
        self.memory_peak = self.memory_peak.max(self.resident_peak().unwrap_or(0));
        Ok(())
    }

    /// The most bytes of memory it has had beside the pages of its file, in all its lives; as of
    /// the last [`Program::check`].
    #[must_use]
    pub fn memory_peak(&self) -> u64 {
        self.memory_peak
    }

    /// Its log, in all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        self.guardian.log()
    }

    /// Where it serves HTTP, by its own word.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        http_address(&self.log())
    }

    /// Its process, while it is not known to have ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.guardian.pid()
    }

    /// The kernel's own high-water mark of this life, less the pages of its file: of a program that
    /// is not optimised these are most of it, and they grow with its code, even at rest.
    fn resident_peak(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.guardian.pid()?)).ok()?;
        let kilobytes = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(kilobytes("VmHWM:")?.saturating_sub(kilobytes("RssFile:")?) * 1024)
    }

    /// The end of it.
    #[must_use]
    pub fn tail(&self) -> String {
        crate::postgres::tail(&self.log())
    }
}

/// Where a relay serves HTTP, by the last word of its log.
#[must_use]
pub fn http_address(log: &str) -> Option<SocketAddr> {
    let (_, after) = log.lines().rev().find(|line| line.contains("/livez"))?.split_once("address=")?;
    after.split_whitespace().next()?.parse().ok()
}

/// A program that is built beside this one.
///
/// # Errors
/// It is not built; the error names the remedy.
pub fn program_file(program: &str) -> Result<PathBuf> {
    let ours = std::env::current_exe().context("find our own program")?;
    // Test binaries live one directory below.
    let mut directories = ours.ancestors().skip(1);
    let directory = directories.find(|directory| !directory.ends_with("deps"));
    let path = directory.context("a program is in a directory")?.join(program);
    ensure!(path.is_file(), "{} is not built: run `cargo build --workspace --bins`", path.display());
    Ok(path)
}

/// Runs a command of `oncebox` to its end, with nothing but this environment; returns its exit
/// code, standard output and error.
///
/// # Errors
/// It is not built, takes longer than 30 seconds, or is killed by a signal.
pub async fn oncebox(
    arguments: &[&str],
    environment: &[(&str, impl AsRef<OsStr>)],
) -> Result<(i32, String, String)> {
    let mut command = Command::new(program_file("oncebox")?);
    command.args(arguments).env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(COMMAND_DEADLINE, running).await;
    let output = output.with_context(|| format!("oncebox {arguments:?} has not ended"))??;
    let code = output.status.code().with_context(|| format!("oncebox {arguments:?} ended by a signal"))?;
    Ok((code, String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

/// The findings of one check of `oncebox doctor`, as texts; and its exit code.
///
/// # Errors
/// The doctor does not end with a document.
pub async fn diagnosed(environment: &[(&str, impl AsRef<OsStr>)], check: &str) -> Result<(i32, Vec<String>)> {
    let (code, output, log) = oncebox(&["doctor", "--json"], environment).await?;
    let seen: Value = serde_json::from_str(&output).with_context(|| format!("read {output}{log}"))?;
    let all = seen["findings"].as_array().context("no findings")?;
    Ok((code, all.iter().filter(|found| found["check"] == check).map(ToString::to_string).collect()))
}
