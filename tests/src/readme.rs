//! The README's Rust blocks, compiled as documentation tests; hidden lines (`# `) of theirs set the scene.

#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
