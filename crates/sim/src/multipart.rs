//! Parses `multipart/form-data` bodies.

use bytes::Bytes;
use memchr::memmem;

/// One field of a form.
#[derive(Debug, PartialEq, Eq)]
pub struct FormPart {
    pub name: String,
    pub file_name: Option<String>,
    pub content: Bytes,
}

/// Parses a body; `None` if the content type has no boundary or the body is malformed.
pub fn parse_multipart(content_type: &str, body: &Bytes) -> Option<Vec<FormPart>> {
    let boundary = parameter(content_type, "boundary")?;
    let delimiter = format!("--{boundary}");
    let mut rest = body.clone();
    let start = memmem::find(&rest, delimiter.as_bytes())?;
    rest = rest.slice(start + delimiter.len()..);
    let inner = format!("\r\n{delimiter}");
    let mut parts = Vec::new();
    while rest.starts_with(b"\r\n") {
        let end = memmem::find(&rest[2..], inner.as_bytes())? + 2;
        parts.push(read_part(&rest.slice(2..end))?);
        rest = rest.slice(end + inner.len()..);
    }
    rest.starts_with(b"--").then_some(parts)
}

fn read_part(part: &Bytes) -> Option<FormPart> {
    let end = memmem::find(part, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&part[..end]).into_owned();
    let disposition = head.lines().find(|line| {
        line.get(..20).is_some_and(|name| name.eq_ignore_ascii_case("content-disposition:"))
    })?;
    Some(FormPart {
        name: parameter(disposition, "name")?,
        file_name: parameter(disposition, "filename"),
        content: part.slice(end + 4..),
    })
}

/// The value of a parameter of a header, without its quotes. Browsers and SDKs write a quotation
/// mark in a file name as `%22`, so none is inside a quoted value.
fn parameter(header: &str, name: &str) -> Option<String> {
    let (_, mut rest) = header.split_once(';')?;
    loop {
        let (key, given) = rest.split_once('=')?;
        let (value, behind) = match given.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => given.split_at(given.find(';').unwrap_or(given.len())),
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(value.trim().replace("%22", "\""));
        }
        rest = behind.trim_start().trim_start_matches(';');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_files_are_read() {
        let body = "--b\r\nContent-Disposition: form-data; name=\"type\"\r\n\r\nfile\r\n\
                    --b\r\nContent-Disposition: form-data; name=\"media\"; filename=\"a.txt\"\r\n\
                    Content-Type: text/plain\r\n\r\none\r\n--two\r\n--b--\r\n";
        let body = Bytes::from(body);
        let parts = parse_multipart("multipart/form-data; boundary=\"b\"", &body).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].name.as_str(), &parts[0].content[..]), ("type", &b"file"[..]));
        assert_eq!(parts[1].file_name.as_deref(), Some("a.txt"));
        assert_eq!(&parts[1].content[..], b"one\r\n--two");
    }

    #[test]
    fn file_name_may_contain_separators_and_quotation_marks() {
        let head = "Content-Disposition: form-data; name=\"a=b; c\"; filename=\"x;y=%22z%22.txt\"";
        assert_eq!(parameter(head, "filename").as_deref(), Some("x;y=\"z\".txt"));
        assert_eq!(parameter(head, "name").as_deref(), Some("a=b; c"));
        assert_eq!(
            parameter("multipart/form-data; charset=x; boundary=b", "boundary").as_deref(),
            Some("b")
        );
        assert_eq!(parameter(head, "other"), None);
    }

    #[test]
    fn body_without_its_end_is_malformed() {
        let body = Bytes::from("--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx");
        assert_eq!(parse_multipart("multipart/form-data; boundary=b", &body), None);
        assert_eq!(parse_multipart("text/plain", &body), None);
    }
}
