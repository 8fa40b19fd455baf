//! Run a message handler once per key, in one transaction with its own writes.
