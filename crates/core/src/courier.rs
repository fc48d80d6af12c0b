//! Couriers: their ids, and the names under which they hold leases.
//!
//! Several couriers can share one store. Each has an id of its own, which stays when it is
//! restarted, and a boot number, which increases with every start. Both are part of the name of
//! the holder of its leases, so that a courier releases the leases of its earlier runs and no
//! others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hex;
use crate::lease::Holder;
use crate::names::text_conversions;

/// Prefix of the holder names of all couriers. Clients cannot use it.
pub const HOLDER_PREFIX: &str = "courier:";

/// The id of a courier: a random UUID, created with its home directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CourierId([u8; 16]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid courier id {0:?}; expected a UUID in lower case")]
pub struct InvalidCourierId(String);

/// One run of a courier, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CourierRun {
    pub id: CourierId,
    /// Number of the start, from 1.
    pub boot: i64,
}

impl CourierId {
    /// Returns the UUID, of version 4, of random bytes.
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the first eight digits, which tell couriers apart in short texts.
    pub fn short(self) -> String {
        hex::encode(&self.0[..4])
    }

    /// The prefix of the holder names of all runs of this courier.
    pub fn holder_prefix(self) -> String {
        format!("{HOLDER_PREFIX}{self}:")
    }
}

impl CourierRun {
    /// The holder of the leases of this run.
    pub fn holder(self) -> Holder {
        // The name is short and has no control characters.
        Holder::new(format!("{}{}", self.id.holder_prefix(), self.boot))
            .unwrap_or_else(|_| Holder::anonymous())
    }
}

impl fmt::Display for CourierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = hex::encode(&self.0);
        let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
        let parts = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)];
        f.write_str(&parts.join("-"))
    }
}

impl FromStr for CourierId {
    type Err = InvalidCourierId;

    fn from_str(text: &str) -> Result<Self, InvalidCourierId> {
        let id = hex::decode(&text.replace('-', "")).map(Self);
        id.filter(|id| id.to_string() == text).ok_or_else(|| InvalidCourierId(text.to_owned()))
    }
}

text_conversions!(CourierId, InvalidCourierId, |id| id.to_string());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_a_uuid_of_version_4_and_parses_to_itself() {
        let id = CourierId::from_random([0xff; 16]);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.short(), "ffffffff");
        let zero = CourierId::from_random([0; 16]).to_string();
        assert_eq!(zero, "00000000-0000-4000-8000-000000000000");
    }

    #[test]
    fn other_texts_are_not_ids() {
        for text in [
            "",
            "courier",
            "ffffffffffff4fffbfffffffffffffff",
            "FFFFFFFF-FFFF-4FFF-BFFF-FFFFFFFFFFFF",
            "ffffffff-ffff-4fff-bfff-fffffffffff",
            "fffffffff-fff-4fff-bfff-ffffffffffff",
        ] {
            assert_eq!(text.parse::<CourierId>(), Err(InvalidCourierId(text.to_owned())));
        }
    }

    #[test]
    fn runs_of_one_courier_share_a_prefix_that_no_other_courier_has() {
        let [a, b] = [[1; 16], [2; 16]].map(CourierId::from_random);
        let names = [(a, 1), (a, 12), (b, 1)].map(|(id, boot)| CourierRun { id, boot }.holder());
        let of_a: Vec<_> =
            names.iter().map(|name| name.as_str().starts_with(&a.holder_prefix())).collect();
        assert_eq!(of_a, [true, true, false]);
        assert_eq!(names[1].as_str(), format!("courier:{a}:12"));
    }
}
