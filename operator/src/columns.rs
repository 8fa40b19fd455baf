//! Values from rows.

/// A value whose fields are columns of a row with the same names; those after `with` come from
/// elsewhere.
macro_rules! columns {
    ($row:ident => $name:ident { $($field:ident),* } $(with { $($other:ident: $value:expr,)* })?) => {
        $name { $($field: $row.get(stringify!($field)),)* $($($other: $value,)*)? }
    };
}

pub(crate) use columns;
