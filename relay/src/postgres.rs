//! PostgreSQL: connections, the claiming transaction, and the statements that deliver, one to a
//! file in `sql`.

/// The text of each file in a folder of SQL, for one schema.
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
pub(crate) use statements;

pub(crate) mod claim;
pub(crate) mod connect;
pub(crate) mod delayed;
pub(crate) mod leader;
pub(crate) mod fleet;
pub(crate) mod integrity;
pub(crate) mod lag;
pub(crate) mod listen;
pub(crate) mod look;
pub(crate) mod parameter;
pub(crate) mod pooler;
pub(crate) mod read_on;
pub(crate) mod receipts;
pub(crate) mod retention;
pub(crate) mod room;
pub(crate) mod session;
pub(crate) mod settle;
pub(crate) mod store;

pub(crate) use store::Store;
