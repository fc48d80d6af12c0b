//! What the hub remembers.
