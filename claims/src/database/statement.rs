//! The texts of our statements.

use oncebox_schema::SchemaName;

/// A template of ours without its comments, which would travel with every commit.
#[must_use]
pub fn statement(schema: &SchemaName, template: &str) -> String {
    schema.sql(&without_comments(template))
}

/// The same for a template that names no schema.
pub(crate) fn without_comments(template: &str) -> String {
    let lines: Vec<&str> = template.lines().filter(|line| !line.starts_with("--")).collect();
    lines.join("\n")
}
