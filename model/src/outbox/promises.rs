//! The promises of the outbox, by their names.

pub const COMMITTED: &str = "only committed messages are relayed";
pub const ORDER: &str = "messages of an ordering key keep their order";
pub const ACKNOWLEDGED: &str = "what is settled was acknowledged or set aside";
pub const DUE: &str = "retention deletes nothing that is due";
pub const DISCARDED: &str = "what was discarded is not sent";
pub const PROVEN: &str = "a loss can be proven";
pub const DELIVERED: &str = "everything committed is delivered";
