//! Makes each Rust block of the README a module.

use std::{env, fs, path::Path};

fn main() {
    let readme = "../../README.md";
    println!("cargo::rerun-if-changed={readme}");
    let text = fs::read_to_string(readme).expect("the README is there");
    let blocks = text.split("\n```rust").skip(1).map(|block| {
        let (_, code) = block.split_once('\n').expect("a block has lines");
        code.split_once("\n```").expect("a block ends").0
    });
    let modules: Vec<String> =
        blocks.enumerate().map(|(number, code)| format!("mod block_{number} {{\n{code}\n}}\n")).collect();
    assert!(modules.iter().any(|module| module.contains("Consumer::new(")), "a consumer is among them");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("readme.rs"), modules.concat()).expect("can be written");
}
