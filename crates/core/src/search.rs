//! Full-text search: tokens, queries, documents, snippets and the pace of the indexer. The store keeps the index.

pub mod document;
pub mod pace;
pub mod query;
pub mod snippet;
pub mod tokens;

pub use document::{SearchColumns, SearchDocument};
pub use pace::IndexingLoad;
pub use query::{InvalidQuery, SearchMark, SearchPhrase, SearchQuery, SearchStatus};
pub use snippet::SearchSnippet;
