//! The pages, each with its data.

pub(crate) mod database;
pub(crate) mod find;
pub(crate) mod key;
pub(crate) mod overview;
pub(crate) mod settings;
