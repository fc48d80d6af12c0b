//! The parts of the index: tables of FTS5, each with the messages of a range of numbers.
//!
//! ```text
//!   messages_1        messages_2      messages_3
//!   1 ──────── 9,120  9,121 ─ 18,004  18,005 ─ 20,331 ◀── new messages
//! ```
//!
//! A search goes from the newest part to the oldest, and stops when it has its page. FTS5 reads the
//! messages of one word lazily, but merges those of all words with a prefix before it returns the
//! first one. A single Chinese character is the prefix of thousands of pairs, so in one table the
//! time of such a search would grow with the number of messages; here it grows with the size of one
//! part. A search for a rare word asks the filter of every part, and looks into few.
//!
//! A part that is full is merged into one segment and gets a filter of its words (`filter.rs`). It
//! does not change any more, except for removals and for rewritten messages.

use std::ops::RangeInclusive;

use monoco_core::search::{SearchPhrase, SearchQuery};
use rusqlite::{Connection, params};

use super::filter;
use super::fts::{execute, numbers as read_numbers, optional};
use super::{IndexedMessage, SearchRange, UNKNOWN_TUNNEL};
use crate::StoreResult;
use crate::sql::rows::limit;
use crate::sqlite::db_error;

/// Prepared statements of one connection: two for each part of an index of some million messages.
pub const MAX_STATEMENTS: usize = 512;

/// Columns of a part. FTS5 stores the first one in the fewest bytes, and most tokens are in the
/// text. The characters behind `tokenchars` occur in marks, and in no other token.
const COLUMNS: &str = "
    text, title, files, authors, chat, marks,
    content = '', contentless_delete = 1, tokenize = \"ascii tokenchars '-_:'\"
";

/// Segments of one level that are merged. More of them mean fewer writes, because a full part is
/// merged as a whole anyway, and more lookups in the newest part. FTS5 has 4.
const MAX_SEGMENTS_PER_LEVEL: u32 = 8;

/// Weights of the columns for relevance, in their order.
const WEIGHTS: &str = "1.0, 4.0, 2.0, 2.0, 1.0, 0.0";

/// The smallest weight of a word that is in more than half of the messages, as in FTS5.
const MIN_WORD_WEIGHT: f64 = 1e-6;

/// When a part is full.
#[derive(Clone, Copy, Debug)]
pub struct PartSize {
    /// Bytes of tokens of a part.
    pub bytes: i64,
    /// A part of a large index has this fraction of all tokens, so that the number of parts grows
    /// with the logarithm of the number of messages.
    pub fraction: i64,
}

impl Default for PartSize {
    fn default() -> Self {
        Self { bytes: 8 << 20, fraction: 64 }
    }
}

/// A part and the numbers of its messages.
#[derive(Clone, Debug)]
struct Part {
    number: i64,
    range: RangeInclusive<i64>,
    /// Blocks of its filter; 0 when it has none.
    blocks: i64,
}

/// All parts, oldest first.
fn list(db: &Connection) -> StoreResult<Vec<Part>> {
    let sql = "SELECT number, first, blocks FROM parts ORDER BY number";
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let starts: Vec<(i64, i64, i64)> =
        rows.and_then(|rows| rows.collect::<rusqlite::Result<_>>()).map_err(db_error)?;
    let ends = starts.iter().skip(1).map(|(_, first, _)| first - 1).chain([i64::MAX]);
    let part = |((number, first, blocks), last): (&(i64, i64, i64), i64)| Part {
        number: *number,
        range: *first..=last,
        blocks: *blocks,
    };
    Ok(starts.iter().zip(ends).map(part).collect())
}

/// Reads the first page of each part.
pub fn check(db: &Connection) -> StoreResult<()> {
    for Part { number, .. } in list(db)? {
        let sql = format!("SELECT rowid FROM messages_{number} LIMIT 1");
        optional(db, &sql, [], |row| row.get::<_, i64>(0))?;
    }
    Ok(())
}

/// Returns the part of a message, with the bytes of its tokens and the blocks of its filter.
fn part_of(db: &Connection, seq: i64) -> StoreResult<Option<(i64, i64, i64)>> {
    let sql =
        "SELECT number, bytes, blocks FROM parts WHERE first <= ?1 ORDER BY number DESC LIMIT 1";
    optional(db, sql, [seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}

/// Inserts a message that the index does not have. Starts a new part when the newest one is full
/// and the message is newer than all others, and returns whether it has.
pub fn insert(db: &Connection, message: &IndexedMessage, size: PartSize) -> StoreResult<bool> {
    let mut is_new = true;
    let number = match part_of(db, message.seq)? {
        None => create(db, 1, i64::MIN)?,
        Some((number, bytes, 0))
            if bytes >= size.bytes && is_full(db, message.seq, bytes, size)? =>
        {
            optimize(db, number)?;
            let blocks = filter::build(db, number)?;
            execute(db, "UPDATE parts SET blocks = ?2 WHERE number = ?1", [number, blocks])?;
            create(db, number + 1, message.seq)?
        }
        Some((number, _, blocks)) => {
            if blocks > 0 {
                filter::add(db, number, blocks, message)?;
            }
            is_new = false;
            number
        }
    };
    let sql = format!(
        "INSERT INTO messages_{number} (rowid, text, title, files, authors, chat, marks)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    );
    let (columns, marks) = (&message.columns, message.marks.join(" "));
    let row = params![
        message.seq,
        columns.text,
        columns.title,
        columns.files,
        columns.authors,
        columns.chat,
        marks
    ];
    execute(db, &sql, row)?;
    let bytes = i64::try_from(message.bytes()).unwrap_or(i64::MAX);
    execute(db, "UPDATE parts SET bytes = bytes + ?2 WHERE number = ?1", [number, bytes])?;
    Ok(is_new)
}

/// Whether a message with the number `seq` starts a new part behind one with `bytes`.
fn is_full(db: &Connection, seq: i64, bytes: i64, size: PartSize) -> StoreResult<bool> {
    let sql = "SELECT sum(bytes) FROM parts";
    let all: i64 = optional(db, sql, [], |row| row.get(0))?.unwrap_or_default();
    // The message itself is already the newest document.
    let newer = "SELECT seq FROM documents WHERE seq > ?1 LIMIT 1";
    let is_newest = optional(db, newer, [seq], |row| row.get::<_, i64>(0))?.is_none();
    let newest = "SELECT first FROM parts ORDER BY number DESC LIMIT 1";
    let first = optional(db, newest, [], |row| row.get::<_, i64>(0))?;
    Ok(bytes >= all / size.fraction && is_newest && first.is_some_and(|first| first < seq))
}

fn create(db: &Connection, number: i64, first: i64) -> StoreResult<i64> {
    db.execute_batch(&format!(
        "CREATE VIRTUAL TABLE messages_{number} USING fts5 ({COLUMNS});
         INSERT INTO messages_{number} (messages_{number}, rank)
         VALUES ('automerge', {MAX_SEGMENTS_PER_LEVEL});"
    ))
    .map_err(db_error)?;
    let sql = "INSERT INTO parts (number, first, bytes, blocks, removed) VALUES (?1, ?2, 0, 0, 0)";
    execute(db, sql, [number, first])?;
    Ok(number)
}

/// Merges the segments of a part, which leaves out removed messages.
fn optimize(db: &Connection, number: i64) -> StoreResult<()> {
    let sql = format!("INSERT INTO messages_{number} (messages_{number}) VALUES ('optimize')");
    db.execute_batch(&sql).map_err(db_error)
}

/// Merges the segments of the parts that had removed messages, and builds their filters again.
pub fn compact(db: &Connection) -> StoreResult<()> {
    let changed = read_numbers(db, "SELECT number FROM parts WHERE removed > 0", [])?;
    for number in changed {
        optimize(db, number)?;
        let sql = "SELECT blocks FROM parts WHERE number = ?1";
        let blocks = optional(db, sql, [number], |row| row.get::<_, i64>(0))?.unwrap_or(0);
        let blocks = if blocks == 0 { 0 } else { filter::build(db, number)? };
        let sql = "UPDATE parts SET blocks = ?2, removed = 0 WHERE number = ?1";
        execute(db, sql, [number, blocks])?;
    }
    Ok(())
}

/// Drops all parts with their messages.
pub fn drop_all(db: &Connection) -> StoreResult<()> {
    for Part { number, .. } in list(db)? {
        db.execute_batch(&format!("DROP TABLE messages_{number}")).map_err(db_error)?;
    }
    db.execute_batch("DELETE FROM parts; DELETE FROM filters;").map_err(db_error)
}

/// Removes a message that the index has.
pub fn remove(db: &Connection, seq: i64) -> StoreResult<()> {
    if let Some((number, ..)) = part_of(db, seq)? {
        execute(db, &format!("DELETE FROM messages_{number} WHERE rowid = ?1"), [seq])?;
        execute(db, "UPDATE parts SET removed = removed + 1 WHERE number = ?1", [number])?;
    }
    Ok(())
}

/// Returns the numbers of the messages in `numbers` that meet a query; `None` when it has no
/// conditions that the parts decide.
pub fn find(
    db: &Connection,
    query: &SearchQuery,
    within: RangeInclusive<i64>,
    range: SearchRange,
) -> StoreResult<Option<Vec<i64>>> {
    let Some(expression) = expression(query, phrase_expression) else { return Ok(None) };
    // FTS5 would merge all words with a prefix also in a part that has no message with the other
    // words of the query.
    let required = expression_of_words(query);
    let required = required.filter(|required| *required != expression);
    let words = filter::words_of_query(query);
    let mut parts = list(db)?;
    if range.newest_first {
        parts.reverse();
    }
    let order = if range.newest_first { "DESC" } else { "ASC" };
    let mut found = Vec::new();
    for Part { number, range: numbers, blocks } in parts {
        let (from, to) = (*numbers.start().max(within.start()), *numbers.end().min(within.end()));
        let rest = range.limit - found.len();
        if rest == 0 {
            break;
        }
        if from > to || !filter::can_have(db, number, blocks, &words)? {
            continue;
        }
        let sql = format!(
            "SELECT rowid FROM messages_{number}
              WHERE messages_{number} MATCH ?1 AND rowid >= ?2 AND rowid <= ?3
              ORDER BY rowid {order} LIMIT ?4"
        );
        let find = |expression: &str, most: usize| {
            read_numbers(db, &sql, params![expression, from, to, limit(most)])
        };
        let is_possible = match &required {
            Some(required) => !find(required, 1)?.is_empty(),
            None => true,
        };
        if is_possible {
            found.extend(find(&expression, rest)?);
        }
    }
    Ok(Some(found))
}

/// Sorts messages by how well they meet the phrases of a query, the best one first. `found` has the
/// newest first.
///
/// The score is that of BM25. FTS5 weighs a word by the number of messages of its part that have
/// it, which would rank messages of a small part by chance. So the scores of each phrase are divided
/// by the weight in their part, and multiplied by one weight for all parts.
pub fn rank(db: &Connection, query: &SearchQuery, found: Vec<i64>) -> StoreResult<Vec<i64>> {
    let mut parts = list(db)?;
    parts.retain(|part| found.iter().any(|seq| part.range.contains(seq)));
    let (Some(newest), Some(oldest)) = (found.first(), found.last()) else { return Ok(found) };
    let mut counted = Vec::with_capacity(parts.len());
    for part in &parts {
        let sql = format!("SELECT count(*) FROM messages_{}_docsize", part.number);
        let messages: u32 = optional(db, &sql, [], |row| row.get(0))?.unwrap_or_default();
        counted.push((part, f64::from(messages)));
    }
    let mut scores = vec![0.0; found.len()];
    for phrase in &query.phrases {
        let expression = phrase_expression("", phrase).unwrap_or_default();
        let mut phrase_scores = vec![0.0; found.len()];
        let mut all = PhraseCount::default();
        for (Part { number, range, .. }, messages) in &counted {
            let count = PhraseCount::read(db, *number, &expression, *messages)?;
            let sql = format!(
                "SELECT rowid, bm25(messages_{number}, {WEIGHTS}) FROM messages_{number}
                  WHERE messages_{number} MATCH ?1 AND rowid >= ?2 AND rowid <= ?3"
            );
            let mut statement = db.prepare_cached(&sql).map_err(db_error)?;
            let (from, to) = (range.start().max(oldest), range.end().min(newest));
            let mut rows = statement.query(params![expression, from, to]).map_err(db_error)?;
            while let Some(row) = rows.next().map_err(db_error)? {
                let (seq, score): (i64, f64) =
                    row.get(0).and_then(|seq| Ok((seq, row.get(1)?))).map_err(db_error)?;
                if let Ok(at) = found.binary_search_by(|other| seq.cmp(other)) {
                    phrase_scores[at] = -score / count.weight();
                }
            }
            all.messages += count.messages;
            all.hits += count.hits;
        }
        for (score, of_phrase) in scores.iter_mut().zip(phrase_scores) {
            *score += of_phrase * all.weight();
        }
    }
    let mut ranked: Vec<(f64, i64)> = scores.into_iter().zip(found).collect();
    ranked.sort_by(|(score, seq), (other_score, other)| {
        other_score.total_cmp(score).then_with(|| other.cmp(seq))
    });
    Ok(ranked.into_iter().map(|(_, seq)| seq).collect())
}

/// How many messages have a phrase.
#[derive(Clone, Copy, Default)]
struct PhraseCount {
    messages: f64,
    hits: f64,
}

impl PhraseCount {
    fn read(db: &Connection, number: i64, expression: &str, messages: f64) -> StoreResult<Self> {
        let sql =
            format!("SELECT count(*) FROM messages_{number} WHERE messages_{number} MATCH ?1");
        let hits: u32 = optional(db, &sql, [expression], |row| row.get(0))?.unwrap_or_default();
        Ok(Self { messages, hits: hits.into() })
    }

    /// The weight of the phrase, as FTS5 computes it: rare phrases count more.
    fn weight(self) -> f64 {
        ((self.messages - self.hits + 0.5) / (self.hits + 0.5)).ln().max(MIN_WORD_WEIGHT)
    }
}

/// Returns the expression of FTS5 for a query; `None` when every message meets it. `of_phrase` gets
/// the column, or nothing for all of them.
fn expression(
    query: &SearchQuery,
    of_phrase: fn(&str, &SearchPhrase) -> Option<String>,
) -> Option<String> {
    let mut all = Vec::new();
    for (column, phrases) in
        [("", &query.phrases), ("authors : ", &query.from), ("chat : ", &query.chat)]
    {
        all.extend(phrases.iter().filter_map(|phrase| of_phrase(column, phrase)));
    }
    all.extend(query.has.iter().map(|mark| format!("marks : \":has:{}\"", mark.as_str())));
    all.extend(
        query.tunnels.iter().map(|tunnel| {
            format!("(marks : \":tunnel:{tunnel}\" OR marks : \"{UNKNOWN_TUNNEL}\")")
        }),
    );
    (!all.is_empty()).then(|| all.join(" AND "))
}

/// The expression of a query without prefixes, which its messages meet too.
fn expression_of_words(query: &SearchQuery) -> Option<String> {
    expression(query, |column, phrase| {
        let words = phrase.tokens.len() - usize::from(phrase.is_prefix);
        let tokens = phrase.tokens[..words].to_vec();
        let without = SearchPhrase { tokens, is_prefix: false };
        (words > 0).then(|| phrase_expression(column, &without)).flatten()
    })
}

/// Tokens have letters, digits and characters beyond ASCII only: nothing to escape. Marks start with
/// a colon, so that no word or prefix finds them.
fn phrase_expression(column: &str, phrase: &SearchPhrase) -> Option<String> {
    let star = if phrase.is_prefix { " *" } else { "" };
    Some(format!("{column}\"{}\"{star}", phrase.tokens.join(" ")))
}
