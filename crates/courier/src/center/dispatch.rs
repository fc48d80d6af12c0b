//! Puts received messages into the boxes of their recipients, or into the inbound chain.

use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;
use monoco_store::{
    AcceptResult, DispatchOutcome, DispatchRequest, DispatchResult, LetterSource, SharedStore,
    StoreResult,
};

use super::{PipelineEntry, missing_result};

/// Dispatches messages in one commit. Messages that pass a chain become letters instead, in
/// another commit. The results have the order of `batch`.
pub async fn dispatch(
    store: &SharedStore,
    entry: &PipelineEntry,
    batch: Vec<DispatchRequest>,
    now: Timestamp,
) -> Vec<StoreResult<DispatchResult>> {
    let routing = entry.inbound();
    if routing.is_empty() {
        return store.dispatch(batch, now).await;
    }
    let chained: Vec<bool> =
        batch.iter().map(|request| routing.applies_to(request.tunnel.as_ref())).collect();
    let (mut letters, mut msg_ids, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for (request, chained) in batch.into_iter().zip(&chained) {
        if *chained {
            msg_ids.push(request.msg.id());
            letters.push(LetterSource::Dispatch(request));
        } else {
            plain.push(request);
        }
    }
    let letters = entry.submit(store, letters, now).await.into_iter().zip(msg_ids);
    let mut letters = letters.map(|(accepted, msg_id)| chained_result(accepted?, msg_id));
    let mut plain = match plain.is_empty() {
        true => Vec::new().into_iter(),
        false => store.dispatch(plain, now).await.into_iter(),
    };
    let next = |chained| if chained { letters.next() } else { plain.next() };
    chained.into_iter().filter_map(next).collect()
}

fn chained_result(accepted: AcceptResult, msg_id: ObjId) -> StoreResult<DispatchResult> {
    match accepted {
        AcceptResult::Dispatched(result) => Ok(result),
        AcceptResult::Letter { id, duplicate, msg_id: first } => {
            let outcome = DispatchOutcome::Chained { letter: id, duplicate };
            Ok(DispatchResult { msg_id: first.unwrap_or(msg_id), outcome })
        }
        AcceptResult::Sent(_) | AcceptResult::Inbound(_) => Err(missing_result()),
    }
}
