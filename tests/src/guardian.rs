//! A small shell process that owns one server and its directory, and outlives the process that
//! started them.
//!
//! Dropping a value ends nothing when the process is killed with SIGKILL, and `PR_SET_PDEATHSIG` is
//! Linux only and needs unsafe code. But every kernel closes the pipes of a process that dies by
//! any means, so a guardian reads from one. See `guardian.sh` for the other half.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{sync::mpsc, time::timeout};

use crate::account::Account;

const SCRIPT: &str = include_str!("guardian.sh");
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Guardian {
    directory: PathBuf,
    // Closing this pipe ends the server; no other process has a copy (std opens pipes
    // close-on-exec).
    orders: Option<ChildStdin>,
    reports: mpsc::UnboundedReceiver<Report>,
    shell: Child,
    pid: Option<u32>,
    status: Option<i32>,
}

/// The shell's lines about the server: one for each start and each end, so the channel needs no
/// bound.
#[derive(Debug)]
enum Report {
    Started(u32),
    /// With the exit status, as a shell counts it: 128 and the signal's number for a death by
    /// signal.
    Ended(Option<i32>),
}

impl Guardian {
    /// A fresh directory below the temp directory, watched from now on, and a server's command, not
    /// yet started. `last_signal` ends the server when this value or this process is gone.
    pub(crate) fn new(
        name: &str,
        last_signal: &str,
        account: Option<Account>,
        command: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("oncebox-{name}-"))
            .tempdir()
            .context("create a directory for a server")?;
        if let Some(account) = account {
            std::os::unix::fs::chown(directory.path(), Some(account.user), Some(account.group))?;
        }
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(SCRIPT).arg("guardian").arg(directory.path()).arg(last_signal);
        if let Some(Account { user, group }) = account {
            // Replaces itself with the server. The guardian stays root, to delete the directory
            // wherever it is.
            shell.args([
                "setpriv",
                &format!("--reuid={user}"),
                &format!("--regid={group}"),
                "--clear-groups",
            ]);
        }
        shell.args(command(directory.path())).current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        clean_environment(&mut shell);
        let mut shell = shell.spawn().context("start sh")?;
        // From here on the shell deletes it.
        let directory = directory.keep();
        let output = shell.stdout.take().context("the shell's output is piped")?;
        let (sender, reports) = mpsc::unbounded_channel();
        thread::Builder::new().name(format!("{name} guardian")).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let report = match line.split_once(' ') {
                    Some(("started", pid)) => pid.parse().ok().map(Report::Started),
                    Some(("ended", status)) => Some(Report::Ended(status.parse().ok())),
                    _ => None,
                };
                if report.is_some_and(|report| sender.send(report).is_err()) {
                    return;
                }
            }
        })?;
        Ok(Self { directory, orders: shell.stdin.take(), reports, shell, pid: None, status: None })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's pid, as long as it is not known to have ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// How the last server ended.
    pub(crate) fn status(&self) -> Option<i32> {
        self.status
    }

    /// The server's output so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read(self.directory.join("server.log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub(crate) async fn start(&mut self) -> Result<()> {
        self.order("start")?;
        match timeout(DEADLINE, self.reports.recv()).await.context("start a server")? {
            Some(Report::Started(pid)) => self.pid = Some(pid),
            other => bail!("start a server: unexpected report {other:?}"),
        }
        Ok(())
    }

    /// Sends a signal, for example `KILL` or `STOP`.
    pub(crate) fn signal(&mut self, name: &str) -> Result<()> {
        self.order(&format!("signal {name}"))
    }

    /// Waits until the server has ended, at most 30 seconds.
    pub(crate) async fn ended(&mut self) -> Result<()> {
        self.ended_within(DEADLINE).await
    }

    /// Waits until the server has ended, for `limit` at most.
    pub(crate) async fn ended_within(&mut self, limit: Duration) -> Result<()> {
        while self.pid.is_some() {
            match timeout(limit, self.reports.recv()).await.context("wait for a server's end")? {
                Some(Report::Ended(status)) => (self.pid, self.status) = (None, status),
                None => self.pid = None,
                Some(Report::Started(_)) => {}
            }
        }
        Ok(())
    }

    /// Whether the server has ended without being asked.
    pub(crate) fn has_ended(&mut self) -> bool {
        if let Ok(Report::Ended(status)) = self.reports.try_recv() {
            (self.pid, self.status) = (None, status);
        }
        self.pid.is_none()
    }

    fn order(&mut self, line: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("the guardian has ended")?;
        writeln!(orders, "{line}").with_context(|| format!("tell the guardian to {line}"))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Ends within seconds by itself; waiting means that nothing is left when the next test
        // looks.
        let _ = self.shell.wait();
    }
}

/// PG* variables of the caller would change the behaviour of PostgreSQL's programs; so would a
/// language.
pub(crate) fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") || name.to_string_lossy().starts_with("LC_") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").env("TZ", "UTC");
}
