//! Which messages of a batch may be in flight together: at most one of each ordering key.

use std::collections::HashMap;

/// The order of publishing within a batch.
///
/// A message without an ordering key is free at once. Of each ordering key only the first is; each
/// acknowledgement frees the next. A reconnect can lose an earlier publish and deliver a later one,
/// so two unacknowledged messages of one ordering key could change places.
#[derive(Debug, PartialEq, Eq)]
pub struct SendOrder {
    /// Free to publish at once, in order.
    pub free: Vec<usize>,
    /// For each message the next one of its ordering key.
    pub next: Vec<Option<usize>>,
}

impl SendOrder {
    /// From the lane and ordering key of each message; `None` in the outer option leaves a message
    /// out.
    pub fn new<'a>(ordering_keys: impl Iterator<Item = Option<(i16, Option<&'a str>)>>) -> Self {
        let mut order = Self { free: Vec::new(), next: Vec::new() };
        let mut last: HashMap<(i16, &str), usize> = HashMap::new();
        for (index, given) in ordering_keys.enumerate() {
            order.next.push(None);
            let Some((lane, ordering_key)) = given else { continue };
            match ordering_key.and_then(|key| last.insert((lane, key), index)) {
                Some(before) => order.next[before] = Some(index),
                None => order.free.push(index),
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_ordering_key_is_free() {
        let keys = [Some("a"), None, Some("b"), Some("a"), Some("a"), None, Some("b")];
        let order = SendOrder::new(keys.into_iter().map(|key| Some((0, key))));
        assert_eq!(order.free, [0, 1, 2, 5]);
        assert_eq!(order.next, [Some(3), None, Some(6), Some(4), None, None, None]);
    }

    #[test]
    fn what_is_left_out_is_in_no_chain() {
        let order = SendOrder::new([Some((0, Some("a"))), None, Some((0, Some("a")))].into_iter());
        assert_eq!((order.free, order.next), (vec![0], vec![Some(2), None, None]));
    }
}
