//! Tells whether two starts begin with the same data.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of data in JSON without the order of its arrays and objects: the elements of a `HashSet`
/// come in another order each time.
pub(crate) fn likeness(data: &str) -> Result<Vec<u8>, serde_json::Error> {
    let ordered = ordered(serde_json::from_str(data)?);
    Ok(Sha256::digest(ordered.to_string()).to_vec())
}

fn ordered(value: Value) -> Value {
    match value {
        Value::Array(elements) => {
            let mut elements: Vec<Value> = elements.into_iter().map(ordered).collect();
            elements.sort_by_cached_key(Value::to_string);
            Value::Array(elements)
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, ordered(value))).collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(fields.into_iter().collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_elements_means_nothing_and_all_else_something() {
        let one = r#"{"a": [1, [2, 3], {"x": 1, "y": [null, "b"]}], "c": "d"}"#;
        let same = r#"{"c":"d","a":[{"y":["b",null],"x":1},[3,2],1]}"#;
        assert_eq!(likeness(one).unwrap(), likeness(same).unwrap());
        for other in [
            r#"{"a": [1, [2, 3], {"x": 1, "y": [null, "b"]}], "c": "e"}"#,
            r#"{"a": [1, [2, 3], {"x": 2, "y": [null, "b"]}], "c": "d"}"#,
            r#"{"a": [1, 2, [3], {"x": 1, "y": [null, "b"]}], "c": "d"}"#,
            r#"{"a": [1, 1, [2, 3], {"x": 1, "y": [null, "b"]}], "c": "d"}"#,
            r#"{"a": ["1", [2, 3], {"x": 1, "y": [null, "b"]}], "c": "d"}"#,
        ] {
            assert_ne!(likeness(one).unwrap(), likeness(other).unwrap(), "{other}");
        }
    }
}
