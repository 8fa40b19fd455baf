//! One table of contracts, mistakes and messages, on which the relay's crate and the test helpers
//! of each client agree: tests/clients/contracts.json.

use std::{fs, path::Path};

use oncebox_contracts::Contracts;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, repository};

const NO_JSON: &str = "the payload is not JSON, or nested too deeply";

/// A row of the table.
struct Row {
    it: String,
    folder: TempDir,
    messages: Vec<(String, Vec<u8>)>,
    /// For each message, or for each mistake, the beginning of its text; `None` for a message that
    /// fits.
    expected: Vec<Option<String>>,
}

impl Row {
    fn new(row: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("contracts.json", serde_json::json!({ "contracts": row["contracts"] }).to_string());
        for (name, schema) in row["files"].as_object().into_iter().flatten() {
            write(name, schema.to_string());
        }
        let checks: Vec<&Value> = row["checks"].as_array().into_iter().flatten().collect();
        let subject = |check: &Value| check[0].as_str().unwrap().to_owned();
        let messages: Vec<_> = checks.iter().map(|check| (subject(check), payload(&check[1]))).collect();
        let sent: Vec<_> = messages.iter().map(|(subject, payload)| (subject, hex(payload))).collect();
        write("messages", serde_json::to_string(&sent).unwrap());
        let expected = match row["mistakes"].as_array() {
            Some(places) => places.iter().map(|place| Some(place.as_str().unwrap().to_owned())).collect(),
            None => checks.iter().map(|check| check[2].as_str().map(str::to_owned)).collect(),
        };
        Self { it: row["it"].as_str().unwrap().to_owned(), folder, messages, expected }
    }

    /// Compares the lines of a language, one for each message or mistake.
    fn judge(&self, said: &[Option<String>]) {
        let it = &self.it;
        assert_eq!(said.len(), self.expected.len(), "{it}: {said:?}");
        let mut wrong = Vec::new();
        for (number, (said, expected)) in said.iter().zip(&self.expected).enumerate() {
            let expected = expected.as_deref().map(|text| text.replace("NO JSON", NO_JSON));
            let fits = match (said.as_deref(), expected.as_deref()) {
                (None, None) => true,
                // A mistake has its place in the file.
                (Some(said), Some(place)) if self.messages.is_empty() => {
                    said.contains(&format!("/contracts/{place}")) || place.is_empty()
                }
                (Some(said), Some(NO_JSON)) => said.starts_with(NO_JSON),
                // The end of a pointer: the rule's words are those of each language.
                (Some(said), Some(pointer)) if pointer.ends_with(": ") => said.starts_with(pointer),
                (said, expected) => said == expected,
            };
            if !fits || said.as_ref().is_some_and(|said| said.contains("SECRET")) {
                wrong.push(format!("{number}: {said:?}, and not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{it}:\n{}", wrong.join("\n"));
    }
}

fn payload(given: &Value) -> Vec<u8> {
    if let Some(text) = given.as_str() {
        return text.as_bytes().to_owned();
    }
    if let Some(depth) = given["nested"].as_u64() {
        let depth = usize::try_from(depth).unwrap();
        return ("[".repeat(depth) + &"]".repeat(depth)).into_bytes();
    }
    let digits = given["hex"].as_str().unwrap().as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn table() -> Vec<Row> {
    let text = fs::read_to_string(repository().join("tests/clients/contracts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    rows.iter().map(Row::new).collect()
}

#[test]
fn rust() {
    for row in table() {
        let path: &Path = row.folder.path();
        let said = match Contracts::read(&path.join("contracts.json")) {
            Ok(contracts) => {
                let said = row.messages.iter().map(|(subject, payload)| contracts.check(subject, payload));
                said.map(|checked| checked.err().map(|breach| breach.to_string())).collect()
            }
            Err(mistakes) => mistakes.to_string().lines().map(|line| Some(line.to_owned())).collect(),
        };
        let said: Vec<Option<String>> = said;
        row.judge(&said);
    }
}

/// Defines the test of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        #[tokio::test]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                agree(programs).await;
            }
        }
    )*};
}
clients!(python, typescript, go);

async fn agree(programs: Programs) {
    let rows = table();
    let mut command = Command::new(programs.file("contracts"));
    command.args(rows.iter().map(|row| row.folder.path())).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("the program ends").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8(output.stdout).unwrap();
    let said: Vec<Vec<Option<String>>> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said.len(), rows.len(), "{errors}");
    for (row, said) in rows.iter().zip(said) {
        row.judge(&said);
    }
}
