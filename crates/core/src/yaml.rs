//! YAML that may come from anybody: bounded, and without what bombs are made of.

use serde_saphyr::Options;

/// How to read YAML of at most so many levels, values and bytes: no anchors, aliases,
/// merged keys or foreign tags, one document, and `yes` is a word.
pub fn bounded(depth: usize, values: usize, bytes: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: depth,
            flow_nesting_limit: depth,
            max_nodes: values,
            max_events: 2 * values,
            max_anchors: 0,
            max_aliases: 0,
            max_documents: 1,
            max_merge_keys: 0,
            max_total_scalar_bytes: bytes,
        },
        with_snippet: false,
        strict_booleans: true,
        reject_unsupported_tags: true,
    }
}
