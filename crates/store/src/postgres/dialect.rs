//! Translates the statements of the store to PostgreSQL.
//!
//! The store has one text for each statement, which both databases understand, with three
//! differences: parameters are `$N` instead of `?N`, PostgreSQL aggregates JSON by other functions,
//! and it has no row numbers of its own. SQLite gives a new row the number after the largest one.
//! Here the writer knows the largest number, and the translated statement has one more parameter
//! with the number of the new row.

use std::borrow::Cow;

/// Tables with numbered rows, and the columns of the numbers.
pub(super) const NUMBERED_TABLES: [(&str, &str); 13] = [
    ("parties", "id"),
    ("objects", "seq"),
    ("external_ids", "seq"),
    ("records", "seq"),
    ("deliveries", "seq"),
    ("sessions", "id"),
    ("events", "seq"),
    ("merge_windows", "id"),
    ("claims", "id"),
    ("letters", "seq"),
    ("email_folders", "id"),
    ("email_tasks", "seq"),
    ("people", "seq"),
];

/// Other functions of the two databases with the same result.
const FUNCTIONS: [(&str, &str); 1] = [(
    "json_group_array(json_array(p.part, p.external_msg_id))",
    "coalesce(json_agg(json_build_array(p.part, p.external_msg_id))::text, '[]')",
)];

/// U+0000 and U+0001 are written as two characters, because PostgreSQL does not store U+0000. The
/// order of texts stays the same.
const ESCAPE: char = '\u{1}';
const ESCAPED_NUL: char = '\u{1}';
const ESCAPED_ESCAPE: char = '\u{2}';

/// A statement for PostgreSQL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) text: String,
    /// The table in [`NUMBERED_TABLES`] that gets a row. Its number is the last parameter.
    pub(super) numbered: Option<usize>,
}

/// Translates a statement.
pub(super) fn translate(sql: &str) -> Translation {
    let mut text = String::with_capacity(sql.len() + 16);
    let (mut parameters, mut chars) = (0, sql.chars().peekable());
    while let Some(char) = chars.next() {
        let mut number = 0_usize;
        while char == '?'
            && let Some(digit) = chars.peek().and_then(|next| next.to_digit(10))
        {
            number = number * 10 + digit as usize;
            chars.next();
        }
        if number == 0 {
            text.push(char);
        } else {
            parameters = parameters.max(number);
            text.push_str(&format!("${number}"));
        }
    }
    for (sqlite, postgres) in FUNCTIONS {
        text = text.replace(sqlite, postgres);
    }
    let numbered = numbered_table(&text);
    if let Some(table) = numbered {
        let (name, column) = NUMBERED_TABLES[table];
        let columns = format!("INSERT INTO {name} (");
        text = text.replacen(&columns, &format!("{columns}{column}, "), 1);
        text = text.replacen("VALUES (", &format!("VALUES (${}, ", parameters + 1), 1);
    }
    Translation { text, numbered }
}

/// The numbered table that a statement inserts a row into without giving its number.
fn numbered_table(text: &str) -> Option<usize> {
    let rest = text.trim_start().strip_prefix("INSERT INTO ")?;
    let (name, rest) = rest.split_once(" (")?;
    let columns = rest.split_once(')')?.0;
    let table = NUMBERED_TABLES.iter().position(|(table, _)| *table == name)?;
    let number = NUMBERED_TABLES[table].1;
    let has_number = columns.split(',').any(|column| column.trim() == number);
    (!has_number).then_some(table)
}

/// Replaces the characters that PostgreSQL does not store.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte <= 1) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\0' => escaped.extend([ESCAPE, ESCAPED_NUL]),
            ESCAPE => escaped.extend([ESCAPE, ESCAPED_ESCAPE]),
            other => escaped.push(other),
        }
    }
    escaped.into()
}

/// Restores a text that [`escape`] has changed, or returns `None` when it has not.
pub(super) fn unescape(text: &str) -> Option<String> {
    if !text.contains(ESCAPE) {
        return None;
    }
    let (mut restored, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(char) = chars.next() {
        match (char == ESCAPE).then(|| chars.next()).flatten() {
            Some(ESCAPED_NUL) => restored.push('\0'),
            Some(ESCAPED_ESCAPE) => restored.push(ESCAPE),
            other => restored.extend([char].into_iter().chain(other)),
        }
    }
    Some(restored)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parameters_and_functions_are_translated() {
        let found = translate("SELECT a FROM b WHERE c = ?1 AND d <> '?' AND e = ?12");
        assert_eq!(found.text, "SELECT a FROM b WHERE c = $1 AND d <> '?' AND e = $12");
        assert_eq!(found.numbered, None);
        let found = translate("SELECT json_group_array(json_array(p.part, p.external_msg_id))");
        assert!(found.text.starts_with("SELECT coalesce(json_agg("), "{found:?}");
    }

    #[test]
    fn row_of_a_numbered_table_gets_its_number() {
        let found = translate("\n  INSERT INTO records (object, tag)\n  VALUES (?1, ?2)\n");
        assert_eq!(
            found.text,
            "\n  INSERT INTO records (seq, object, tag)\n  VALUES ($3, $1, $2)\n"
        );
        assert_eq!(found.numbered.map(|table| NUMBERED_TABLES[table].0), Some("records"));
        for sql in [
            "INSERT INTO mails (seq, uid) VALUES (?1, ?2)",
            "INSERT INTO objects (seq, hash) VALUES (?1, ?2)",
            "INSERT INTO counts (kind) VALUES (?1)",
            "UPDATE records SET tag = ?1",
        ] {
            assert_eq!(translate(sql).numbered, None, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_restored_and_keeps_its_order(
            a in "[\u{0}-\u{3}ab]{0,6}", b in "[\u{0}-\u{3}ab]{0,6}",
        ) {
            let (left, right) = (escape(&a), escape(&b));
            prop_assert!(!left.contains('\0'));
            prop_assert_eq!(unescape(&left).unwrap_or_else(|| left.to_string()), a.clone());
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
        }
    }
}
