//! A toy worker that is added with one file and one line, and helpers that read mails without
//! the MIME code under test.

pub mod toy;

/// The header of a mail and its body.
pub fn parts(mail: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    for line in mail.split_inclusive(|byte| *byte == b'\n') {
        let end = at + line.len();
        if line == b"\n" || line == b"\r\n" {
            return (&mail[..at], &mail[end..]);
        }
        at = end;
    }
    (mail, b"")
}

/// The names of all header fields, in their order.
pub fn field_names(mail: &[u8]) -> Vec<String> {
    let lines = parts(mail).0.split(|byte| *byte == b'\n');
    let fields = lines.filter(|line| !line.is_empty() && !line.starts_with(b" "));
    let fields = fields.filter(|line| !line.starts_with(b"\t"));
    let name = |line: &[u8]| line.split(|byte| *byte == b':').next().map(<[u8]>::to_vec);
    fields.filter_map(name).map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}
