//! The same table for any executable, of which docs/conformance.md is the contract.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

use crate::clients::{
    scenarios::{Column, Ends, Sent, endings, sent_to},
    shop::repository,
};

/// As which the tests know it.
pub(super) const NAME: &str = "program";

/// The program that `make conformance` names.
pub(super) fn given() -> Option<PathBuf> {
    env::var_os("ONCEBOX_TEST_PROGRAM").map(PathBuf::from)
}

/// The column of a consumer with these settings, and its messages. TypeScript refuses a handler's
/// COMMIT in each mode, which the column of the leased mode does not say.
pub(super) fn column(client: &str, settings: &str) -> (Column, Vec<Sent>) {
    let column = match (client, settings) {
        (_, "leased") => Column::Leased,
        (NAME, _) => told(),
        _ => Column::of(client),
    };
    let mut sent = sent_to(column);
    sent.retain(|sent| (client, settings) != ("typescript", "leased") || sent.ends != Ends::Parted);
    if settings == "pipelined" {
        // The error comes up at its statement or after it: the reason is it, or a later one.
        let divides = |sent: &&mut Sent| sent.payload["sql"][0] == "SELECT 1 / 0";
        for sent in sent.iter_mut().filter(divides) {
            if let Ends::Fails(reason, _) = &mut sent.ends {
                *reason = "";
            }
        }
    }
    (column, sent)
}

/// A program says by itself which column it must agree with.
fn told() -> Column {
    let like = env::var_os("ONCEBOX_TEST_PROGRAM_LIKE").and_then(|like| like.into_string().ok());
    let like = like.unwrap_or_else(|| Column::Functions.name().to_owned());
    let names = Column::ALL.map(Column::name);
    let found = Column::ALL.into_iter().find(|column| column.name() == like);
    found.unwrap_or_else(|| panic!("ONCEBOX_TEST_PROGRAM_LIKE is {like:?}, and none of {names:?}"))
}

#[tokio::test]
async fn a_program_ends_each_message_as_the_table_says() {
    if given().is_none() {
        eprintln!("LEFT OUT: no program is given: make conformance PROGRAM=./my-consumer");
        return;
    }
    super::conform(NAME, "plain").await;
}

/// The vectors that programs in other languages may read are the table that is tested.
#[test]
fn the_vectors_are_the_table() {
    let text = fs::read_to_string(repository().join("schema/vectors/endings.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let expected = endings();
    let lines: Vec<String> =
        expected.as_array().unwrap().iter().map(|scenario| format!("  {scenario}")).collect();
    assert!(found == expected, "schema/vectors/endings.json must be:\n[\n{}\n]", lines.join(",\n"));
}
