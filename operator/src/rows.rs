//! Values from rows.

use oncebox_connect::postgres::{Parameter, typed};
use tokio_postgres::{GenericClient, Row};

use super::{Result, failed};

/// The parameters of a statement.
pub(crate) type Parameters<'a> = [&'a (dyn Parameter + 'a)];

/// A value that is read from a row.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Self;
}

/// Reads each field from the column of its name, or from the column that follows it; fields after a
/// semicolon are computed from the row.
macro_rules! from_row {
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $column:literal) => { $column };
    ($name:ty: $($field:ident $(= $column:literal)?),*) => {
        $crate::rows::from_row!($name: $($field $(= $column)?),*; row =>);
    };
    ($name:ty: $($field:ident $(= $column:literal)?),*; $row:ident => $($other:ident: $value:expr),*) => {
        impl $crate::rows::FromRow for $name {
            fn from_row($row: &tokio_postgres::Row) -> Self {
                Self {
                    $($field: $row.get($crate::rows::from_row!(@ $field $($column)?)),)*
                    $($other: $value,)*
                }
            }
        }
    };
}

pub(crate) use from_row;

/// Asks in one round trip, with nothing prepared: a command asks once, perhaps through a
/// transaction pooler.
pub(crate) async fn query(
    client: &impl GenericClient,
    what: &'static str,
    sql: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>> {
    client.query_typed(sql, &typed(parameters)).await.map_err(failed(what))
}

/// The values of the rows that it answers with.
pub(crate) async fn all<T: FromRow>(
    client: &impl GenericClient,
    what: &'static str,
    sql: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<T>> {
    Ok(values(&query(client, what, sql, parameters).await?))
}

pub(crate) fn values<T: FromRow>(rows: &[Row]) -> Vec<T> {
    rows.iter().map(T::from_row).collect()
}
