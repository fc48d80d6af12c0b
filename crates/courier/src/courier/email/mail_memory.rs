//! Limits the memory of the mails that the task loops of all accounts process at the same time.
//!
//! Without a common limit, the memory of the courier would grow with the number of accounts that
//! have mails to process, and with the size of their mails.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Largest size of the mails that the store starts at once, in bytes, unless it is one mail.
pub const BATCH_BYTES: u64 = 2 << 20;

/// Bytes of mails that are in memory together. A larger mail is processed alone.
const MAX_BYTES: u64 = 2 * BATCH_BYTES;

/// What one permit stands for, in bytes.
const BYTES_PER_PERMIT: u64 = 1 << 10;

/// The memory that all task loops of a courier share.
#[derive(Clone, Debug)]
pub struct MailMemory(Arc<Semaphore>);

/// Room for mails, until it is dropped.
#[derive(Debug)]
pub struct MailRoom {
    /// `None` only when the semaphore is closed, which never happens.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for MailMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(permits(MAX_BYTES)).unwrap_or(1))))
    }
}

impl MailMemory {
    /// Waits until there is room for mails of this size together, in the order of the calls. The
    /// caller must not have room already: it would wait for itself.
    pub async fn reserve(&self, bytes: u64) -> MailRoom {
        let permits = permits(bytes.min(MAX_BYTES));
        MailRoom { _permit: Arc::clone(&self.0).acquire_many_owned(permits).await.ok() }
    }
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn loops_share_the_memory_and_a_large_mail_is_alone() {
        let memory = MailMemory::default();
        let first = memory.reserve(BATCH_BYTES).await;
        let second = memory.clone().reserve(BATCH_BYTES).await;
        assert!(memory.reserve(1).now_or_never().is_none(), "two batches fill the memory");
        drop(first);
        assert!(memory.reserve(1 << 40).now_or_never().is_none(), "a large mail waits for all");
        drop(second);
        let large = memory.reserve(1 << 40).await;
        assert!(memory.reserve(1).now_or_never().is_none());
        drop(large);
        memory.reserve(1).await;
    }
}
