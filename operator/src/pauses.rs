//! Pausing and throttling messages, and having them go on.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use oncebox_connect::{
    config::Config,
    error::RelayError,
    nats::{Server, stream_info},
    postgres::Parameter,
};
use oncebox_relay::facts::covers;

use super::{
    Operator, Result, commit, failed,
    pause_row::PauseRow,
    rows::query,
    selection::{Selection, SubjectPattern},
    status::recent_subjects,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Pauses that are listed, at most.
const PAUSES_MAX: i64 = 1_000;
/// Messages of a lane among which an ordering key is looked for, at most.
const RECENT_MAX: i64 = 10_000;
/// Every subject.
const ALL: &str = ">";

/// The messages that a pause takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseOf {
    /// All messages of the outbox.
    All,
    /// Messages with such a subject.
    Subject(SubjectPattern),
    /// Messages with the subjects that the stream has now.
    Stream(String),
    /// Messages with this ordering key.
    OrderingKey(String),
}

impl PauseOf {
    /// The messages that a selection means.
    #[must_use]
    pub fn of(of: &Selection) -> Self {
        let stream = || of.stream.clone().map(Self::Stream);
        let ordering_key = || of.ordering_key.clone().map(Self::OrderingKey);
        let subject = of.subject.clone().map(Self::Subject);
        subject.or_else(stream).or_else(ordering_key).unwrap_or(Self::All)
    }

    /// Whether that pause is of these messages.
    #[must_use]
    pub fn is(&self, pause: &PauseRow) -> bool {
        self.names() == (pause.kind.as_str(), pause.value.as_str())
    }

    fn names(&self) -> (&'static str, &str) {
        match self {
            Self::All => ("all", "messages"),
            Self::Subject(pattern) => ("subject", pattern.as_str()),
            Self::Stream(name) => ("stream", name),
            Self::OrderingKey(key) => ("ordering key", key),
        }
    }
}

/// `subject orders.>`, for instance.
impl fmt::Display for PauseOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, value) = self.names();
        write!(f, "{kind} {value}")
    }
}

/// When a pause ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ends {
    /// It does not.
    Never,
    /// At a time.
    At(SystemTime),
    /// After this time, by the database's clock.
    After(Duration),
}

impl Operator {
    /// Pauses messages, or with a `rate` limits them to that number a second, until its end or
    /// [`Operator::resume`]; returns the end. It takes the place of an earlier pause or throttle of
    /// the same. Every relay obeys from its next pass on. A subject that no recent message has is
    /// refused unless it `is_unseen`. `config` says where NATS is, which a stream needs.
    ///
    /// # Errors
    /// [`RelayError::Pause`] when no recent message has such a subject, the stream is not there, or
    /// the end is in the past;
    /// PostgreSQL or NATS refused or went away.
    pub async fn pause(
        &mut self,
        of: &PauseOf,
        rate: Option<f64>,
        ends: Ends,
        is_unseen: bool,
        config: Option<&Config>,
    ) -> Result<Option<SystemTime>> {
        let subjects = self.subjects_of(of, is_unseen, config).await?;
        let (kind, value) = of.names();
        let ordering_key = matches!(of, PauseOf::OrderingKey(_)).then_some(value);
        let transaction = self.client.transaction().await.map_err(failed("begin"))?;
        let (by, note) = (self.stamp.operator.as_deref(), self.stamp.note.as_deref());
        let (at, seconds) = match ends {
            Ends::Never => (None, None),
            Ends::At(at) => (Some(at), None),
            Ends::After(time) => (None, Some(time.as_secs_f64())),
        };
        let parameters: [&dyn Parameter; 9] =
            [&kind, &value, &rate, &subjects, &ordering_key, &by, &note, &at, &seconds];
        let rows = query(&transaction, "pause", &self.sql.pause, &parameters).await?;
        let Some(row) = rows.first() else {
            return Err(RelayError::Pause("its end is in the past, by the database's clock".to_owned()));
        };
        let ends_at = row.get("ends_at");
        commit(transaction).await?;
        Ok(ends_at)
    }

    /// Whether [`Operator::pause`] would take these subjects; others need NATS, which it asks.
    ///
    /// # Errors
    /// [`RelayError::Pause`] when no recent message has such a subject;
    /// PostgreSQL refused or went away.
    pub async fn check_pause(&mut self, of: &PauseOf) -> Result<()> {
        match of {
            PauseOf::Subject(_) => self.subjects_of(of, false, None).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Warnings for an operator before a pause or throttle: of the same messages there is one
    /// already, or no recent message has this ordering key.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn pause_warnings(&self, of: &PauseOf) -> Result<Vec<String>> {
        let mut all = Vec::new();
        if let Some(earlier) = self.pauses().await?.into_iter().find(|pause| of.is(pause)) {
            let by = earlier.paused_by.unwrap_or(earlier.database_user);
            let what = if earlier.rate.is_some() { "throttle" } else { "pause" };
            all.push(format!("this takes the place of the {what} of {of} by {by}"));
        }
        if let PauseOf::OrderingKey(key) = of {
            let parameters: [&dyn Parameter; 2] = [key, &RECENT_MAX];
            let rows =
                self.query("look for an ordering key", &self.sql.seen_ordering_key, &parameters).await?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                all.push(format!("no recent message has the {of}: those that come wait"));
            }
        }
        Ok(all)
    }

    /// Has messages go on; false when they were not paused.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn resume(&mut self, of: &PauseOf) -> Result<bool> {
        let (kind, value) = of.names();
        let (by, note) = (self.stamp.operator.as_deref(), self.stamp.note.as_deref());
        Ok(!self.query("resume", &self.sql.resume, &[&kind, &value, &by, &note]).await?.is_empty())
    }

    /// The pauses and throttles of now, the newest first; 1,000 at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn pauses(&self) -> Result<Vec<PauseRow>> {
        self.all("list pauses", &self.sql.pauses, &[&PAUSES_MAX]).await
    }

    async fn subjects_of(
        &mut self,
        of: &PauseOf,
        is_unseen: bool,
        config: Option<&Config>,
    ) -> Result<Option<Vec<String>>> {
        match of {
            PauseOf::All => Ok(Some(vec![ALL.to_owned()])),
            PauseOf::OrderingKey(_) => Ok(None),
            PauseOf::Subject(pattern) => {
                let transaction = self.client.transaction().await.map_err(failed("begin"))?;
                let recent = recent_subjects(&transaction, &self.schema).await;
                let recent = recent.map_err(failed("look for subjects"))?;
                if !is_unseen
                    && !recent.is_empty()
                    && !recent.iter().any(|one| covers(pattern.as_str(), &one.subject))
                {
                    let some: Vec<&str> = recent.iter().take(5).map(|one| one.subject.as_str()).collect();
                    return Err(RelayError::Pause(format!(
                        "no recent message has a subject that {} takes (there are {}); if it is right all the same, \
                         add --unseen",
                        pattern.as_str(),
                        some.join(", "),
                    )));
                }
                Ok(Some(vec![pattern.as_str().to_owned()]))
            }
            PauseOf::Stream(name) => {
                let config = config.ok_or_else(|| {
                    RelayError::Pause("NATS is not configured, which has the stream".into())
                })?;
                let connection =
                    Server::connect_once(config, "oncebox outbox pause", CONNECT_TIMEOUT).await?;
                let refused = |problem| RelayError::Pause(format!("stream {name}: {problem}"));
                let info = stream_info(&connection, name).await.map_err(refused)?;
                let info = info.ok_or_else(|| refused("there is no such stream".to_owned()))?;
                Ok(Some(info.config.subjects))
            }
        }
    }
}
