//! Translates the statements of the store to PostgreSQL.
//!
//! The store has one schema, and one text for each statement, which both databases understand, with three
//! differences: parameters are `$N` instead of `?N`, PostgreSQL aggregates JSON by other functions,
//! and it has no row numbers of its own. SQLite gives a new row the number after the largest one.
//! Here the writer knows the largest number, and the translated statement has one more parameter
//! with the number of the new row.

use std::borrow::Cow;

use tokio_postgres::types::Type;

use super::pending::array_type;

/// Tables with numbered rows, and the columns of the numbers.
pub(super) const NUMBERED_TABLES: [(&str, &str); 15] = [
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
    ("erased_objects", "seq"),
    ("email_folders", "id"),
    ("email_tasks", "seq"),
    ("people", "seq"),
    ("approvals", "seq"),
];

/// The table whose rows are changed once in a batch, each by a statement that inserts or updates.
const COUNTS: &str = "counts";

/// Other functions of the two databases with the same result.
const FUNCTIONS: [(&str, &str); 1] = [(
    "json_group_array(json_array(p.part, p.external_msg_id))",
    "coalesce(json_agg(json_build_array(p.part, p.external_msg_id))::text, '[]')",
)];

/// Columns of integers that can have any value. All others are numbers of rows, times and counts.
const ANY_INTEGERS: [&str; 4] = ["hash_prefix", "mark", "tag", "target"];

/// Numbers from here on count the new rows of a table: the server adds the largest number that the
/// table has when the transaction has its turn.
const RELATIVE: i64 = 1 << 62;
/// The bits of a relative number that are the place of its table in [`NUMBERED_TABLES`] are above these.
const COUNT_BITS: u32 = 32;

/// The number of the new row `count` of a table.
pub(super) fn relative_number(table: usize, count: i64) -> i64 {
    RELATIVE | (i64::try_from(table).unwrap_or_default() << COUNT_BITS) | count
}

/// The table and the count of a relative number, or `None` when it is another one.
pub(super) fn split_relative(number: i64) -> Option<(usize, i64)> {
    let rest = number.checked_sub(RELATIVE).filter(|rest| *rest >= 0)?;
    Some((usize::try_from(rest >> COUNT_BITS).ok()?, rest & ((1 << COUNT_BITS) - 1)))
}

/// A number of a row, where `number` can be relative. The largest numbers are in `base`.
fn final_number(number: &str) -> String {
    let mask = (1_i64 << COUNT_BITS) - 1;
    format!(
        "CASE WHEN {number} < {RELATIVE} THEN {number} \
         ELSE (SELECT numbers FROM base)[(({number} - {RELATIVE}) >> {COUNT_BITS})::INT + 1] \
         + ({number} & {mask}) END"
    )
}

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
    /// The only table that a statement reads or changes; `None` when there are others.
    pub(super) table: Option<String>,
    /// The parameters that can be any integer, from 0; `None` when they are unknown.
    pub(super) any_integers: Option<Vec<usize>>,
}

impl Translation {
    /// The statement for many rows of parameters, with an array for each parameter. The first
    /// array is the parameter `first`. `relative` are the parameters with relative numbers, from 0.
    /// `None` when it must be run for each row.
    pub(super) fn many_rows(
        &self,
        types: &[Type],
        first: usize,
        relative: &[usize],
    ) -> Option<String> {
        self.table.as_ref().filter(|_| !types.is_empty())?;
        let arrays: Option<Vec<_>> = (first..)
            .zip(types)
            .map(|(n, element)| Some(format!("${n}::{}", array_type(element)?)))
            .collect();
        let names: Vec<_> = (1..=types.len()).map(|n| format!("p{n}")).collect();
        let (arrays, columns) = (arrays?.join(", "), names.join(", "));
        let rows = if relative.is_empty() {
            format!("FROM unnest({arrays}) AS new({columns})")
        } else {
            let value = |(at, name): (usize, &String)| match relative.contains(&at) {
                true => final_number(&format!("given.{name}")),
                false => format!("given.{name}"),
            };
            let values: Vec<_> = names.iter().enumerate().map(value).collect();
            let values = values.join(", ");
            format!(
                "FROM (SELECT {values} FROM unnest({arrays}) AS given({columns})) AS new({columns})"
            )
        };
        self.insert_of_many(&rows).or_else(|| self.update_of_many(&rows))
    }

    /// The statement with other numbers for its parameters: `$1` becomes the parameter `first`.
    /// `relative` are the parameters with relative numbers, from 0.
    pub(super) fn renumbered(&self, first: usize, relative: &[usize]) -> String {
        let mut parts = self.text.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = part.split_at(digits);
            match number.parse::<usize>() {
                Ok(number) if relative.contains(&(number - 1)) => {
                    text.push_str(&final_number(&format!("${}::BIGINT", number + first - 1)));
                }
                Ok(number) => text.push_str(&format!("${}", number + first - 1)),
                Err(_) => text.push_str(&format!("${number}")),
            }
            text.push_str(rest);
        }
        text
    }

    /// Whether a statement changes rows.
    pub(super) fn is_write(&self) -> bool {
        let text = self.text.trim_start();
        ["INSERT ", "UPDATE ", "DELETE "].iter().any(|word| text.starts_with(word))
    }

    /// An insert of many rows, unless it can change a row that exists.
    fn insert_of_many(&self, rows: &str) -> Option<String> {
        let (insert, rest) = self.text.split_once("VALUES (")?;
        let (row, conflict) = split_at_closing(rest)?;
        let ignores = conflict.contains("DO NOTHING")
            || conflict.trim().is_empty()
            || self.table.as_deref() == Some(COUNTS);
        if !insert.trim_start().starts_with("INSERT INTO ") || !ignores {
            return None;
        }
        Some(format!("{insert}SELECT {} {rows}{conflict}", row.replace('$', "new.p")))
    }

    /// An update of many rows with different numbers.
    fn update_of_many(&self, rows: &str) -> Option<String> {
        if !self.updates_by_number() {
            return None;
        }
        let (set, condition) = self.text.split_once("WHERE ")?;
        let (set, condition) = (set.replace('$', "new.p"), condition.replace('$', "new.p"));
        Some(format!("{set}{rows} WHERE {condition}"))
    }

    /// Whether a statement updates the row whose number is its first parameter.
    pub(super) fn updates_by_number(&self) -> bool {
        let is_number = |(_, condition): (&str, &str)| {
            let mut words = condition.split_whitespace();
            matches!(words.next(), Some("id" | "seq"))
                && words.next() == Some("=")
                && words.next() == Some("$1")
        };
        self.text.trim_start().starts_with("UPDATE ")
            && self.text.matches("WHERE ").count() == 1
            && self.text.split_once("WHERE ").is_some_and(is_number)
    }
}

/// Splits the rest of a list at the bracket that closes it.
fn split_at_closing(rest: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, char) in rest.char_indices() {
        match char {
            '(' => depth += 1,
            ')' if depth == 0 => return Some((&rest[..at], &rest[at + 1..])),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The table that a statement changes, if it reads no other one.
fn changed_table(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let table = match (words.next()?, words.next()?) {
        ("INSERT", "INTO") | ("DELETE", "FROM") => words.next()?,
        ("UPDATE", table) => table,
        _ => return None,
    };
    (!words.any(|word| word.contains("SELECT"))).then(|| table.to_owned())
}

/// The parameters of [`ANY_INTEGERS`], from 0. `None` when a statement has such columns elsewhere than
/// in a list of values.
fn any_integers(text: &str) -> Option<Vec<usize>> {
    let is_any = |column: &str| ANY_INTEGERS.contains(&column);
    if !text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_any) {
        return Some(Vec::new());
    }
    let insert = text.trim_start().strip_prefix("INSERT INTO ")?;
    let (columns, rest) = insert.split_once('(')?.1.split_once(')')?;
    let (values, rest) = split_at_closing(rest.trim_start().strip_prefix("VALUES (")?)?;
    if values.contains('(') || rest.contains('$') {
        return None;
    }
    let row = columns.split(',').zip(values.split(','));
    let any = row.filter(|(column, _)| is_any(column.trim()));
    any.map(|(_, value)| value.trim().strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1))
        .collect()
}

/// Translates a statement to the dialect of PostgreSQL.
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
    let (table, any_integers) = (changed_table(&text), any_integers(&text));
    Translation { text, numbered, table, any_integers }
}

/// Translates the tables and indexes of an SQLite schema, without its comments. Texts are compared
/// by bytes, as SQLite does.
pub(super) fn schema(sqlite: &str) -> String {
    let code = |line: &str| line.split("--").next().unwrap_or_default().trim_end().to_owned();
    let code: Vec<String> = sqlite.lines().map(code).filter(|line| !line.is_empty()).collect();
    let mut text = code.join("\n");
    for (sqlite, postgres) in [
        (") STRICT, WITHOUT ROWID;", ");"),
        (") STRICT;", ");"),
        (
            "INTEGER PRIMARY KEY AUTOINCREMENT",
            "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        ),
        (" INTEGER", " BIGINT"),
        (" BLOB", " BYTEA"),
        (" TEXT", " TEXT COLLATE \"C\""),
    ] {
        text = text.replace(sqlite, postgres);
    }
    text
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

/// A text as it is stored, in hexadecimal digits.
pub(crate) fn encode(text: &str) -> String {
    escape(text).bytes().map(|byte| format!("{byte:02x}")).collect()
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

    #[test]
    fn statement_for_many_rows_has_an_array_for_each_parameter() {
        let insert = translate(
            "INSERT INTO notes (a, b, c) VALUES (?1, coalesce(?2, ?11), 0) ON CONFLICT DO NOTHING",
        );
        let types = [Type::INT8, Type::TEXT];
        assert_eq!(
            insert.many_rows(&types, 1, &[]).unwrap(),
            "INSERT INTO notes (a, b, c) SELECT new.p1, coalesce(new.p2, new.p11), 0 \
             FROM unnest($1::BIGINT[], $2::TEXT[] COLLATE \"C\") AS new(p1, p2) ON CONFLICT DO NOTHING"
        );
        let update = translate("UPDATE notes SET a = a + ?2 WHERE seq = ?1 AND b = 3");
        assert_eq!(
            update.many_rows(&types, 4, &[]).unwrap(),
            "UPDATE notes SET a = a + new.p2 \
             FROM unnest($4::BIGINT[], $5::TEXT[] COLLATE \"C\") AS new(p1, p2) \
             WHERE seq = new.p1 AND b = 3"
        );
        for (sql, table) in [
            (
                "INSERT INTO notes (a) VALUES (?1) ON CONFLICT (a) DO UPDATE SET b = 1",
                Some("notes"),
            ),
            ("UPDATE notes SET a = ?1", Some("notes")),
            ("UPDATE notes SET a = ?2 WHERE a = ?1", Some("notes")),
            ("DELETE FROM notes WHERE a = ?1", Some("notes")),
            ("DELETE FROM notes WHERE a IN (SELECT a FROM others)", None),
            ("INSERT INTO notes (a) SELECT a FROM others", None),
        ] {
            let found = translate(sql);
            assert_eq!(found.table.as_deref(), table, "{sql}");
            assert_eq!(found.many_rows(&types, 1, &[]), None, "{sql}");
        }
    }

    #[test]
    fn parameters_of_a_statement_can_start_at_another_number() {
        let found = translate("UPDATE notes SET a = ?12, b = '$' WHERE a = ?1 AND c = ?2");
        let expected = "UPDATE notes SET a = $15, b = '$' WHERE a = $4 AND c = $5";
        assert_eq!(found.renumbered(4, &[]), expected);
    }

    #[test]
    fn relative_numbers_are_replaced_by_the_server() {
        for (table, count) in [(0, 1), (NUMBERED_TABLES.len() - 1, 511)] {
            assert_eq!(split_relative(relative_number(table, count)), Some((table, count)));
        }
        for number in [i64::MIN, -1, 0, 1, RELATIVE - 1] {
            assert_eq!(split_relative(number), None);
        }
        let insert = translate("INSERT INTO notes (a, b) VALUES (?1, ?2)");
        let number = |text: &str| {
            format!(
                "CASE WHEN {text} < 4611686018427387904 THEN {text} \
                 ELSE (SELECT numbers FROM base)[(({text} - 4611686018427387904) >> 32)::INT + 1] \
                 + ({text} & 4294967295) END"
            )
        };
        assert_eq!(
            insert.many_rows(&[Type::INT8, Type::INT8], 3, &[1]).unwrap(),
            format!(
                "INSERT INTO notes (a, b) SELECT new.p1, new.p2 \
                 FROM (SELECT given.p1, {} FROM unnest($3::BIGINT[], $4::BIGINT[]) AS given(p1, p2)) \
                 AS new(p1, p2)",
                number("given.p2")
            )
        );
        assert_eq!(
            insert.renumbered(3, &[1]),
            format!("INSERT INTO notes (a, b) VALUES ($3, {})", number("$4::BIGINT"))
        );
    }

    #[test]
    fn parameters_that_can_be_any_integer_are_found() {
        for (sql, expected) in [
            ("INSERT INTO notes (a, tag, b, target) VALUES (?1, ?2, 0, ?4)", Some(vec![1, 3])),
            ("INSERT INTO notes (a, b) VALUES (?1, ?2)", Some(vec![])),
            ("UPDATE notes SET a = ?1 WHERE tagged = ?2", Some(vec![])),
            ("UPDATE notes SET tag = ?1", None),
            ("INSERT INTO notes (tag) VALUES (coalesce(?1, 0))", None),
        ] {
            assert_eq!(translate(sql).any_integers, expected, "{sql}");
        }
        let sqlite = include_str!("../../migrations/sqlite/0001_initial.sql");
        for column in ANY_INTEGERS {
            let is_column = |line: &str| line.split_whitespace().next() == Some(column);
            assert!(sqlite.lines().any(is_column), "{column}");
        }
    }

    /// A row without a number is rejected by PostgreSQL, while SQLite gives it one.
    #[test]
    fn every_table_with_numbered_rows_is_listed() {
        let sqlite = include_str!("../../migrations/sqlite/0001_initial.sql");
        let mut found = Vec::new();
        let mut table = "";
        for line in sqlite.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["CREATE", "TABLE", name, ..] => table = name,
                // The identity column of PostgreSQL numbers these rows.
                [_, "INTEGER", "PRIMARY", "KEY", "AUTOINCREMENT,", ..] => {}
                [column @ ("id" | "seq"), "INTEGER", "PRIMARY", ..] => found.push((table, column)),
                _ => {}
            }
        }
        // Mails get their numbers when they become visible.
        found.retain(|(table, _)| *table != "mails");
        assert_eq!(found, NUMBERED_TABLES);
    }

    #[test]
    fn tables_of_sqlite_are_translated() {
        let sqlite = "
            -- A table with INTEGER and TEXT in its comment.
            CREATE TABLE notes (
                seq  INTEGER PRIMARY KEY, -- number
                text TEXT    NOT NULL,
                hash BLOB
            ) STRICT;
            CREATE INDEX notes_by_text ON notes (text) WHERE hash IS NOT NULL;
        ";
        let lines = schema(sqlite);
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        assert_eq!(lines[1], "seq  BIGINT PRIMARY KEY,");
        assert_eq!(lines[2], "text TEXT COLLATE \"C\"    NOT NULL,");
        assert_eq!(lines[3..5], ["hash BYTEA", ");"]);
        assert_eq!(lines.len(), 6);
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
