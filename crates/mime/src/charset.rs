//! Encodes and decodes text in the charsets of mail.

use std::borrow::Cow;

use encoding_rs::{EUC_JP, Encoding, GBK, ISO_2022_JP, UTF_8, WINDOWS_1252};

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
}

impl Charset {
    /// ASCII, which every reader supports.
    pub const UTF_8: Self = Self { encoding: UTF_8, reach: CharsetCoverage::All };

    /// Finds a charset by name. `None` stands for ASCII.
    pub fn find(name: Option<&[u8]>) -> Option<Self> {
        let Some(name) = name else {
            return Some(Self { encoding: WINDOWS_1252, reach: CharsetCoverage::Ascii });
        };
        let encoding = Encoding::for_label_no_replacement(name)?;
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
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
        self.encoding.is_ascii_compatible() || self.encoding == ISO_2022_JP
    }

    /// Whether ASCII text has the same bytes as in UTF-8.
    pub fn has_ascii(self) -> bool {
        self.encoding.is_ascii_compatible()
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
        };
        // WHATWG GBK encodes the euro sign in one byte; other GBK readers do not know it.
        let euro = self.encoding == GBK && text.contains('€');
        let is_whole = fits && !is_short && !euro && self.decode(&bytes) == text;
        is_whole.then(|| bytes.into_owned())
    }

    /// Decodes bytes; malformed ones become replacement characters.
    pub fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        self.encoding.decode_without_bom_handling(bytes).0
    }
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
