//! Makes each Rust block of the README, and of the documents for services, a module.

use std::{env, fs, path::Path};

fn main() {
    let mut modules = Vec::new();
    for document in [
        "../../README.md",
        "../../docs/producing.md",
        "../../docs/testing.md",
        "../../docs/consuming.md",
        "../../docs/tutorials/rust.md",
        "../../testkit/src/lib.rs",
    ] {
        println!("cargo::rerun-if-changed={document}");
        let text = fs::read_to_string(document).expect("the document is there");
        let text = if document.ends_with(".rs") { front_page(&text) } else { text };
        for block in text.split("\n```rust").skip(1) {
            let (_, code) = block.split_once('\n').expect("a block has lines");
            let code = code.split_once("\n```").expect("a block ends").0;
            // A relay in one's own process is a program of ours, with our lock file. Containers
            // would cost a hundred crates.
            if !code.contains("oncebox_relay::") && !code.contains("testcontainers") {
                modules.push(format!("mod block_{} {{\n{code}\n}}\n", modules.len()));
            }
        }
    }
    assert!(modules.iter().any(|module| module.contains("Consumer::new(")), "a consumer is among them");
    assert!(modules.iter().any(|module| module.contains("Outbox::default()")), "a producer is among them");
    assert!(modules.iter().any(|module| module.contains("fn a_charge_happens_once")), "the test kit's is there");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("documents.rs"), modules.concat()).expect("can be written");
}

/// The documentation of a crate, out of its comment.
fn front_page(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}
