//! Test helper: tables of invalid configs and their errors.

/// Splits a table. A line is a config, and the indented lines below it are its error.
pub(crate) fn error_cases(table: &str) -> Vec<(&str, String)> {
    let mut cases: Vec<(&str, String)> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("    "), cases.last_mut()) {
            (None, _) => cases.push((line, String::new())),
            (Some(error), Some((_, wanted))) if wanted.is_empty() => error.clone_into(wanted),
            (Some(error), Some((_, wanted))) => *wanted += &format!(" {error}"),
            (Some(error), None) => panic!("{error} belongs to no config"),
        }
    }
    for (config, error) in &cases {
        assert!(!error.is_empty(), "{config} has no error");
    }
    cases
}
