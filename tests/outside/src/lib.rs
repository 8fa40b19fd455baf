//! The Rust of README and documents, as a service of somebody else compiles it.

#![allow(dead_code, reason = "nobody calls what an example defines")]

include!(concat!(env!("OUT_DIR"), "/documents.rs"));
