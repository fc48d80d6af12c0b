//! Full-text search: tokens, queries, documents and snippets. The store keeps the index.

pub mod document;
pub mod query;
pub mod snippet;
pub mod tokens;

pub use document::{SearchColumns, SearchDocument};
pub use query::{InvalidQuery, SearchMark, SearchPhrase, SearchQuery, SearchStatus};
pub use snippet::SearchSnippet;
