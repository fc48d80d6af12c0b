//! Queues a message for its targets, or puts it into the outbound chain.

use monoco_core::time::Timestamp;
use monoco_store::{AcceptResult, LetterSource, SendRequest, SendResult, SharedStore, StoreResult};

use super::{PipelineEntry, missing_result};

/// Sends a message to all its targets. A message that passes a chain becomes a letter first.
///
/// # Errors
///
/// The store's error, among them targets that cannot be resolved. Nothing is written then.
pub async fn post_send(
    store: &SharedStore,
    entry: &PipelineEntry,
    request: SendRequest,
    now: Timestamp,
) -> StoreResult<SendResult> {
    if entry.outbound().is_empty() {
        return store.send(request, now).await;
    }
    let msg_id = request.msg.id();
    let accepted = entry.submit(store, vec![LetterSource::Send(request)], now).await.pop();
    match accepted.unwrap_or_else(|| Err(missing_result()))? {
        AcceptResult::Sent(result) => Ok(result),
        AcceptResult::Letter { id, duplicate, .. } => {
            Ok(SendResult::Chained { msg_id, letter: id, duplicate })
        }
        AcceptResult::Inbound(_) | AcceptResult::Dispatched(_) => Err(missing_result()),
    }
}
