//! PostgreSQL's cost of a carrier of messages: the processor time of the carrier's backends, from
//! `/proc`.

use std::{collections::HashMap, time::Duration};

use anyhow::Context;

use crate::servers::Session;

/// The backends of one carrier, with the processor time of each until now.
#[derive(Debug)]
pub(crate) struct Backends {
    database: String,
    used: HashMap<i32, Duration>,
}

/// The backends in a database that are not the bench's own sessions, which give no name.
pub(crate) async fn of_carrier(admin: &Session, database: &str) -> anyhow::Result<Backends> {
    let mut used = HashMap::new();
    for row in admin.query(include_str!("sql/backends.sql"), &[&database]).await? {
        let pid: i32 = row.get(0);
        // A backend that has just ended cannot be asked any more.
        if let Ok(time) = cpu(pid) {
            used.insert(pid, time);
        }
    }
    Ok(Backends { database: database.to_owned(), used })
}

impl Backends {
    /// How many there were when this was made.
    pub(crate) fn count(&self) -> usize {
        self.used.len()
    }

    /// Their processor time since then, with backends that came later.
    pub(crate) async fn cpu_since(&self, admin: &Session) -> anyhow::Result<Duration> {
        let now = of_carrier(admin, &self.database).await?;
        let since = |(pid, time): (&i32, &Duration)| {
            time.saturating_sub(self.used.get(pid).copied().unwrap_or_default())
        };
        Ok(now.used.iter().map(since).sum())
    }
}

/// The time on a processor of a process with one thread, to the nanosecond.
fn cpu(pid: i32) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanoseconds = text.split(' ').next().context("read the time on a processor")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}
