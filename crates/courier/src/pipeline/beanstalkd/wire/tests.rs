//! Tables and random bytes for the protocol of beanstalkd.

use proptest::prelude::*;

use super::*;

fn job(id: u64, body: &[u8]) -> BeanstalkdJob {
    BeanstalkdJob { id: JobId(id), body: body.to_vec() }
}

/// Every reply with its bytes.
fn every_reply() -> Vec<(&'static [u8], BeanstalkdReply)> {
    vec![
        (b"INSERTED 7\r\n", BeanstalkdReply::Inserted(JobId(7))),
        (b"INSERTED 18446744073709551615\r\n", BeanstalkdReply::Inserted(JobId(u64::MAX))),
        (b"BURIED 7\r\n", BeanstalkdReply::Buried(Some(JobId(7)))),
        (b"BURIED\r\n", BeanstalkdReply::Buried(None)),
        (b"DEADLINE_SOON\r\n", BeanstalkdReply::DeadlineSoon),
        (b"TIMED_OUT\r\n", BeanstalkdReply::TimedOut),
        (b"RESERVED 7 3\r\nabc\r\n", BeanstalkdReply::Reserved(job(7, b"abc"))),
        (b"RESERVED 8 0\r\n\r\n", BeanstalkdReply::Reserved(job(8, b""))),
        (b"FOUND 7 4\r\n\r\n\r\n\r\n", BeanstalkdReply::Found(job(7, b"\r\n\r\n"))),
        (b"FOUND 9 2\r\n\xff\0\r\n", BeanstalkdReply::Found(job(9, b"\xff\0"))),
        (b"OK 9\r\n---\na: 1\n\r\n", BeanstalkdReply::Stats(b"---\na: 1\n".to_vec())),
        (b"NOT_FOUND\r\n", BeanstalkdReply::NotFound),
        (b"DRAINING\r\n", BeanstalkdReply::Draining),
        (b"EXPECTED_CRLF\r\n", BeanstalkdReply::ExpectedCrlf),
        (b"JOB_TOO_BIG\r\n", BeanstalkdReply::JobTooBig),
        (b"UNKNOWN_COMMAND\r\n", BeanstalkdReply::UnknownCommand),
        (b"BAD_FORMAT\r\n", BeanstalkdReply::BadFormat),
        (b"OUT_OF_MEMORY\r\n", BeanstalkdReply::OutOfMemory),
        (b"INTERNAL_ERROR\r\n", BeanstalkdReply::InternalError),
        (b"TOUCHED\r\n", BeanstalkdReply::Touched),
        (b"USING monoco.results\r\n", BeanstalkdReply::Using("monoco.results".to_owned())),
        (b"WATCHING 2\r\n", BeanstalkdReply::Watching(2)),
        (b"NOT_IGNORED\r\n", BeanstalkdReply::NotIgnored),
        (b"RELEASED\r\n", BeanstalkdReply::Released),
        (b"DELETED\r\n", BeanstalkdReply::Deleted),
    ]
}

/// Parses all replies of a stream that arrives in pieces.
fn parse(pieces: &[&[u8]]) -> Result<Vec<BeanstalkdReply>, ProtocolError> {
    let mut parser = ReplyParser::default();
    let mut replies = Vec::new();
    for piece in pieces {
        parser.input.extend_from_slice(piece);
        while let Some(reply) = parser.next()? {
            replies.push(reply);
        }
    }
    Ok(replies)
}

#[test]
fn every_reply_is_parsed() {
    for (bytes, reply) in every_reply() {
        assert_eq!(parse(&[bytes]), Ok(vec![reply.clone()]), "{reply:?}");
        // Without its last byte it is not complete.
        assert_eq!(parse(&[&bytes[..bytes.len() - 1]]), Ok(vec![]), "{reply:?}");
    }
}

#[test]
fn invalid_replies_are_errors() {
    for bytes in [
        &b"\r\n"[..],
        b"HELLO\r\n",
        b"inserted 1\r\n",
        b"INSERTED\r\n",
        b"INSERTED x\r\n",
        b"INSERTED -1\r\n",
        b"INSERTED +1\r\n",
        b"INSERTED 1 \r\n",
        b"INSERTED 18446744073709551616\r\n",
        b"RESERVED 1\r\n",
        b"RESERVED 1 1 1\r\n",
        b"RESERVED 1 99999999999999999999\r\n",
        b"OK\r\n",
        b"DELETED 1\r\n",
        b" DELETED\r\n",
        b"DELETED\n\r\n",
        b"\xff\xfe\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
    ] {
        assert!(matches!(parse(&[bytes]), Err(ProtocolError::NotAReply(_))), "{bytes:?}");
    }
    assert_eq!(parse(&[b"RESERVED 1 3\r\nabcdef"]), Err(ProtocolError::WrongBodyLength));
    assert_eq!(parse(&[b"OK 70000000\r\n"]), Err(ProtocolError::StatsTooLong(70_000_000)));
    assert_eq!(
        parse(&[b"OK 18446744073709551615\r\n"]),
        Err(ProtocolError::StatsTooLong(u64::MAX))
    );
}

#[test]
fn line_of_more_than_1_kib_is_an_error() {
    assert_eq!(parse(&[&[b'A'; MAX_LINE_BYTES - 1]]), Ok(vec![]));
    assert_eq!(parse(&[&[b'A'; MAX_LINE_BYTES]]), Err(ProtocolError::LineTooLong));
    let error = parse(&[&[b'A'; MAX_LINE_BYTES - 2], b"\r\n"]).unwrap_err();
    assert!(error.to_string().len() < 120, "{error}");
}

#[test]
fn body_that_is_too_long_is_skipped_without_being_stored() {
    let size = MAX_BODY_BYTES as u64 + 5;
    let mut parser = ReplyParser::default();
    parser.input.extend_from_slice(format!("RESERVED 7 {size}\r\n").as_bytes());
    let mut left = size + 2;
    let piece = vec![b'x'; 1024 * 1024];
    while left > 0 {
        assert_eq!(parser.next(), Ok(None));
        assert!(parser.input.is_empty());
        let now = piece.len().min(usize::try_from(left).unwrap());
        parser.input.extend_from_slice(&piece[..now]);
        left -= now as u64;
    }
    parser.input.extend_from_slice(b"DELETED\r\n");
    assert_eq!(parser.next(), Ok(Some(BeanstalkdReply::TooLong(JobId(7), size))));
    assert_eq!(parser.next(), Ok(Some(BeanstalkdReply::Deleted)));
    // The largest allowed body is waited for.
    assert_eq!(parse(&[format!("FOUND 7 {MAX_BODY_BYTES}\r\n").as_bytes()]), Ok(vec![]));
}

#[test]
fn each_command_accepts_its_replies_only() {
    use CommandKind::*;
    let kinds = [Put, Use, Watch, Reserve, Delete, Release, Bury, Touch, Peek, Stats];
    for (bytes, reply) in every_reply() {
        let word = std::str::from_utf8(bytes.split(|byte| *byte <= b' ').next().unwrap()).unwrap();
        let count = bytes.contains(&b' ');
        let accepting: Vec<_> = kinds.into_iter().filter(|kind| kind.accepts(&reply)).collect();
        let want: &[CommandKind] = match (word, count) {
            ("INSERTED", _) | ("BURIED", true) => &[Put],
            ("DRAINING" | "EXPECTED_CRLF" | "JOB_TOO_BIG", _) => &[Put],
            ("BURIED", false) => &[Release, Bury],
            ("DEADLINE_SOON" | "TIMED_OUT", _) => &[Reserve],
            ("RESERVED", _) => &[Reserve],
            ("FOUND", _) => &[Peek],
            ("OK", _) => &[Stats],
            ("NOT_FOUND", _) => &[Delete, Release, Bury, Touch, Peek, Stats],
            ("TOUCHED", _) => &[Touch],
            ("USING", _) => &[Use],
            ("WATCHING" | "NOT_IGNORED", _) => &[Watch],
            ("RELEASED", _) => &[Release],
            ("DELETED", _) => &[Delete],
            // Errors of any command.
            _ => &kinds,
        };
        assert_eq!(accepting, want, "{reply:?}");
    }
}

#[test]
fn put_is_a_line_and_a_body() {
    let tube: TubeName = "t".parse().unwrap();
    for (delay_ms, ttr_ms, line) in [
        (0, 0, "put 5 0 1 3"),
        (1, 999, "put 5 1 1 3"),
        (1000, 1001, "put 5 1 2 3"),
        (u64::MAX, u64::MAX, "put 5 4294967295 4294967295 3"),
    ] {
        let (delay, ttr) = (Duration::from_millis(delay_ms), Duration::from_millis(ttr_ms));
        let put = PutOptions { body: b"\r\n\0".to_vec(), priority: 5, delay, ttr };
        let command = BeanstalkdCommand::put(&tube, &put);
        assert_eq!(command.bytes, [line.as_bytes(), b"\r\n\r\n\0\r\n"].concat());
        assert_eq!(command.tube, Some(tube.clone()));
    }
}

#[test]
fn new_connection_watches_only_its_tubes() {
    let tubes = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    for (names, want) in [
        (&[][..], ""),
        (&["a"], "watch a\r\nignore default\r\n"),
        (&["a", "b"], "watch a\r\nwatch b\r\nignore default\r\n"),
        (&["a", "default"], "watch a\r\nwatch default\r\n"),
    ] {
        let names: Vec<TubeName> = tubes(names);
        let commands = BeanstalkdCommand::watch_only(&names);
        let bytes: Vec<u8> = commands.into_iter().flat_map(|command| command.bytes).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), want);
    }
}

#[test]
fn stats_are_lines_of_key_and_value() {
    let fields = StatsFields::parse(
        b"---\nname: a\nversion: \"1.12\"\npri: 4294967295\ntime-left: -3\nage: 5\nno value\n\
          half: \"x\nbytes: \xff\n",
    );
    assert_eq!(fields.text("name"), Ok("a".to_owned()));
    assert_eq!(fields.text("version"), Ok("1.12".to_owned()));
    assert_eq!(fields.text("half"), Ok("\"x".to_owned()));
    assert_eq!(fields.number("pri"), Ok(u64::from(u32::MAX)));
    assert_eq!(fields.time("age"), Ok(Duration::from_secs(5)));
    assert_eq!(fields.time("time-left"), Ok(Duration::ZERO));
    assert_eq!(fields.number("name"), Err("name"));
    assert_eq!(fields.text("no value"), Err("no value"));
}

/// Some replies in a row, and the lengths of the pieces they arrive in.
fn streams() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let count = every_reply().len();
    (prop::collection::vec(0..count, 1..20), prop::collection::vec(1usize..40, 1..60))
}

proptest! {
    #[test]
    fn replies_do_not_depend_on_packet_boundaries((which, cuts) in streams()) {
        let all = every_reply();
        let bytes: Vec<u8> = which.iter().flat_map(|n| all[*n].0.to_vec()).collect();
        let want: Vec<BeanstalkdReply> = which.iter().map(|n| all[*n].1.clone()).collect();
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for cut in cuts {
            let (piece, more) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = more;
        }
        pieces.push(rest);
        prop_assert_eq!(parse(&pieces), Ok(want));
    }

    #[test]
    fn any_body_is_returned_unchanged(body in prop::collection::vec(any::<u8>(), 0..500)) {
        let mut bytes = format!("RESERVED 3 {}\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(b"\r\n");
        prop_assert_eq!(parse(&[&bytes]), Ok(vec![BeanstalkdReply::Reserved(job(3, &body))]));
    }

    #[test]
    fn random_bytes_never_buffer_more_than_a_line(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b' '), Just(b'\r')], 0..3000),
    ) {
        let mut parser = ReplyParser::default();
        parser.input.extend_from_slice(&bytes);
        let mut replies = 0;
        while let Ok(Some(_)) = parser.next() {
            replies += 1;
            prop_assert!(replies <= bytes.len());
        }
        let waits = parser.next() == Ok(None);
        prop_assert!(!waits || parser.input.len() < MAX_LINE_BYTES);
    }
}
