//! Looks at many letters, a few at a time: one may have 16 MiB.

use monoco_store::{LetterQuery, LetterRow, PageRequest, SharedStore, StoreError};

/// Letters that are in memory at once.
const AT_ONCE: usize = 16;

/// Leafs through letters.
pub struct LetterPages {
    query: LetterQuery,
    window: PageRequest,
    /// Questions that may still be asked.
    left: usize,
    over: bool,
}

impl LetterPages {
    /// Through those that `query` and `window` name.
    pub fn new(query: LetterQuery, window: PageRequest) -> Self {
        let left = window.limit.div_ceil(AT_ONCE) + AT_ONCE;
        Self { query, window, left, over: false }
    }

    /// The next few; none when there are no more.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    pub async fn next_page(
        &mut self,
        store: &SharedStore,
    ) -> Result<Option<Vec<LetterRow>>, StoreError> {
        if self.over || self.window.limit == 0 || self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let window = PageRequest { limit: self.window.limit.min(AT_ONCE), ..self.window.clone() };
        let page = store.letters(self.query.clone(), window).await?;
        self.window.limit = self.window.limit.saturating_sub(page.entries.len());
        self.over = page.next.is_none();
        self.window.beyond = page.next.or(self.window.beyond);
        Ok(Some(page.entries))
    }

    /// Where somebody else may go on.
    pub fn next(&self) -> Option<i64> {
        if self.over { None } else { self.window.beyond }
    }
}
