//! Markdown for chat providers: splits long messages, and walks through the structure.

mod layout;
mod plain;
mod split;
mod walk;

#[cfg(test)]
mod tests;

pub use plain::split_plain;
pub use split::split;
pub use walk::{MarkdownMark, MarkdownSink, walk};
