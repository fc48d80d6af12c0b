//! Which parts can have a word: a Bloom filter of the words of each full part.
//!
//! FTS5 reads several pages of a part before it knows that the part does not have a word. A filter
//! has 12 bits for each word, and one row of it tells that a word is not there; with 1 of about 250
//! words it cannot tell, and the part is searched. The bits of a word are in one block, and a block
//! is one row.

use monoco_core::search::{SearchPhrase, SearchQuery};
use rusqlite::{Connection, params};

use super::IndexedMessage;
use super::fts::{execute, optional};
use crate::StoreResult;
use crate::sqlite::db_error;

/// Bytes of one block.
const BLOCK_BYTES: usize = 1_024;

/// Bits of a filter for each of its words.
const BITS_PER_WORD: usize = 12;

/// Bits that one word sets.
const BITS_SET: u64 = 6;

/// Stands before the first character of words. No word starts with it.
const FIRST_CHARACTER: &str = "^";

/// A word in a filter: the number that its block and its bits are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterWord(u64);

impl FilterWord {
    fn new(parts: [&str; 2]) -> Self {
        // FNV-1a, and the last step of SplitMix64, which spreads the bits.
        let bytes = parts.iter().flat_map(|part| part.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(hash ^ (hash >> 31))
    }

    /// A token of a text, or a mark.
    fn token(token: &str) -> Self {
        Self::new([token, ""])
    }

    /// All tokens that start with a character. Only for characters beyond ASCII: a single Chinese
    /// character is searched for in this way.
    fn first_character(token: &str) -> Option<Self> {
        let first = token.chars().next().filter(|first| !first.is_ascii())?;
        Some(Self::new([FIRST_CHARACTER, first.encode_utf8(&mut [0; 4])]))
    }

    /// The words of a filter that stand for a token.
    fn all_of(token: &str) -> impl Iterator<Item = Self> {
        [Some(Self::token(token)), Self::first_character(token)].into_iter().flatten()
    }

    fn block(self, blocks: i64) -> i64 {
        // The high half, because the low half selects the bits.
        i64::try_from(self.0 >> 32).unwrap_or(0) % blocks.max(1)
    }

    /// Byte and mask of each bit in its block.
    fn bits(self) -> impl Iterator<Item = (usize, u8)> {
        let (start, step) = (self.0 & 0xffff, (self.0 >> 16) & 0xffff | 1);
        (0..BITS_SET).map(move |n| {
            let bit = usize::try_from(start + n * step).unwrap_or(0) % (BLOCK_BYTES * 8);
            (bit / 8, 1 << (bit % 8))
        })
    }

    fn set(self, block: &mut [u8]) {
        for (byte, mask) in self.bits() {
            if let Some(byte) = block.get_mut(byte) {
                *byte |= mask;
            }
        }
    }

    fn is_set(self, block: &[u8]) -> bool {
        self.bits().all(|(byte, mask)| block.get(byte).is_some_and(|byte| byte & mask != 0))
    }
}

/// The words that every message has that meets a query.
pub fn words_of_query(query: &SearchQuery) -> Vec<FilterWord> {
    let of_phrase = |phrase: &SearchPhrase| {
        let whole = phrase.tokens.len() - usize::from(phrase.is_prefix);
        let (whole, prefix) = phrase.tokens.split_at(whole);
        // Of a longer prefix, the first character says enough.
        let prefix = prefix.iter().filter_map(|token| FilterWord::first_character(token));
        whole.iter().map(|token| FilterWord::token(token)).chain(prefix).collect::<Vec<_>>()
    };
    let phrases = [&query.phrases, &query.from, &query.chat].into_iter().flatten();
    let marks = query.has.iter().map(|mark| FilterWord::token(&format!(":has:{}", mark.as_str())));
    phrases.flat_map(of_phrase).chain(marks).collect()
}

/// Stores the filter of a part that is full, in place of an older one. Returns the number of its
/// blocks.
pub fn build(db: &Connection, part: i64) -> StoreResult<i64> {
    db.execute_batch(&format!(
        "CREATE VIRTUAL TABLE temp.part_words USING fts5vocab (main, messages_{part}, row)"
    ))
    .map_err(db_error)?;
    let words = read_words(db);
    db.execute_batch("DROP TABLE temp.part_words").map_err(db_error)?;
    let words = words?;
    let count = (words.len() * BITS_PER_WORD).div_ceil(BLOCK_BYTES * 8).max(1);
    let blocks = i64::try_from(count).unwrap_or(i64::MAX);
    let mut filter = vec![[0; BLOCK_BYTES]; count];
    for word in words {
        if let Some(block) =
            usize::try_from(word.block(blocks)).ok().and_then(|at| filter.get_mut(at))
        {
            word.set(block);
        }
    }
    execute(db, "DELETE FROM filters WHERE part = ?1", [part])?;
    for (block, bits) in (0_i64..).zip(&filter) {
        put(db, part, block, bits)?;
    }
    Ok(blocks)
}

/// Reads the words of the table `temp.part_words`.
fn read_words(db: &Connection) -> StoreResult<Vec<FilterWord>> {
    let mut words = Vec::new();
    let mut statement = db.prepare("SELECT term FROM temp.part_words").map_err(db_error)?;
    let mut rows = statement.query([]).map_err(db_error)?;
    while let Some(row) = rows.next().map_err(db_error)? {
        let term = row.get_ref(0).map_err(db_error)?;
        // A term that is not UTF-8 is of no text, so that no query finds it.
        words.extend(term.as_str().into_iter().flat_map(FilterWord::all_of));
    }
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

/// Adds the words of a message that was inserted into a part with a filter.
pub fn add(db: &Connection, part: i64, blocks: i64, message: &IndexedMessage) -> StoreResult<()> {
    let columns = &message.columns;
    let texts = [&columns.title, &columns.text, &columns.files, &columns.authors, &columns.chat];
    let tokens = texts.into_iter().flat_map(|text| text.split(' '));
    for word in tokens.chain(message.marks.iter().map(String::as_str)).flat_map(FilterWord::all_of)
    {
        let block = word.block(blocks);
        if let Some(mut bits) = get(db, part, block)?.filter(|bits| !word.is_set(bits)) {
            word.set(&mut bits);
            put(db, part, block, &bits)?;
        }
    }
    Ok(())
}

/// Whether a part can have messages with all of the words. A part without a filter can.
pub fn can_have(
    db: &Connection,
    part: i64,
    blocks: i64,
    words: &[FilterWord],
) -> StoreResult<bool> {
    if blocks == 0 {
        return Ok(true);
    }
    for word in words {
        if get(db, part, word.block(blocks))?.is_some_and(|bits| !word.is_set(&bits)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn get(db: &Connection, part: i64, block: i64) -> StoreResult<Option<Vec<u8>>> {
    let sql = "SELECT bits FROM filters WHERE part = ?1 AND block = ?2";
    optional(db, sql, [part, block], |row| row.get(0))
}

fn put(db: &Connection, part: i64, block: i64, bits: &[u8]) -> StoreResult<()> {
    let sql = "
        INSERT INTO filters (part, block, bits) VALUES (?1, ?2, ?3)
            ON CONFLICT (part, block) DO UPDATE SET bits = excluded.bits
    ";
    execute(db, sql, params![part, block, bits])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_has_its_words_and_few_others() {
        let blocks = 20;
        let mut filter = vec![[0; BLOCK_BYTES]; 20];
        let words = usize::try_from(blocks).unwrap() * BLOCK_BYTES * 8 / BITS_PER_WORD;
        let word = |number: usize| FilterWord::token(&format!("id{number}"));
        for number in 0..words {
            let block = usize::try_from(word(number).block(blocks)).unwrap();
            word(number).set(&mut filter[block]);
        }
        let is_set = |number: &usize| {
            word(*number).is_set(&filter[usize::try_from(word(*number).block(blocks)).unwrap()])
        };
        assert_eq!((0..words).filter(is_set).count(), words);
        let others = (words..2 * words).filter(is_set).count();
        assert!(others * 100 < words, "{others} of {words}");
    }

    #[test]
    fn single_character_is_a_word_of_the_filter_and_prefix_of_ascii_is_none() {
        let words = |text: &str| {
            words_of_query(
                &SearchQuery::parse(text, monoco_core::time::Timestamp::from_ms(0)).unwrap(),
            )
        };
        assert!(FilterWord::all_of("部署").any(|word| words("部") == [word]));
        assert!(!FilterWord::all_of("部署").any(|word| words("署") == [word]));
        assert_eq!(words("depl*"), []);
        assert_eq!(words("red has:image from:ann").len(), 3);
    }
}
