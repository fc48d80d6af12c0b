//! Character references of HTML: `&amp;`, `&#8364;`, `&#x20AC;`.
//!
//! Has the names of HTML 4 and those of HTML 5 that mail programs write; other names stay as
//! written.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// Names and code points in hexadecimal.
const NAMES: &str = "\
     AElig C6 AMP 26 Aacute C1 Acirc C2 Agrave C0 Alpha 391 Aogon 104 Aring C5 Atilde C3 Auml \
     C4 Beta 392 COPY A9 Cacute 106 Ccaron 10C Ccedil C7 Chi 3A7 Dagger 2021 Delta 394 ETH D0 \
     Eacute C9 Ecirc CA Egrave C8 Eogon 118 Epsilon 395 Eta 397 Euml CB GT 3E Gamma 393 \
     Gbreve 11E Hat 5E Iacute CD Icirc CE Idot 130 Igrave CC Iota 399 Iuml CF Kappa 39A LT 3C \
     Lambda 39B Lstrok 141 Mu 39C Nacute 143 NewLine A NoBreak 2060 Ntilde D1 Nu 39D OElig \
     152 Oacute D3 Ocirc D4 Ograve D2 Omega 3A9 Omicron 39F Oslash D8 Otilde D5 Ouml D6 Phi \
     3A6 Pi 3A0 Prime 2033 Psi 3A8 QUOT 22 REG AE Rho 3A1 Sacute 15A Scaron 160 Scedil 15E \
     Sigma 3A3 THORN DE Tab 9 Tau 3A4 Theta 398 Uacute DA Ucirc DB Ugrave D9 Upsilon 3A5 Uuml \
     DC Xi 39E Yacute DD Yuml 178 Zacute 179 Zcaron 17D Zdot 17B ZeroWidthSpace 200B Zeta 396 \
     aacute E1 abreve 103 acirc E2 acute B4 aelig E6 agrave E0 alefsym 2135 alpha 3B1 amp 26 \
     and 2227 ang 2220 aogon 105 apos 27 aring E5 ast 2A asymp 2248 atilde E3 auml E4 bdquo \
     201E beta 3B2 bigstar 2605 block 2588 brvbar A6 bsol 5C bull 2022 cacute 107 cap 2229 \
     ccaron 10D ccedil E7 cedil B8 cent A2 check 2713 chi 3C7 circ 2C6 clubs 2663 colon 3A \
     comma 2C commat 40 cong 2245 copy A9 copysr 2117 crarr 21B5 cross 2717 cup 222A curren \
     A4 dArr 21D3 dagger 2020 darr 2193 dash 2010 deg B0 delta 3B4 diams 2666 divide F7 \
     dollar 24 eacute E9 ecaron 11B ecirc EA egrave E8 empty 2205 emsp 2003 ensp 2002 eogon \
     119 epsilon 3B5 equals 3D equiv 2261 eta 3B7 eth F0 euml EB euro 20AC excl 21 exist 2203 \
     female 2640 fnof 192 forall 2200 frac12 BD frac14 BC frac34 BE frasl 2044 gamma 3B3 \
     gbreve 11F ge 2265 grave 60 gt 3E hArr 21D4 harr 2194 hearts 2665 hellip 2026 horbar \
     2015 hyphen 2010 iacute ED icirc EE iexcl A1 igrave EC image 2111 incare 2105 infin 221E \
     inodot 131 int 222B iota 3B9 iquest BF isin 2208 iuml EF kappa 3BA lArr 21D0 lambda 3BB \
     laquo AB larr 2190 lbrace 7B lceil 2308 lcub 7B ldquo 201C le 2264 lfloor 230A lowast \
     2217 lowbar 5F loz 25CA lpar 28 lrm 200E lsaquo 2039 lsqb 5B lsquo 2018 lstrok 142 lt 3C \
     macr AF male 2642 mdash 2014 micro B5 middot B7 minus 2212 mu 3BC nabla 2207 nacute 144 \
     nbsp A0 ndash 2013 ne 2260 ni 220B not AC notin 2209 nsub 2284 ntilde F1 nu 3BD num 23 \
     numero 2116 oacute F3 ocirc F4 odblac 151 oelig 153 ograve F2 oline 203E omega 3C9 \
     omicron 3BF oplus 2295 or 2228 ordf AA ordm BA oslash F8 otilde F5 otimes 2297 ouml F6 \
     para B6 part 2202 percnt 25 period 2E permil 2030 perp 22A5 phi 3C6 phone 260E pi 3C0 \
     piv 3D6 plus 2B plusmn B1 pound A3 prime 2032 prod 220F prop 221D psi 3C8 quest 3F quot \
     22 rArr 21D2 radic 221A raquo BB rarr 2192 rbrace 7D rcaron 159 rceil 2309 rcub 7D rdquo \
     201D real 211C reg AE rfloor 230B rho 3C1 rlm 200F rpar 29 rsaquo 203A rsqb 5D rsquo \
     2019 sacute 15B sbquo 201A scaron 161 scedil 15F sdot 22C5 sect A7 semi 3B shy AD sigma \
     3C3 sigmaf 3C2 sim 223C sol 2F spades 2660 star 2606 starf 2605 sub 2282 sube 2286 sum \
     2211 sup 2283 sup1 B9 sup2 B2 sup3 B3 supe 2287 szlig DF tau 3C4 tcedil 163 there4 2234 \
     theta 3B8 thetasym 3D1 thinsp 2009 thorn FE tilde 2DC times D7 trade 2122 uArr 21D1 \
     uacute FA uarr 2191 ucirc FB udblac 171 ugrave F9 uml A8 upsih 3D2 upsilon 3C5 uring 16F \
     uuml FC verbar 7C vert 7C weierp 2118 xi 3BE yacute FD yen A5 yuml FF zacute 17A zcaron \
     17E zdot 17C zeta 3B6 zwj 200D zwnj 200C";
/// Names that count also without a semicolon.
const WITHOUT_SEMICOLON: &str = "\
     AElig AMP Aacute Acirc Agrave Aring Atilde Auml COPY Ccedil ETH Eacute Ecirc Egrave Euml \
     GT Iacute Icirc Igrave Iuml LT Ntilde Oacute Ocirc Ograve Oslash Otilde Ouml QUOT REG \
     THORN Uacute Ucirc Ugrave Uuml Yacute aacute acirc acute aelig agrave amp aring atilde \
     auml brvbar ccedil cedil cent copy curren deg divide eacute ecirc egrave eth euml frac12 \
     frac14 frac34 gt iacute icirc iexcl igrave iquest iuml laquo lt macr micro middot nbsp \
     not ntilde oacute ocirc ograve ordf ordm oslash otilde ouml para plusmn pound quot raquo \
     reg sect shy sup1 sup2 sup3 szlig thorn times uacute ucirc ugrave uml uuml yacute yen \
     yuml";

/// Longest name of a reference, in bytes.
const MAX_NAME: usize = 16;
/// Longest name that counts without a semicolon, in bytes.
const MAX_LEGACY_NAME: usize = 6;

static TABLE: LazyLock<HashMap<&str, char>> = LazyLock::new(|| {
    let mut words = NAMES.split_whitespace();
    let mut table = HashMap::new();
    while let (Some(name), Some(code)) = (words.next(), words.next()) {
        let code = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        table.extend(code.map(|c| (name, c)));
    }
    table
});

static LEGACY: LazyLock<HashSet<&str>> =
    LazyLock::new(|| WITHOUT_SEMICOLON.split_whitespace().collect());

/// Replaces the references in a text. In an attribute, `&copy=1` is part of a link.
pub(super) fn decode(text: &str, in_attribute: bool) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match reference(&rest[1..], in_attribute) {
            Some((c, length)) => {
                out.push(c);
                rest = &rest[1 + length..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The character of the reference that starts here, behind its `&`, and its length.
fn reference(text: &str, in_attribute: bool) -> Option<(char, usize)> {
    if let Some(number) = text.strip_prefix('#') {
        let is_hex = number.starts_with(['x', 'X']);
        let digits = &number[usize::from(is_hex)..];
        let radix = if is_hex { 16 } else { 10 };
        let length = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        if length == 0 {
            return None;
        }
        let code = u32::from_str_radix(&digits[..length], radix).unwrap_or(u32::MAX);
        let end = 1 + usize::from(is_hex) + length;
        return Some((character(code), end + usize::from(text[end..].starts_with(';'))));
    }
    let window = &text[..text.floor_char_boundary(MAX_NAME)];
    let length = window.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(window.len());
    let name = &text[..length];
    if text[length..].starts_with(';')
        && let Some(c) = TABLE.get(name)
    {
        return Some((*c, length + 1));
    }
    // The longest name at the start counts: `&ampx` is `&x`.
    let found = (2..=length.min(MAX_LEGACY_NAME))
        .rev()
        .map(|end| &text[..end])
        .find(|name| LEGACY.contains(name))?;
    let next = text[found.len()..].chars().next();
    if in_attribute && next.is_some_and(|c| c == '=' || c.is_ascii_alphanumeric()) {
        return None;
    }
    Some((*TABLE.get(found)?, found.len()))
}

/// The character of a number. 128 to 159 mean windows-1252, as in browsers.
fn character(code: u32) -> char {
    let bytes = [u8::try_from(code).unwrap_or_default()];
    match code {
        0 => char::REPLACEMENT_CHARACTER,
        0x80..=0x9F => WINDOWS_1252[usize::from(bytes[0] - 0x80)],
        _ => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

/// Characters 128 to 159 of windows-1252. Unused ones are control characters.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced() {
        for (text, want) in [
            ("a &amp; b", "a & b"),
            ("&lt;b&gt;", "<b>"),
            ("&euro;&hellip;&nbsp;", "€…\u{a0}"),
            ("&#8364;&#x20ac;&#X20AC", "€€€"),
            ("&#128;&#150;", "€–"),
            ("&#0;&#xD800;&#99999999999;", "\u{fffd}\u{fffd}\u{fffd}"),
            ("&copy 2026 &ampx", "© 2026 &x"),
            ("&unknown; & &; &# &#x; AT&T", "&unknown; & &; &# &#x; AT&T"),
            ("&Auml;&auml;", "Ää"),
            ("&", "&"),
            ("&é;", "&é;"),
        ] {
            assert_eq!(decode(text, false), want, "{text}");
        }
        assert_eq!(decode("?a=1&copy=2&lt;3&amp;x", true), "?a=1&copy=2<3&x");
        assert_eq!(TABLE.len() * 2, NAMES.split_whitespace().count());
        assert!(
            LEGACY.iter().all(|name| TABLE.contains_key(name) && name.len() <= MAX_LEGACY_NAME)
        );
    }
}
