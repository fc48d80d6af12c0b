//! Limits for reading untrusted YAML.

use serde_saphyr::Options;

/// Returns options that limit depth, number of values and size, and reject anchors, aliases,
/// merge keys, custom tags and several documents. `yes` and `no` are strings.
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
