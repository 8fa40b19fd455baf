//! Test harness and integration tests on real servers.
