//! The name of the PostgreSQL schema that holds the tables, and the templates that mention it.

use std::{fmt, str::FromStr};

/// The name of the PostgreSQL schema that holds Oncebox: `oncebox` by default.
///
/// Lower-case letters, digits and `_`, at most 40 bytes, not beginning with a digit or `pg_`. So
/// narrow a grammar makes quoting mistakes impossible.
///
/// ```
/// use oncebox_schema::SchemaName;
///
/// let name: SchemaName = "billing_outbox".parse()?;
/// assert_eq!(name.sql("SELECT FROM {schema}.lane"), r#"SELECT FROM "billing_outbox".lane"#);
/// assert!("Billing".parse::<SchemaName>().is_err());
/// # Ok::<(), oncebox_schema::InvalidSchemaName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(String);

impl SchemaName {
    /// The bare name, which is also the NOTIFY channel.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Fills in a template of ours: `{schema}` becomes the quoted name, `{name}` the bare one.
    #[must_use]
    pub fn sql(&self, template: &str) -> String {
        template.replace("{schema}", &format!("\"{}\"", self.0)).replace("{name}", &self.0)
    }

    /// The same without the comments, which would travel with every commit.
    #[doc(hidden)]
    #[must_use]
    pub fn bare_sql(&self, template: &str) -> String {
        let lines: Vec<&str> = template.lines().filter(|line| !line.starts_with("--")).collect();
        self.sql(&lines.join("\n"))
    }
}

/// The text of each file in a folder of SQL, for one schema; `bare_sql` leaves the comments out.
#[doc(hidden)]
#[macro_export]
macro_rules! statements {
    ($folder:literal: $($name:ident),+ $(,)?) => { $crate::statements!(sql $folder: $($name),+); };
    ($sql:ident $folder:literal: $($name:ident),+ $(,)?) => {
        #[derive(Clone, Debug)]
        pub(super) struct Statements { $(pub(super) $name: String),+ }

        impl Statements {
            pub(super) fn new(schema: &$crate::SchemaName) -> Self {
                Self { $($name: schema.$sql(include_str!(concat!($folder, stringify!($name), ".sql")))),+ }
            }
        }
    };
}

impl Default for SchemaName {
    fn default() -> Self {
        Self("oncebox".to_owned())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a schema name that Oncebox accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "schema name {0:?} is not 1 to 40 characters of a-z, 0-9 and _, beginning with a letter or _ and not with pg_"
)]
pub struct InvalidSchemaName(String);

impl FromStr for SchemaName {
    type Err = InvalidSchemaName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_plain(text, 40) { Ok(Self(text.to_owned())) } else { Err(InvalidSchemaName(text.to_owned())) }
    }
}

/// Whether a name needs no quoting anywhere.
fn is_plain(text: &str, longest: usize) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let first = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    first && text.len() <= longest && text.chars().all(legal) && !text.starts_with("pg_")
}

/// The beginning of the names of an installation's four roles: `PREFIX_producer`, `_relay`,
/// `_consumer`, `_operator`.
///
/// Roles belong to the whole cluster: with the same names in two databases, a user who may read one
/// outbox may read the other. Written like a [`SchemaName`], with up to 54 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePrefix(String);

impl RolePrefix {
    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is nothing that role names may begin with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "role prefix {0:?} is not 1 to 54 characters of a-z, 0-9 and _, beginning with a letter or _ and not with pg_"
)]
pub struct InvalidRolePrefix(String);

impl FromStr for RolePrefix {
    type Err = InvalidRolePrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_plain(text, 54) { Ok(Self(text.to_owned())) } else { Err(InvalidRolePrefix(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_need_quoting_are_refused() {
        for name in ["", "1a", "pg_catalog", "a-b", "a\"b", "Ä", &"x".repeat(41)] {
            assert!(name.parse::<SchemaName>().is_err(), "{name:?}");
        }
        for name in ["oncebox", "_x", "a1_b", &"x".repeat(40)] {
            assert_eq!(name.parse::<SchemaName>().unwrap().as_str(), name);
        }
    }
}
