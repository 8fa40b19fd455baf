//! How much may be unacknowledged: as much as the broker answers quickly.
//!
//! A broker that is slow, or far away over a narrow line, answers the first message long before the
//! last: with everything in flight at once the last answers would come after the deadline, the
//! broker would count as away, and all would begin again. So the window begins small, doubles with
//! each round of quick answers, then grows by a constant a round, and halves when an answer was
//! slow: as TCP does, with waiting in place of loss. A broker that keeps up never notices: the
//! whole window is reached within milliseconds.

use std::time::Duration;

use tokio::time::Instant;

/// The window of the first round.
const START: f64 = 32.0;
/// By how much the window grows in a round, once the broker's limit has been felt.
const GROWTH: f64 = 32.0;
/// The growth of a round is at most this part of the window.
const GROWTH_MAX: f64 = 0.125;
/// An answer is slow when it takes longer than the quickest one by this part of the deadline (a
/// fifth).
const SLOW: u32 = 5;
/// An answer that takes longer than the quickest one by this part of the deadline (a twentieth)
/// ends the doubling.
const NOTICEABLE: u32 = 20;

/// The window of one worker on one connection, in weights of messages.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    size: f64,
    max: f64,
    deadline: Duration,
    /// The quickest answer so far: the way there and back, with nothing else under way.
    quickest: Duration,
    /// The broker's limit has not been felt yet.
    doubles: bool,
    /// More would be under way if this window were larger.
    is_limiting: bool,
    /// When the window was last halved: a slow answer to a message sent before then does not halve
    /// it again.
    halved: Option<Instant>,
}

impl Window {
    /// At most `max` weights, for answers that must come within `deadline`.
    pub(crate) fn new(max: usize, deadline: Duration) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "at most 16384")]
        let max = max as f64;
        Self {
            size: START.min(max),
            max,
            deadline,
            quickest: deadline,
            doubles: true,
            is_limiting: false,
            halved: None,
        }
    }

    /// The weight of a message: its size, in steps that leave small ones alike.
    pub(crate) fn weight(bytes: usize) -> usize {
        1 + bytes / 1024
    }

    /// Whether more may be sent. One message may always be under way, however heavy.
    #[expect(clippy::cast_precision_loss, reason = "at most 16384 and one message")]
    pub(crate) fn has_room(&self, in_flight: usize) -> bool {
        in_flight == 0 || (in_flight as f64) < self.size
    }

    /// Whether something waits for room: a window that is not filled says nothing about a larger
    /// one.
    pub(crate) fn limits(&mut self, something_waits: bool) {
        self.is_limiting = something_waits;
    }

    /// An answer came for a message of this weight.
    pub(crate) fn answered(&mut self, weight: usize, sent: Instant, now: Instant) {
        let took = now.saturating_duration_since(sent);
        self.quickest = self.quickest.min(took);
        let waited = took - self.quickest;
        if waited > self.deadline / SLOW || took > self.deadline / 2 {
            self.halve(sent, now);
            return;
        }
        self.doubles &= waited <= self.deadline / NOTICEABLE;
        if self.is_limiting {
            #[expect(clippy::cast_precision_loss, reason = "a message's size in KiB")]
            let weight = weight as f64;
            let share = if self.doubles { 1.0 } else { (GROWTH / self.size).min(GROWTH_MAX) };
            let growth = weight * share;
            self.size = (self.size + growth).min(self.max);
        }
    }

    /// The broker was slow, or said that too many requests wait.
    pub(crate) fn halve(&mut self, sent: Instant, now: Instant) {
        self.doubles = false;
        if self.halved.is_none_or(|halved| sent >= halved) {
            self.size = (self.size / 2.0).max(1.0);
            self.halved = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    /// The result of workers that share a broker for a while.
    #[derive(Debug)]
    struct Run {
        answered: u64,
        /// The longest that an answer took.
        slowest: Duration,
        in_flight_max: usize,
    }

    /// Workers who always have something to send, over one line to a broker that answers one
    /// message after another, each after the same time, and so much later over the line.
    fn run(workers: usize, max: usize, service: Duration, line: Duration, steps: u64) -> Run {
        let mut windows = vec![Window::new(max, DEADLINE); workers];
        let mut in_flight = vec![0; workers];
        let mut queue: VecDeque<(usize, Instant)> = VecDeque::new();
        let start = Instant::now();
        let mut run = Run { answered: 0, slowest: Duration::ZERO, in_flight_max: 0 };
        let mut free_at = start;
        let mut answers: VecDeque<(usize, Instant, Instant)> = VecDeque::new();
        let mut now = start;
        for _ in 0..steps {
            for worker in 0..workers {
                while windows[worker].has_room(in_flight[worker]) {
                    in_flight[worker] += 1;
                    queue.push_back((worker, now));
                }
                windows[worker].limits(true);
                run.in_flight_max = run.in_flight_max.max(in_flight[worker]);
            }
            while let Some((worker, sent)) = queue.pop_front() {
                free_at = free_at.max(sent) + service;
                answers.push_back((worker, sent, free_at + line));
            }
            let Some((worker, sent, at)) = answers.pop_front() else { break };
            now = now.max(at);
            windows[worker].answered(1, sent, now);
            in_flight[worker] -= 1;
            run.answered += 1;
            run.slowest = run.slowest.max(now - sent);
        }
        run
    }

    proptest! {
        #[test]
        fn answers_stay_well_inside_the_deadline(
            workers in 1_usize..=8,
            max in 1_usize..=16_384,
            service_micros in 1_u64..30_000,
            line_millis in 0_u64..200,
        ) {
            let (service, line) = (Duration::from_micros(service_micros), Duration::from_millis(line_millis));
            let run = run(workers, max, service, line, 20_000);
            prop_assert!(run.in_flight_max <= max, "{run:?}");
            // Where even the first window is too much, no window helps sooner.
            let first = service * (32 * u32::try_from(workers).unwrap()) + line;
            prop_assert!(run.slowest <= (DEADLINE / 2).max(first * 2), "{run:?}");
        }

        #[test]
        fn the_size_stays_within_its_bounds(
            max in 1_usize..=16_384,
            answers in prop::collection::vec((0_u64..10_000, any::<bool>(), 1_usize..100, any::<bool>()), 0..500),
        ) {
            let mut window = Window::new(max, DEADLINE);
            let mut now = Instant::now();
            for (millis, is_limiting, weight, is_refused) in answers {
                window.limits(is_limiting);
                let sent = now;
                now += Duration::from_millis(millis);
                if is_refused {
                    window.halve(sent, now);
                } else {
                    window.answered(weight, sent, now);
                }
                prop_assert!(window.size >= 1.0 && window.size <= window.max, "{window:?}");
                prop_assert!(window.has_room(0));
                prop_assert!(!window.has_room(max));
            }
        }
    }

    #[test]
    fn a_quick_broker_gets_the_whole_window_at_once() {
        // 150,000 messages a second, the rate of a nats-server on the same machine.
        let run = run(4, 2_048, Duration::from_micros(7), Duration::from_micros(100), 20_000);
        assert_eq!(run.in_flight_max, 2_048);
        assert!(run.slowest < Duration::from_millis(100), "{run:?}");
    }

    #[test]
    fn a_long_line_is_filled() {
        // A message in 100 µs, half a second away: a second and a half's worth would be 15,000, and
        // fits.
        let run = run(4, 2_048, Duration::from_micros(100), Duration::from_millis(500), 100_000);
        assert_eq!(run.in_flight_max, 2_048);
        assert!(run.slowest < DEADLINE / 2, "{run:?}");
    }

    #[test]
    fn a_slow_broker_is_kept_busy() {
        // One message in 5 ms, four workers: a second's worth is 200.
        let run = run(4, 2_048, Duration::from_millis(5), Duration::from_millis(20), 20_000);
        assert!(run.slowest < DEADLINE / 2, "{run:?}");
        assert!(run.in_flight_max > 20 && run.in_flight_max < 400, "{run:?}");
    }

    #[test]
    fn one_slow_round_halves_once_and_is_made_up_for() {
        let mut window = Window::new(2_048, DEADLINE);
        window.limits(true);
        let start = Instant::now();
        let quick = |window: &mut Window, count: usize| {
            for _ in 0..count {
                window.answered(1, start + DEADLINE, start + DEADLINE);
            }
        };
        quick(&mut window, 2_048);
        assert!(!window.has_room(2_048) && window.has_room(2_047));
        for _ in 0..2_048 {
            window.answered(1, start, start + DEADLINE / 2);
        }
        assert!(!window.has_room(1_024) && window.has_room(1_023));
        quick(&mut window, 2_048 * 60);
        assert!(window.has_room(2_047));
    }

    #[test]
    fn messages_weigh_what_they_are_long() {
        assert_eq!([0, 1, 1023, 1024, 100 * 1024].map(Window::weight), [1, 1, 1, 2, 101]);
    }
}
