//! Strict JSON parsing and the canonical form (RFC 8785) that is hashed.
//!
//! The id of an object is a hash, so one text must not have two readings. Duplicate keys are
//! rejected, and so are numbers that a double cannot represent, which RFC 8785 would round.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

#[derive(Debug, thiserror::Error)]
pub enum InvalidJson {
    #[error("truncated JSON: {0}")]
    Truncated(serde_json::Error),
    /// Malformed, or not strict: a duplicate key, a lone surrogate, an inexact number.
    #[error("invalid JSON: {0}")]
    Invalid(serde_json::Error),
}

/// The largest integer that all JSON readers represent exactly.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Reads one JSON value. Rejects texts that different readers read differently.
///
/// Nesting is limited to 128 levels.
///
/// # Errors
///
/// On malformed or truncated text, text after the value, duplicate keys, lone
/// surrogates, and integers beyond ±2⁵³−1.
pub fn parse(text: &[u8]) -> Result<Value, InvalidJson> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Strict.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        if error.is_eof() { InvalidJson::Truncated(error) } else { InvalidJson::Invalid(error) }
    })
}

/// The canonical form of `value` (RFC 8785): the bytes that are hashed.
pub fn canonical(value: &Value) -> String {
    serde_json_canonicalizer::to_string(value).expect("a JSON value always has a canonical form")
}

/// Builds a [`Value`] and rejects what serde_json would accept leniently.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        if !(-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(&value) {
            return Err(inexact(value));
        }
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(inexact(value)),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        // A float that is a whole number prints without a point in the
        // canonical form, so past the safe range it would turn into another
        // integer.
        #[expect(clippy::cast_precision_loss, reason = "2^53-1 is exact in a double")]
        let limit = MAX_SAFE_INTEGER as f64;
        if value.fract() == 0.0 && value.abs() > limit && value.abs() < 1e21 {
            return Err(inexact(value));
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| inexact(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.contains_key(&key) {
                return Err(de::Error::custom(format_args!("duplicate key {key:?}")));
            }
            let value = map.next_value_seed(Strict)?;
            entries.insert(key, value);
        }
        Ok(Value::Object(entries))
    }
}

fn inexact<E: de::Error>(number: impl fmt::Display) -> E {
    E::custom(format_args!("{number} is past 2^53 and would be rounded; send it as a string"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_and_ambiguous_json_is_rejected() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for (bad, why) in [
            (r#"{"a":1,"a":2}"#, "duplicate key"),
            (r#"{"x":{"a":1,"b":{"a":2,"a":2}}}"#, "duplicate key"),
            (r#"{"a":9007199254740992}"#, "past 2^53"),
            (r#"{"a":-9007199254740992}"#, "past 2^53"),
            (r#"{"a":18446744073709551615}"#, "past 2^53"),
            (r#"{"a":1e17}"#, "past 2^53"),
            (r#"{"a":1e999}"#, "out of range"),
            (r#"{"a":"\ud800"}"#, "hex escape"),
            (r#"{"a":"\ud800\u0041"}"#, "surrogate"),
            (r#"{"a":"\udc00\ud800"}"#, "surrogate"),
            (r#"{"a":1} {"#, "trailing"),
            (r#"{"a":NaN}"#, "expected"),
            ("{\"a\":\"\u{0}\"}", "control character"),
            (deep.as_str(), "recursion limit"),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(matches!(parse(br#"{"a":"#), Err(InvalidJson::Truncated(_))));
        assert!(matches!(parse(b""), Err(InvalidJson::Truncated(_))));
        assert!(matches!(parse(b"\xff"), Err(InvalidJson::Invalid(_))));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).prop_map(Value::from),
            (-1e6..1e6f64).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Reading the canonical form and writing it again changes nothing, so that a
        /// copied object keeps its id.
        #[test]
        fn the_canonical_form_is_a_fixed_point(value in any_json()) {
            let once = canonical(&value);
            let again = canonical(&parse(once.as_bytes()).unwrap());
            prop_assert_eq!(once, again);
        }

        #[test]
        fn white_space_and_key_order_do_not_matter(value in any_json()) {
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(canonical(&parse(pretty.as_bytes()).unwrap()), canonical(&value));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
