//! Lists of addresses (RFC 5322, section 3.4): names, comments, groups and obsolete forms.
//!
//! One parser serves two readers. [`AddressList::strict`] rejects a list that two programs
//! could understand differently; it is used where an address decides about delivery.
//! [`AddressList::lenient`] returns the best reading of any text.

use super::word;

/// Limit of addresses that are read from one field.
pub(super) const MAX_ADDRESSES: usize = 1_000;
/// Longest address that is read, in bytes. RFC 5321 allows 254.
const MAX_ADDRESS: usize = 1_024;

/// One address of a mail header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailAddress {
    /// The decoded display name, on one line.
    pub name: Option<String>,
    /// The address as written, without comments and white space. Empty when there is none.
    pub address: String,
}

/// What a field says about addresses.
#[derive(Debug, Default)]
pub(super) struct AddressList {
    items: Vec<AddressItem>,
    /// Why other readers might find other addresses.
    pub flaw: Option<&'static str>,
}

/// An address that is being read.
#[derive(Debug, Default)]
struct AddressItem {
    /// Text outside angle brackets, as written.
    plain: String,
    /// The same text without quotes, which is the name.
    phrase: String,
    /// Text of the last comment, a name in old mails.
    comment: String,
    /// Text in angle brackets.
    angle: Option<String>,
    /// Whether they are closed.
    closed: bool,
}

impl AddressList {
    /// Reads the unfolded value of a field.
    pub fn read(text: &str) -> Self {
        let mut reader = ListReader { rest: text, ..ListReader::default() };
        while let Some(c) = reader.next() {
            reader.push(c);
        }
        reader.end_item();
        reader.list
    }

    /// The addresses as written, without names.
    ///
    /// # Errors
    ///
    /// The flaw of the list, when there is one.
    pub fn strict(self) -> Result<Vec<String>, &'static str> {
        match self.flaw {
            Some(flaw) => Err(flaw),
            None => Ok(self.items.iter().map(|item| item.written().to_owned()).collect()),
        }
    }

    /// The best reading of the list, with decoded names.
    pub fn lenient(self) -> Vec<MailAddress> {
        self.items.into_iter().map(AddressItem::into_address).collect()
    }
}

/// Position in a list.
#[derive(Default)]
struct ListReader<'t> {
    rest: &'t str,
    item: AddressItem,
    list: AddressList,
    /// Whether an opening parenthesis, quote or bracket has no end. Further ones are then
    /// characters, so that each is searched once.
    has_open_comment: bool,
    has_open_quote: bool,
    has_open_literal: bool,
}

impl ListReader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn push(&mut self, c: char) {
        let in_angle = self.item.angle.is_some() && !self.item.closed;
        match c {
            '(' if !self.has_open_comment => self.comment(),
            '"' if !self.has_open_quote => self.quoted(),
            '[' if !self.has_open_literal => self.literal(),
            '<' if self.item.closed => {
                self.flaw("a < within or after another");
                self.end_item();
                self.item.angle = Some(String::new());
            }
            '<' if in_angle => {
                self.flaw("a < within or after another");
                self.item.angle = Some(String::new());
            }
            '<' => self.item.angle = Some(String::new()),
            '>' if !in_angle => self.flaw("a > without its <"),
            '>' => self.item.closed = true,
            _ if in_angle => self.item.add(c),
            ',' | ';' => self.end_item(),
            // The text before a colon is the name of a group.
            ':' => self.item = AddressItem::default(),
            _ if self.item.closed && !c.is_whitespace() => {
                self.flaw("something behind a >");
                self.end_item();
                self.item.add(c);
            }
            _ => self.item.add(c),
        }
    }

    fn flaw(&mut self, flaw: &'static str) {
        self.list.flaw = self.list.flaw.or(Some(flaw));
    }

    fn end_item(&mut self) {
        let item = std::mem::take(&mut self.item);
        if item.angle.is_some() && !item.closed {
            self.flaw("a < without its >");
        }
        if item.written().contains(char::REPLACEMENT_CHARACTER) {
            self.flaw("an address that is not UTF-8");
        }
        // `<>` is no address, and a name beside it does not make it one.
        let has_name = item.angle.is_none() && !item.phrase.trim().is_empty();
        if !item.written().is_empty() || has_name {
            if self.list.items.len() < MAX_ADDRESSES {
                self.list.items.push(item);
            } else {
                self.flaw("more than 1000 addresses");
            }
        }
    }

    /// Reads the rest of a comment, nested ones included.
    fn comment(&mut self) {
        let mut depth = 1_usize;
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => drop(chars.next()),
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.item.comment = unescape(&self.rest[..at]);
                self.rest = &self.rest[at + 1..];
                return;
            }
        }
        self.has_open_comment = true;
        self.flaw("a ( without its )");
    }

    /// Reads the rest of a quoted string. An address keeps the quotes, a name does not.
    fn quoted(&mut self) {
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => drop(chars.next()),
                '"' => {
                    let inner = &self.rest[..at];
                    let written = format!("\"{inner}\"");
                    self.item.add_quoted(&written, &unescape(inner));
                    self.rest = &self.rest[at + 1..];
                    return;
                }
                _ => {}
            }
        }
        self.has_open_quote = true;
        self.flaw("a quote that does not end");
    }

    /// Reads the rest of a domain that is an IP address.
    fn literal(&mut self) {
        self.item.add('[');
        match self.rest.find(']') {
            Some(end) => {
                for c in self.rest[..=end].chars() {
                    self.item.add(c);
                }
                self.rest = &self.rest[end + 1..];
            }
            None => {
                self.has_open_literal = true;
                self.flaw("a [ without its ]");
            }
        }
    }
}

impl AddressItem {
    fn add(&mut self, c: char) {
        match &mut self.angle {
            Some(angle) if !self.closed => angle.push(c),
            _ => {
                self.plain.push(c);
                self.phrase.push(c);
            }
        }
    }

    fn add_quoted(&mut self, written: &str, inner: &str) {
        match &mut self.angle {
            Some(angle) if !self.closed => angle.push_str(written),
            _ => {
                self.plain.push_str(written);
                self.phrase.push_str(inner);
            }
        }
    }

    /// The address, as written.
    fn written(&self) -> &str {
        self.angle.as_deref().unwrap_or(&self.plain).trim()
    }

    fn into_address(self) -> MailAddress {
        let (address, phrase) = match &self.angle {
            Some(angle) => (compact(without_route(angle)), self.phrase.as_str()),
            None => self.bare(),
        };
        let words = [phrase, &self.comment].into_iter().find(|words| !words.trim().is_empty());
        let name = words.map(|words| word::clean(&word::decode(words.as_bytes(), None)));
        let address = if address.len() > MAX_ADDRESS { String::new() } else { address };
        MailAddress { name: name.filter(|name| !name.is_empty()), address }
    }

    /// Address and name of an item without angle brackets: `ann@example.com`, also with blanks
    /// around `@` and dots; of several words, the one with an `@`.
    fn bare(&self) -> (String, &str) {
        let whole = self.plain.trim();
        match (whole.starts_with('"'), whole.contains('@')) {
            (true, true) => return (compact(whole), ""),
            (true, false) => return (String::new(), self.phrase.as_str()),
            _ if !whole.contains(char::is_whitespace) => return (compact(whole), ""),
            _ => {}
        }
        let (mut words, mut is_joined) = (0, true);
        for word in whole.split_whitespace() {
            let joins = is_joined || word.starts_with(['@', '.']);
            words += usize::from(words == 0 || !joins);
            is_joined = word.ends_with(['@', '.']);
        }
        if words == 1 && whole.contains('@') {
            return (compact(whole), "");
        }
        match whole.split_whitespace().rfind(|word| word.contains('@')) {
            Some(word) => {
                let start = whole.find(word).unwrap_or_default();
                let before = self.phrase.trim().get(..start).unwrap_or_default();
                (compact(word), before)
            }
            None => (String::new(), self.phrase.as_str()),
        }
    }
}

/// Removes the obsolete route of `@relay,@relay:ann@example.com`.
fn without_route(angle: &str) -> &str {
    let angle = angle.trim();
    if !angle.starts_with('@') {
        return angle;
    }
    angle.split_once(':').map_or(angle, |(_, address)| address)
}

/// Removes white space outside of quotes, and control characters.
fn compact(address: &str) -> String {
    let mut is_quoted = false;
    let mut is_escaped = false;
    address
        .chars()
        .filter(|c| {
            let was_escaped = is_escaped;
            is_escaped = *c == '\\' && !was_escaped;
            if *c == '"' && !was_escaped {
                is_quoted = !is_quoted;
            }
            !c.is_control() && (is_quoted || !c.is_whitespace())
        })
        .collect()
}

/// Removes the backslashes of quoted pairs.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict(value: &str) -> Result<Vec<String>, &'static str> {
        AddressList::read(value).strict()
    }

    fn lenient(value: &str) -> Vec<String> {
        let shown = |a: MailAddress| match a.name {
            Some(name) => format!("{name} <{}>", a.address),
            None => a.address,
        };
        AddressList::read(value).lenient().into_iter().map(shown).collect()
    }

    #[test]
    fn addresses_are_found_in_all_forms() {
        for (value, wanted) in [
            ("ann@example.com", &["ann@example.com"][..]),
            ("Ann <ann@example.com>", &["ann@example.com"]),
            ("a@x.test, \"B, C\" <b@x.test>,c@x.test", &["a@x.test", "b@x.test", "c@x.test"]),
            ("=?utf-8?Q?M=C3=BCller=2C_A?= <m@x.test>", &["m@x.test"]),
            ("ann@x.test (at home (not \\) today), c@d)", &["ann@x.test"]),
            ("Team: a@x.test, Bob <b@x.test>;, c@x.test", &["a@x.test", "b@x.test", "c@x.test"]),
            ("undisclosed-recipients:;", &[]),
            (" , ,a@x.test,,", &["a@x.test"]),
            ("a@[IPv6:::1], <b@[127.0.0.1]>", &["a@[IPv6:::1]", "b@[127.0.0.1]"]),
            ("\"a \\\" b\"@x.test", &["\"a \\\" b\"@x.test"]),
            ("\"<evil@x.test>\" <ann@x.test>", &["ann@x.test"]),
            ("<>", &[]),
            ("", &[]),
        ] {
            assert_eq!(strict(value).unwrap(), wanted, "{value}");
        }
    }

    #[test]
    fn ambiguous_lists_are_rejected() {
        for value in [
            "<a@x.test",
            "a@x.test>",
            "<a@x.test> b@x.test",
            "<a@x.test> <b@x.test>",
            "<a<b@x.test>>",
            "(a@x.test",
            "\"a@x.test",
            "a@[127.0.0.1",
            "\u{fffd}@x.test",
        ] {
            assert!(strict(value).is_err(), "{value}: {:?}", strict(value));
        }
        // Two addresses without a comma are invalid: validation rejects the space.
        assert_eq!(strict("a@x.test b@x.test").unwrap(), ["a@x.test b@x.test"]);
    }

    #[test]
    fn lenient_reading_keeps_names_and_repairs_lists() {
        for (value, wanted) in [
            ("Ann <ann@x.test>", &["Ann <ann@x.test>"][..]),
            ("\"Ann \\\"A\\\" Example\" <ann@x.test>", &["Ann \"A\" Example <ann@x.test>"]),
            ("=?utf-8?Q?M=C3=BCller=2C_A?= <m@x.test>", &["Müller, A <m@x.test>"]),
            ("\"=?utf-8?B?5byg5LiJ?=\" <z@x.test>", &["张三 <z@x.test>"]),
            ("ann@x.test (Ann (the) Example)", &["Ann (the) Example <ann@x.test>"]),
            ("Team: Ann <a@x.test>, b@x.test;", &["Ann <a@x.test>", "b@x.test"]),
            ("<@relay.test,@other.test:ann@x.test>", &["ann@x.test"]),
            ("ann @ x . test", &["ann@x.test"]),
            ("< ann@x.test >", &["ann@x.test"]),
            ("\"a b\"@x.test", &["\"a b\"@x.test"]),
            ("Ann ann@x.test", &["Ann <ann@x.test>"]),
            ("Ann Example", &["Ann Example <>"]),
            ("\"Ann\"", &["Ann <>"]),
            ("MAILER-DAEMON", &["MAILER-DAEMON"]),
            ("\"Ann <ann@x.test>", &["Ann <ann@x.test>"]),
            ("Ann (home <ann@x.test>", &["Ann home <ann@x.test>"]),
            ("<ann@x.test", &["ann@x.test"]),
            ("Ann <<ann@x.test>>", &["Ann <ann@x.test>"]),
            ("<a@x.test> <b@x.test>", &["a@x.test", "b@x.test"]),
            ("\"evil@x.test\" <ann@x.test>", &["evil@x.test <ann@x.test>"]),
            ("Ann\r\n\tExample <ann@x.test>", &["Ann   Example <ann@x.test>"]),
            ("=?utf-8?q?a=0D=0ABcc=3A_x?= <ann@x.test>", &["a  Bcc: x <ann@x.test>"]),
            ("<>", &[]),
            (";;,,", &[]),
        ] {
            assert_eq!(lenient(value), wanted, "{value}");
        }
        assert_eq!(lenient(&"a@x,".repeat(5_000)).len(), MAX_ADDRESSES);
        let long = format!("<{}@x.test>", "a".repeat(5_000));
        assert_eq!(lenient(&long), [""]);
    }
}
