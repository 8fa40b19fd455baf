//! The same table for any executable, of which docs/conformance.md is the contract.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

use crate::clients::{
    scenarios::{Column, endings},
    shop::repository,
};

/// As which the tests know it.
pub(super) const NAME: &str = "program";

/// The program that `make conformance` names.
pub(super) fn given() -> Option<PathBuf> {
    env::var_os("ONCEBOX_TEST_PROGRAM").map(PathBuf::from)
}

/// The column that a consumer must agree with. A program says it by itself.
pub(super) fn column(client: &str) -> Column {
    if client != NAME {
        return Column::of(client);
    }
    let like = env::var("ONCEBOX_TEST_PROGRAM_LIKE").unwrap_or_else(|_| Column::Functions.name().to_owned());
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
