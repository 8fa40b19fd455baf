//! The last hour of a database, in points of ten seconds.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use oncebox_operator::Time;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::html::chart::Timed;

/// An hour.
const POINTS_MAX: usize = 360;
const POINT: Duration = Duration::from_secs(10);

/// A database at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Point {
    /// By the database's clock.
    pub(crate) at: Time,
    /// The highest within the point.
    pub(crate) lag_seconds: f64,
    /// The same.
    pub(crate) backlog_messages: i64,
    /// The newest.
    pub(crate) enqueued_per_second: f64,
    /// The same.
    pub(crate) settled_per_second: f64,
}

impl Timed for Point {
    fn at(&self) -> SystemTime {
        *self.at
    }
}

/// The points, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    began: Option<Instant>,
}

impl History {
    /// Adds a look to the point of now, or begins another one.
    pub(crate) fn add(&mut self, new: Point) {
        match self.points.back_mut().filter(|_| self.began.is_some_and(|began| began.elapsed() < POINT)) {
            Some(last) => {
                *last = Point {
                    at: last.at,
                    lag_seconds: last.lag_seconds.max(new.lag_seconds),
                    backlog_messages: last.backlog_messages.max(new.backlog_messages),
                    ..new
                };
            }
            None => {
                self.began = Some(Instant::now());
                self.points.push_back(new);
            }
        }
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    pub(crate) fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(second: u64, backlog_messages: i64) -> Point {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        Point {
            at: Time(at),
            lag_seconds: 0.0,
            backlog_messages,
            enqueued_per_second: 1.0,
            settled_per_second: 1.0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_is_kept_and_a_peak_is_not_lost() {
        let mut history = History::default();
        for (second, backlog) in [(0, 1), (2, 9), (4, 3)] {
            history.add(point(second, backlog));
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(history.points().iter().map(|point| point.backlog_messages).collect::<Vec<_>>(), [9]);
        for second in 1..=500 {
            tokio::time::advance(POINT).await;
            history.add(point(second * 10, 0));
        }
        let points = history.points();
        assert_eq!((points.len(), points[0].at), (POINTS_MAX, point(1410, 0).at));
    }
}
