//! Replies of an SMTP server (RFC 5321, section 4.2), and the extensions that it offers.

use monoco_core::unsafe_text::is_unsafe;

/// Longest line of a reply, in bytes. RFC 5321 allows 512; servers send longer ones.
const MAX_REPLY_LINE_BYTES: usize = 4096;

/// How many lines a reply has at most.
const MAX_REPLY_LINES: usize = 128;

/// How much of a reply is repeated in failures, in characters.
const MAX_EXCERPT_CHARS: usize = 300;

/// One reply, of one or more lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpReply {
    pub code: u16,
    /// The texts of the lines, without the code.
    pub lines: Vec<String>,
}

/// A server does not follow the protocol. Holds what it sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an SMTP reply: {0}")]
pub struct InvalidReply(String);

/// What a server offers in its answer to EHLO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmtpExtensions {
    pub starttls: bool,
    /// The mechanisms of AUTH, in upper case.
    pub auth: Vec<String>,
    /// The largest mail that the server accepts, in bytes; `None` when it states no limit.
    pub max_size: Option<u64>,
    /// Whether the server knows the parameter SIZE.
    pub size: bool,
    pub eight_bit: bool,
    pub smtp_utf8: bool,
    pub dsn: bool,
}

impl SmtpReply {
    /// Reads a reply from the start of `bytes`. Returns it with its length, or `None` when more
    /// bytes are needed.
    ///
    /// # Errors
    ///
    /// [`InvalidReply`] for bytes that cannot become a reply.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, InvalidReply> {
        let (mut at, mut lines, mut code) = (0, Vec::new(), None);
        loop {
            let rest = &bytes[at..];
            let end = rest.iter().position(|byte| *byte == b'\n');
            if end.unwrap_or(rest.len()) > MAX_REPLY_LINE_BYTES || lines.len() == MAX_REPLY_LINES {
                return Err(InvalidReply("the reply is too long".to_owned()));
            }
            let Some(end) = end else { return Ok(None) };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            at += end + 1;
            let (number, is_last, text) = read_line(line)
                .filter(|(number, ..)| code.is_none_or(|code| code == *number))
                .ok_or_else(|| InvalidReply(shown(&String::from_utf8_lossy(line))))?;
            code = Some(number);
            lines.push(text);
            if is_last {
                return Ok(Some((Self { code: number, lines }, at)));
            }
        }
    }

    /// The enhanced status code (RFC 3463), such as `5.1.1`, or else the reply code.
    pub fn error_code(&self) -> String {
        self.enhanced_code().map_or_else(|| self.code.to_string(), str::to_owned)
    }

    /// Returns the enhanced status code, if its class agrees with the reply code.
    fn enhanced_code(&self) -> Option<&str> {
        let word = self.lines.first()?.split(' ').next()?;
        let mut numbers = word.split('.');
        let class = numbers.next()?;
        let is_number =
            |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        let details: Vec<_> = numbers.collect();
        let is_code = details.len() == 2 && details.into_iter().all(is_number);
        (is_code && class == (self.code / 100).to_string()).then_some(word)
    }

    /// Returns the reply in one line without control characters, for people.
    pub fn shown(&self) -> String {
        let text = shown(&self.lines.join(" "));
        if text.is_empty() { self.code.to_string() } else { format!("{} {text}", self.code) }
    }

    /// Reads the answer to EHLO.
    pub fn extensions(&self) -> SmtpExtensions {
        let mut found = SmtpExtensions::default();
        for line in self.lines.iter().skip(1) {
            let line = line.to_ascii_uppercase();
            // Old servers write `AUTH=`.
            let mut words = line.split([' ', '=']).filter(|word| !word.is_empty());
            match words.next() {
                Some("STARTTLS") => found.starttls = true,
                Some("AUTH") => {
                    let new = words.map(str::to_owned).filter(|name| !found.auth.contains(name));
                    let new: Vec<_> = new.collect();
                    found.auth.extend(new);
                }
                Some("SIZE") => {
                    found.size = true;
                    // 0 means that there is no fixed limit (RFC 1870).
                    let limit = words.next().and_then(|word| word.parse().ok());
                    found.max_size = limit.filter(|size| *size > 0);
                }
                Some("8BITMIME") => found.eight_bit = true,
                Some("SMTPUTF8") => found.smtp_utf8 = true,
                Some("DSN") => found.dsn = true,
                _ => {}
            }
        }
        found
    }
}

/// Reads one line: the code, whether it is the last line, and its text.
fn read_line(line: &[u8]) -> Option<(u16, bool, String)> {
    let (code, rest) = line.split_at_checked(3)?;
    let code: u16 = str::from_utf8(code).ok()?.parse().ok()?;
    let is_last = match rest.first() {
        None | Some(b' ') => true,
        Some(b'-') => false,
        Some(_) => return None,
    };
    let text = String::from_utf8_lossy(rest.get(1..).unwrap_or_default()).into_owned();
    (200..600).contains(&code).then_some((code, is_last, text))
}

/// Returns the beginning of a text of the server: one line, without control characters.
fn shown(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || is_unsafe(c));
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(MAX_EXCERPT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SmtpReply {
        let (reply, length) = SmtpReply::read(text.as_bytes()).unwrap().unwrap();
        assert_eq!(length, text.len());
        reply
    }

    #[test]
    fn replies_are_read_with_their_enhanced_code() {
        for (text, code, error_code, shown) in [
            ("250 ok\r\n", 250, "250", "250 ok"),
            ("250\r\n", 250, "250", "250"),
            ("220 mx.example ESMTP\n", 220, "220", "220 mx.example ESMTP"),
            ("550 5.1.1 no such user\r\n", 550, "5.1.1", "550 5.1.1 no such user"),
            (
                "550-5.7.26 line one\r\n550 5.7.26 two\r\n",
                550,
                "5.7.26",
                "550 5.7.26 line one 5.7.26 two",
            ),
            ("451 4.7.1 Greylisted\r\n", 451, "4.7.1", "451 4.7.1 Greylisted"),
            // The class of the enhanced code must agree with the reply code.
            ("550 4.1.1 odd\r\n", 550, "550", "550 4.1.1 odd"),
            ("550 5.1 short\r\n", 550, "550", "550 5.1 short"),
            ("554 5.7.1\u{1b}[31m\u{202e}red\r\n", 554, "554", "554 5.7.1 [31m red"),
        ] {
            let reply = read(text);
            assert_eq!((reply.code, reply.error_code().as_str()), (code, error_code), "{text}");
            assert_eq!(reply.shown(), shown);
        }
        let long = read(&format!("550 {}\r\n", "é".repeat(1000)));
        assert_eq!(long.shown().matches('é').count(), MAX_EXCERPT_CHARS);
    }

    #[test]
    fn incomplete_replies_need_more_and_garbage_is_rejected() {
        for text in ["", "2", "250 ok", "250-a\r\n", "250-a\r\n250 b\r"] {
            assert_eq!(SmtpReply::read(text.as_bytes()), Ok(None), "{text:?}");
        }
        for text in [
            "hello\r\n",
            "\r\n",
            "25 ok\r\n",
            "2500 ok\r\n",
            "150 ok\r\n",
            "600 ok\r\n",
            "250-a\r\n251 b\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "+25 x\r\n",
        ] {
            assert!(SmtpReply::read(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(SmtpReply::read(&[b'2'; MAX_REPLY_LINE_BYTES + 1]).is_err());
        assert!(SmtpReply::read(&b"250-x\r\n".repeat(MAX_REPLY_LINES)).is_err());
        let two = SmtpReply::read(b"250 a\r\n354 b\r\n").unwrap().unwrap();
        assert_eq!((two.0.code, two.1), (250, 7));
    }

    #[test]
    fn extensions_are_read_in_any_notation() {
        let reply = read(
            "250-mx.example STARTTLS\r\n250-SIZE 35882577\r\n250-8bitmime\r\n250-DSN\r\n\
             250-auth LOGIN plain\r\n250-AUTH=LOGIN XOAUTH2\r\n250 SMTPUTF8\r\n",
        );
        let expected = SmtpExtensions {
            starttls: false,
            auth: vec!["LOGIN".to_owned(), "PLAIN".to_owned(), "XOAUTH2".to_owned()],
            max_size: Some(35_882_577),
            size: true,
            eight_bit: true,
            smtp_utf8: true,
            dsn: true,
        };
        assert_eq!(reply.extensions(), expected);
        let no_limit = read("250-mx\r\n250-SIZE 0\r\n250-SIZE\r\n250 STARTTLS\r\n").extensions();
        assert_eq!((no_limit.size, no_limit.max_size, no_limit.starttls), (true, None, true));
    }
}
