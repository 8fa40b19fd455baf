//! PostgreSQL: connections, poolers in front of them, and parameters of statements.

mod connect;
mod pooler;

pub use self::{
    connect::{Connector, PostgresConnection, connect_postgres, pool},
    pooler::{shares_backends, token_of},
};
pub use oncebox_schema::{Kind, Parameter, typed, untyped};
