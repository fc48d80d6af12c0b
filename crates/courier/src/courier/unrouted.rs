//! Mails that no workspace has claimed or pulled.

use std::io;

use monoco_core::mail::MailIndexEntry;
use monoco_fs::{Dir, found};
use monoco_store::{MailQuery, MailRow, Page, PageRequest, SharedStore, StoreError};

use super::file_projector::FileProjector;
use super::mailbox_dir::MailboxDir;

/// Pages of unclaimed Mails that are examined for one page of the result.
const MAX_PAGES_EXAMINED: usize = 20;

impl FileProjector {
    /// Lists Mails that meet the query and that no workspace has claimed or pulled: a workspace on
    /// this machine that pulls a Mail makes a hard link to its file. A page can be short, or
    /// empty, and still have a next one.
    ///
    /// # Errors
    ///
    /// When the store or the file system returns an error.
    pub async fn unrouted_mails(
        &self,
        store: &SharedStore,
        query: MailQuery,
        request: &PageRequest,
    ) -> Result<Page<MailRow>, StoreError> {
        let query = MailQuery { unclaimed: true, ..query };
        let (mut request, limit) = (request.clone(), request.limit);
        let mut unrouted = Page { entries: Vec::new(), next: request.beyond };
        for _ in 0..MAX_PAGES_EXAMINED {
            request.limit = limit - unrouted.entries.len();
            request.beyond = unrouted.next;
            let page = store.mails(query.clone(), request.clone()).await?;
            let pulled = self.are_pulled(page.entries.iter().map(|row| row.entry.clone())).await?;
            let alone = page.entries.into_iter().zip(pulled).filter(|(_, pulled)| !pulled);
            unrouted.entries.extend(alone.map(|(row, _)| row));
            unrouted.next = page.next;
            if unrouted.next.is_none() || unrouted.entries.len() == limit {
                break;
            }
        }
        Ok(unrouted)
    }

    /// Which of the Mails a workspace on this machine has pulled.
    async fn are_pulled(
        &self,
        mails: impl Iterator<Item = MailIndexEntry>,
    ) -> Result<Vec<bool>, StoreError> {
        let (tree, mails) = (self.tree.clone(), mails.collect::<Vec<_>>());
        let read = tokio::task::spawn_blocking(move || are_linked(&tree, &mails)).await;
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        read.map_err(|error| StoreError::Unavailable(format!("mailbox: {error}")))
    }
}

/// Which of the files in `inbound` have more than one link. A missing file has none.
fn are_linked(tree: &MailboxDir, mails: &[MailIndexEntry]) -> io::Result<Vec<bool>> {
    let Some(inbound) = found(Dir::open_root(&tree.mailbox().join("inbound")))? else {
        return Ok(vec![false; mails.len()]);
    };
    let is_linked = |mail: &MailIndexEntry| {
        let Some(dir) = found(inbound.sub(mail.id.provider()))? else { return Ok(false) };
        Ok(dir.stat(&mail.file)?.is_some_and(|stat| stat.links > 1))
    };
    mails.iter().map(is_linked).collect()
}
