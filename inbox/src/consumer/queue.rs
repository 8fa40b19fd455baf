//! Who is next: messages of one ordering key one at a time, in the order they came. No I/O.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::SystemTime,
};

use tokio::time::Instant;

/// A stored message: its sequence number, and when it was stored, because a recreated stream counts
/// from 1 again.
pub(super) type Id = (u64, SystemTime);

#[derive(Debug)]
struct Entry<M> {
    message: M,
    ordering_key: Option<String>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for an earlier message of its ordering key.
    Behind,
    /// It is in `ready`.
    Ready,
    /// A worker has it.
    Running,
    /// It is in `resting` until this time, and keeps its place in its ordering key.
    Resting,
}

/// The messages that a process holds. Bounded by its caller, who pulls no more than there is room
/// for.
#[derive(Debug)]
pub(super) struct Queue<M> {
    held: HashMap<Id, Entry<M>>,
    /// All held messages of each ordering key; the first one is ready, running or resting.
    by_key: HashMap<String, VecDeque<Id>>,
    ready: VecDeque<Id>,
    resting: BTreeMap<(Instant, Id), ()>,
    weigh: fn(&M) -> usize,
    weight: usize,
}

impl<M> Queue<M> {
    pub(super) fn new(weigh: fn(&M) -> usize) -> Self {
        let (ready, resting) = (VecDeque::new(), BTreeMap::new());
        Self { held: HashMap::new(), by_key: HashMap::new(), ready, resting, weigh, weight: 0 }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.weigh);
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// The weight of all messages together.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// How many messages can be handed out.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Adds a message; a copy of one that is held already is refused.
    pub(super) fn push(&mut self, id: Id, ordering_key: Option<String>, message: M) -> bool {
        if self.held.contains_key(&id) {
            return false;
        }
        let mut state = State::Ready;
        if let Some(key) = &ordering_key {
            let same_key = self.by_key.entry(key.clone()).or_default();
            if !same_key.is_empty() {
                state = State::Behind;
            }
            same_key.push_back(id);
        }
        if state == State::Ready {
            self.ready.push_back(id);
        }
        self.weight += (self.weigh)(&message);
        self.held.insert(id, Entry { message, ordering_key, state });
        true
    }

    /// The next message to work on.
    pub(super) fn next(&mut self) -> Option<(Id, &M)> {
        let id = self.ready.pop_front()?;
        let held = self.held.get_mut(&id)?;
        held.state = State::Running;
        Some((id, &held.message))
    }

    /// The message after this one in the queue of its ordering key, to be worked on right after it.
    pub(super) fn next_behind(&mut self, id: Id) -> Option<(Id, &M)> {
        let key = self.held.get(&id)?.ordering_key.as_ref()?;
        let next = *self.by_key.get(key)?.iter().skip_while(|other| **other != id).nth(1)?;
        let held = self.held.get_mut(&next).filter(|held| held.state == State::Behind)?;
        held.state = State::Running;
        Some((next, &held.message))
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut M> {
        self.held.get_mut(&id).map(|held| &mut held.message)
    }

    /// The message has left; the next one is ready.
    pub(super) fn remove(&mut self, id: Id) -> Option<M> {
        let held = self.take(id)?;
        if let Some(key) = &held.ordering_key {
            let same_key = self.by_key.get_mut(key)?;
            same_key.retain(|other| *other != id);
            match same_key.front() {
                None => {
                    self.by_key.remove(key);
                }
                Some(next) => {
                    let next = *next;
                    self.promote(next);
                }
            }
        }
        Some(held.message)
    }

    fn take(&mut self, id: Id) -> Option<Entry<M>> {
        let held = self.held.remove(&id)?;
        self.weight -= (self.weigh)(&held.message);
        Some(held)
    }

    fn promote(&mut self, id: Id) {
        if let Some(held) = self.held.get_mut(&id)
            && held.state == State::Behind
        {
            held.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    /// The message is to be worked on again at `when`, or after those that are before it in the
    /// queue of its ordering key; those after it wait.
    pub(super) fn rest(&mut self, id: Id, when: Instant) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let same_key = held.ordering_key.as_ref().and_then(|key| self.by_key.get(key));
        if same_key.is_some_and(|same_key| same_key.front() != Some(&id)) {
            held.state = State::Behind;
        } else {
            held.state = State::Resting;
            self.resting.insert((when, id), ());
        }
    }

    /// When the first resting message is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.resting.first_key_value().map(|((when, _), ())| *when)
    }

    /// Makes the resting messages ready that are due.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some(entry) = self.resting.first_entry()
            && entry.key().0 <= now
        {
            let ((_, id), ()) = entry.remove_entry();
            if let Some(held) = self.held.get_mut(&id) {
                held.state = State::Ready;
                self.ready.push_back(id);
            }
        }
    }

    /// Takes out all messages without a worker.
    pub(super) fn drain_idle(&mut self) -> Vec<M> {
        let idle: Vec<Id> =
            self.held.iter().filter(|(_, held)| held.state != State::Running).map(|(id, _)| *id).collect();
        self.ready.clear();
        self.resting.clear();
        let mut drained: Vec<(Id, M)> = Vec::new();
        for id in idle {
            let Some(held) = self.take(id) else { continue };
            if let Some(key) = &held.ordering_key
                && let Some(same_key) = self.by_key.get_mut(key)
            {
                same_key.retain(|other| *other != id);
                if same_key.is_empty() {
                    self.by_key.remove(key);
                }
            }
            drained.push((id, held.message));
        }
        drained.sort_by_key(|(id, _)| *id);
        drained.into_iter().map(|(_, message)| message).collect()
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &M> {
        self.held.values().map(|held| &held.message)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(sequence: u64) -> Id {
        (sequence, SystemTime::UNIX_EPOCH)
    }

    fn push(queue: &mut Queue<u64>, sequence: u64, key: Option<&str>) -> bool {
        queue.push(id(sequence), key.map(str::to_owned), sequence)
    }

    fn drain_ready(queue: &mut Queue<u64>) -> Vec<u64> {
        std::iter::from_fn(|| queue.next().map(|(_, message)| *message)).collect()
    }

    #[test]
    fn one_at_a_time_per_ordering_key() {
        let mut queue = Queue::new(|_| 1);
        for (sequence, key) in
            [(1, Some("a")), (2, Some("a")), (3, Some("b")), (4, None), (5, None), (6, Some("a"))]
        {
            assert!(push(&mut queue, sequence, key));
        }
        assert_eq!(drain_ready(&mut queue), [1, 3, 4, 5]);
        queue.remove(id(1));
        assert_eq!(drain_ready(&mut queue), [2]);
        queue.remove(id(3));
        assert_eq!(drain_ready(&mut queue), [0; 0]);
        queue.remove(id(2));
        assert_eq!(drain_ready(&mut queue), [6]);
        queue.remove(id(6));
        assert!(push(&mut queue, 7, Some("a")));
        assert_eq!(drain_ready(&mut queue), [7]);
    }

    #[test]
    fn a_copy_of_a_held_message_is_refused() {
        let mut queue = Queue::new(|_| 1);
        assert!(push(&mut queue, 1, Some("a")));
        assert!(!push(&mut queue, 1, Some("a")));
        let reused = (1, SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        assert!(
            queue.push(reused, Some("a".to_owned()), 1),
            "the first message of a recreated stream is not a copy"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_resting_message_holds_its_own_key_back_only() {
        let mut queue = Queue::new(|_| 1);
        push(&mut queue, 1, Some("a"));
        push(&mut queue, 2, Some("a"));
        push(&mut queue, 3, Some("b"));
        assert_eq!(drain_ready(&mut queue), [1, 3]);
        let due = Instant::now() + Duration::from_secs(5);
        queue.rest(id(1), due);
        push(&mut queue, 4, Some("a"));
        queue.wake(Instant::now());
        assert_eq!(drain_ready(&mut queue), [0; 0]);
        assert_eq!(queue.wake_at(), Some(due));
        queue.wake(due);
        assert_eq!((drain_ready(&mut queue), queue.wake_at()), (vec![1], None));
    }

    #[test]
    fn what_is_worked_on_stays_and_keeps_its_place() {
        let mut queue = Queue::new(|_| 1);
        for sequence in 1..=3 {
            push(&mut queue, sequence, Some("a"));
        }
        push(&mut queue, 4, Some("b"));
        queue.next();
        assert_eq!((queue.drain_idle(), queue.weight()), (vec![2, 3, 4], 1));
        assert_eq!(queue.len(), 1);
        for sequence in 1..=3 {
            assert_eq!(push(&mut queue, sequence, Some("a")), sequence != 1);
        }
        assert_eq!(drain_ready(&mut queue), [0; 0]);
        queue.remove(id(1));
        assert_eq!(drain_ready(&mut queue), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_is_taken_together_rests_behind_its_first() {
        let mut queue = Queue::new(|_| 1);
        for sequence in 1..=4 {
            push(&mut queue, sequence, Some("a"));
        }
        push(&mut queue, 5, None);
        assert_eq!(queue.next().map(|(id, _)| id), Some(id(1)));
        for (last, next) in [(1, Some(id(2))), (2, Some(id(3))), (2, None), (5, None)] {
            assert_eq!(queue.next_behind(id(last)).map(|(id, _)| id), next, "behind {last}");
        }
        let due = Instant::now() + Duration::from_secs(5);
        queue.remove(id(1));
        queue.rest(id(2), due);
        queue.rest(id(3), Instant::now());
        queue.wake(Instant::now());
        assert_eq!(drain_ready(&mut queue), [5], "the third waits for the second");
        queue.wake(due);
        assert_eq!(drain_ready(&mut queue), [2]);
        queue.remove(id(2));
        assert_eq!(drain_ready(&mut queue), [3]);
        assert_eq!(drain_ready(&mut queue), [0; 0]);
    }
}
