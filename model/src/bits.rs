//! Small sets of small numbers.

/// A set of numbers below 32: a state has to be small, and compare and hash quickly.
pub type Bits = u32;

/// Whether the number is in it.
pub fn has(set: Bits, number: u8) -> bool {
    set & (1 << number) != 0
}

/// The set with a number more.
pub fn with(set: Bits, number: u8) -> Bits {
    set | (1 << number)
}

/// The set with a number less.
pub fn without(set: Bits, number: u8) -> Bits {
    set & !(1 << number)
}

/// The numbers, from the lowest.
pub fn each(set: Bits) -> impl Iterator<Item = u8> {
    (0..32).filter(move |number| has(set, *number))
}
