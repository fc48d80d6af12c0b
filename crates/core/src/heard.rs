//! What a provider told us, before anyone has judged it.

use crate::did::TunnelId;
use crate::time::Timestamp;

/// One thing heard through a tunnel.
///
/// `external_id` is the provider's own and stable: hearing the same thing twice
/// gives the same pair of tunnel and external id, and that is how we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The tunnel it came through.
    pub tunnel: TunnelId,
    /// The provider's stable id of it.
    pub external_id: String,
    /// When the provider says it was said.
    pub said_at: Option<Timestamp>,
    /// What was heard, as the provider put it, unjudged.
    pub payload: String,
}

/// Longest external id we keep, in bytes.
pub const MAX_EXTERNAL_ID: usize = 512;

/// The thing heard can't be told apart from others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("external id: {0}")]
pub struct BadExternalId(&'static str);

impl Heard {
    /// Checks that it has a usable external id.
    ///
    /// # Errors
    ///
    /// When the id is empty or too long to be a key.
    pub fn check(self) -> Result<Self, BadExternalId> {
        check_external_id(&self.external_id).map(|()| self)
    }
}

/// Whether `id` can be the key by which a repeated message is recognised.
///
/// # Errors
///
/// When it is empty or too long.
pub fn check_external_id(id: &str) -> Result<(), BadExternalId> {
    if id.is_empty() {
        return Err(BadExternalId("empty; a repeated message could not be recognised"));
    }
    if id.len() > MAX_EXTERNAL_ID {
        return Err(BadExternalId("longer than 512 bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_id_must_be_usable_as_a_key() {
        let heard = |id: &str| Heard {
            tunnel: "lark-main".parse().unwrap(),
            external_id: id.to_owned(),
            said_at: None,
            payload: String::new(),
        };
        assert!(heard("om_1").check().is_ok());
        assert!(heard("").check().is_err());
        assert!(heard(&"x".repeat(MAX_EXTERNAL_ID)).check().is_ok());
        assert!(heard(&"x".repeat(MAX_EXTERNAL_ID + 1)).check().is_err());
    }
}
