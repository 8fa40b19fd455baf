//! Parameters that say their type, for statements that are not prepared: one round trip, nothing
//! left in the session, so that a transaction pooler may give the session to others.

use std::time::SystemTime;

use tokio_postgres::types::{ToSql, Type};

/// A value with the type that our statements expect of it.
pub trait Parameter: ToSql + Sync {
    /// The type.
    fn kind(&self) -> Type;

    /// The value.
    fn value(&self) -> &(dyn ToSql + Sync);
}

impl<T: Kind + ToSql + Sync> Parameter for T {
    fn kind(&self) -> Type {
        T::KIND
    }

    fn value(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

/// Its names in PostgreSQL, alone and in an array.
pub trait Kind {
    /// The type of one value.
    const KIND: Type;
    /// The type of an array of values.
    const ARRAY: Type;
}

macro_rules! kinds {
    ($($rust:ty: $kind:ident, $array:ident;)+) => {
        $(impl Kind for $rust {
            const KIND: Type = Type::$kind;
            const ARRAY: Type = Type::$array;
        })+
    };
}

kinds! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    String: TEXT, TEXT_ARRAY;
    Vec<u8>: BYTEA, BYTEA_ARRAY;
    SystemTime: TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
}

impl<T: Kind> Kind for Option<T> {
    const KIND: Type = T::KIND;
    const ARRAY: Type = T::ARRAY;
}

// PostgreSQL's arrays do not nest.
impl<T: Kind> Kind for Vec<T> {
    const KIND: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

impl<T: Kind> Kind for &[T] {
    const KIND: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

/// The values with their types, as `query_typed` takes them.
pub fn typed<'a>(parameters: &[&'a (dyn Parameter + 'a)]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    parameters.iter().map(|parameter| (parameter.value(), parameter.kind())).collect()
}

/// The values alone, as prepared statements take them.
pub fn untyped<'a>(parameters: &[&'a (dyn Parameter + 'a)]) -> Vec<&'a (dyn ToSql + Sync)> {
    parameters.iter().map(|parameter| parameter.value()).collect()
}
