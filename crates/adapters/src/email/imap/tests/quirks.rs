//! What real servers do wrong. `docs/quirks.md` lists each quirk with its source.

use std::collections::BTreeSet;

use super::*;

/// Runs until this number of mails is stored, and returns what was stored.
async fn watch_until(server: &FakeServer, mails: usize) -> Arc<MemorySink> {
    let watching = Watching::start(config(server));
    watching.sink.until_mails(mails).await;
    watching.sink.until_scanned(1).await;
    watching.stop().await
}

#[tokio::test]
async fn netease_opens_folders_only_after_id() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    server.change(|account| account.capabilities += " ID");
    let mut identified = false;
    server.hook(move |command, _| {
        identified |= command.starts_with("ID (\"name\" \"monoco\" \"version\" \"");
        let blocked = !identified && command.starts_with("EXAMINE");
        match blocked {
            true => ServerReaction::Send(
                "TAG NO EXAMINE Unsafe Login. Please contact us\r\n".to_owned(),
            ),
            false => ServerReaction::Correct,
        }
    });
    let sink = watch_until(&server, 1).await;
    assert_eq!(sink.errors(), Vec::<String>::new());
    assert_eq!(server.count("ID"), 2, "ID and IDLE");
}

#[tokio::test]
async fn rejected_id_does_not_matter() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    server.change(|account| account.capabilities += " ID");
    server.hook(|command, _| match command.starts_with("ID ") {
        true => ServerReaction::Send("TAG BAD unknown\r\n".to_owned()),
        false => ServerReaction::Correct,
    });
    assert_eq!(watch_until(&server, 1).await.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn netease_leaves_out_uidnext() {
    let server = FakeServer::start().await;
    server.change(|account| account.has_uid_next = false);
    for subject in ["a", "b", "c"] {
        server.add(mail(subject));
    }
    let watching = Watching::start(config(&server));
    watching.sink.until_mails(3).await;
    // One mail replaces another, so that the number of mails stays the same.
    server.change(|account| {
        account.inbox().mails.remove(&3);
        account.inbox().add(mail("d"));
    });
    watching.scan_now.notify_one();
    watching.sink.until_mails(4).await;
    assert_eq!(watching.stop().await.subjects(), ["a", "b", "c", "d"]);
}

/// The fake server rejects sets that are not in ascending order, as QQ does, and knows no SEARCH,
/// whose criteria QQ ignores.
#[tokio::test]
async fn qq_accepts_ascending_sets_only() {
    let server = FakeServer::start().await;
    server.change(|account| {
        for uid in [3, 4, 9, 11, 12] {
            account.inbox().uid_next = uid;
            account.inbox().add(mail(&uid.to_string()));
        }
    });
    let sink = watch_until(&server, 5).await;
    assert_eq!(sink.subjects(), ["3", "4", "9", "11", "12"]);
    assert_eq!(sink.errors(), Vec::<String>::new());
    assert_eq!(server.count("UID FETCH 3:4,9,11:12 (UID BODY.PEEK[])"), 1);
    assert_eq!((server.count("SEARCH"), server.count("UID SEARCH")), (0, 0));
}

#[tokio::test]
async fn claimed_size_does_not_matter() {
    let server = FakeServer::start().await;
    let sized = |subject: &str, bytes: usize, claimed| {
        let mut mail = mail(subject);
        mail.bytes.resize(mail.bytes.len().max(bytes), b'x');
        FakeMail { claimed_size: Some(claimed), ..mail }
    };
    server.add(sized("stored", 2 << 20, 100));
    server.add(sized("cut", 5 << 20, 100));
    server.add(sized("small", 0, 2 << 20));
    server.add(sized("not fetched", 0, 50 << 20));
    let sink = watch_until(&server, 4).await;
    assert_eq!(sink.subjects(), ["stored", "cut", "small", "not fetched"]);
    let mails = sink.state.lock().unwrap().mails.clone();
    assert!(matches!(mails[0].raw, RawMail::Stored(StoredBytes { size: 2_097_152, .. })));
    let RawMail::HeadersOnly { headers, why } = &mails[1].raw else { panic!() };
    assert_eq!(why, "the mail has 5242880 bytes; `max_mail_mb` is 3");
    assert!(headers.ends_with(b"\r\n\r\n") && headers.len() < 200);
    assert!(matches!(mails[2].raw, RawMail::Bytes(_)));
    assert!(matches!(mails[3].raw, RawMail::HeadersOnly { .. }));
    assert_eq!(sink.errors(), Vec::<String>::new(), "the connection goes on");
}

#[tokio::test]
async fn whole_mail_instead_of_its_header_is_cut() {
    let server = FakeServer::start().await;
    let mut large = mail("large");
    large.bytes.resize(4 << 20, b'x');
    server.add(large.clone());
    server.hook(move |command, _| match command.contains("BODY.PEEK[HEADER]") {
        true => {
            let text = String::from_utf8(large.bytes.clone()).unwrap();
            let length = text.len();
            ServerReaction::Send(format!(
                "* 1 FETCH (UID 1 BODY[HEADER] {{{length}}}\r\n{text})\r\nTAG OK done\r\n"
            ))
        }
        false => ServerReaction::Correct,
    });
    let sink = watch_until(&server, 1).await;
    let stored = sink.state.lock().unwrap().mails[0].raw.clone();
    let RawMail::HeadersOnly { headers, .. } = stored else { panic!() };
    assert_eq!(headers, &mail("large").bytes[..headers.len()]);
    assert!(headers.ends_with(b"\r\n\r\n"));
}

#[tokio::test]
async fn mail_deleted_while_it_is_fetched_is_skipped() {
    let server = FakeServer::start().await;
    for subject in ["a", "b", "c"] {
        server.add(mail(subject));
    }
    server.hook(|command, account| {
        if command.contains("BODY.PEEK[]") {
            account.inbox().mails.remove(&2);
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 2).await;
    assert_eq!(sink.subjects(), ["a", "c"]);
    assert_eq!(sink.cursor_of("INBOX"), r#"{"uid_validity":7,"last_uid":3}"#);
    assert_eq!(sink.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn all_mails_deleted_while_they_are_fetched_are_skipped() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    server.hook(|command, account| {
        if command.contains("BODY.PEEK[]") {
            account.inbox().mails.clear();
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 0).await;
    assert_eq!(sink.cursor_of("INBOX"), r#"{"uid_validity":7,"last_uid":1}"#);
}

#[tokio::test]
async fn unreadable_answer_for_one_mail_does_not_stop_the_others() {
    for garbage in [
        "* 2 FETCH (UID 2 BODY[] oops)\r\n",
        "* 2 FETCH (UID 2 BODY[] \"not closed)\r\n",
        "* 2 FETCH (UID two BODY[] {3}\r\nabc)\r\n",
        "* 2 FETCH (FLAGS (\\Seen) UID 2)\r\n",
        "",
    ] {
        let server = FakeServer::start().await;
        for subject in ["a", "b", "c"] {
            server.add(mail(subject));
        }
        server.change(|account| {
            let answer = Some(garbage.to_owned());
            account.inbox().mails.get_mut(&2).unwrap().answer = answer;
        });
        let sink = watch_until(&server, 3).await;
        assert_eq!(server.count("UID FETCH 2 (UID BODY.PEEK[])"), 3, "{garbage}");
        let mails = sink.state.lock().unwrap().mails.clone();
        let uids: Vec<_> = mails.iter().map(|mail| mail.uid).collect();
        assert_eq!(uids, [1, 3, 2], "{garbage}");
        let RawMail::HeadersOnly { why, .. } = &mails[2].raw else { panic!("{garbage}") };
        assert_eq!(why, "it could not be fetched 3 times");
        assert_eq!(sink.cursor_of("INBOX"), r#"{"uid_validity":7,"last_uid":3}"#);
    }
}

#[tokio::test]
async fn mail_whose_length_is_wrong_is_registered_with_its_header() {
    let server = FakeServer::start().await;
    for subject in ["a", "b", "c"] {
        server.add(mail(subject));
    }
    // The announced length reaches into the following responses, so the connection is unusable.
    server.hook(|command, account| {
        let wrong = "* 2 FETCH (UID 2 BODY[] {300}\r\ntoo short)\r\n".to_owned();
        let is_header = command.contains("HEADER");
        account.inbox().mails.get_mut(&2).unwrap().answer = (!is_header).then_some(wrong);
        ServerReaction::Correct
    });
    let short = ImapTiming { silence: Duration::from_millis(300), ..timing() };
    let watching = Watching::start_with(config(&server), short, Arc::default());
    watching.sink.until_mails(3).await;
    let sink = watching.stop().await;
    assert_eq!(sink.subjects(), ["a", "b", "c"]);
    let second = sink.state.lock().unwrap().mails[1].raw.clone();
    assert!(matches!(second, RawMail::HeadersOnly { .. }), "{second:?}");
}

#[tokio::test]
async fn nil_instead_of_a_mail_is_not_an_empty_mail() {
    let server = FakeServer::start().await;
    for subject in ["a", "b", "c"] {
        server.add(mail(subject));
    }
    let mut fetches = 0;
    server.hook(move |command, account| {
        if command.contains("BODY.PEEK[]") {
            fetches += 1;
            let nil = "* 2 FETCH (UID 2 BODY[] NIL)\r\n".to_owned();
            account.inbox().mails.get_mut(&2).unwrap().answer = (fetches <= 2).then_some(nil);
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 3).await;
    assert_eq!(sink.subjects(), ["a", "b", "c"]);
    assert_eq!(sink.state.lock().unwrap().mails[1].raw, RawMail::Bytes(mail("b").bytes));
}

/// The store recognises copies by their bytes: mails without any would be copies of each other.
#[tokio::test]
async fn mails_that_the_server_never_sends_are_told_apart() {
    let server = FakeServer::start().await;
    server.add(mail("first"));
    for n in 0..4 {
        server.add(FakeMail { answer: Some(String::new()), ..mail(&n.to_string()) });
    }
    server.add(mail("last"));
    let sink = watch_until(&server, 6).await;
    let state = sink.state.lock().unwrap();
    let cut = state.mails.iter().filter_map(|mail| match &mail.raw {
        RawMail::HeadersOnly { headers, .. } => Some(headers.clone()),
        _ => None,
    });
    assert_eq!(cut.collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(state.mails.len(), 6);
    // 5 attempts for each; the attempts of one do not repeat those of the others.
    assert!(server.account().connections <= 22, "{}", server.account().connections);
}

#[tokio::test]
async fn no_in_the_middle_of_a_list_is_not_its_end() {
    let server = FakeServer::start().await;
    for subject in ["a", "b", "c"] {
        server.add(mail(subject));
    }
    let mut lists = 0;
    server.hook(move |command, _| {
        if !command.contains("RFC822.SIZE") {
            return ServerReaction::Correct;
        }
        lists += 1;
        let first =
            "* 1 FETCH (UID 1 RFC822.SIZE 5 INTERNALDATE \"06-Feb-2026 20:45:00 +0000\")\r\n";
        match lists {
            1 => ServerReaction::Send(format!("{first}TAG NO [SERVERBUG] internal error\r\n")),
            2 => ServerReaction::Close(first.to_owned()),
            3 => ServerReaction::Send(format!("{first}TAG BAD\r\n")),
            _ => ServerReaction::Correct,
        }
    });
    let sink = watch_until(&server, 3).await;
    assert_eq!(sink.subjects(), ["a", "b", "c"]);
    let errors = sink.errors();
    assert_eq!(
        errors,
        [
            "the server rejects FETCH: NO [SERVERBUG] internal error",
            "the server closed the connection",
            "the server rejects FETCH: BAD",
        ]
    );
}

#[tokio::test]
async fn throttled_fetch_is_repeated_and_no_mail_is_blamed() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    let mut rejected = 0;
    server.hook(move |command, _| {
        if command.contains("BODY.PEEK[]") && rejected < 6 {
            rejected += 1;
            return ServerReaction::Send("TAG NO [LIMIT] rate limit hit\r\n".to_owned());
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 1).await;
    assert!(matches!(sink.state.lock().unwrap().mails[0].raw, RawMail::Bytes(_)));
    assert_eq!(sink.errors().len(), 6);
}

#[tokio::test]
async fn connection_lost_between_mails_misses_and_repeats_nothing() {
    let server = FakeServer::start().await;
    for n in 1..=30 {
        server.add(mail(&n.to_string()));
    }
    let mut losses = 0;
    server.hook(move |command, account| {
        if !command.contains("BODY.PEEK[]") || losses == 3 {
            return ServerReaction::Correct;
        }
        losses += 1;
        let first = account.inbox().mails[&1].bytes.clone();
        let text = String::from_utf8(first).unwrap();
        let half = &text[..text.len() / 2];
        ServerReaction::Close(format!("* 1 FETCH (UID 1 BODY[] {{{}}}\r\n{half}", text.len()))
    });
    let sink = watch_until(&server, 30).await;
    let expected: Vec<_> = (1..=30).map(|n| n.to_string()).collect();
    assert_eq!(sink.subjects(), expected);
}

#[tokio::test]
async fn bye_during_idle_leads_to_a_new_connection() {
    let server = FakeServer::start().await;
    let mut idles = 0;
    server.hook(move |command, account| {
        if command != "IDLE" {
            return ServerReaction::Correct;
        }
        idles += 1;
        if idles == 1 {
            account.inbox().add(mail("a"));
            return ServerReaction::Close("+ idling\r\n* BYE shutting down\r\n".to_owned());
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 1).await;
    assert_eq!(sink.errors(), ["the server closed the connection: shutting down"]);
    assert_eq!(server.account().connections, 2);
}

#[tokio::test]
async fn idle_that_is_silently_dead_is_detected() {
    let server = FakeServer::start().await;
    let mut idles = 0;
    server.hook(move |command, account| match command {
        "IDLE" if idles == 0 => {
            idles += 1;
            account.inbox().add(mail("a"));
            ServerReaction::Send("+ idling\r\n* OK still here\r\n".to_owned())
        }
        "DONE" => ServerReaction::Silent,
        _ => ServerReaction::Correct,
    });
    let short = ImapTiming { idle: Duration::from_millis(100), ..timing() };
    let watching = Watching::start_with(config(&server), short, Arc::default());
    watching.sink.until_mails(1).await;
    let sink = watching.stop().await;
    assert_eq!(sink.errors()[0], "no answer of the server in time");
}

#[tokio::test]
async fn mail_announced_before_idle_begins_is_noticed() {
    let server = FakeServer::start().await;
    let mut idles = 0;
    server.hook(move |command, account| {
        if command == "IDLE" {
            idles += 1;
        }
        if command == "IDLE" && idles == 1 {
            account.inbox().add(mail("a"));
            return ServerReaction::Send("* 1 EXISTS\r\n+ idling\r\n".to_owned());
        }
        ServerReaction::Correct
    });
    let sink = watch_until(&server, 1).await;
    assert_eq!(sink.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn server_that_only_sends_keepalives_is_checked_at_each_renewal() {
    let server = FakeServer::start().await;
    let mut added = false;
    server.hook(move |command, account| {
        if command != "IDLE" {
            return ServerReaction::Correct;
        }
        if !added {
            added = true;
            account.inbox().add(mail("a"));
        }
        ServerReaction::Send("+ idling\r\n* OK still here\r\n".to_owned())
    });
    let short = ImapTiming { idle: Duration::from_millis(50), ..timing() };
    let watching = Watching::start_with(config(&server), short, Arc::default());
    watching.sink.until_mails(1).await;
    watching.sink.until_scanned(4).await;
    assert!(server.count("DONE") >= 2);
    assert_eq!(server.account().connections, 1);
    watching.stop().await;
}

#[tokio::test]
async fn rejected_idle_is_replaced_by_polling() {
    let server = FakeServer::start().await;
    server.hook(|command, _| match command {
        "IDLE" => ServerReaction::Send("TAG BAD\r\n".to_owned()),
        _ => ServerReaction::Correct,
    });
    let watching = Watching::start(config(&server));
    watching.sink.until_scanned(2).await;
    server.add(mail("a"));
    watching.sink.until_mails(1).await;
    assert_eq!((server.count("IDLE"), server.account().connections), (1, 1));
    watching.stop().await;
}

#[tokio::test]
async fn flags_that_change_during_a_fetch_do_no_harm() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    server.add(mail("b"));
    server.change(|account| {
        let inbox = account.inbox();
        let bytes = String::from_utf8(inbox.mails[&1].bytes.clone()).unwrap();
        inbox.mails.get_mut(&1).unwrap().answer = Some(format!(
            "* 2 FETCH (FLAGS (\\Seen) UID 2 MODSEQ (9))\r\n* VANISHED 8\r\n* 9 RECENT\r\n\
             * OK [HIGHESTMODSEQ 0] x\r\n* 1 FETCH (BODY[] {{{}}}\r\n{bytes} UID 1)\r\n\
             * 1 FETCH (FLAGS () UID 1)\r\n",
            bytes.len()
        ));
    });
    let sink = watch_until(&server, 2).await;
    assert_eq!(sink.subjects(), ["a", "b"]);
    assert_eq!(sink.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn garbage_is_an_error_and_not_a_hang() {
    let server = FakeServer::start().await;
    let mut answers = vec![
        "TAG OK [UIDVALIDITY 1\r\n".to_owned(),
        "* 1 EXISTS\r\nother OK done\r\n".to_owned(),
        format!("* {}\r\n", "x".repeat(2 << 20)),
        "* LIST () \"/\" {99999999999999999999}\r\n".to_owned(),
        "\u{0}\u{0}\r\nTAG OK\r\n".to_owned(),
    ];
    server.add(mail("a"));
    server.hook(move |command, _| match command.starts_with("EXAMINE") {
        true => answers.pop().map_or(ServerReaction::Correct, ServerReaction::Send),
        false => ServerReaction::Correct,
    });
    let sink = watch_until(&server, 1).await;
    assert_eq!(sink.errors().len(), 5, "{:?}", sink.errors());
}
