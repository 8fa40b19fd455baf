//! The bodies of requests: each is read whole, and all of them together have a limit.
//!
//! Bytes are counted as they arrive, so clients that send nearly all of a body and then nothing
//! could use the limit up. When it is used up, the bodies that have been arriving for longest give
//! way to those that come now.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::HeaderMap,
};
use http_body_util::{BodyExt, Full};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;

/// How long a body may be arriving before it has to give way.
const SLOW: Duration = Duration::from_secs(1);
/// How long it may take to do so.
const GIVES_WAY_WITHIN: Duration = Duration::from_secs(1);

/// The bodies that are being read.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Bytes of all of them, also of those that were read.
    bytes: Arc<Semaphore>,
    arriving: Mutex<Arriving>,
}

/// By the order in which they came.
#[derive(Debug, Default)]
struct Arriving {
    next: u64,
    bodies: BTreeMap<u64, Arc<Arrival>>,
}

#[derive(Debug)]
struct Arrival {
    since: Instant,
    bytes: AtomicUsize,
    gives_way: CancellationToken,
}

/// A body that was read whole.
#[derive(Debug)]
pub(crate) struct ReadBody {
    pub(crate) bytes: Bytes,
    trailers: Option<HeaderMap>,
    _permits: Option<OwnedSemaphorePermit>,
}

impl ReadBody {
    /// The body for the handler; its bytes count until this is dropped.
    pub(crate) fn body(&self) -> Body {
        with_trailers(self.bytes.clone(), self.trailers.clone())
    }
}

/// A body of these bytes, with trailers after it if there are any.
pub(crate) fn with_trailers(bytes: Bytes, trailers: Option<HeaderMap>) -> Body {
    match trailers {
        Some(trailers) => Body::new(Full::new(bytes).with_trailers(std::future::ready(Some(Ok(trailers))))),
        None => Body::from(bytes),
    }
}

impl Bodies {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes_max)), arriving: Mutex::default() }
    }

    /// Reads a whole body of at most `max` bytes.
    pub(crate) async fn read(&self, mut body: Body, max: usize) -> Result<ReadBody, Problem> {
        let too_large = Problem::BodyTooLarge(max);
        if body.size_hint().lower() > max as u64 {
            return Err(too_large);
        }
        let place = self.enter();
        let (mut read, mut trailers, mut permits) = (Vec::new(), None, None::<OwnedSemaphorePermit>);
        loop {
            let frame = tokio::select! {
                () = place.arrival.gives_way.cancelled() => return Err(Problem::BodyTooSlow),
                frame = body.frame() => frame,
            };
            let Some(frame) = frame else { break };
            let data = match frame.map_err(|_| Problem::BodyUnreadable)?.into_data() {
                Ok(data) => data,
                Err(other) => {
                    trailers = other.into_trailers().ok().or(trailers);
                    continue;
                }
            };
            if data.len() > max - read.len() {
                return Err(too_large);
            }
            let more = self.take(data.len(), &place).await?;
            match &mut permits {
                Some(permits) => permits.merge(more),
                None => permits = Some(more),
            }
            place.arrival.bytes.fetch_add(data.len(), Ordering::Relaxed);
            read.extend_from_slice(&data);
        }
        Ok(ReadBody { bytes: Bytes::from(read), trailers, _permits: permits })
    }

    async fn take(&self, count: usize, place: &Place<'_>) -> Result<OwnedSemaphorePermit, Problem> {
        let permits = u32::try_from(count).map_err(|_| Problem::Overloaded)?;
        if let Ok(taken) = Arc::clone(&self.bytes).try_acquire_many_owned(permits) {
            return Ok(taken);
        }
        if !self.make_room(count, place.number) {
            return Err(Problem::Overloaded);
        }
        let taken = timeout(GIVES_WAY_WITHIN, Arc::clone(&self.bytes).acquire_many_owned(permits)).await;
        taken.ok().and_then(Result::ok).ok_or(Problem::Overloaded)
    }

    /// Has slow bodies give way until `count` bytes are free; `false` when they do not suffice.
    fn make_room(&self, count: usize, except: u64) -> bool {
        let arriving = self.arriving();
        let mut free = self.bytes.available_permits();
        let others = arriving.bodies.iter().filter(|(number, _)| **number != except);
        for (_, body) in others.take_while(|(_, body)| body.since.elapsed() >= SLOW) {
            if free >= count {
                break;
            }
            free += body.bytes.load(Ordering::Relaxed);
            body.gives_way.cancel();
        }
        free >= count
    }

    fn enter(&self) -> Place<'_> {
        let mut arriving = self.arriving();
        let number = arriving.next;
        arriving.next += 1;
        let arrival = Arc::new(Arrival {
            since: Instant::now(),
            bytes: AtomicUsize::new(0),
            gives_way: CancellationToken::new(),
        });
        arriving.bodies.insert(number, Arc::clone(&arrival));
        Place { bodies: self, number, arrival }
    }

    fn arriving(&self) -> MutexGuard<'_, Arriving> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a body among those that are arriving, until it is dropped.
struct Place<'a> {
    bodies: &'a Bodies,
    number: u64,
    arrival: Arc<Arrival>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.bodies.arriving().bodies.remove(&self.number);
    }
}
