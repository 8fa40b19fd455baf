//! The pages, each with its data.

pub(crate) mod act;
pub(crate) mod audit;
pub(crate) mod database;
pub(crate) mod delayed;
pub(crate) mod difference;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod find;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod losses;
pub(crate) mod message;
pub(crate) mod overview;
pub(crate) mod pauses;
pub(crate) mod proof;
pub(crate) mod replays;
pub(crate) mod saga;
pub(crate) mod sagas;
pub(crate) mod set_aside;
pub(crate) mod settings;
pub(crate) mod sort;
