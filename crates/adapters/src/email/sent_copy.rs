//! Copies of sent mails in the folder `sent_folder` of the account.
//!
//! A copy is made after the server has accepted the mail, in the task of the listener: a copy
//! that fails changes nothing about the delivery. The folder is searched for the Message-ID first, so
//! that recipients of one message, retries and servers that copy by themselves give one copy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::compose::ComposedMail;
use super::config::EmailConfig;
use super::imap::account::append_missing;

/// Largest size of the mails that wait, in bytes. Further ones are not copied.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// How many mails one connection copies.
const MAX_BATCH: usize = 50;

/// How many Message-IDs are remembered, so that copies for other recipients need no search.
const MAX_REMEMBERED: usize = 1000;

/// How long to wait after a failed attempt. After the last one the mails are not copied.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// How long the mails that still wait are copied after the account was stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A mail that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentCopy {
    pub message_id: String,
    pub bytes: Vec<u8>,
}

/// The mails of one account that wait to be copied.
#[derive(Debug, Default)]
pub struct SentCopies {
    queue: Mutex<CopyQueue>,
    /// Notified when a mail is added.
    added: Notify,
}

#[derive(Debug, Default)]
struct CopyQueue {
    waiting: VecDeque<SentCopy>,
    bytes: usize,
    remembered: VecDeque<String>,
    /// The config of the newest mail.
    config: Option<Arc<EmailConfig>>,
}

impl SentCopies {
    /// Adds a mail that [`run`](Self::run) copies, when the account has a folder for it. A mail
    /// without Message-ID is not copied, because a second copy could not be recognised.
    pub fn add(&self, config: &Arc<EmailConfig>, mail: ComposedMail) {
        let Some(message_id) = mail.message_id.filter(|_| config.sent_folder.is_some()) else {
            return;
        };
        let mut queue = self.queue();
        if queue.remembered.contains(&message_id) {
            return;
        }
        if queue.bytes + mail.bytes.len() > MAX_WAITING_BYTES {
            tracing::warn!(account = config.address, "sent mail not copied: too many are waiting");
            return;
        }
        if queue.remembered.len() == MAX_REMEMBERED {
            queue.remembered.pop_front();
        }
        queue.remembered.push_back(message_id.clone());
        queue.bytes += mail.bytes.len();
        queue.waiting.push_back(SentCopy { message_id, bytes: mail.bytes });
        queue.config = Some(Arc::clone(config));
        drop(queue);
        self.added.notify_one();
    }

    /// Copies what is added until `stop`, and for a short time what waits then.
    pub async fn run(&self, stop: &CancellationToken) {
        let copying = async {
            loop {
                self.copy_all().await;
                tokio::select! {
                    biased;
                    () = self.added.notified() => {}
                    () = stop.cancelled() => return,
                }
            }
        };
        tokio::pin!(copying);
        tokio::select! {
            () = stop.cancelled() => {}
            () = &mut copying => return,
        }
        let _ = tokio::time::timeout(STOP_TIMEOUT, copying).await;
    }

    /// Copies what waits, then ends.
    async fn copy_all(&self) {
        while let Some((config, batch)) = self.next_batch() {
            let Some(folder) = &config.sent_folder else { continue };
            let mut delays = RETRY_DELAYS.iter();
            while let Err(error) = append_missing(&config, folder, &batch).await {
                let error = error.failure();
                let error = error.detail();
                let Some(delay) = delays.next() else {
                    let mails = batch.len();
                    tracing::warn!(account = config.address, mails, error, "sent mails not copied");
                    break;
                };
                tokio::time::sleep(*delay).await;
            }
        }
    }

    fn next_batch(&self) -> Option<(Arc<EmailConfig>, Vec<SentCopy>)> {
        let mut queue = self.queue();
        let count = queue.waiting.len().min(MAX_BATCH);
        let batch: Vec<_> = queue.waiting.drain(..count).collect();
        queue.bytes -= batch.iter().map(|copy| copy.bytes.len()).sum::<usize>();
        let config = queue.config.clone().filter(|_| !batch.is_empty());
        config.map(|config| (config, batch))
    }

    fn queue(&self) -> MutexGuard<'_, CopyQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
