//! PostgreSQL: connections, poolers in front of them, and parameters of statements.

mod connect;
mod parameter;
mod pooler;

pub use self::{
    connect::{Connector, PostgresConnection, connect_postgres, pool},
    parameter::{Kind, Parameter, typed, untyped},
    pooler::{shares_backends, token_of},
};
