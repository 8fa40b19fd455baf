//! A TCP proxy that misbehaves on demand.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A TCP proxy on a free loopback port, for injected faults. It ends with this value.
///
/// The faults: [`Proxy::cut`] resets the connections there are, [`Proxy::refuse`] those to come,
/// [`Proxy::stall`] keeps them open and passes nothing, [`Proxy::slow`] is a narrow or a long line,
/// [`Proxy::cut_when_client_sends`] loses a commit's answer, [`Proxy::lose_when_client_sends`] a
/// request.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Faults {
    // Every change resets the connections there are.
    cuts: watch::Sender<u64>,
    stalled: watch::Sender<bool>,
    refusing: AtomicBool,
    /// Bytes a second that clients may send; 0 for no limit.
    rate: AtomicU64,
    /// How much later everything arrives, in milliseconds.
    delay: AtomicU64,
    trap: Mutex<Option<Trap>>,
    connections: AtomicU64,
}

/// One shot: taken by the connection whose client sends the needle.
#[derive(Clone, Copy, Debug)]
struct Trap {
    needle: &'static [u8],
    then: Then,
}

/// The fate of the bytes with the needle, and of their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Passed on, and the connection is cut when they are answered.
    Forward,
    /// Lost with the connection.
    Cut,
    /// Lost alone.
    Lose,
}

impl Proxy {
    /// Listens, and connects every client to `target`.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let faults = Arc::new(Faults {
            cuts: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            refusing: AtomicBool::new(false),
            rate: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            trap: Mutex::new(None),
            connections: AtomicU64::new(0),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, target, faults.clone()));
        Self { port, faults, _accepting: accepting }
    }

    /// The port to connect to instead of the target's.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.connections.load(SeqCst)
    }

    /// Resets all connections there are; new ones are accepted.
    pub fn cut(&self) {
        self.faults.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// While on, connections stay open and are accepted, but nothing passes in either direction.
    pub fn stall(&self, on: bool) {
        self.faults.stalled.send_replace(on);
    }

    /// While on, new connections are reset at once; those there are stay.
    pub fn refuse(&self, on: bool) {
        self.faults.refusing.store(on, SeqCst);
    }

    /// From now on each connection passes `bytes_per_second` from its client at most, 0 for any
    /// number; and each piece in either direction, of up to 64 KiB, takes this long.
    pub fn slow(&self, bytes_per_second: u64, delay: Duration) {
        self.faults.rate.store(bytes_per_second, SeqCst);
        self.faults.delay.store(delay.as_millis().try_into().unwrap_or(u64::MAX), SeqCst);
    }

    /// One shot: when a client's bytes contain `needle`, its connection is reset. With `forward`
    /// the server gets the bytes first, and then the end of its connection: the reset comes when it
    /// has answered everything and closed, and the client has seen none of these answers. Without,
    /// the server never sees the bytes from the needle's packet on.
    ///
    /// # Panics
    /// `needle` is empty.
    pub fn cut_when_client_sends(&self, needle: &'static [u8], forward: bool) {
        assert!(!needle.is_empty(), "an empty needle is everywhere");
        let then = if forward { Then::Forward } else { Then::Cut };
        *self.faults.trap() = Some(Trap { needle, then });
    }

    /// One shot: a piece of a client's bytes is lost when it contains `needle`, and its connection
    /// goes on as if nothing had been sent.
    ///
    /// # Panics
    /// `needle` is empty.
    pub fn lose_when_client_sends(&self, needle: &'static [u8]) {
        assert!(!needle.is_empty(), "an empty needle is everywhere");
        *self.faults.trap() = Some(Trap { needle, then: Then::Lose });
    }

    /// Whether [`Proxy::cut_when_client_sends`], or [`Proxy::lose_when_client_sends`], still waits
    /// for its needle.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.faults.trap().is_some()
    }
}

impl Faults {
    fn trap(&self) -> MutexGuard<'_, Option<Trap>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the trap if its needle ends in these bytes; `seen` carries the bytes with which a
    /// needle may have begun.
    fn caught(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> Option<Trap> {
        seen.extend_from_slice(bytes);
        let mut trap = self.trap();
        if trap.is_some_and(|armed| seen.windows(armed.needle.len()).any(|window| window == armed.needle)) {
            return trap.take();
        }
        let keep = trap.map_or(0, |armed| armed.needle.len() - 1).min(seen.len());
        seen.drain(..seen.len() - keep);
        None
    }

    async fn take_time(&self, bytes: usize, is_client: bool) {
        let delay = Duration::from_millis(self.delay.load(SeqCst));
        let sending = match self.rate.load(SeqCst) {
            rate @ 1.. if is_client => Duration::from_micros(bytes as u64 * 1_000_000 / rate),
            _ => Duration::ZERO,
        };
        if !(delay + sending).is_zero() {
            sleep(delay + sending).await;
        }
    }

    async fn pass(&self) {
        // The sender is ours, so the wait cannot fail.
        let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, faults: Arc<Faults>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                connections.spawn(connect(client, target, faults.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The server's last bytes; returns when it has answered all that it got.
async fn hand_over(to_server: &mut WriteHalf<'_>, bytes: &[u8], done: &Notify) {
    if to_server.write_all(bytes).await.is_ok() {
        // The end of our side tells the server that no more comes, so that it answers all it has
        // got, then ends its own. Its next answer alone may belong to something earlier.
        let _ = to_server.shutdown().await;
        let _ = timeout(ANSWER_DEADLINE, done.notified()).await;
    }
}

async fn connect(mut client: TcpStream, target: SocketAddr, faults: Arc<Faults>) {
    faults.connections.fetch_add(1, SeqCst);
    let mut cuts = faults.cuts.subscribe();
    let refused = faults.refusing.load(SeqCst);
    let server = if refused { None } else { TcpStream::connect(target).await.ok() };
    let Some(mut server) = server else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let cut = {
        // From the trap on, the server's answers are swallowed, and their end is announced.
        let (swallow, done) = (AtomicBool::new(false), Notify::new());
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let ending = Ending { swallow: &swallow, done: &done };
        tokio::select! {
            cut = carry_up(&faults, &mut from_client, &mut to_server, ending) => cut,
            cut = carry_down(&faults, &mut from_server, &mut to_client, ending) => cut,
            _ = cuts.changed() => {
                let _ = server.set_zero_linger();
                true
            }
        }
    };
    // A caught connection ends in order on the server's side, which may still have the forwarded
    // bytes to read.
    if cut {
        let _ = client.set_zero_linger();
    }
}

/// How the two directions of a connection agree on its end.
#[derive(Clone, Copy)]
struct Ending<'a> {
    /// The server's answers are not passed on any more.
    swallow: &'a AtomicBool,
    /// Told when the server has closed its side after that.
    done: &'a Notify,
}

/// Passes the client's bytes on, until it closes its side or a trap catches it; whether the
/// connection is to be cut.
async fn carry_up(
    faults: &Faults,
    from_client: &mut ReadHalf<'_>,
    to_server: &mut WriteHalf<'_>,
    ending: Ending<'_>,
) -> bool {
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let Ok(length @ 1..) = from_client.read(&mut buffer).await else { return false };
        faults.take_time(length, true).await;
        faults.pass().await;
        let caught = faults.caught(&mut seen, &buffer[..length]);
        if let Some(Trap { then: Then::Lose, .. }) = caught {
            continue;
        }
        if let Some(trap) = caught {
            ending.swallow.store(true, SeqCst);
            if trap.then == Then::Forward {
                hand_over(to_server, &buffer[..length], ending.done).await;
            }
            return true;
        }
        if to_server.write_all(&buffer[..length]).await.is_err() {
            return false;
        }
    }
}

/// Passes the server's bytes on, until it closes its side.
async fn carry_down(
    faults: &Faults,
    from_server: &mut ReadHalf<'_>,
    to_client: &mut WriteHalf<'_>,
    ending: Ending<'_>,
) -> bool {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
        if ending.swallow.load(SeqCst) {
            continue;
        }
        faults.take_time(length, false).await;
        faults.pass().await;
        if to_client.write_all(&buffer[..length]).await.is_err() {
            return false;
        }
    }
    if ending.swallow.load(SeqCst) {
        ending.done.notify_one();
        // The other direction decides how this ends.
        std::future::pending::<()>().await;
    }
    // The end does not pass either.
    faults.pass().await;
    false
}
