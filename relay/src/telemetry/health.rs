//! Whether the relay gets on, for `/livez`, `/readyz` and systemd.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::delivery::Cause;

/// A worker that got no further for this time is not ready, though perhaps not stuck.
const READY_MAX: Duration = Duration::from_secs(60);

/// The state of the workers, as they report it.
#[derive(Debug)]
pub(crate) struct Health {
    started: Instant,
    /// When each worker last got on, in milliseconds after `started`; gone with its worker. 64 at
    /// most.
    beats: Mutex<Vec<Weak<AtomicU64>>>,
    postgres_away: AtomicBool,
    /// The faults of the schema, because of which nothing is delivered, or not all.
    fault: Noted,
    /// Why PostgreSQL takes no writes, though it answers.
    unwritable: Noted,
    /// Why the relay sends nothing: its database may be a copy.
    silent: Noted,
    /// The id with which this relay has slept: its row goes when it is awake.
    slept: Noted,
    /// It was told that NATS lets no hint through.
    is_deaf: AtomicBool,
    /// When each cause of parking may be reported again, in seconds after `started`.
    next_parking_reports: Mutex<HashMap<Cause, u64>>,
}

#[derive(Debug, Default)]
struct Noted(Mutex<Option<String>>);

impl Noted {
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, text: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), text)
    }
}

/// A sign of life of one worker. The [`Health`] looks at the worker that has been silent longest,
/// so that those that work do not hide one that hangs.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    started: Instant,
    milliseconds: Arc<AtomicU64>,
}

impl Heartbeat {
    /// A step ended, well or badly. A server that fails every pass is no reason to restart the
    /// relay; a worker that does not even fail is.
    pub(crate) fn beat(&self) {
        self.milliseconds.store(milliseconds_since(self.started), Ordering::Relaxed);
    }
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            beats: Mutex::default(),
            postgres_away: AtomicBool::new(false),
            fault: Noted::default(),
            unwritable: Noted::default(),
            silent: Noted::default(),
            slept: Noted::default(),
            is_deaf: AtomicBool::new(false),
            next_parking_reports: Mutex::default(),
        }
    }

    /// A heartbeat for a worker that begins now.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let milliseconds = Arc::new(AtomicU64::new(milliseconds_since(self.started)));
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        beats.retain(|beat| beat.strong_count() > 0);
        beats.push(Arc::downgrade(&milliseconds));
        Heartbeat { started: self.started, milliseconds }
    }

    /// How long the worker that has been silent longest has been so.
    pub(crate) fn silence(&self) -> Duration {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let last = beats.iter().filter_map(Weak::upgrade).map(|beat| beat.load(Ordering::Relaxed)).min();
        let now = milliseconds_since(self.started);
        Duration::from_millis(now.saturating_sub(last.unwrap_or(now)))
    }

    /// Why only a restart may help, if that is so: a worker got no further for longer than `limit`.
    pub(crate) fn stuck(&self, limit: Duration) -> Option<String> {
        let silence = self.silence();
        let seconds = silence.as_secs();
        (silence > limit).then(|| format!("stuck: a worker has got no further for {seconds} seconds"))
    }

    /// The reason why the relay does not work, if there is one.
    pub(crate) fn not_ready(&self, nats_connected: bool) -> Option<String> {
        if self.is_postgres_away() {
            Some("PostgreSQL is away".to_owned())
        } else if !nats_connected {
            Some("NATS is away".to_owned())
        } else {
            let held = self.unwritable.get().or_else(|| self.silent.get()).or_else(|| self.fault.get());
            held.or_else(|| self.stuck(READY_MAX))
        }
    }

    pub(crate) fn is_postgres_away(&self) -> bool {
        self.postgres_away.load(Ordering::Relaxed)
    }

    /// Notes whether PostgreSQL answers; true when that is news.
    pub(crate) fn postgres_away(&self, away: bool) -> bool {
        self.postgres_away.swap(away, Ordering::Relaxed) != away
    }

    /// Notes why PostgreSQL takes no writes; true when that begins, or ends.
    pub(crate) fn note_unwritable(&self, why: Option<String>) -> bool {
        let is_so = why.is_some();
        self.unwritable.replace(why).is_some() != is_so
    }

    /// Notes the faults of the schema; true when they are news.
    pub(crate) fn note_fault(&self, fault: Option<String>) -> bool {
        self.fault.replace(fault.clone()) != fault
    }

    /// Notes why the relay sends nothing; true when that is news.
    pub(crate) fn note_silence(&self, why: Option<String>) -> bool {
        self.silent.replace(why.clone()) != why
    }

    /// Notes the id with which the relay sleeps; `None` when the row of that id is gone.
    pub(crate) fn note_slept(&self, id: Option<&str>) {
        self.slept.replace(id.map(str::to_owned));
    }

    /// The id with which the relay has slept.
    pub(crate) fn slept(&self) -> Option<String> {
        self.slept.get()
    }

    /// Notes that NATS lets no hint through; true the first time.
    pub(crate) fn note_deaf(&self) -> bool {
        !self.is_deaf.swap(true, Ordering::Relaxed)
    }

    /// True once a minute for each cause: a full stream must not fill the log as well.
    pub(crate) fn may_report_parking(&self, cause: Cause) -> bool {
        let now = self.started.elapsed().as_secs();
        let mut next = self.next_parking_reports.lock().unwrap_or_else(PoisonError::into_inner);
        let due = next.entry(cause).or_default();
        let may = now >= *due;
        if may {
            *due = now + 60;
        }
        may
    }
}

fn milliseconds_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_that_get_on_do_not_hide_one_that_hangs() {
        let (health, limit) = (Health::new(), Duration::from_secs(180));
        let (working, hanging) = (health.heartbeat(), health.heartbeat());
        advance(Duration::from_secs(61)).await;
        working.beat();
        assert_eq!(health.stuck(limit), None);
        let why = health.not_ready(true).expect("61 seconds");
        assert!(why.contains("61 seconds"), "{why}");
        advance(Duration::from_secs(120)).await;
        working.beat();
        assert!(health.stuck(limit).expect("181 seconds").contains("181 seconds"));
        hanging.beat();
        assert_eq!((health.stuck(limit), health.not_ready(true)), (None, None));
        // Workers that have ended are not missed.
        advance(Duration::from_secs(200)).await;
        working.beat();
        drop(hanging);
        assert_eq!(health.stuck(limit), None);
        drop(working);
        assert_eq!(health.stuck(limit), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_cause_of_parking_is_reported_once_a_minute() {
        let health = Health::new();
        let causes = [Cause::NoStream, Cause::NoLeader];
        assert!(causes.iter().all(|cause| health.may_report_parking(*cause)));
        assert!(!causes.iter().any(|cause| health.may_report_parking(*cause)));
        advance(Duration::from_secs(60)).await;
        assert!(causes.iter().all(|cause| health.may_report_parking(*cause)));
    }
}
