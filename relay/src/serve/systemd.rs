//! Messages to systemd, from a relay that runs as a service of `Type=notify`: that it has started,
//! how it is, that it gets on (the watchdog), that it drains.
//!
//! A datagram now and then to the socket that systemd names, never waited for: the relay says again
//! with the next look the words that the socket did not take. So nothing here can hold up delivery,
//! and a systemd that is gone costs nothing but the words. The watchdog is fed while `/livez` would
//! answer 200, and by a task of the runtime: it starves when a worker hangs, and when the whole
//! runtime does.

use std::{
    ffi::OsString,
    io::{Error, ErrorKind},
    os::unix::net::{SocketAddr, UnixDatagram},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{databases::Databases, http::Probed as _};

/// How long a change of the status may stay unsaid.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The shortest pause between two looks, however short the watchdog is.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// The systemd that started this process and waits to hear from it.
#[derive(Debug)]
pub struct Systemd {
    socket: UnixDatagram,
    address: SocketAddr,
    /// After this time without a sign of life systemd ends the relay.
    watchdog: Option<Duration>,
}

/// Why systemd cannot be told anything.
#[derive(Debug, thiserror::Error)]
#[error("systemd cannot be told how the relay is: {variable}={value:?}: {source}")]
pub struct SystemdError {
    variable: &'static str,
    value: OsString,
    source: Error,
}

impl Systemd {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` through `lookup`; `None` when
    /// systemd does not ask for notifications.
    ///
    /// ```
    /// assert!(oncebox_relay::Systemd::from_environment(|_| None)?.is_none());
    /// # Ok::<(), oncebox_relay::SystemdError>(())
    /// ```
    ///
    /// # Errors
    /// The socket is neither a path nor an abstract name (`@name`, Linux only), or the time is no
    /// number.
    pub fn from_environment(
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Option<Self>, SystemdError> {
        let Some(name) = lookup("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(None) };
        let wrong =
            |variable, value: &OsString, source| SystemdError { variable, value: value.clone(), source };
        let address = address(&name).map_err(|source| wrong("NOTIFY_SOCKET", &name, source))?;
        let open = || {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|source| wrong("NOTIFY_SOCKET", &name, source))?;
        let is_for_us = lookup("WATCHDOG_PID").is_none_or(|pid| *pid == *std::process::id().to_string());
        let watchdog = lookup("WATCHDOG_USEC").filter(|_| is_for_us).map(|text| {
            let microseconds = text.to_string_lossy().parse();
            let problem = |_| wrong("WATCHDOG_USEC", &text, ErrorKind::InvalidInput.into());
            microseconds.map(Duration::from_micros).map_err(problem)
        });
        let watchdog = watchdog.transpose()?.filter(|time| !time.is_zero());
        Ok(Some(Self { socket, address, watchdog }))
    }

    /// Tells of a relay whose loops run, until `over`, which follows upon `stopping`.
    pub(crate) async fn tell(
        self,
        databases: Databases,
        stopping: CancellationToken,
        over: CancellationToken,
    ) {
        let feed = self.watchdog.map(|time| time / 3);
        let mut looks = interval(feed.unwrap_or(LOOK_MAX).clamp(LOOK_MIN, LOOK_MAX));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Told::default();
        let (mut saw_stopping, mut is_over) = (false, false);
        while !is_over {
            tokio::select! {
                _ = looks.tick() => {}
                () = stopping.cancelled(), if !saw_stopping => saw_stopping = true,
                () = over.cancelled() => is_over = true,
            }
            let stuck = databases.stuck();
            let hungry = |feed| told.fed.is_none_or(|fed| fed.elapsed() + LOOK_MIN >= feed);
            let now = Now {
                feeds: stuck.is_none() && feed.is_some_and(hungry),
                stopping: stopping.is_cancelled(),
                status: stuck
                    .or_else(|| databases.not_ready().map(|(problem, _)| problem))
                    .unwrap_or_else(|| "delivering".to_owned()),
            };
            let Some(words) = told.words(&now) else { continue };
            match self.socket.send_to_addr(words.as_bytes(), &self.address) {
                Ok(_) => told.remember(now),
                Err(error) => debug!(%error, "tell systemd"),
            }
        }
    }
}

/// How the relay is.
struct Now {
    feeds: bool,
    stopping: bool,
    /// One line.
    status: String,
}

/// The state that systemd was told.
#[derive(Default)]
struct Told {
    ready: bool,
    stopping: bool,
    status: String,
    fed: Option<Instant>,
}

impl Told {
    /// The news for systemd, in the words of `sd_notify`.
    fn words(&self, now: &Now) -> Option<String> {
        let status = if now.stopping { "draining" } else { &now.status };
        let lines = [
            (!self.ready).then(|| "READY=1".to_owned()),
            (now.stopping && !self.stopping).then(|| "STOPPING=1".to_owned()),
            (self.status != status).then(|| format!("STATUS={status}")),
            now.feeds.then(|| "WATCHDOG=1".to_owned()),
        ];
        let lines: Vec<String> = lines.into_iter().flatten().collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    fn remember(&mut self, now: Now) {
        self.ready = true;
        self.stopping = now.stopping;
        self.status = if now.stopping { "draining".to_owned() } else { now.status };
        if now.feeds {
            self.fed = Some(Instant::now());
        }
    }
}

fn address(name: &OsString) -> Result<SocketAddr, Error> {
    match name.as_encoded_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(name),
        #[cfg(target_os = "linux")]
        [b'@', rest @ ..] => {
            use std::os::linux::net::SocketAddrExt as _;
            SocketAddr::from_abstract_name(rest)
        }
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&'static str, &str)]) -> Result<Option<Systemd>, SystemdError> {
        let find = |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| OsString::from(pair.1));
        Systemd::from_environment(find)
    }

    #[test]
    fn the_environment_says_whether_systemd_listens() {
        let check = |pairs: &[(&'static str, &str)], expected: Option<Option<u64>>| {
            let found = read(pairs).unwrap().map(|systemd| systemd.watchdog);
            assert_eq!(found, expected.map(|time| time.map(Duration::from_micros)), "{pairs:?}");
        };
        let me = std::process::id().to_string();
        let socket = ("NOTIFY_SOCKET", "/run/notify");
        check(&[], None);
        check(&[("NOTIFY_SOCKET", ""), ("WATCHDOG_USEC", "5")], None);
        check(&[("WATCHDOG_USEC", "5")], None);
        check(&[socket], Some(None));
        check(&[socket, ("WATCHDOG_USEC", "5")], Some(Some(5)));
        check(&[socket, ("WATCHDOG_USEC", "0")], Some(None));
        check(&[socket, ("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", &me)], Some(Some(5)));
        // Meant for the process that started us.
        check(&[socket, ("WATCHDOG_USEC", "5"), ("WATCHDOG_PID", "1")], Some(None));
        for wrong in [[("NOTIFY_SOCKET", "vsock:2:9"), socket], [socket, ("WATCHDOG_USEC", "soon")]] {
            let error = read(&wrong).unwrap_err().to_string();
            assert!(error.contains(wrong[0].1) || error.contains(wrong[1].1), "{error}");
        }
    }
}
