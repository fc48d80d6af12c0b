//! Tests of digests: mails in a mail, as they were.

use super::*;

#[test]
fn a_digest_has_its_mails_as_they_are() {
    let first = b"Date: Mon, 2 Nov 2026 10:00:00 +0000\nFrom: Ann\n <ann@example.com>\nTo: bob@example.org\nSubject: one\n\nhello\n";
    let second = b"Subject: two\r\n\r\nno newline";
    let made = digest(&[first, second], "Two über alles", "seed");
    let text = shown(&made);
    let boundary = text.split("boundary=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(
        text,
        format!(
            "From: Ann\n <ann@example.com>\nTo: bob@example.org\n\
             Date: Mon, 2 Nov 2026 10:00:00 +0000\n\
             Subject: Two =?UTF-8?B?w7xiZXI=?= alles\nMIME-Version: 1.0\n\
             Content-Type: multipart/digest; boundary=\"{boundary}\"\n\
             \n--{boundary}\n\n{}\n--{boundary}\n\n{}\n--{boundary}--\n",
            shown(first),
            shown(second),
        )
    );
    assert_eq!(digest(&[first, second], "Two über alles", "seed"), made);
    let tree = scan::scan(&made);
    assert_eq!(tree.flaw, None);
    let bodies: Vec<_> = tree.parts[1..].iter().map(|part| &made[part.body.clone()]).collect();
    assert_eq!(bodies, [&first[..], &second[..]]);
    assert!(tree.parts[1..].iter().all(|part| part.kind() == "message/rfc822"));
}

#[test]
fn eight_bits_inside_are_announced_outside() {
    let made = digest(&[b"Subject: x\r\n\r\n\xff\r\n"], "s", "seed");
    assert_eq!(header(&made, "content-transfer-encoding").as_deref(), Some("8bit"));
}

#[test]
fn a_mail_that_knows_the_boundary_is_still_one_part() {
    let honest = shown(&digest(&[b"Subject: x\n\n"], "s", "seed"));
    let boundary = honest.split("boundary=\"").nth(1).unwrap().split('"').next().unwrap();
    let evil = format!("Subject: x\n\n--{boundary}\n\nSubject: forged\n\n--{boundary}--\n");
    let made = digest(&[evil.as_bytes(), evil.as_bytes()], "s", "seed");
    let tree = scan::scan(&made);
    assert_eq!(tree.parts.len(), 3);
    assert_eq!(&made[tree.parts[1].body.clone()], evil.as_bytes());
}

#[test]
fn a_digest_of_nothing_is_empty() {
    let made = digest(&[], "s", "seed");
    assert_eq!(check(&made), Ok(()));
    assert_eq!(scan::scan(&made).parts.len(), 1);
}
