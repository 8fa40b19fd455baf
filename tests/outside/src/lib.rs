//! The Rust of README and documents, as a service of a user compiles it.

#![allow(dead_code, reason = "nobody calls what an example defines")]

include!(concat!(env!("OUT_DIR"), "/documents.rs"));
