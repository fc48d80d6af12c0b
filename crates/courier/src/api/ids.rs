//! Ids in requests: whole, or shortened to a part that is unique.

use std::fmt::Display;
use std::str::FromStr;

use monoco_core::short_id::ShortId;
use monoco_store::StoreError;

use super::Api;
use super::error::ApiError;

/// Candidates that the error for an ambiguous id lists.
const MAX_CANDIDATES: usize = 10;

/// Parses an id, or finds the only id that the text shortens. `invalid` is the error for a text
/// that shortens no id.
pub async fn resolve<T: FromStr<Err: Display>>(
    api: &Api,
    text: &str,
    invalid: impl FnOnce(T::Err) -> ApiError,
) -> Result<T, ApiError> {
    let error = match text.parse() {
        Ok(id) => return Ok(id),
        Err(error) => error,
    };
    match expand(api, text).await? {
        Some(id) => id.parse().map_err(invalid),
        None if ShortId::parse(text).is_some() => {
            Err(StoreError::Missing { what: "item with the id", key: text.to_owned() }.into())
        }
        None => Err(invalid(error)),
    }
}

/// Returns the only id that the text shortens, or `None` when there is none.
///
/// # Errors
///
/// When there are several.
pub async fn expand(api: &Api, text: &str) -> Result<Option<String>, ApiError> {
    let Some(short) = ShortId::parse(text) else { return Ok(None) };
    let mut ids = api.store.find_ids(&short, MAX_CANDIDATES).await?;
    if ids.len() > 1 {
        return Err(ApiError::ambiguous_id(text, &ids));
    }
    Ok(ids.pop())
}
