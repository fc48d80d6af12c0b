//! Parses the responses of IMAP servers (RFC 3501, RFC 9051).
//!
//! The parser reads what the client needs and passes over everything else: servers add items,
//! codes and responses of their own. A FETCH response that cannot be parsed becomes
//! [`ImapResponse::Unreadable`], so that one mail does not end the connection.

use monoco_core::inbound::StoredBytes;
use monoco_core::time::Timestamp;
use monoco_core::unsafe_text::escape_line;
use monoco_mime::parse_date;

/// Longest text of a server that an error repeats, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// How deep lists in a response may be nested. Unknown items are skipped up to here.
const MAX_LIST_DEPTH: usize = 64;

/// One response as it was received: its lines without line breaks, and the literals that the
/// lines announce as `{12}`.
#[derive(Debug, Default)]
pub struct RawResponse {
    pub text: Vec<u8>,
    pub literals: Vec<Literal>,
}

/// A string that a server sent with its length first.
#[derive(Debug, PartialEq, Eq)]
pub enum Literal {
    Bytes(Vec<u8>),
    /// It was stored while it was received. `head` holds its first bytes.
    Stored {
        bytes: StoredBytes,
        head: Vec<u8>,
    },
    /// It was too large, and only its first bytes were kept.
    Cut {
        size: u64,
        head: Vec<u8>,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum ImapResponse {
    /// The end of the command with this tag.
    Done {
        tag: String,
        status: ImapStatus,
        code: ResponseCode,
        text: String,
    },
    /// The server waits for more of the command.
    Continue(String),
    /// `* OK`, `* BYE` and the like.
    Status {
        status: ImapStatus,
        code: ResponseCode,
        text: String,
    },
    Capability(Vec<String>),
    /// The number of mails in the folder.
    Exists(u32),
    Fetch(FetchData),
    /// UIDs that match a search.
    Search(Vec<u32>),
    /// A folder: its attributes, such as `\Sent`, and its name as the server writes it.
    Folder {
        attributes: Vec<String>,
        name: String,
    },
    /// A FETCH response that cannot be parsed. Holds its start.
    Unreadable(String),
    /// A response that the client does not use.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImapStatus {
    Ok,
    No,
    Bad,
    Bye,
    Preauth,
}

/// The code in brackets of a status response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseCode {
    #[default]
    Missing,
    UidValidity(u32),
    UidNext(u32),
    Capability(Vec<String>),
    /// Any other code, in upper case, without its arguments.
    Other(String),
}

/// The items of a FETCH response that the client asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FetchData {
    pub sequence: u32,
    pub uid: Option<u32>,
    pub size: Option<u64>,
    pub internal_date: Option<Timestamp>,
    /// The mail or its header, whichever was asked for.
    pub body: Option<Literal>,
}

impl ImapResponse {
    pub fn parse(raw: RawResponse) -> Self {
        let shown = shown(&raw.text);
        let is_fetch = raw.text.starts_with(b"* ") && find_word(&raw.text, 2) == b"FETCH";
        match Parser::new(raw).response() {
            Some(response) => response,
            None if is_fetch => Self::Unreadable(shown),
            None => Self::Other,
        }
    }
}

impl ResponseCode {
    /// Returns the code as the server wrote it; empty when there is none.
    pub fn name(&self) -> &str {
        match self {
            Self::Missing => "",
            Self::UidValidity(_) => "UIDVALIDITY",
            Self::UidNext(_) => "UIDNEXT",
            Self::Capability(_) => "CAPABILITY",
            Self::Other(name) => name,
        }
    }
}

/// Returns text of a server for an error: one line, unsafe characters escaped, shortened.
pub fn shown(text: &[u8]) -> String {
    let start = &text[..text.len().min(MAX_SHOWN_CHARS * 4)];
    let text = String::from_utf8_lossy(start);
    let cut: String = text.trim().chars().take(MAX_SHOWN_CHARS).collect();
    escape_line(&cut)
}

/// Returns the word number `n`, counted from 0.
fn find_word(text: &[u8], n: usize) -> &[u8] {
    text.split(|byte| *byte == b' ').nth(n).unwrap_or_default()
}

struct Parser {
    text: Vec<u8>,
    at: usize,
    literals: std::vec::IntoIter<Literal>,
}

/// A value of a FETCH item.
enum Value {
    Nil,
    Text(Literal),
    Atom(String),
    List,
}

impl Parser {
    fn new(raw: RawResponse) -> Self {
        Self { text: raw.text, at: 0, literals: raw.literals.into_iter() }
    }

    /// Returns `None` when the response has another form than expected.
    fn response(&mut self) -> Option<ImapResponse> {
        if self.take(b'+') {
            self.take(b' ');
            return Some(ImapResponse::Continue(self.rest()));
        }
        let tag = self.word()?;
        let word = self.word()?;
        if let Some(status) = ImapStatus::read(&word) {
            let (code, text) = self.status_text();
            return Some(match tag.as_str() {
                "*" => ImapResponse::Status { status, code, text },
                _ => ImapResponse::Done { tag, status, code, text },
            });
        }
        if tag != "*" {
            return None;
        }
        if let Ok(number) = word.parse() {
            return Some(match self.word()?.to_ascii_uppercase().as_str() {
                "EXISTS" => ImapResponse::Exists(number),
                "FETCH" => ImapResponse::Fetch(self.fetch_data(number)?),
                _ => ImapResponse::Other,
            });
        }
        match word.to_ascii_uppercase().as_str() {
            "CAPABILITY" => Some(ImapResponse::Capability(words(&self.rest()))),
            "SEARCH" => {
                let uids = words(&self.rest());
                Some(ImapResponse::Search(uids.iter().filter_map(|uid| uid.parse().ok()).collect()))
            }
            "LIST" => self.folder(),
            _ => Some(ImapResponse::Other),
        }
    }

    fn status_text(&mut self) -> (ResponseCode, String) {
        if !self.take(b'[') {
            return (ResponseCode::Missing, self.rest());
        }
        let Some(end) = self.text[self.at..].iter().position(|byte| *byte == b']') else {
            return (ResponseCode::Missing, self.rest());
        };
        let inside = String::from_utf8_lossy(&self.text[self.at..self.at + end]).into_owned();
        self.at += end + 1;
        let (name, arguments) = inside.split_once(' ').unwrap_or((&inside, ""));
        let number = arguments.trim().parse::<u32>();
        let code = match (name.to_ascii_uppercase().as_str(), number) {
            ("UIDVALIDITY", Ok(number)) => ResponseCode::UidValidity(number),
            ("UIDNEXT", Ok(number)) => ResponseCode::UidNext(number),
            ("CAPABILITY", _) => ResponseCode::Capability(words(arguments)),
            (name, _) => ResponseCode::Other(name.to_owned()),
        };
        (code, self.rest())
    }

    fn folder(&mut self) -> Option<ImapResponse> {
        if !self.take(b'(') {
            return None;
        }
        let end = self.text[self.at..].iter().position(|byte| *byte == b')')?;
        let inside = String::from_utf8_lossy(&self.text[self.at..self.at + end]).into_owned();
        self.at += end + 1;
        self.take(b' ');
        let _separator = self.value()?;
        self.take(b' ');
        let name = match self.value()? {
            Value::Atom(name) => name,
            Value::Nil => "NIL".to_owned(),
            Value::Text(Literal::Bytes(name)) => String::from_utf8_lossy(&name).into_owned(),
            _ => return None,
        };
        Some(ImapResponse::Folder { attributes: words(&inside), name })
    }

    fn fetch_data(&mut self, sequence: u32) -> Option<FetchData> {
        let mut data = FetchData { sequence, ..FetchData::default() };
        if !self.take(b'(') {
            return None;
        }
        loop {
            while self.take(b' ') {}
            if self.take(b')') {
                return Some(data);
            }
            let item = self.atom()?.to_ascii_uppercase();
            while self.take(b' ') {}
            let value = self.value()?;
            match (item.as_str(), value) {
                ("UID", Value::Atom(uid)) => data.uid = Some(uid.parse().ok()?),
                // Some servers write a size that is no number; only the literal counts.
                ("RFC822.SIZE", Value::Atom(size)) => data.size = size.parse().ok(),
                ("INTERNALDATE", Value::Text(Literal::Bytes(text))) => {
                    let ms = parse_date(&String::from_utf8_lossy(&text));
                    data.internal_date = ms.map(Timestamp::from_ms);
                }
                (item, value) if is_body(item) => {
                    data.body = match value {
                        Value::Text(body) => Some(body),
                        Value::Nil => Some(Literal::Bytes(Vec::new())),
                        Value::Atom(_) | Value::List => return None,
                    };
                }
                _ => {}
            }
        }
    }

    /// Reads a value. Lists are skipped.
    fn value(&mut self) -> Option<Value> {
        match self.text.get(self.at)? {
            b'"' => Some(Value::Text(Literal::Bytes(self.quoted()?))),
            b'{' | b'~' => self.literal().map(Value::Text),
            b'(' => self.skip_list(),
            _ => {
                let atom = self.atom()?;
                Some(if atom.eq_ignore_ascii_case("nil") { Value::Nil } else { Value::Atom(atom) })
            }
        }
    }

    fn skip_list(&mut self) -> Option<Value> {
        let mut depth = 0_usize;
        loop {
            match self.text.get(self.at)? {
                b'(' => {
                    depth += 1;
                    self.at += 1;
                }
                b')' => {
                    depth -= 1;
                    self.at += 1;
                }
                b' ' => self.at += 1,
                b'"' => drop(self.quoted()?),
                b'{' | b'~' => drop(self.literal()?),
                _ => drop(self.atom()?),
            }
            match depth {
                0 => return Some(Value::List),
                MAX_LIST_DEPTH.. => return None,
                _ => {}
            }
        }
    }

    fn quoted(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(bytes),
                b'\\' => {
                    bytes.push(*self.text.get(self.at)?);
                    self.at += 1;
                }
                _ => bytes.push(byte),
            }
        }
    }

    /// Reads `{12}` and returns the literal that followed it on the wire.
    fn literal(&mut self) -> Option<Literal> {
        let end = self.text[self.at..].iter().position(|byte| *byte == b'}')?;
        self.at += end + 1;
        self.literals.next()
    }

    /// Reads an atom. Brackets belong to it with everything between them, as in
    /// `BODY[HEADER.FIELDS (Subject)]<0>`.
    fn atom(&mut self) -> Option<String> {
        let start = self.at;
        let mut in_brackets = false;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'[' => in_brackets = true,
                b']' => in_brackets = false,
                b' ' | b'(' | b')' | b'"' if !in_brackets => break,
                _ => {}
            }
            self.at += 1;
        }
        let atom = &self.text[start..self.at];
        (!atom.is_empty()).then(|| String::from_utf8_lossy(atom).into_owned())
    }

    /// Reads up to the next space, which is skipped, or to the end.
    fn word(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let word = String::from_utf8_lossy(&rest[..length]).into_owned();
        self.at += length;
        self.take(b' ');
        (!word.is_empty()).then_some(word)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn rest(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.text[self.at..]).trim().to_owned();
        self.at = self.text.len();
        rest
    }
}

impl ImapStatus {
    fn read(word: &str) -> Option<Self> {
        match word.to_ascii_uppercase().as_str() {
            "OK" => Some(Self::Ok),
            "NO" => Some(Self::No),
            "BAD" => Some(Self::Bad),
            "BYE" => Some(Self::Bye),
            "PREAUTH" => Some(Self::Preauth),
            _ => None,
        }
    }
}

/// Tells whether a FETCH item holds the mail or its header, whole or from its first byte.
fn is_body(item: &str) -> bool {
    let item = item.strip_suffix("<0>").unwrap_or(item);
    matches!(item, "BODY[]" | "BODY[HEADER]" | "RFC822" | "RFC822.HEADER")
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_with(text: &str, literals: Vec<Literal>) -> ImapResponse {
        ImapResponse::parse(RawResponse { text: text.as_bytes().to_vec(), literals })
    }

    fn parse(text: &str) -> ImapResponse {
        parse_with(text, Vec::new())
    }

    fn bytes(text: &str) -> Literal {
        Literal::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn status_responses_have_a_code_and_a_text() {
        let done = |status, code, text: &str| ImapResponse::Done {
            tag: "a1".to_owned(),
            status,
            code,
            text: text.to_owned(),
        };
        let missing = ResponseCode::Missing;
        assert_eq!(parse("a1 OK done"), done(ImapStatus::Ok, missing.clone(), "done"));
        assert_eq!(parse("a1 BAD"), done(ImapStatus::Bad, missing.clone(), ""));
        let code = ResponseCode::Other("AUTHENTICATIONFAILED".to_owned());
        assert_eq!(
            parse("a1 NO [authenticationfailed] no such user"),
            done(ImapStatus::No, code, "no such user")
        );
        let status =
            |status, code, text: &str| ImapResponse::Status { status, code, text: text.to_owned() };
        assert_eq!(
            parse("* OK [UIDVALIDITY 1770410700] valid"),
            status(ImapStatus::Ok, ResponseCode::UidValidity(1_770_410_700), "valid")
        );
        assert_eq!(
            parse("* OK [UIDNEXT 12]"),
            status(ImapStatus::Ok, ResponseCode::UidNext(12), "")
        );
        let capabilities = ["IMAP4rev1", "IDLE"].map(str::to_owned).to_vec();
        assert_eq!(
            parse("* PREAUTH [CAPABILITY IMAP4rev1 IDLE] ready"),
            status(ImapStatus::Preauth, ResponseCode::Capability(capabilities.clone()), "ready")
        );
        assert_eq!(parse("* BYE bye"), status(ImapStatus::Bye, missing.clone(), "bye"));
        // A bracket that is not closed is text.
        assert_eq!(parse("* OK [x"), status(ImapStatus::Ok, missing, "x"));
        assert_eq!(parse("* CAPABILITY IMAP4rev1  IDLE"), ImapResponse::Capability(capabilities));
        assert_eq!(parse("+ idling"), ImapResponse::Continue("idling".to_owned()));
        assert_eq!(parse("+"), ImapResponse::Continue(String::new()));
    }

    #[test]
    fn folder_data_is_read() {
        assert_eq!(parse("* 23 EXISTS"), ImapResponse::Exists(23));
        assert_eq!(parse("* 23 exists"), ImapResponse::Exists(23));
        assert_eq!(parse("* 3 EXPUNGE"), ImapResponse::Other);
        assert_eq!(parse("* SEARCH 2 3 x"), ImapResponse::Search(vec![2, 3]));
        assert_eq!(parse("* SEARCH"), ImapResponse::Search(Vec::new()));
        let folder = |attributes: &[&str], name: &str| ImapResponse::Folder {
            attributes: attributes.iter().map(|text| (*text).to_owned()).collect(),
            name: name.to_owned(),
        };
        assert_eq!(
            parse(r#"* LIST (\HasNoChildren \Sent) "/" "Sent \"Mail\"""#),
            folder(&[r"\HasNoChildren", r"\Sent"], "Sent \"Mail\"")
        );
        assert_eq!(parse("* LIST () NIL INBOX"), folder(&[], "INBOX"));
        assert_eq!(parse_with("* LIST () \"/\" {3}", vec![bytes("a b")]), folder(&[], "a b"));
    }

    #[test]
    fn fetch_items_come_in_any_order() {
        let date = Timestamp::from_rfc3339("1996-07-17T09:44:25Z").ok();
        let expected = || FetchData {
            sequence: 12,
            uid: Some(7),
            size: Some(44_827),
            internal_date: date,
            body: Some(bytes("Subject: x\r\n\r\n")),
        };
        for text in [
            r#"* 12 FETCH (UID 7 RFC822.SIZE 44827 INTERNALDATE "17-Jul-1996 02:44:25 -0700" BODY[] {14})"#,
            r#"* 12 FETCH (BODY[] {14} INTERNALDATE "17-Jul-1996 02:44:25 -0700" RFC822.SIZE 44827 UID 7)"#,
            r#"* 12 FETCH (FLAGS (\Seen ("a" (b))) BODY[]<0> {14} UID 7 X-GM-LABELS ("\\Inbox" "a)b") rfc822.size 44827 MODSEQ (12) internaldate "17-Jul-1996 02:44:25 -0700")"#,
        ] {
            let literals = vec![bytes("Subject: x\r\n\r\n")];
            assert_eq!(parse_with(text, literals), ImapResponse::Fetch(expected()), "{text}");
        }
        let literal = vec![bytes("a"), bytes("the mail")];
        let text = "* 1 FETCH (BODY[HEADER.FIELDS (Subject)] {1} UID 2 BODY[] ~{8})";
        let ImapResponse::Fetch(data) = parse_with(text, literal) else { panic!() };
        assert_eq!((data.uid, data.body), (Some(2), Some(bytes("the mail"))));
    }

    #[test]
    fn empty_mail_is_nil_or_an_empty_string() {
        for text in ["* 1 FETCH (UID 2 BODY[] NIL)", "* 1 FETCH (UID 2 BODY[] \"\")"] {
            let ImapResponse::Fetch(data) = parse(text) else { panic!("{text}") };
            assert_eq!(data.body, Some(bytes("")), "{text}");
        }
    }

    #[test]
    fn unreadable_fetch_is_told_apart_from_other_responses() {
        let deep = format!("* 1 FETCH (X {}{})", "(".repeat(100), ")".repeat(100));
        for text in [
            "* 1 FETCH (UID x)",
            "* 1 FETCH (UID 1",
            "* 1 FETCH UID 1",
            "* 1 FETCH (UID 1 BODY[] \"abc)",
            "* 1 FETCH (UID 1 BODY[] {5})",
            "* 1 FETCH (UID 99999999999)",
            "* 1 FETCH",
            deep.as_str(),
        ] {
            assert!(matches!(parse(text), ImapResponse::Unreadable(_)), "{text}");
        }
        for text in ["", "*", "* ", "a1", "a1 FETCH", "* 1", "* XLIST x", "* LIST x", "\u{1}"] {
            assert_eq!(parse(text), ImapResponse::Other, "{text}");
        }
    }

    #[test]
    fn text_of_the_server_is_shown_without_control_characters() {
        assert_eq!(shown(b" a\x1b[31m\r\nb "), "a\\u{1b}[31m\\r\\nb");
        assert_eq!(shown("x".repeat(1000).as_bytes()).len(), MAX_SHOWN_CHARS);
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut fetch = b"* 1 FETCH (UID 1 ".to_vec();
            fetch.extend(&text);
            for text in [text, fetch] {
                let literals = vec![bytes("a"), bytes("b")];
                ImapResponse::parse(RawResponse { text, literals });
            }
        }

        #[test]
        fn no_token_makes_the_parser_panic(
            tokens in prop::collection::vec(
                prop::sample::select(vec![
                    "*", " ", "1", "FETCH", "(", ")", "\"", "\\", "{3}", "~{1}", "UID", "BODY[]",
                    "[", "]", "OK", "NIL", "a1", "LIST", "EXISTS", "+", "<0>", "SEARCH",
                ]),
                0..40,
            )
        ) {
            parse_with(&tokens.concat(), vec![bytes("abc")]);
        }
    }
}
