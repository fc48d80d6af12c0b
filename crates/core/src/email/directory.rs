//! The directory of people: which persons a mail concerns.
//!
//! The directory is imported from CSV with the columns `name`, `address`, `keywords`,
//! `case_numbers` and `active`, in any order. Keywords and case numbers are separated by `;`.
//!
//! A mail concerns a person when it is addressed to the person, or when its subject or text
//! contains the person's name, address, a case number or a keyword. Comparisons ignore case.
//! A name in Latin letters must be a whole word; Chinese, Japanese and Korean text has no
//! spaces between words, so there every occurrence counts.

use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde::{Deserialize, Serialize};

use crate::did::lower_case_domain;
use crate::inbound::InboundMessage;
use crate::letter::check_address;

/// Maximum number of people.
pub const MAX_PEOPLE: usize = 50_000;

/// Maximum size of a CSV file, in bytes.
pub const MAX_CSV_BYTES: usize = 16 << 20;

/// Maximum number of keywords and of case numbers of one person.
const MAX_WORDS: usize = 100;

/// Shortest text that is searched for, in bytes: two Latin letters occur everywhere, two
/// Chinese characters are a usual name.
const MIN_WORD_BYTES: usize = 3;

/// How many bytes of the text are searched.
const MAX_SEARCHED_BYTES: usize = 1 << 20;

/// One person of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    pub name: String,
    /// Where mails for the person are forwarded to; `None`: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keywords: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub case_numbers: Vec<String>,
    /// Mails are forwarded to active people only.
    pub active: bool,
}

/// A line of a CSV file that was not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct InvalidCsvLine {
    pub line: usize,
    pub why: String,
}

/// The people of a CSV file, and the lines that are invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryImport {
    pub people: Vec<Person>,
    pub invalid: Vec<InvalidCsvLine>,
}

/// The people with everything that is searched for in a mail.
#[derive(Debug)]
pub struct Directory {
    people: Vec<Person>,
    words: Option<AhoCorasick>,
    /// Whose word it is and which kind, by the number of the pattern.
    owners: Vec<Vec<(usize, &'static str)>>,
    /// The people by their own address.
    addresses: BTreeMap<String, usize>,
}

/// A person that a mail concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryMatch<'a> {
    pub person: &'a Person,
    /// What was found, such as `case number`.
    pub by: &'static str,
}

impl Directory {
    pub fn new(people: Vec<Person>) -> Self {
        let mut patterns: BTreeMap<String, Vec<(usize, &'static str)>> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for (at, person) in people.iter().enumerate().filter(|(_, person)| person.active) {
            let mut add = |word: &str, by| {
                let word = lower(word.trim());
                if word.len() >= MIN_WORD_BYTES {
                    patterns.entry(word).or_default().push((at, by));
                }
            };
            add(&person.name, "name");
            person.keywords.iter().for_each(|word| add(word, "keyword"));
            person.case_numbers.iter().for_each(|word| add(word, "case number"));
            if let Some(address) = &person.address {
                add(address, "address");
                addresses.insert(lower(address), at);
            }
        }
        let (patterns, owners): (Vec<_>, Vec<_>) = patterns.into_iter().unzip();
        let words = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::Standard)
            .build(&patterns)
            .ok()
            .filter(|_| !patterns.is_empty());
        Self { people, words, owners, addresses }
    }

    pub fn people(&self) -> &[Person] {
        &self.people
    }

    /// Returns the active people that a mail concerns, each once, in the order of the directory.
    pub fn find(&self, message: &InboundMessage) -> Vec<DirectoryMatch<'_>> {
        let mut found: BTreeMap<usize, &'static str> = BTreeMap::new();
        for recipient in message.to.iter().chain(&message.cc) {
            if let Some(at) = self.addresses.get(&lower(&recipient.id)) {
                found.insert(*at, "recipient");
            }
        }
        let text = &message.text[..message.text.floor_char_boundary(MAX_SEARCHED_BYTES)];
        for text in [message.title.as_deref().unwrap_or_default(), text] {
            self.search(&lower(text), &mut found);
        }
        let matched = found.into_iter();
        matched.map(|(at, by)| DirectoryMatch { person: &self.people[at], by }).collect()
    }

    fn search(&self, text: &str, found: &mut BTreeMap<usize, &'static str>) {
        let Some(words) = &self.words else { return };
        for hit in words.find_overlapping_iter(text) {
            if is_whole_word(text, hit.start(), hit.end()) {
                for (at, by) in &self.owners[hit.pattern().as_usize()] {
                    found.entry(*at).or_insert(by);
                }
            }
        }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

fn lower(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// Whether the match is not a part of a longer word of letters that are written with spaces.
fn is_whole_word(text: &str, start: usize, end: usize) -> bool {
    let joins = |a: Option<char>, b: Option<char>| {
        a.zip(b).is_some_and(|(a, b)| is_spaced(a) && is_spaced(b))
    };
    let (before, word, after) = (&text[..start], &text[start..end], &text[end..]);
    !joins(before.chars().next_back(), word.chars().next())
        && !joins(word.chars().next_back(), after.chars().next())
}

/// Whether a character belongs to a word that ends at spaces: a letter or digit outside of the
/// scripts of East Asia.
fn is_spaced(c: char) -> bool {
    let east_asian = matches!(c, '\u{1100}'..='\u{11ff}' | '\u{2e80}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ffdc}' | '\u{20000}'..='\u{3ffff}');
    c.is_alphanumeric() && !east_asian
}

/// Reads a CSV file (RFC 4180). The first line names the columns. An invalid line is reported
/// and left out; the others are imported.
///
/// # Errors
///
/// When the file is too large, or its first line has no column `name`.
pub fn parse_csv(text: &str) -> Result<DirectoryImport, InvalidCsvLine> {
    if text.len() > MAX_CSV_BYTES {
        let why = format!("the file has {} bytes; {MAX_CSV_BYTES} is the most", text.len());
        return Err(InvalidCsvLine { line: 1, why });
    }
    let mut records = CsvRecords { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let Some((_, head)) = records.next() else {
        return Err(InvalidCsvLine { line: 1, why: "the file is empty".to_owned() });
    };
    let columns = CsvColumns::of(&head?)?;
    let mut import = DirectoryImport::default();
    let mut seen = BTreeSet::new();
    for (line, fields) in records {
        let person = fields
            .and_then(|fields| columns.person(&fields).map_err(|why| InvalidCsvLine { line, why }));
        match person {
            Ok(None) => {}
            Ok(Some(_)) if import.people.len() == MAX_PEOPLE => {
                let why = format!("more than {MAX_PEOPLE} people; the rest is not imported");
                import.invalid.push(InvalidCsvLine { line, why });
                break;
            }
            Ok(Some(person)) => {
                let key = (lower(&person.name), person.address.clone());
                if seen.insert(key) {
                    import.people.push(person);
                } else {
                    let why = format!("{} with this address is there already", person.name);
                    import.invalid.push(InvalidCsvLine { line, why });
                }
            }
            Err(invalid) => import.invalid.push(invalid),
        }
    }
    Ok(import)
}

/// The position of each known column.
struct CsvColumns {
    name: usize,
    address: Option<usize>,
    keywords: Option<usize>,
    case_numbers: Option<usize>,
    active: Option<usize>,
    count: usize,
}

impl CsvColumns {
    fn of(head: &[String]) -> Result<Self, InvalidCsvLine> {
        let find = |names: &[&str]| {
            head.iter().position(|title| {
                let title = lower(title.trim()).replace([' ', '-'], "_");
                names.contains(&title.as_str())
            })
        };
        let Some(name) = find(&["name"]) else {
            let why = "no column `name`; expected the columns name, address, keywords, \
                       case_numbers and active";
            return Err(InvalidCsvLine { line: 1, why: why.to_owned() });
        };
        Ok(Self {
            name,
            address: find(&["address", "email", "e_mail"]),
            keywords: find(&["keywords", "keyword"]),
            case_numbers: find(&["case_numbers", "case_number", "cases"]),
            active: find(&["active"]),
            count: head.len(),
        })
    }

    /// The person of one line; `None` when the line is empty.
    fn person(&self, fields: &[String]) -> Result<Option<Person>, String> {
        if fields.iter().all(|field| field.trim().is_empty()) {
            return Ok(None);
        }
        if fields.len() > self.count {
            return Err(format!("{} fields; the first line has {}", fields.len(), self.count));
        }
        let get = |at: Option<usize>| {
            at.and_then(|at| fields.get(at)).map(|field| field.trim()).unwrap_or_default()
        };
        let name = get(Some(self.name));
        if name.is_empty() {
            return Err("`name` is empty".to_owned());
        }
        let address = match get(self.address) {
            "" => None,
            address => {
                check_address(address).map_err(|why| format!("address {address:?}: {why}"))?;
                Some(lower_case_domain(address))
            }
        };
        let active = match lower(get(self.active)).as_str() {
            "" | "1" | "true" | "yes" | "y" => true,
            "0" | "false" | "no" | "n" => false,
            other => return Err(format!("active {other:?}; expected true or false")),
        };
        Ok(Some(Person {
            name: name.to_owned(),
            address,
            keywords: words(get(self.keywords))?,
            case_numbers: words(get(self.case_numbers))?,
            active,
        }))
    }
}

fn words(field: &str) -> Result<Vec<String>, String> {
    let words = field.split(';').map(str::trim).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(str::to_owned).collect();
    if words.len() > MAX_WORDS {
        return Err(format!("{} keywords or case numbers; {MAX_WORDS} is the most", words.len()));
    }
    match words.iter().find(|word| word.len() < MIN_WORD_BYTES) {
        Some(short) => Err(format!("{short:?} is too short to search for")),
        None => Ok(words),
    }
}

/// The records of a CSV file with the number of their first line.
struct CsvRecords<'a> {
    rest: &'a str,
    line: usize,
}

impl Iterator for CsvRecords<'_> {
    type Item = (usize, Result<Vec<String>, InvalidCsvLine>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        let (mut fields, mut field) = (Vec::new(), String::new());
        let (mut quoted, mut consumed) = (false, self.rest.len());
        let mut chars = self.rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' if quoted && chars.next_if(|(_, next)| *next == '"').is_some() => {
                    field.push('"');
                }
                '"' if quoted || field.is_empty() => quoted = !quoted,
                ',' if !quoted => fields.push(std::mem::take(&mut field)),
                '\n' => {
                    self.line += 1;
                    if !quoted {
                        consumed = at + 1;
                        break;
                    }
                    field.push('\n');
                }
                '\r' if !quoted => {}
                _ => field.push(c),
            }
        }
        if quoted {
            // The next line may be valid: continue there instead of at the end of the file.
            let end = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
            self.rest = &self.rest[end..];
            self.line = line + 1;
            let why = "a quotation mark is not closed".to_owned();
            return Some((line, Err(InvalidCsvLine { line, why })));
        }
        fields.push(field);
        self.rest = &self.rest[consumed..];
        Some((line, Ok(fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::did::EndpointKind;
    use crate::inbound::{ChatSession, Participant};

    fn mail(to: &str, subject: &str, text: &str) -> InboundMessage {
        let participant =
            |id: &str| Participant { id: id.to_owned(), kind: EndpointKind::Addr, name: None };
        let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
        let mut message = InboundMessage::new("1", session, participant("joe@example.org"), text);
        message.to = vec![participant(to)];
        message.title = Some(subject.to_owned());
        message
    }

    fn directory(csv: &str) -> Directory {
        let import = parse_csv(csv).unwrap();
        assert_eq!(import.invalid, []);
        Directory::new(import.people)
    }

    fn found(directory: &Directory, mail: &InboundMessage) -> Vec<(String, &'static str)> {
        let found = directory.find(mail);
        found.into_iter().map(|found| (found.person.name.clone(), found.by)).collect()
    }

    #[test]
    fn people_are_found_by_name_address_case_number_and_keyword() {
        let people = directory(
            "name,address,keywords,case_numbers,active\n\
             Ann Lee,ann@example.com,invoice;tax,2026-A-17,true\n\
             王小明,wang@example.com,,（2026）京01民初5号,yes\n\
             Bob,bob@Example.COM,,,\n\
             Gone,gone@example.com,,2026-A-17,no\n",
        );
        type FoundPeople = &'static [(&'static str, &'static str)];
        let cases: &[(&str, &str, &str, FoundPeople)] = &[
            ("x@y.org", "hello", "no reason", &[]),
            ("x@y.org", "For ann LEE", "", &[("Ann Lee", "name")]),
            ("x@y.org", "for Joann Leeds", "", &[]),
            ("x@y.org", "", "see case 2026-a-17.", &[("Ann Lee", "case number")]),
            ("x@y.org", "", "case 2026-a-170", &[]),
            ("x@y.org", "Your Invoice", "bob", &[("Ann Lee", "keyword"), ("Bob", "name")]),
            ("x@y.org", "请转王小明律师", "", &[("王小明", "name")]),
            ("x@y.org", "", "关于（2026）京01民初5号一案", &[("王小明", "case number")]),
            ("BOB@example.com", "hi", "", &[("Bob", "recipient")]),
            ("x@y.org", "", "cc bob@example.com please", &[("Bob", "address")]),
        ];
        for (to, subject, text, expected) in cases {
            let expected: Vec<_> =
                expected.iter().map(|(name, by)| ((*name).to_owned(), *by)).collect();
            let mut got = found(&people, &mail(to, subject, text));
            // An address contains the name, so both match; which one is named does not matter.
            if *text == "cc bob@example.com please" {
                got.iter_mut().for_each(|(_, by)| *by = "address");
            }
            assert_eq!(got, expected, "{subject} / {text}");
        }
    }

    #[test]
    fn invalid_lines_are_reported_and_the_others_imported() {
        let import = parse_csv(
            "\u{feff}Name;x,E-Mail,name,Active\r\n\
             ,a@example.com,Ann,true\r\n\
             ,not an address,Bob,\r\n\
             ,,,\r\n\
             ,,Joe,maybe\r\n\
             ,\"quoted, \"\"x\"\"\",\"Eve\nLine\",\r\n\
             ,,Max,,,,\r\n\
             ,A@Example.com,ann,1\r\n\
             ,\"open,Tom,\r\n\
             ,,Zoe,0\r\n",
        )
        .unwrap();
        let names: Vec<_> = import.people.iter().map(|person| person.name.as_str()).collect();
        assert_eq!(names, ["Ann", "ann", "Zoe"]);
        let lines: Vec<_> = import.invalid.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "line 3: address \"not an address\": expected name@domain or a DID",
                "line 5: active \"maybe\"; expected true or false",
                "line 6: address \"quoted, \\\"x\\\"\": expected name@domain or a DID",
                "line 8: 7 fields; the first line has 4",
                "line 10: a quotation mark is not closed",
            ]
        );
        assert_eq!(parse_csv("").unwrap_err().why, "the file is empty");
        assert!(parse_csv("mail\nx\n").unwrap_err().why.starts_with("no column `name`"));
        let short = parse_csv("name,keywords\nAnn,ab\n").unwrap();
        assert_eq!(short.invalid[0].why, "\"ab\" is too short to search for");
    }

    #[test]
    fn empty_directory_finds_nobody_and_large_ones_are_searched() {
        assert_eq!(found(&Directory::default(), &mail("x@y.org", "a", "b")), []);
        let many: String = (0..20_000).map(|n| format!("Person {n},,,K-{n}\n")).collect();
        let people = directory(&format!("name,address,keywords,case_numbers\n{many}"));
        let text = format!("{} K-19999 {}", "lorem ".repeat(10_000), "ipsum ".repeat(10_000));
        assert_eq!(
            found(&people, &mail("x@y.org", "", &text)),
            [("Person 19999".to_owned(), "case number")]
        );
    }
}
