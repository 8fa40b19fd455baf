//! One of our own statements, in the form that diesel takes.

use diesel::{
    QueryResult,
    deserialize::{self, QueryableByName},
    pg::Pg,
    query_builder::{AstPass, Query, QueryFragment, QueryId},
    row::{Field, NamedRow, Row},
    sql_types::{Array, BigInt, Binary, Double, Nullable, Text, Untyped},
};
use oncebox_schema::{Columns, Value};

/// A text with parameters `$1` to `$n`, in any order. Unlike `diesel::sql_query` it is prepared
/// once for each connection.
#[derive(Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    pub(crate) values: &'a [Value<'a>],
}

impl QueryId for Statement<'_> {
    type QueryId = ();

    // Statements are distinguished by their text.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Statement<'_> {
    type SqlType = Untyped;
}

impl QueryFragment<Pg> for Statement<'_> {
    /// Diesel numbers parameters in the order of the text, so a parameter that occurs twice is
    /// bound twice.
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let mut parts = self.sql.split('$');
        out.push_sql(parts.next().unwrap_or_default());
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let (number, text) = part.split_at(end);
            let value =
                number.parse::<usize>().ok().and_then(|number| self.values.get(number.checked_sub(1)?));
            let unknown =
                || diesel::result::Error::QueryBuilderError(format!("no value for ${number}").into());
            match value.ok_or_else(unknown)? {
                Value::Text(text) => out.push_bind_param::<Nullable<Text>, _>(text)?,
                Value::Bytes(bytes) => out.push_bind_param::<Nullable<Binary>, _>(bytes)?,
                Value::Integer(number) => out.push_bind_param::<Nullable<BigInt>, _>(number)?,
                Value::Float(number) => out.push_bind_param::<Nullable<Double>, _>(number)?,
                Value::Integers(numbers) => out.push_bind_param::<Array<BigInt>, _>(numbers)?,
                _ => return Err(unknown()),
            }
            out.push_sql(text);
        }
        Ok(())
    }
}

/// The columns of a row, as PostgreSQL has sent them.
pub(crate) struct RowColumns(pub(crate) Columns);

impl QueryableByName<Pg> for RowColumns {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        let column = |number| {
            let field = Row::get(row, number).ok_or("a column is missing")?;
            Ok(field.value().map(|value| value.as_bytes().to_vec()))
        };
        let columns: deserialize::Result<_> = (0..row.field_count()).map(column).collect();
        columns.map(|columns| Self(Columns(columns)))
    }
}

#[cfg(test)]
mod tests {
    use diesel::{debug_query, pg::PgQueryBuilder};

    use super::*;

    #[test]
    fn parameters_keep_their_values_in_any_order() {
        let check = |sql, values: &[Value<'_>], expected: &str| {
            assert_eq!(debug_query::<Pg, _>(&Statement { sql, values }).to_string(), expected);
        };
        let values = [Value::Text(Some("a")), Value::Integer(Some(7)), Value::Float(None)];
        check(
            "SELECT f($2::bigint, $1::text, $2) + $3",
            &values,
            "SELECT f($1::bigint, $2::text, $3) + $4 -- binds: [Some(7), Some(\"a\"), Some(7), None]",
        );
        let short = Statement { sql: "SELECT $2", values: &values[..1] };
        let refused = short.to_sql(&mut PgQueryBuilder::default(), &Pg).unwrap_err();
        assert!(refused.to_string().contains("no value for $2"), "{refused}");
    }
}
