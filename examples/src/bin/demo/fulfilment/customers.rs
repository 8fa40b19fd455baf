//! The customers: sixteen at once, who ask again until they have an answer, and some of them once
//! more.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// How many customers order at the same time.
pub(crate) const CUSTOMERS: usize = 16;
/// The most orders under way, besides the limit of a tenth of all: the trouble shall meet all of
/// them.
const UNDER_WAY_MAX: usize = 200;
const ANSWER_MAX: Duration = Duration::from_secs(5);
const ORDER_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const ITEMS: [&str; 4] = ["chair", "lamp", "rug", "table"];
/// More than the gateway charges at once.
const TOO_MUCH: usize = 2_000_000;

/// The orders so far; everybody may look at any time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: AtomicUsize,
    taken: AtomicUsize,
    asked_twice: AtomicUsize,
    ended: AtomicUsize,
    /// Set when no customer orders any more.
    closed: AtomicBool,
    /// Set when no process is killed any more, either.
    calm: AtomicBool,
    // Who was killed last; held to read or write it.
    last: Mutex<String>,
}

impl Progress {
    /// Orders that the shop has answered for.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Orders that were sent once more, to another process, after they had been taken.
    pub(crate) fn asked_twice(&self) -> usize {
        self.asked_twice.load(Relaxed)
    }

    /// Whether all is taken that will be.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Whether that is so, and no process is killed any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Relaxed)
    }

    pub(crate) fn note_calm(&self) {
        self.calm.store(true, Relaxed);
    }

    pub(crate) fn note_ended(&self, orders: usize) {
        self.ended.store(orders, Relaxed);
    }

    /// The last event.
    pub(crate) fn last(&self) -> String {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note(&self, what: String) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// Of twenty orders one is too expensive, and one goes where no parcel goes.
fn order(number: usize) -> Value {
    let cents = if number % 20 == 7 { TOO_MUCH } else { 100 + number };
    let city = if number % 20 == 13 { "Atlantis" } else { "Bremen" };
    json!({"item": ITEMS[number % ITEMS.len()], "count": 1, "cents": cents, "city": city})
}

/// How much of each item is in stock for a number of orders: of the first there is too little.
fn stock(orders: usize) -> impl Iterator<Item = (&'static str, usize)> {
    let count = move |item| if item == ITEMS[0] { orders / 50 } else { orders };
    ITEMS.into_iter().map(move |item| (item, count(item)))
}

/// The statement that stocks for a number of orders.
pub(crate) fn stocking(orders: usize) -> String {
    let rows: Vec<String> = stock(orders).map(|(item, count)| format!("('{item}', {count})")).collect();
    format!("INSERT INTO stock (item, free) VALUES {}", rows.join(", "))
}

/// How much of all items is in stock for a number of orders.
pub(crate) fn stocked(orders: usize) -> i64 {
    let count: usize = stock(orders).map(|(_, count)| count).sum();
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Orders until all are taken, or time is up.
pub(crate) async fn order_all(
    addresses: &[String; 2],
    orders: usize,
    until: Instant,
    progress: &Progress,
) -> Result<()> {
    try_join_all((0..CUSTOMERS).map(|_| customer(addresses, orders, until, progress))).await?;
    progress.closed.store(true, Relaxed);
    Ok(())
}

async fn customer(addresses: &[String; 2], orders: usize, until: Instant, progress: &Progress) -> Result<()> {
    let under_way_max = UNDER_WAY_MAX.min(orders / 10);
    loop {
        if Instant::now() > until {
            return Ok(());
        }
        let number = progress.begun.fetch_add(1, Relaxed);
        if number >= orders {
            return Ok(());
        }
        while number >= progress.ended.load(Relaxed) + under_way_max {
            sleep(PAUSE).await;
        }
        place(addresses, number).await?;
        progress.taken.fetch_add(1, Relaxed);
        if number.is_multiple_of(4) {
            place(addresses, number).await.context("ask a second time")?;
            progress.asked_twice.fetch_add(1, Relaxed);
        }
    }
}

/// Asks one process after the other until one of them has taken the order.
async fn place(addresses: &[String; 2], number: usize) -> Result<()> {
    let (key, body) = (format!("order-{number:04}"), order(number).to_string());
    let until = Instant::now() + ORDER_MAX;
    for address in addresses.iter().cycle().skip(number % 2) {
        let status = timeout(ANSWER_MAX, post(address, &key, &body)).await;
        if let Ok(Ok(202)) = status {
            return Ok(());
        }
        ensure!(Instant::now() < until, "no process has taken order {key} within {ORDER_MAX:?}: {status:?}");
        sleep(PAUSE).await;
    }
    Ok(())
}

/// The status of the answer.
async fn post(address: &str, key: &str, body: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nIdempotency-Key: \"{key}\"\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).context("an answer without a status")?;
    status.parse().context("read the status of an answer")
}
