//! A relay's connections to both servers, and all that may happen to them.

use std::time::Duration;

use futures_util::future::join_all;
use oncebox_tests::Proxy;
use tokio::time::{Instant, sleep};

/// The proxies between a relay and its servers.
#[derive(Debug)]
pub(crate) struct Lines {
    postgres: Proxy,
    nats: Proxy,
}

/// The number of each fault.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) cut: u32,
    pub(crate) stalled: u32,
    pub(crate) refused: u32,
    pub(crate) answers_lost: u32,
}

impl Lines {
    pub(crate) async fn start(postgres: u16, nats: u16) -> Self {
        let to = |port| Proxy::start(([127, 0, 0, 1], port).into());
        Self { postgres: to(postgres).await, nats: to(nats).await }
    }

    /// While on, nothing reaches NATS, nor comes from there.
    pub(crate) fn hold_nats(&self, on: bool) {
        self.nats.stall(on);
    }

    /// Of PostgreSQL and NATS.
    pub(crate) fn urls(&self) -> (String, String) {
        let database = format!("postgres://postgres@127.0.0.1:{}/postgres", self.postgres.port());
        (database, format!("nats://127.0.0.1:{}", self.nats.port()))
    }
}

/// Trouble at random, for all relays at the same time, for that long; in the end all is well again.
pub(crate) async fn trouble(lines: &[Lines], duration: Duration) -> Trouble {
    let all = join_all(lines.iter().map(|lines| trouble_one(lines, duration))).await;
    all.into_iter().fold(Trouble::default(), |sum, one| Trouble {
        cut: sum.cut + one.cut,
        stalled: sum.stalled + one.stalled,
        refused: sum.refused + one.refused,
        answers_lost: sum.answers_lost + one.answers_lost,
    })
}

async fn trouble_one(lines: &Lines, duration: Duration) -> Trouble {
    let until = Instant::now() + duration;
    let mut trouble = Trouble::default();
    while Instant::now() < until {
        sleep(Duration::from_millis(fastrand::u64(50..1_200))).await;
        let Lines { postgres, nats } = lines;
        let proxy = if fastrand::bool() { postgres } else { nats };
        match fastrand::u8(..10) {
            0..4 => {
                proxy.cut();
                trouble.cut += 1;
            }
            4..6 => {
                // Some for longer than a relay waits for an acknowledgement.
                let long = fastrand::u8(..8) == 0;
                let milliseconds = if long { 7_000 } else { fastrand::u64(100..2_000) };
                proxy.stall(true);
                sleep(Duration::from_millis(milliseconds)).await;
                proxy.stall(false);
                trouble.stalled += 1;
            }
            6..8 => {
                proxy.refuse(true);
                proxy.cut();
                sleep(Duration::from_millis(fastrand::u64(100..1_500))).await;
                proxy.refuse(false);
                trouble.refused += 1;
            }
            _ if !postgres.is_armed() => {
                // Whether the commit happened, the relay never learns.
                postgres.cut_when_client_sends(b"COMMIT", fastrand::bool());
                trouble.answers_lost += 1;
            }
            _ => {}
        }
    }
    trouble
}
