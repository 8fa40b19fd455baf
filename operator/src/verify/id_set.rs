//! A set of ids, a bit for each: ids come from a sequence, and are close together.

use std::collections::HashMap;

/// Words of a block, and bits of a word.
const WORDS: usize = 64;
const WORD: i64 = 64;
/// Ids that share a block.
const BLOCK: i64 = WORDS as i64 * WORD;

#[derive(Debug, Default)]
pub(super) struct IdSet {
    blocks: HashMap<i64, Box<[u64; WORDS]>>,
}

impl IdSet {
    /// Returns whether it was not in there.
    pub(super) fn insert(&mut self, id: i64) -> bool {
        let (block, word, bit) = place(id);
        let block = self.blocks.entry(block).or_insert_with(|| Box::new([0; WORDS]));
        let is_new = block[word] & bit == 0;
        block[word] |= bit;
        is_new
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        let (block, word, bit) = place(id);
        self.blocks.get(&block).is_some_and(|block| block[word] & bit != 0)
    }
}

fn place(id: i64) -> (i64, usize, u64) {
    let within = id.rem_euclid(BLOCK);
    let word = usize::try_from(within / WORD).expect("a remainder is not negative");
    (id.div_euclid(BLOCK), word, 1 << (within % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_it_once_they_were_put_there() {
        let mut set = IdSet::default();
        let ids = [0, 1, 63, 64, 4_095, 4_096, 1_000_000_007, i64::MAX, -1, i64::MIN];
        for id in ids {
            assert!(!set.contains(id), "{id}");
            assert!(set.insert(id), "{id}");
            assert!(!set.insert(id), "{id}");
        }
        assert!(ids.iter().all(|id| set.contains(*id)));
        assert!(!set.contains(2) && !set.contains(4_097));
    }
}
