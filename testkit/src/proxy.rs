//! The proxy between a process and the server. It counts statements, and kills the process at one
//! of them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Kills,
    statement::{Prepared, message},
};

/// How long the server may take to carry out a statement whose answer is dropped.
const CARRY_OUT_WITHIN: Duration = Duration::from_secs(10);

/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The statement at which a process dies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    /// Which statements count.
    pub(crate) of: Kills,
    /// The number of the statement, counted from 1 over all connections.
    pub(crate) statement: u64,
    /// Whether the server carries it out before.
    pub(crate) carried_out: bool,
}

impl Kill {
    fn counts(self, statement: &[u8]) -> bool {
        match self.of {
            Kills::Statements => true,
            Kills::Commits => is_commit(statement),
        }
    }
}

/// Whether a line of a statement's text begins with COMMIT. A comment may contain the word too.
fn is_commit(group: &[u8]) -> bool {
    const COMMIT: &[u8] = b"COMMIT";
    let is_simple =
        group.first() == Some(&b'Q') && group.get(5..).is_some_and(|text| text.starts_with(COMMIT));
    is_simple
        || group.windows(COMMIT.len() + 1).any(|part| matches!(part[0], 0 | b'\n') && part[1..] == *COMMIT)
}

/// The proxy of one process; it closes its connections when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    kill: Option<Kill>,
    statements: AtomicU64,
    /// The statement at which the process died.
    dead: watch::Sender<Option<String>>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr, kill: Option<Kill>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let state =
            Arc::new(State { server, kill, statements: AtomicU64::new(0), dead: watch::Sender::new(None) });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { port, state, _accepting: accepting })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns when the process is to die, with the text of the statement.
    pub(crate) async fn killed(&self) -> String {
        let mut dead = self.state.dead.subscribe();
        // The sender is ours, so the wait cannot fail.
        let text = dead.wait_for(Option::is_some).await.map(|text| text.clone());
        text.ok().flatten().unwrap_or_default()
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => drop(connections.spawn(connect(client, Arc::clone(&state)))),
                // The error may last, as when too many files are open. The loop ends at any of its
                // waits when the proxy is dropped.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(mut client: TcpStream, state: Arc<State>) {
    let mut dead = state.dead.subscribe();
    if dead.borrow_and_update().is_some() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(state.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // After the kill the server's answers are dropped, and `ended` says that there are no more.
    let (swallow, ended) = (AtomicBool::new(false), Notify::new());
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = async {
        let (mut frames, mut buffer) = (Frames::default(), vec![0; 64 * 1024]);
        let mut prepared = Prepared::default();
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            frames.bytes.extend_from_slice(&buffer[..length]);
            while let Some((group, is_statement)) = frames.next_group() {
                let text = if is_statement { prepared.note(&group) } else { String::new() };
                let counts = state.kill.is_some_and(|kill| is_statement && kill.counts(&group));
                let number = if counts { state.statements.fetch_add(1, SeqCst) + 1 } else { 0 };
                let Some(kill) = state.kill.filter(|kill| counts && kill.statement == number) else {
                    if to_server.write_all(&group).await.is_err() {
                        return;
                    }
                    continue;
                };
                swallow.store(true, SeqCst);
                if kill.carried_out && to_server.write_all(&group).await.is_ok() {
                    // The server answers everything that it has received before it notices the end
                    // of the stream.
                    let _ = to_server.shutdown().await;
                    let _ = timeout(CARRY_OUT_WITHIN, ended.notified()).await;
                }
                state.dead.send_replace(Some(text));
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            if !swallow.load(SeqCst) && to_client.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
        if swallow.load(SeqCst) {
            ended.notify_one();
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = dead.changed() => {}
    }
}

/// The bytes that a client has sent, cut into groups: each ends with a message that makes the
/// server answer.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    is_started: bool,
}

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

impl Frames {
    /// Takes the next group, and says whether it is a statement: a simple query, or a group that
    /// ends with a Sync.
    fn next_group(&mut self) -> Option<(Vec<u8>, bool)> {
        if !self.is_started {
            let length = u32::from_be_bytes(*self.bytes.first_chunk()?);
            let length = usize::try_from(length).unwrap_or(usize::MAX).max(4);
            let packet = self.bytes.get(..length)?;
            let request = packet.get(4..8).and_then(<[u8]>::first_chunk).copied();
            let request = request.map_or(0, u32::from_be_bytes);
            self.is_started = request != SSL_REQUEST && request != GSS_REQUEST;
            return Some((self.bytes.drain(..length).collect(), false));
        }
        let mut rest = &self.bytes[..];
        loop {
            let (kind, _, next) = message(rest)?;
            rest = next;
            // After Parse, Bind, Describe, Execute and Close the server waits for the message that
            // follows.
            if !matches!(kind, b'P' | b'B' | b'D' | b'E' | b'C') {
                let end = self.bytes.len() - rest.len();
                return Some((self.bytes.drain(..end).collect(), matches!(kind, b'Q' | b'S')));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::frame;

    #[test]
    fn a_commit_is_told_from_a_statement_that_mentions_one() {
        for (group, expected) in [
            (frame(b'Q', b"COMMIT\0"), true),
            (frame(b'P', b"s1\0-- Why.\nCOMMIT AND CHAIN\0"), true),
            ([frame(b'P', b"s1\0SELECT 1\0"), frame(b'P', b"\0COMMIT\0")].concat(), true),
            (frame(b'P', b"s1\0-- Before COMMIT.\nSELECT 1\0"), false),
            (frame(b'Q', b"SELECT 'COMMIT'\0"), false),
        ] {
            assert_eq!(is_commit(&group), expected, "{group:?}");
        }
    }

    /// The groups are the same wherever the network cuts the bytes.
    #[test]
    fn a_statement_ends_in_a_sync_or_is_a_simple_query() {
        let ssl = [&8_u32.to_be_bytes()[..], &SSL_REQUEST.to_be_bytes()].concat();
        let startup = [&12_u32.to_be_bytes()[..], &196_608_u32.to_be_bytes(), b"user"].concat();
        let prepared = [frame(b'P', b"name"), frame(b'D', b"Sname"), frame(b'S', b"")].concat();
        let groups = [
            (ssl, false),
            (startup, false),
            (frame(b'p', b"password"), false),
            (frame(b'Q', b"BEGIN\0"), true),
            (prepared, true),
            ([frame(b'B', &[0; 70_000]), frame(b'E', b""), frame(b'S', b"")].concat(), true),
            (frame(b'd', b"row"), false),
            (frame(b'X', b""), false),
        ];
        let bytes: Vec<u8> = groups.iter().flat_map(|(bytes, _)| bytes).copied().collect();
        for step in [1, 3, 1000, bytes.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(step) {
                frames.bytes.extend_from_slice(piece);
                found.extend(std::iter::from_fn(|| frames.next_group()));
            }
            assert!(found == groups, "cut into pieces of {step}");
        }
    }
}
