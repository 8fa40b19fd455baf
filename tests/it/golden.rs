//! The texts that users see, as they are committed: the help of each command, and the description
//! of the API.

use std::{env::vars_os, fs, path::Path};

use serde_json::Value;

use crate::{console::support::Console, relay::documents::helps};
use oncebox_tests::TestEnv;

/// Compares a text with the file of this name; `ONCEBOX_TEST_WRITE_GOLDEN` has it written instead.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if vars_os().any(|(variable, _)| variable == "ONCEBOX_TEST_WRITE_GOLDEN") {
        fs::write(&path, text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let mut lines = text.lines().zip(committed.lines()).enumerate();
    let first = lines.find(|(_, (now, then))| now != then);
    assert!(
        text == committed,
        "tests/golden/{name} differs, first at {first:?}: see the change with \
         ONCEBOX_TEST_WRITE_GOLDEN=1 and git diff, and commit it if it is meant"
    );
}

#[tokio::test]
async fn the_help_of_each_command_is_as_committed() {
    let mut all = helps(Vec::new()).await;
    all.sort_unstable();
    let texts = all.iter().map(|(command, help)| format!("$ oncebox {command} --help\n{help}\n"));
    check("help.txt", &texts.collect::<String>());
}

#[tokio::test]
async fn the_description_of_the_api_is_as_committed() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    let document: Value = serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
    check("openapi.json", &(serde_json::to_string_pretty(&document).unwrap() + "\n"));
}
