//! A diagnosis: how each check of `oncebox doctor` names a problem, its consequence and its remedy.

use schemars::JsonSchema;
use serde::Serialize;

/// How grave a diagnosis is; the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Messages are held up, lost or doubled, or will be: it must be mended.
    Problem,
    /// It works, but not as it should.
    Warning,
    /// Good to know.
    Note,
}

/// Something that a doctor found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Diagnosis {
    /// How grave it is.
    pub severity: Severity,
    /// The thing that was looked at, in a word that does not change, such as `duplicate-window`.
    pub check: &'static str,
    /// The problem.
    pub what: String,
    /// Its consequence.
    pub consequence: String,
    /// The remedy.
    pub remedy: String,
}

impl Severity {
    pub(crate) fn of(
        self,
        check: &'static str,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Diagnosis {
        let (what, consequence, remedy) = (what.into(), consequence.into(), remedy.into());
        Diagnosis { severity: self, check, what, consequence, remedy }
    }
}
