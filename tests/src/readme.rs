//! The Rust blocks of the README and of documents, compiled as documentation tests.

#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;

#[doc = include_str!("../../docs/producing.md")]
#[derive(Debug)]
pub struct Producing;

#[doc = include_str!("../../docs/consuming.md")]
#[derive(Debug)]
pub struct Consuming;

#[doc = include_str!("../../docs/effects.md")]
#[derive(Debug)]
pub struct Effects;
