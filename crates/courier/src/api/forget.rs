//! Erases the text of a person.

use axum::extract::State;
use monoco_core::did::Did;
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::SharedApi;
use super::error::ApiError;
use super::input::JsonBody;
use super::views::forget::ForgetView;
use crate::center::erasure::dids_of;
use crate::courier::forget::TextEraser;

/// Path of the request, which can take as long as the database is large.
pub const FORGET_PATH: &str = "/api/v1/forget";

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForgetBody {
    /// The DID of a contact, or of an account behind a tunnel
    did: String,
    /// Only count what would be erased; default false
    #[serde(default)]
    dry_run: bool,
}

/// Erase what a person wrote
///
/// Messages, Mails and letters of the DID, and of the accounts that are bound to its contact,
/// become tombstones: reading them is answered with 410 `erased`. In a Mail of several authors the
/// person's messages are replaced by `[erased]`. Attachments without other references, the contact
/// and its bindings are removed. Ids stay, so that a repeated message is still a duplicate. Other
/// writes wait until the database is compacted. An erasure that is interrupted is continued at the
/// next start. 409 `lost_mails` when the mailbox has Mails that the store does not know.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/forget", operation_id = "forget",
    tag = "people", request_body = ForgetBody,
    responses((status = 200, body = ForgetView))
))]
pub async fn forget(
    State(api): State<SharedApi>,
    JsonBody(ForgetBody { did, dry_run }): JsonBody<ForgetBody>,
) -> Result<axum::Json<ForgetView>, ApiError> {
    let did: Did = did.parse().map_err(|error| ApiError::bad_field("did", error))?;
    let authors = dids_of(&api.store, did).await?;
    let eraser = TextEraser {
        projector: api.projector.clone(),
        search: api.search.clone(),
        clock: api.clock,
        owner: api.config.borrow().owner.clone(),
    };
    let dids = authors.0.iter().map(Did::to_string).collect();
    // Counted first, also to reject a person that the store has never seen.
    let counted = eraser.count(authors.clone()).await?;
    let counts = if dry_run { counted } else { eraser.erase(authors).await? };
    Ok(axum::Json(ForgetView::new(dids, dry_run, counts)))
}
