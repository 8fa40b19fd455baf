//! The Object Store's description of an object, and JetStream's answer about the bucket.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The description of an object, as the Object Store has it.
#[derive(Deserialize, Serialize)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) bucket: String,
    pub(super) nuid: String,
    pub(super) size: usize,
    pub(super) chunks: usize,
    pub(super) digest: String,
    pub(super) mtime: String,
    #[serde(default)]
    pub(super) deleted: bool,
}

/// The part of JetStream's answer about the bucket that says whether an object is whole, and old.
#[derive(Deserialize)]
pub(super) struct Info {
    pub(super) config: BucketConfig,
    pub(super) state: BucketState,
    /// The server's clock; from nats-server 2.10 on.
    pub(super) ts: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct BucketConfig {
    /// Nanoseconds.
    #[serde(default)]
    pub(super) max_age: u64,
}

#[derive(Deserialize)]
pub(super) struct BucketState {
    pub(super) subjects: Option<HashMap<String, usize>>,
}
