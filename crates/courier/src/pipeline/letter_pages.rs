//! Reads letters in pages of 16, because one letter can have 16 MiB.

use monoco_store::{LetterQuery, LetterRow, PageRequest, SharedStore, StoreResult};

/// Number of letters in memory at the same time.
const LETTERS_PER_PAGE: usize = 16;

pub struct LetterPages {
    query: LetterQuery,
    window: PageRequest,
    /// Number of queries that may still be made.
    queries_left: usize,
    finished: bool,
}

impl LetterPages {
    pub fn new(query: LetterQuery, window: PageRequest) -> Self {
        let queries_left = window.limit.div_ceil(LETTERS_PER_PAGE) + LETTERS_PER_PAGE;
        Self { query, window, queries_left, finished: false }
    }

    /// Reads the next page; `None` after the last one.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read.
    pub async fn next_page(&mut self, store: &SharedStore) -> StoreResult<Option<Vec<LetterRow>>> {
        if self.finished || self.window.limit == 0 || self.queries_left == 0 {
            return Ok(None);
        }
        self.queries_left -= 1;
        let limit = self.window.limit.min(LETTERS_PER_PAGE);
        let window = PageRequest { limit, ..self.window.clone() };
        let page = store.letters(self.query.clone(), window).await?;
        self.window.limit = self.window.limit.saturating_sub(page.entries.len());
        self.finished = page.next.is_none();
        self.window.beyond = page.next.or(self.window.beyond);
        Ok(Some(page.entries))
    }

    /// Returns the position after the last page; `None` when all letters were read.
    pub fn next(&self) -> Option<i64> {
        if self.finished { None } else { self.window.beyond }
    }
}
