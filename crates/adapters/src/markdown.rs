//! Markdown for chat providers: splits long messages, walks through the structure, and writes what was
//! received.

mod blocks;
mod edit;
mod layout;
mod plain;
mod split;
mod walk;
mod write;

#[cfg(test)]
mod tests;

pub use blocks::{aligned_table, push_code_block_of};
pub use edit::{replace_ranges, table_as_code};
pub use plain::split_plain;
pub use split::split;
pub use walk::{MarkdownMark, MarkdownSink, walk};
pub use write::{
    end_line, end_paragraph, push_code, push_code_block, push_link, push_text, quoted,
};
