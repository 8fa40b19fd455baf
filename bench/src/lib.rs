//! Benchmarks against the raw limits, measured in the same run.
