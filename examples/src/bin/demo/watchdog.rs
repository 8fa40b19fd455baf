//! Ends the demo's processes when the demo itself is killed with SIGKILL, which no code of ours
//! survives.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};

/// Reads "+ PID" and "- PID"; at the end of its input, when the only writer is gone, kills who is
/// still listed.
const SCRIPT: &str = r#"
pids=' '
while read -r sign pid; do
  case $sign in
    +) pids="$pids$pid " ;;
    -) pids="${pids%% $pid *} ${pids#* $pid }" ;;
  esac
done
[ "$pids" = ' ' ] || kill -KILL $pids
"#;

/// A shell that outlives the demo by a moment. Clones write to the same one.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog {
    // Held for one line at a time.
    orders: Arc<Mutex<ChildStdin>>,
}

impl Watchdog {
    pub(crate) fn start() -> Result<Self> {
        let mut shell = Command::new("sh");
        // In a group of its own: Ctrl-C reaches the demo, which ends its processes in an orderly
        // way.
        shell.args(["-c", SCRIPT]).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = shell.spawn().context("start the watchdog, a shell")?;
        let orders = shell.stdin.take().context("the watchdog's input is piped")?;
        Ok(Self { orders: Arc::new(Mutex::new(orders)) })
    }

    /// Makes this process end when the demo does.
    pub(crate) fn watch(&self, pid: u32) -> Result<()> {
        self.order('+', pid)
    }

    /// The process has ended; its pid may soon be another's.
    pub(crate) fn forget(&self, pid: u32) -> Result<()> {
        self.order('-', pid)
    }

    fn order(&self, sign: char, pid: u32) -> Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(orders, "{sign} {pid}").context("write to the watchdog")
    }
}
