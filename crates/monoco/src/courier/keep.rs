//! The doorman's ear: what was heard is on disk before anybody is told so.

use async_trait::async_trait;
use monoco_adapters::{Ear, NotKept};
use monoco_core::heard::{Artifact, Heard};
use monoco_store::{Accepted, Keep, Keeping, Origin, StoreError};

use super::tunnels::Tunnel;
use crate::center::Center;

/// Keeps what one tunnel hears.
pub struct Keeper<'a> {
    /// The hub.
    pub center: &'a Center,
    /// The tunnel.
    pub tunnel: &'a Tunnel,
}

#[async_trait]
impl Ear for Keeper<'_> {
    async fn hear(&self, heard: Heard) -> Result<bool, NotKept> {
        let kept = self.keep(heard).await;
        let now = self.center.now();
        match &kept {
            Ok(new) => self.tunnel.note(|pulse| pulse.heard(u64::from(*new), now)),
            Err(why) => self.tunnel.note(|pulse| pulse.missed(why.to_string(), now)),
        }
        kept
    }
}

impl Keeper<'_> {
    async fn keep(&self, heard: Heard) -> Result<bool, NotKept> {
        let Heard { tunnel, mut said, attachments } = heard;
        said.check().map_err(|error| NotKept::Unusable(error.to_string()))?;
        let store = self.center.store();
        // Bytes first: nothing may refer to what is not there.
        for attachment in attachments {
            let size = u64::try_from(attachment.bytes.len()).ok();
            let hash = store.keep_bytes(attachment.bytes).await.map_err(not_kept)?;
            said.artifacts.push(Artifact {
                name: attachment.name,
                mime_type: attachment.mime_type,
                size,
                hash: Some(hash),
                url: None,
            });
        }
        said.check().map_err(|error| NotKept::Unusable(error.to_string()))?;
        let provider = self.tunnel.adapter.provider().to_owned();
        let keep = Keep { tunnel, provider, said, debounce: self.tunnel.debounce };
        let kept = match self.center.inbound().takes(Some(&keep.tunnel)) {
            true => self.center.hand_in(vec![Origin::Heard(keep)]).await.pop().map(|accepted| {
                accepted
                    .map(|accepted| matches!(accepted, Accepted::Letter { duplicate: false, .. }))
            }),
            false => {
                let kept = store.keep(vec![keep], self.center.now()).await.pop();
                kept.map(|kept| kept.map(|keeping| keeping == Keeping::Kept))
            }
        };
        match kept {
            Some(kept) => kept.map_err(not_kept),
            None => Err(NotKept::Unavailable("the store gave no answer".to_owned())),
        }
    }
}

fn not_kept(error: StoreError) -> NotKept {
    match error {
        StoreError::Full => NotKept::Full,
        other => {
            tracing::warn!(error = %other, "not kept");
            NotKept::Unavailable(other.to_string())
        }
    }
}
