//! The file of contracts.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Contract, Contracts, pattern,
    schema::{Schema, read},
};

/// All that is wrong with a file of contracts, a line each: the file, the place, the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Mistakes(pub Vec<String>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// The format of this file, for editors.
    #[serde(rename = "$schema", default)]
    _schema: Option<String>,
    #[serde(default = "title")]
    title: String,
    #[serde(default = "version")]
    version: String,
    contracts: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    subject: String,
    #[serde(default)]
    consumers: Vec<String>,
    schema: Value,
    #[serde(default)]
    examples: Vec<Value>,
}

fn title() -> String {
    "Contracts".to_owned()
}

fn version() -> String {
    "1".to_owned()
}

impl Contracts {
    /// Reads a file, and the files beside it that its schemas refer to.
    ///
    /// # Errors
    /// All that is wrong with it. A file that cannot be read is wrong.
    pub fn read(path: &Path) -> Result<Self, Mistakes> {
        let place = |problem: String| Mistakes(vec![format!("{}: {problem}", path.display())]);
        let text = read(path).map_err(|problem| Mistakes(vec![problem]))?;
        let document: Document = serde_json::from_str(&text).map_err(|error| place(error.to_string()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let (mut all, mut mistakes): (Vec<Contract>, Vec<String>) = (Vec::new(), Vec::new());
        for (number, entry) in document.contracts.into_iter().enumerate() {
            let at = format!("{}: /contracts/{number}", path.display());
            let mut mistake = |below: &str, problem: &str| mistakes.push(format!("{at}{below}: {problem}"));
            if let Some(problem) = pattern::problem(&entry.subject) {
                mistake("/subject", &problem);
            } else if let Some(other) =
                all.iter().find(|other| pattern::overlap(&other.subject, &entry.subject))
            {
                let (one, other) = (&entry.subject, &other.subject);
                mistake(
                    "/subject",
                    &format!("{one:?} has subjects in common with {other:?}; a message has one contract"),
                );
            }
            let schema = match Schema::new(&entry.schema, folder) {
                Ok(schema) => schema,
                Err((below, problem)) => {
                    mistake(&format!("/schema{below}"), &problem);
                    continue;
                }
            };
            for (number, example) in entry.examples.iter().enumerate() {
                if let Err(breach) = schema.check(example) {
                    mistake(&format!("/examples/{number}"), &format!("breaks the schema: {breach}"));
                }
            }
            let Entry { subject, consumers, examples, .. } = entry;
            all.push(Contract { subject, consumers, examples, schema });
        }
        match mistakes.is_empty() {
            true => Ok(Self::new(document.title, document.version, all)),
            false => Err(Mistakes(mistakes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in(files: &[(&str, &str)]) -> Result<Contracts, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let path = folder.path().join("contracts.json");
        let prefix = folder.path().display().to_string() + "/";
        Contracts::read(&path).map_err(|mistakes| mistakes.to_string().replace(&prefix, ""))
    }

    fn check(text: &str, expected: &[&str]) {
        let mistakes = read_in(&[("contracts.json", text)]).map(|_| ()).err().unwrap_or_default();
        let lines: Vec<&str> = mistakes.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{mistakes}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{line}\nhas not\n{expected}");
        }
    }

    #[test]
    fn each_mistake_has_its_place() {
        check("{", &["contracts.json: EOF"]);
        check(r#"{"contracts": [], "contract": 1}"#, &["unknown field `contract`"]);
        check(r#"{"contracts": [{"subject": "a", "schema": 1}]}"#, &["/contracts/0/schema: is not a JSON"]);
        check(
            r#"{"contracts": [
                {"subject": "a.*", "schema": {"properties": {"x": {"type": "strin"}}}},
                {"subject": "a.>", "schema": {"type": "integer"}, "examples": [1, "no"]},
                {"subject": "a.b", "schema": true},
                {"subject": "b.", "schema": {"$schema": "http://json-schema.org/draft-07/schema#"}},
                {"subject": "c", "schema": {"pattern": "(?=x)"}}
            ]}"#,
            &[
                "/contracts/0/schema/properties/x/type: ",
                "/contracts/1/examples/1: breaks the schema: the value is not of type",
                "/contracts/2/subject: \"a.b\" has subjects in common with \"a.>\"",
                "/contracts/3/subject: subject \"b.\" has an empty token",
                "/contracts/3/schema: is written in",
                "/contracts/4/schema/pattern: ",
            ],
        );
        let refers =
            |to: &str| format!(r#"{{"contracts": [{{"subject": "a", "schema": {{"$ref": "{to}"}}}}]}}"#);
        for (to, problem) in [
            ("https://example.com/a.json", "only to files in the folder"),
            ("file:///etc/passwd", "only to files in the folder"),
            ("%2e%2e/gone.json", "gone.json"),
            ("a%2f..%2f..%2fb", "outside of the folder"),
            ("missing.json", "No such file"),
            ("#/$defs/missing", "missing"),
        ] {
            check(&refers(to), &[problem]);
        }
    }

    #[test]
    fn a_schema_refers_to_files_beside_its_own() {
        let file = r#"{"contracts": [{"subject": "a", "schema": {"$ref": "schemas/order.json"}}]}"#;
        let order = r##"{"properties": {"money": {"$ref": "money.json#/$defs/cents"}}}"##;
        let money = r#"{"$defs": {"cents": {"type": "integer", "minimum": 0}}}"#;
        let files = [("contracts.json", file), ("schemas/order.json", order), ("schemas/money.json", money)];
        let contracts = read_in(&files).unwrap();
        assert_eq!(contracts.check("a", br#"{"money": 5}"#), Ok(()));
        let breach = contracts.check("a", br#"{"money": -5}"#).unwrap_err();
        assert_eq!(breach.to_string(), "at /money: the value is less than the minimum of 0");
        let bad = [files[0], files[1], ("schemas/money.json", r#"{"$defs": {"cents": {"type": "cents"}}}"#)];
        assert!(read_in(&bad).is_err(), "the file beside is checked as well");
    }

    #[test]
    fn only_the_contract_of_its_subject_checks_a_payload() {
        let file = r#"{"contracts": [
            {"subject": "a.*", "schema": {"type": "integer"}},
            {"subject": "b", "schema": {"type": "string"}}
        ]}"#;
        let contracts = read_in(&[("contracts.json", file)]).unwrap();
        for (subject, payload, fits) in [
            ("a.x", "1", true),
            ("a.x", "\"1\"", false),
            ("a.x.y", "\"1\"", true),
            ("b", "\"1\"", true),
            ("b", "1", false),
            ("b", "", false),
            ("b", "no json", false),
            ("c", "no json", true),
        ] {
            assert_eq!(contracts.check(subject, payload.as_bytes()).is_ok(), fits, "{subject} {payload}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(contracts.check("b", deep.as_bytes()).unwrap_err().reason.contains("nested too deeply"));
    }
}
