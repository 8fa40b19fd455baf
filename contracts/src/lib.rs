//! Contracts: which JSON Schema the payloads of each subject fit, and which consumers read them.
//!
//! One file in JSON holds them. The relay refuses payloads that break it, `oncebox contract`
//! checks it and compares two versions of it, and your tests check their messages against it.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("contracts.json");
//! std::fs::write(&path, r#"{"contracts": [{
//!     "subject": "orders.placed",
//!     "consumers": ["billing:charge"],
//!     "schema": {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}},
//!     "examples": [{"cents": 1999}]
//! }]}"#)?;
//! let contracts = oncebox_contracts::Contracts::read(&path)?;
//! assert!(contracts.check("orders.placed", br#"{"cents": 5}"#).is_ok());
//! let breach = contracts.check("orders.placed", br#"{"cents": "many"}"#).unwrap_err();
//! assert_eq!(breach.pointer, "/cents");
//! assert!(contracts.check("mails.sent", b"no contract, so anything").is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asyncapi;
mod breach;
mod diff;
mod file;
mod pattern;
mod schema;

use std::collections::HashMap;

pub use breach::Breach;
pub use diff::{Change, Direction, Verdict};
pub use file::Mistakes;
use serde_json::Value;

/// The contracts of a file, checked: no two of them have a subject in common.
#[derive(Debug)]
pub struct Contracts {
    title: String,
    version: String,
    all: Vec<Contract>,
    /// Those without wildcards, by their subject.
    exact: HashMap<String, usize>,
    /// The others.
    patterns: Vec<usize>,
}

/// The contract of a subject, or of all subjects of a pattern.
#[derive(Debug)]
pub struct Contract {
    /// The subject; `*` stands for one token, a last `>` for one or more.
    pub subject: String,
    /// The consumers that read these messages.
    pub consumers: Vec<String>,
    examples: Vec<Value>,
    schema: schema::Schema,
}

impl Contracts {
    fn new(title: String, version: String, all: Vec<Contract>) -> Self {
        let numbered = || all.iter().enumerate();
        let is_exact = |contract: &Contract| !contract.subject.contains(['*', '>']);
        let exact = numbered().filter(|(_, contract)| is_exact(contract));
        let exact = exact.map(|(at, contract)| (contract.subject.clone(), at)).collect();
        let patterns = numbered().filter(|(_, contract)| !is_exact(contract)).map(|(at, _)| at).collect();
        Self { title, version, all, exact, patterns }
    }

    /// The contract of a subject; `None` where the file has none.
    #[must_use]
    pub fn of(&self, subject: &str) -> Option<&Contract> {
        let covers = |at: &&usize| pattern::covers(&self.all[**at].subject, subject);
        let found = self.exact.get(subject).or_else(|| self.patterns.iter().find(covers))?;
        self.all.get(*found)
    }

    /// All contracts, as the file has them.
    #[must_use]
    pub fn all(&self) -> &[Contract] {
        &self.all
    }

    /// Checks a payload; one of a subject without a contract passes.
    ///
    /// # Errors
    /// Where the payload breaks the contract, without anything of its content.
    pub fn check(&self, subject: &str, payload: &[u8]) -> Result<(), Breach> {
        let Some(contract) = self.of(subject) else { return Ok(()) };
        let value = serde_json::from_slice(payload).map_err(|error| Breach::no_json(&error))?;
        contract.schema.check(&value)
    }
}
