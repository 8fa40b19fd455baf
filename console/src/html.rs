//! The parts of pages. Every text is escaped by `maud`; nothing here writes markup of its own.

pub(crate) mod assets;
pub(crate) mod chart;
pub(crate) mod layout;
pub(crate) mod words;
