//! Small sets of small numbers.

/// A set of numbers below 32: a state has to be small, and compare and hash quickly.
pub(crate) type Bits = u32;

/// Whether the number is in it.
pub(crate) fn has(set: Bits, number: u8) -> bool {
    set & (1 << number) != 0
}

/// The set with a number more.
pub(crate) fn with(set: Bits, number: u8) -> Bits {
    set | (1 << number)
}

/// The set with a number less.
pub(crate) fn without(set: Bits, number: u8) -> Bits {
    set & !(1 << number)
}

/// The numbers, from the lowest.
pub(crate) fn each(set: Bits) -> impl Iterator<Item = u8> {
    (0..32).filter(move |number| has(set, *number))
}
