//! The courier and its command line.
fn main() {}
