//! Encodes and decodes text in the charsets of mail.

use std::borrow::Cow;

use encoding_rs::{
    BIG5, EUC_JP, EUC_KR, Encoding, GB18030, GBK, ISO_2022_JP, SHIFT_JIS, UTF_8, WINDOWS_1252,
};
use memchr::memmem;

use super::utf7;

/// A charset, as a mail names it.
///
/// The tables of the WHATWG encoding standard decode older names as their larger
/// successors: `iso-8859-1` as `windows-1252`, `gb2312` as `gbk`. That is right for
/// reading. For writing, only bytes of the named charset are used, because other readers
/// may not know the successor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charset {
    encoding: &'static Encoding,
    reach: CharsetCoverage,
}

/// Which bytes may be written for a charset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CharsetCoverage {
    All,
    Ascii,
    /// Not 0x80 to 0x9F, which are control characters in ISO 8859.
    Iso8859,
    /// Pairs from 0xA1 to 0xF7 and 0xFE only, as in GB 2312 and KS X 1001.
    Pairs,
    /// Without the extensions of ETEN and Hong Kong.
    Big5,
    /// JIS X 0208 without the extensions of NEC and IBM.
    Jis,
    /// UTF-7, which is read and never written.
    Utf7,
}

impl Charset {
    /// UTF-8, which every reader supports.
    pub const UTF_8: Self = Self { encoding: UTF_8, reach: CharsetCoverage::All };

    /// Finds a charset by name. `None` stands for ASCII.
    pub fn find(name: Option<&[u8]>) -> Option<Self> {
        let Some(name) = name else {
            return Some(Self { encoding: WINDOWS_1252, reach: CharsetCoverage::Ascii });
        };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        // Some senders quote the name twice, or leave a semicolon in it.
        let name = name.trim_matches(|c: char| c.is_whitespace() || "'\";,".contains(c));
        if matches!(name, "utf-7" | "utf7" | "unicode-1-1-utf-7" | "csutf7") {
            return Some(Self { encoding: UTF_8, reach: CharsetCoverage::Utf7 });
        }
        let encoding =
            Encoding::for_label_no_replacement(name.as_bytes()).or_else(|| other_name(name))?;
        let reach = match encoding.name() {
            "windows-1252" if name.contains("ascii") || name.contains("x3.4") => {
                CharsetCoverage::Ascii
            }
            "windows-1252" if !name.contains("1252") => CharsetCoverage::Iso8859,
            "windows-1254" if !name.contains("1254") => CharsetCoverage::Iso8859,
            "windows-874" if !name.contains("874") => CharsetCoverage::Iso8859,
            "GBK" if name.contains("2312") => CharsetCoverage::Pairs,
            "EUC-KR" if !name.contains("949") => CharsetCoverage::Pairs,
            "Big5" => CharsetCoverage::Big5,
            "EUC-JP" | "ISO-2022-JP" => CharsetCoverage::Jis,
            "Shift_JIS" if !name.contains("31j") && !name.contains("932") => CharsetCoverage::Jis,
            _ => CharsetCoverage::All,
        };
        Some(Self { encoding, reach })
    }

    /// Whether text can be appended byte by byte. Not in UTF-16, which has a byte order
    /// and surrogates.
    pub fn can_append(self) -> bool {
        self.reach != CharsetCoverage::Utf7
            && (self.encoding.is_ascii_compatible() || self.encoding == ISO_2022_JP)
    }

    /// Whether ASCII text has the same bytes as in UTF-8.
    pub fn has_ascii(self) -> bool {
        self.reach != CharsetCoverage::Utf7 && self.encoding.is_ascii_compatible()
    }

    /// Encodes a text; `None` when the charset lacks a character.
    pub fn encode(self, text: &str) -> Option<Vec<u8>> {
        let (bytes, _, is_short) = self.encoding.encode(text);
        let fits = match self.reach {
            CharsetCoverage::All => true,
            CharsetCoverage::Ascii => bytes.is_ascii(),
            CharsetCoverage::Iso8859 => !bytes.iter().any(|byte| (0x80..0xA0).contains(byte)),
            CharsetCoverage::Pairs => pairs(&bytes).all(is_national),
            CharsetCoverage::Big5 => pairs(&bytes).all(is_big5),
            CharsetCoverage::Jis => pairs(&EUC_JP.encode(text).0).all(is_jis),
            CharsetCoverage::Utf7 => false,
        };
        // WHATWG GBK encodes the euro sign in one byte; other GBK readers do not know it.
        let euro = self.encoding == GBK && text.contains('€');
        let is_whole = fits && !is_short && !euro && self.decode(&bytes) == text;
        is_whole.then(|| bytes.into_owned())
    }

    /// Decodes bytes; malformed ones become replacement characters.
    pub fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self.reach {
            CharsetCoverage::Utf7 => Cow::Owned(utf7::decode(bytes)),
            _ => self.encoding.decode_without_bom_handling(bytes).0,
        }
    }
}

/// Names of mail programs that the WHATWG standard does not list.
fn other_name(name: &str) -> Option<&'static Encoding> {
    Some(match name {
        "cp936" | "ms936" | "windows-936" | "euc-cn" | "gb-2312" => GBK,
        "gb-18030" => GB18030,
        "cp950" | "ms950" | "windows-950" => BIG5,
        "cp932" | "cp943" => SHIFT_JIS,
        "eucjp" | "eucjp-ms" | "cp51932" => EUC_JP,
        "cp949" | "ms949" | "uhc" | "euckr" => EUC_KR,
        "latin-1" | "8859-1" | "iso-8859" => WINDOWS_1252,
        "utf-8mb4" | "utf8mb4" | "utf_8" => UTF_8,
        _ => return None,
    })
}

/// Decodes a text by the charset that the mail names, without a byte order mark.
///
/// Texts without a charset, in an unknown one, or in ASCII that has other bytes, are decoded
/// by [`decode_unnamed`].
pub(super) fn decode_named<'b>(name: Option<&[u8]>, bytes: &'b [u8]) -> Cow<'b, str> {
    let charset = name.and_then(|name| Charset::find(Some(name)));
    let text = match charset.filter(|charset| charset.reach != CharsetCoverage::Ascii) {
        // The mark tells the byte order; the name `utf-16` does not.
        Some(charset) if charset.encoding.name().starts_with("UTF-16") => {
            charset.encoding.decode(bytes).0
        }
        Some(charset) => charset.decode(bytes),
        None => decode_unnamed(bytes, None),
    };
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.strip_prefix(MARK).unwrap_or(text)),
        Cow::Owned(text) if text.starts_with(MARK) => {
            Cow::Owned(text[MARK.len_utf8()..].to_owned())
        }
        text => text,
    }
}

/// The byte order mark, decoded.
const MARK: char = '\u{feff}';

/// Decodes bytes whose charset is not named: as UTF-8 when they are, then in the charset
/// that the mail names elsewhere, else as GB 18030 or windows-1252, whichever is likely.
pub(super) fn decode_unnamed(bytes: &[u8], hint: Option<Charset>) -> Cow<'_, str> {
    // Japanese mail programs write ISO-2022-JP, which has no byte beyond ASCII.
    if memmem::find(bytes, b"\x1b$").is_some()
        && let Some(text) = ISO_2022_JP.decode_without_bom_handling_and_without_replacement(bytes)
    {
        return text;
    }
    if is_utf8(bytes) {
        return String::from_utf8_lossy(bytes);
    }
    let hint = hint.filter(|hint| hint.has_ascii() && hint.reach != CharsetCoverage::Ascii);
    if let Some(hint) = hint
        && let Some(text) = hint.encoding.decode_without_bom_handling_and_without_replacement(bytes)
    {
        return text;
    }
    let encoding = if is_likely_gb(bytes) { GB18030 } else { WINDOWS_1252 };
    encoding.decode_without_bom_handling(bytes).0
}

/// Whether bytes are UTF-8 with at most a few damaged characters.
fn is_utf8(bytes: &[u8]) -> bool {
    // A text that was cut may end inside of a character.
    if str::from_utf8(bytes).err().is_none_or(|error| error.error_len().is_none()) {
        return true;
    }
    let (mut good, mut damaged) = (0_usize, 0_usize);
    for chunk in bytes.utf8_chunks() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        damaged += usize::from(!chunk.invalid().is_empty());
    }
    good >= 8 * damaged
}

/// Whether all bytes beyond ASCII are pairs in the rows that GB 2312 uses. Text in a Western
/// language has single ones.
fn is_likely_gb(bytes: &[u8]) -> bool {
    let mut pair_count = 0;
    for run in bytes.split(u8::is_ascii).filter(|run| !run.is_empty()) {
        let (pairs, rest) = run.as_chunks::<2>();
        let is_gb = |pair: &[u8; 2]| matches!(pair, [0xA1..=0xA9 | 0xB0..=0xF7, 0xA1..=0xFE]);
        if !rest.is_empty() || !pairs.iter().all(is_gb) {
            return false;
        }
        pair_count += pairs.len();
    }
    pair_count >= 2
}

/// The two-byte characters; other bytes are ASCII.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = (u8, u8)> {
    let mut rest = bytes.iter().copied();
    std::iter::from_fn(move || {
        let lead = rest.find(|byte| !byte.is_ascii())?;
        Some((lead, rest.next().unwrap_or_default()))
    })
}

fn is_national((lead, trail): (u8, u8)) -> bool {
    (0xA1..=0xF7).contains(&lead) && trail >= 0xA1
}

fn is_big5((lead, trail): (u8, u8)) -> bool {
    match lead {
        0xA1..=0xC5 | 0xC9..=0xF8 => true,
        0xC6 => trail <= 0x7E,
        0xF9 => trail <= 0xD5,
        _ => false,
    }
}

fn is_jis((lead, _): (u8, u8)) -> bool {
    matches!(lead, 0x8E | 0xA1..=0xA8 | 0xB0..=0xF4)
}
