//! Which mails are fetched, and what is stored of them.

use super::*;

/// A date before the one of all other mails.
const OLD: &str = "01-Jan-2026 12:00:00 +0000";

fn dated(subject: &str, date: &str) -> FakeMail {
    FakeMail { date: date.to_owned(), ..mail(subject) }
}

/// Runs until all folders were scanned once, and returns what was stored.
async fn scan_once(config: EmailConfig, sink: Arc<MemorySink>) -> Arc<MemorySink> {
    let scans = sink.state.lock().unwrap().scans();
    let watching = Watching::start_with(config, timing(), sink);
    watching.sink.until_scanned(scans + 1).await;
    watching.stop().await
}

#[tokio::test]
async fn mails_are_registered_as_they_are() {
    let server = FakeServer::start().await;
    server.add(mail("=?utf-8?B?5rWL6K+V?="));
    let sink = scan_once(config(&server), Arc::default()).await;
    let stored = sink.state.lock().unwrap().mails[0].clone();
    let bytes = mail("=?utf-8?B?5rWL6K+V?=").bytes;
    assert_eq!((stored.folder.as_str(), stored.uid_validity, stored.uid), ("INBOX", 7, 1));
    assert_eq!((stored.subject.as_str(), stored.size), ("测试", bytes.len() as u64));
    assert_eq!(stored.raw, RawMail::Bytes(bytes));
    let date = |found: Option<monoco_core::time::Timestamp>| found.map(|date| date.rfc3339());
    assert_eq!(date(stored.date).as_deref(), Some("2026-02-06T20:45:00.000Z"));
    assert_eq!(date(stored.internal_date), date(stored.date));
    assert_eq!(sink.cursor_of("INBOX"), r#"{"uid_validity":7,"last_uid":1}"#);
    // Nothing is marked as read.
    assert_eq!((server.count("SELECT"), server.count("UID STORE")), (0, 0));
}

#[tokio::test]
async fn backfill_decides_which_mails_the_first_connection_registers() {
    for (backfill, expected) in [
        (Backfill::New, vec!["d"]),
        (Backfill::Newest(2), vec!["c", "d"]),
        (Backfill::Newest(100), vec!["a", "b", "c", "d"]),
        (Backfill::All, vec!["a", "b", "c", "d"]),
        (
            Backfill::Since(
                monoco_core::time::Timestamp::from_rfc3339("2026-02-01T00:00:00Z").unwrap(),
            ),
            vec!["b", "d"],
        ),
    ] {
        let server = FakeServer::start().await;
        for (subject, date) in [("a", OLD), ("b", ""), ("c", OLD), ("d", "")] {
            server.add(dated(subject, date));
        }
        let config = EmailConfig { backfill, ..config(&server) };
        let sink = scan_once(config.clone(), Arc::default()).await;
        assert_eq!(sink.subjects(), expected, "{backfill:?}");
        // Later mails are registered whatever their date is: they may have been moved here.
        server.add(dated("later", OLD));
        let sink = scan_once(config, sink).await;
        assert_eq!(sink.subjects().last().unwrap(), "later", "{backfill:?}");
        assert_eq!(sink.subjects().len(), expected.len() + 1, "{backfill:?}");
    }
}

#[tokio::test]
async fn first_mail_of_an_empty_folder_is_registered() {
    let server = FakeServer::start().await;
    let config = EmailConfig { backfill: Backfill::New, ..config(&server) };
    let sink = scan_once(config.clone(), Arc::default()).await;
    assert!(sink.cursor_of("INBOX").contains(r#""last_uid":0"#), "{}", sink.cursor_of("INBOX"));
    // Two mails arrive while the courier is down.
    server.add(mail("a"));
    server.add(mail("b"));
    assert_eq!(scan_once(config, sink).await.subjects(), ["a", "b"]);
}

#[tokio::test]
async fn courier_imap_is_sent_select_so_that_it_stores_uids() {
    let server = FakeServer::start().await;
    let greeting = "* OK [CAPABILITY IMAP4rev1 IDLE AUTH=PLAIN SASL-IR] Courier-IMAP ready.";
    server.change(|account| account.greeting = greeting.to_owned());
    server.add(mail("a"));
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects(), ["a"]);
    assert_eq!((server.count("SELECT"), server.count("EXAMINE")), (1, 0));
    assert!(server.account().inbox().seen.is_empty(), "nothing is marked as seen");
}

/// courier-imap does so for a folder that no client has opened with SELECT.
#[tokio::test]
async fn uidvalidity_that_changes_before_the_first_mail_misses_nothing() {
    let server = FakeServer::start().await;
    let config = EmailConfig { backfill: Backfill::New, ..config(&server) };
    let sink = scan_once(config.clone(), Arc::default()).await;
    server.change(|account| account.inbox().uid_validity = 8);
    server.add(dated("moved here", OLD));
    assert_eq!(scan_once(config, sink).await.subjects(), ["moved here"]);
}

#[tokio::test]
async fn many_mails_are_fetched_in_pages() {
    let server = FakeServer::start().await;
    for n in 1..=1_050 {
        server.add(mail(&n.to_string()));
    }
    let sink = scan_once(config(&server), Arc::default()).await;
    let expected: Vec<_> = (1..=1_050).map(|n| n.to_string()).collect();
    assert_eq!(sink.subjects(), expected);
    let backlog = |event: &ConnectionEvent| match event {
        ConnectionEvent::Backlog(count) => Some(*count),
        _ => None,
    };
    let counted: Vec<_> = sink.state.lock().unwrap().events.iter().filter_map(backlog).collect();
    assert_eq!(counted, [850, 650, 450, 250, 50]);
    // One list and six pages of at most 200 mails.
    assert_eq!(server.count("UID FETCH"), 7);
    assert_eq!(server.count("UID FETCH 1:200 (UID BODY.PEEK[])"), 1);
}

#[tokio::test]
async fn pages_of_large_mails_stay_small() {
    let server = FakeServer::start().await;
    for n in 0..20 {
        let mut large = mail(&n.to_string());
        large.bytes.resize(900 << 10, b'x');
        // Half of the sizes are wrong.
        large.claimed_size = (n % 2 == 0).then_some(10);
        server.add(large);
    }
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects().len(), 20);
    let largest = sink.state.lock().unwrap().largest_page;
    assert!(largest < 10 << 20, "{largest}");
}

#[tokio::test]
async fn mails_over_one_mebibyte_are_stored_while_they_are_received() {
    let server = FakeServer::start().await;
    let mut large = mail("large");
    large.bytes.resize(2 << 20, b'x');
    server.add(mail("a"));
    server.add(large.clone());
    server.add(mail("b"));
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects(), ["a", "large", "b"]);
    let stored = sink.state.lock().unwrap().mails[1].raw.clone();
    let hash = ObjId::of(ObjKind::Msg, &large.bytes);
    assert_eq!(stored, RawMail::Stored(StoredBytes { hash, size: 2 << 20 }));
}

#[tokio::test]
async fn mail_over_the_limit_is_registered_with_its_header() {
    let server = FakeServer::start().await;
    let mut large = mail("large");
    large.bytes.resize(4 << 20, b'x');
    server.add(mail("a"));
    server.add(large);
    server.add(mail("b"));
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects(), ["a", "large", "b"]);
    let stored = sink.state.lock().unwrap().mails[1].clone();
    let RawMail::HeadersOnly { headers, why } = stored.raw else { panic!("{stored:?}") };
    assert_eq!(headers, &mail("large").bytes[..headers.len()]);
    assert!(headers.ends_with(b"\r\n\r\n"));
    assert_eq!(why, "the mail has 4194304 bytes; `max_mail_mb` is 3");
    assert_eq!(stored.size, 4 << 20);
    assert_eq!(server.count("UID FETCH 2 (UID BODY.PEEK[])"), 0, "the body was fetched");
}

#[tokio::test]
async fn uids_with_gaps_cost_few_commands() {
    let server = FakeServer::start().await;
    let uids = [5, 70_000, 70_001, 9_000_000, 3_999_999_999];
    server.change(|account| {
        for uid in uids {
            account.inbox().uid_next = uid;
            account.inbox().add(mail(&uid.to_string()));
        }
    });
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects(), uids.map(|uid| uid.to_string()));
    let lists = server.count("UID FETCH") - 4;
    assert!(lists < 12, "{lists} lists: {:?}", server.account().commands);
}

#[tokio::test]
async fn largest_uid_is_reached() {
    let server = FakeServer::start().await;
    server.change(|account| {
        account.inbox().uid_next = u32::MAX - 1;
        account.inbox().add(mail("last"));
        account.has_uid_next = false;
    });
    let sink = scan_once(config(&server), Arc::default()).await;
    assert_eq!(sink.subjects(), ["last"]);
}

#[tokio::test]
async fn changed_uidvalidity_reads_the_folder_again_from_the_baseline() {
    let server = FakeServer::start().await;
    server.add(dated("old", OLD));
    server.add(mail("known"));
    let config = EmailConfig { backfill: Backfill::New, ..config(&server) };
    let sink = scan_once(config.clone(), Arc::default()).await;
    assert_eq!(sink.subjects(), ["known"]);
    // The server renumbers its mails, and one has arrived meanwhile.
    server.change(|account| {
        let inbox = account.inbox();
        inbox.uid_validity = 8;
        let mails: Vec<_> = std::mem::take(&mut inbox.mails).into_values().collect();
        inbox.uid_next = 1;
        for mail in mails.into_iter().rev() {
            inbox.add(mail);
        }
        inbox.add(mail("arrived"));
    });
    let sink = scan_once(config, sink).await;
    // The store recognises the second copy by its hash.
    assert_eq!(sink.subjects(), ["known", "known", "arrived"]);
    let validities: Vec<_> =
        sink.state.lock().unwrap().mails.iter().map(|mail| mail.uid_validity).collect();
    assert_eq!(validities, [7, 8, 8]);
    assert!(sink.cursor_of("INBOX").contains(r#""uid_validity":8,"last_uid":3"#));
}

#[tokio::test]
async fn new_mails_are_announced_by_idle() {
    let server = FakeServer::start().await;
    let watching = Watching::start(config(&server));
    watching.sink.until_scanned(1).await;
    for n in 1..=3 {
        server.add(mail(&n.to_string()));
        watching.sink.until_mails(n).await;
    }
    let sink = watching.stop().await;
    assert_eq!(sink.subjects(), ["1", "2", "3"]);
    assert_eq!(server.account().connections, 1);
    assert_eq!(server.count("LOGOUT"), 1);
}

#[tokio::test]
async fn without_idle_folders_are_polled_without_fetching_anything() {
    let server = FakeServer::start().await;
    server.change(|account| account.capabilities = "IMAP4rev1 AUTH=PLAIN".to_owned());
    server.add(mail("a"));
    let watching = Watching::start(config(&server));
    watching.sink.until_scanned(5).await;
    let fetches = server.count("UID FETCH");
    assert_eq!(fetches, 2, "one list and one page: {:?}", server.account().commands);
    server.add(mail("b"));
    watching.sink.until_mails(2).await;
    assert_eq!(server.count("IDLE"), 0);
    watching.stop().await;
}

#[tokio::test]
async fn folders_share_one_connection_and_a_missing_one_does_not_stop_the_others() {
    let server = FakeServer::start().await;
    server.change(|account| drop(account.folders.insert("Work".to_owned(), Default::default())));
    let folders = vec!["INBOX".to_owned(), "Work".to_owned()];
    let config = EmailConfig { folders, ..config(&server) };
    let watching = Watching::start(config.clone());
    watching.sink.until_scanned(2).await;
    server.change(|account| {
        account.folders.get_mut("Work").unwrap().add(mail("w"));
    });
    watching.sink.until_mails(1).await;
    server.add(mail("i"));
    watching.sink.until_mails(2).await;
    assert_eq!(server.account().open_connections, 1);
    watching.stop().await;

    let folders = vec!["Missing".to_owned(), "INBOX".to_owned()];
    let watching = Watching::start(EmailConfig { folders, ..config });
    watching.sink.until_mails(1).await;
    watching.sink.until("reported", |state| !state.errors().is_empty()).await;
    let sink = watching.stop().await;
    let expected = "cannot open the folder \"Missing\": the server rejects EXAMINE: \
                    NO [NONEXISTENT] no such folder; check `folders`";
    assert_eq!(sink.errors()[0], expected);
}

#[tokio::test]
async fn mails_are_marked_as_seen_only_when_configured_and_after_they_are_stored() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    server.add(mail("b"));
    let sink = Arc::new(MemorySink::default());
    sink.state.lock().unwrap().failing_pages = 1;
    let config = EmailConfig { mark_seen: true, ..config(&server) };
    let sink = scan_once(config, sink).await;
    assert_eq!(sink.subjects(), ["a", "b"]);
    assert_eq!(server.account().inbox().seen, [1, 2]);
    assert_eq!(server.count("EXAMINE"), 0);
    let commands = server.account().commands.clone();
    let failed = commands.iter().position(|command| command.contains("BODY.PEEK")).unwrap();
    let marked = commands.iter().position(|command| command.starts_with("UID STORE")).unwrap();
    let stored = commands.iter().rposition(|command| command.contains("BODY.PEEK")).unwrap();
    assert!(failed < stored && stored < marked, "{commands:?}");
}

#[tokio::test]
async fn page_that_is_not_stored_is_fetched_again() {
    let server = FakeServer::start().await;
    for n in 1..=450 {
        server.add(mail(&n.to_string()));
    }
    let sink = Arc::new(MemorySink::default());
    sink.state.lock().unwrap().failing_pages = 2;
    let sink = scan_once(config(&server), sink).await;
    let expected: Vec<_> = (1..=450).map(|n| n.to_string()).collect();
    assert_eq!(sink.subjects(), expected);
    assert_eq!(sink.errors(), ["disk full: message not stored"; 2]);
}

#[tokio::test]
async fn scan_now_checks_the_folders_at_once() {
    let server = FakeServer::start().await;
    let watching = Watching::start(config(&server));
    watching.sink.until_scanned(1).await;
    watching.scan_now.notify_one();
    watching.sink.until_scanned(2).await;
    watching.stop().await;
}

#[tokio::test]
async fn server_that_is_down_is_tried_again() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    let mut closed = 0;
    server.change(|account| account.greeting = "* BYE too many connections".to_owned());
    server.hook(move |_, account| {
        closed += 1;
        account.greeting = "* OK ready".to_owned();
        if closed < 3 { ServerReaction::Close(String::new()) } else { ServerReaction::Correct }
    });
    let watching = Watching::start(config(&server));
    watching.sink.until("lost", |state| state.errors().len() >= 2).await;
    server.change(|account| account.greeting = "* OK ready".to_owned());
    watching.sink.until_mails(1).await;
    let errors = watching.stop().await.errors();
    assert_eq!(errors[0], "the server rejects the connection: too many connections");
}

/// To open a folder costs a server time in proportion to its mails.
#[tokio::test]
async fn scan_that_is_asked_for_opens_the_folder_only_when_there_are_mails() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    // Nothing is announced during IDLE.
    server.hook(|command, _| match command {
        "IDLE" => ServerReaction::Send("+ idling\r\n".to_owned()),
        _ => ServerReaction::Correct,
    });
    let watching = Watching::start(config(&server));
    watching.sink.until_scanned(1).await;
    for scans in 2..5 {
        watching.scan_now.notify_one();
        watching.sink.until_scanned(scans).await;
    }
    assert_eq!((server.count("EXAMINE"), server.count("NOOP")), (1, 3));
    server.account().inbox().add(mail("b"));
    watching.scan_now.notify_one();
    watching.sink.until_mails(2).await;
    assert_eq!((server.count("EXAMINE"), server.count("NOOP")), (2, 4));
    assert_eq!(watching.stop().await.subjects(), ["a", "b"]);
}

/// Some servers announce mails only when a folder is opened.
#[tokio::test]
async fn scan_that_is_asked_for_opens_a_folder_that_was_opened_long_ago() {
    let server = FakeServer::start().await;
    server.hook(|command, _| match command {
        "NOOP" => ServerReaction::Send("TAG OK nothing\r\n".to_owned()),
        _ => ServerReaction::Correct,
    });
    let timing = ImapTiming { reopen: Duration::ZERO, ..timing() };
    let watching = Watching::start_with(config(&server), timing, Arc::default());
    watching.sink.until_scanned(1).await;
    server.account().inbox().add(mail("a"));
    watching.scan_now.notify_one();
    watching.sink.until_mails(1).await;
    assert_eq!((server.count("EXAMINE"), server.count("NOOP")), (2, 0));
    watching.stop().await;
}
