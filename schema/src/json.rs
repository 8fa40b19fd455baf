//! JSON of payloads, replies and data: a number that JSON has not is an error.
//!
//! `serde_json` writes `null` for infinity and NaN. Read again, an optional number is `None` then,
//! and the amount is lost without an error.

use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

/// A value as JSON.
///
/// ```
/// use oncebox_schema::to_json;
///
/// assert_eq!(to_json(&(1.5, Some("a")))?, br#"[1.5,"a"]"#);
/// assert!(to_json(&[Some(f64::INFINITY)]).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// It has no JSON form, such as a map whose keys are not texts, or a number that is infinite or
/// NaN.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut json = Vec::with_capacity(128);
    Finite(value).serialize(&mut serde_json::Serializer::new(&mut json))?;
    Ok(json)
}

/// A value, its serializer, or one for the parts of a value: passes on everything, and stops at
/// numbers that are not finite.
struct Finite<T>(T);

impl<T: Serialize> Serialize for Finite<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Finite(serializer))
    }
}

fn finite<E: serde::ser::Error>(is_finite: bool) -> Result<(), E> {
    if is_finite { Ok(()) } else { Err(E::custom("a number is infinite or NaN, which JSON cannot express")) }
}

macro_rules! pass_on {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name(self, $($argument: $kind),*) -> Result<S::Ok, S::Error> {
            self.0.$name($($argument),*)
        })*
    };
}

macro_rules! begin {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $parts:ident;)*) => {
        $(fn $name(self, $($argument: $kind),*) -> Result<Self::$parts, S::Error> {
            self.0.$name($($argument),*).map(Finite)
        })*
    };
}

impl<S: Serializer> Serializer for Finite<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Finite<S::SerializeSeq>;
    type SerializeTuple = Finite<S::SerializeTuple>;
    type SerializeTupleStruct = Finite<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Finite<S::SerializeTupleVariant>;
    type SerializeMap = Finite<S::SerializeMap>;
    type SerializeStruct = Finite<S::SerializeStruct>;
    type SerializeStructVariant = Finite<S::SerializeStructVariant>;

    fn serialize_f32(self, number: f32) -> Result<S::Ok, S::Error> {
        finite(number.is_finite())?;
        self.0.serialize_f32(number)
    }

    fn serialize_f64(self, number: f64) -> Result<S::Ok, S::Error> {
        finite(number.is_finite())?;
        self.0.serialize_f64(number)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Finite(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Finite(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_variant(name, index, variant, &Finite(value))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    pass_on! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    begin! {
        serialize_seq(length: Option<usize>) -> SerializeSeq;
        serialize_tuple(length: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, length: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, length: usize) -> SerializeTupleVariant;
        serialize_map(length: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, length: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, length: usize) -> SerializeStructVariant;
    }
}

macro_rules! parts {
    ($($parts:ident { $($name:ident($($key:ident: $kind:ty)?);)* })*) => {
        $(impl<P: $parts> $parts for Finite<P> {
            type Ok = P::Ok;
            type Error = P::Error;

            $(fn $name<T: Serialize + ?Sized>(&mut self, $($key: $kind,)? value: &T) -> Result<(), P::Error> {
                self.0.$name($($key,)? &Finite(value))
            })*

            fn end(self) -> Result<P::Ok, P::Error> {
                self.0.end()
            }
        })*
    };
}

parts! {
    SerializeSeq { serialize_element(); }
    SerializeTuple { serialize_element(); }
    SerializeTupleStruct { serialize_field(); }
    SerializeTupleVariant { serialize_field(); }
    SerializeMap { serialize_key(); serialize_value(); }
    SerializeStruct { serialize_field(key: &'static str); }
    SerializeStructVariant { serialize_field(key: &'static str); }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct Unit;

    #[derive(Serialize)]
    struct New<T>(T);

    #[derive(Serialize)]
    struct Pair<T>(u8, T);

    #[derive(Serialize)]
    enum Kind<T> {
        Unit,
        New(T),
        Pair(i8, T),
        Named { a: T },
    }

    #[derive(Serialize)]
    struct All<T> {
        plain: (bool, char, i128, u128, f32, Unit, Option<u8>),
        texts: BTreeMap<String, Vec<T>>,
        kinds: [Kind<T>; 4],
        nested: Option<Box<(New<T>, Pair<T>)>>,
    }

    fn all(number: impl Fn() -> f64) -> All<f64> {
        All {
            plain: (true, 'ä', i128::MIN, u128::MAX, 0.5, Unit, None),
            texts: [("a\"b".to_owned(), vec![number()])].into(),
            kinds: [Kind::Unit, Kind::New(number()), Kind::Pair(-1, number()), Kind::Named { a: number() }],
            nested: Some(Box::new((New(number()), Pair(1, number())))),
        }
    }

    #[test]
    fn what_json_has_is_written_as_ever() {
        let value = all(|| 1.25);
        assert_eq!(to_json(&value).unwrap(), serde_json::to_vec(&value).unwrap());
        let json = serde_json::json!({"a": [1, -2.5, null, {"b": "c"}]});
        assert_eq!(to_json(&json).unwrap(), serde_json::to_vec(&json).unwrap());
        assert!(to_json(&BTreeMap::from([((1, 2), 3)])).is_err());
    }

    /// Wherever the number stands.
    #[test]
    fn a_number_that_json_has_not_is_an_error() {
        let refused = |at: usize, bad: f64| {
            let count = std::cell::Cell::new(0);
            let number = || {
                count.set(count.get() + 1);
                if count.get() == at { bad } else { 1.0 }
            };
            to_json(&all(number)).unwrap_err().to_string()
        };
        for at in 1..=6 {
            for bad in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                let told = refused(at, bad);
                assert!(told.contains("infinite or NaN"), "{at}: {told}");
            }
        }
        assert!(to_json(&[f32::NAN]).is_err() && to_json(&Some(f64::NAN)).is_err());
    }
}
