//! PostgreSQL: connections, poolers in front of them, and parameters of statements.

mod connect;
mod parameter;
mod pooler;

pub use self::{
    connect::{Connector, PostgresConnection, connect_postgres, pool},
    parameter::{Kind, Parameter, typed, untyped},
    pooler::{shares_backends, token_of},
};

/// The text of each file in a folder of SQL, for one schema.
#[macro_export]
macro_rules! statements {
    ($folder:literal: $($name:ident),+ $(,)?) => {
        #[derive(Clone, Debug)]
        pub(super) struct Statements { $(pub(super) $name: String),+ }

        impl Statements {
            pub(super) fn new(schema: &oncebox_schema::SchemaName) -> Self {
                Self { $($name: schema.sql(include_str!(concat!($folder, stringify!($name), ".sql")))),+ }
            }
        }
    };
}
