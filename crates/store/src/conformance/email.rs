//! Conformance tests of e-mail accounts: mails are registered once, with their cursor.

use monoco_core::email::ScanReport;
use monoco_core::email::cursor::FolderCursor;
use monoco_core::email::directory::Person;
use monoco_core::email::task::{EmailTask, EmailTaskId, TaskStatus};
use monoco_core::inbound::{FetchedMail, RawMail, StoredBytes};
use monoco_core::object::ObjKind;

use super::*;
use crate::{EmailTaskQuery, RegisterMailsRequest, RegisterMailsResult};

/// A mail of the INBOX with UIDVALIDITY 1.
pub(super) fn mail(uid: u32, text: &str) -> FetchedMail {
    FetchedMail {
        folder: "INBOX".to_owned(),
        uid_validity: 1,
        uid,
        internal_date: Some(at(i64::from(uid))),
        subject: format!("subject of {text}"),
        date: Some(at(-5)),
        size: text.len() as u64,
        raw: RawMail::Bytes(text.as_bytes().to_vec()),
    }
}

pub(super) fn page(mails: Vec<FetchedMail>) -> RegisterMailsRequest {
    let (tunnel, stream) = (tunnel_id("mail"), "INBOX".to_owned());
    RegisterMailsRequest { tunnel, stream, cursor: None, mails }
}

fn counts(new: usize, copies: usize, known: usize) -> RegisterMailsResult {
    RegisterMailsResult { new, copies, known }
}

/// Registers mails of the tunnel `mail`, and returns the numbers of new, copied and known ones.
async fn register(store: &dyn Store, mails: Vec<FetchedMail>) -> RegisterMailsResult {
    store.register_mails(page(mails), at(0)).await.unwrap()
}

/// Registers a new mail for each text, with UIDs from 1 on.
pub(super) async fn register_texts(store: &dyn Store, texts: &[&str]) {
    let mails = (1..).zip(texts).map(|(uid, text)| mail(uid, text)).collect();
    assert_eq!(register(store, mails).await, counts(texts.len(), 0, 0));
}

pub(super) async fn all_tasks(store: &dyn Store) -> Vec<EmailTask> {
    store.tasks(EmailTaskQuery::default(), FULL_PAGE).await.unwrap().entries
}

/// Describes a task: `1 error: no such user`.
pub(super) fn describe_task(task: &EmailTask) -> String {
    let why = task.progress.state.why().map(|why| format!(": {why}")).unwrap_or_default();
    format!("{} {}{why}", task.id.0, task.progress.state.status().as_str())
}

/// Describes all tasks, in the order of registration.
pub(super) async fn task_list(store: &dyn Store) -> String {
    all_tasks(store).await.iter().map(describe_task).collect::<Vec<_>>().join(", ")
}

pub(crate) async fn mail_is_registered_once(home: &dyn TestHome) {
    let store = home.open().await;
    let mails = || vec![mail(1, "one"), mail(2, "two"), mail(2, "two")];
    assert_eq!(register(&*store, mails()).await, counts(2, 0, 1));
    assert_eq!(register(&*store, mails()).await, counts(0, 0, 3));
    assert_eq!(task_list(&*store).await, "1 received, 2 received");
    drop(store);
    let store = home.open().await;
    assert_eq!(register(&*store, mails()).await, counts(0, 0, 3));
    assert_eq!(register(&*store, vec![mail(3, "three")]).await, counts(1, 0, 0));
    assert_eq!(task_list(&*store).await, "1 received, 2 received, 3 received");
    let task = store.task(EmailTaskId(2)).await.unwrap();
    assert_eq!(task.hash, ObjId::of(ObjKind::Bytes, b"two"));
    let expected = FetchedMail { raw: store.raw_mail(task.id).await.unwrap(), ..mail(2, "two") };
    assert_eq!(
        expected,
        FetchedMail {
            folder: task.folder,
            uid_validity: task.uid_validity,
            uid: task.uid,
            internal_date: task.internal_date,
            subject: task.subject,
            date: task.date,
            size: task.size,
            raw: mail(2, "two").raw,
        }
    );
    assert_eq!((task.tunnel, task.created_at), (tunnel_id("mail"), at(0)));
}

/// The same bytes in another folder, under another UID or under a new UIDVALIDITY are a copy. In
/// another tunnel they are a mail of their own.
pub(crate) async fn mail_with_known_bytes_is_a_copy(home: &dyn TestHome) {
    let store = home.open().await;
    register_texts(&*store, &["one", "two"]).await;
    let mails = vec![
        FetchedMail { folder: "Archive".to_owned(), ..mail(1, "one") },
        FetchedMail { uid_validity: 2, ..mail(1, "two") },
        FetchedMail { uid_validity: 2, ..mail(2, "new") },
        mail(9, "one"),
    ];
    assert_eq!(register(&*store, mails.clone()).await, counts(1, 3, 0));
    assert_eq!(register(&*store, mails).await, counts(0, 0, 4));
    let copy = "skipped_no_match: copy of eml_";
    let expected = format!("1 received, 2 received, 3 {copy}1, 4 {copy}2, 5 received, 6 {copy}1");
    assert_eq!(task_list(&*store).await, expected);
    let copied = store.raw_mail(EmailTaskId(4)).await.unwrap();
    assert_eq!(copied, RawMail::Bytes(b"two".to_vec()));
    assert_eq!(store.task(EmailTaskId(4)).await.unwrap().hash, ObjId::of(ObjKind::Bytes, b"two"));
    assert_matches!(
        store.retry_task(EmailTaskId(4), at(1)).await,
        Err(StoreError::InvalidTransition(_))
    );
    let other = RegisterMailsRequest { tunnel: tunnel_id("second"), ..page(vec![mail(1, "one")]) };
    assert_eq!(store.register_mails(other, at(0)).await.unwrap(), counts(1, 0, 0));
    drop(store);
    let store = home.open().await;
    let again = vec![FetchedMail { uid_validity: 3, ..mail(1, "two") }];
    assert_eq!(register(&*store, again).await, counts(0, 1, 0));
}

pub(crate) async fn cursor_is_stored_with_its_mails_or_not_at_all(home: &dyn TestHome) {
    let store = home.open().await;
    let inbox = async |store: &dyn Store| store.cursor(&tunnel_id("mail"), "INBOX").await.unwrap();
    assert_eq!(inbox(&*store).await, None);
    let with_cursor = |cursor: &str, mails| {
        let cursor = Some(cursor.to_owned());
        RegisterMailsRequest { cursor, ..page(mails) }
    };
    store.register_mails(with_cursor("1", vec![mail(1, "one")]), at(0)).await.unwrap();
    assert_eq!(inbox(&*store).await.as_deref(), Some("1"));

    let lost = StoredBytes { hash: ObjId::of(ObjKind::Bytes, b"never stored"), size: 12 };
    let bad = FetchedMail { raw: RawMail::Stored(lost), ..mail(3, "bad") };
    let rejected = store.register_mails(with_cursor("3", vec![mail(2, "two"), bad]), at(0)).await;
    assert_matches!(rejected, Err(StoreError::Missing { .. }));
    assert_eq!(inbox(&*store).await.as_deref(), Some("1"));
    assert_eq!(task_list(&*store).await, "1 received");

    assert_eq!(register(&*store, vec![mail(2, "two")]).await, counts(1, 0, 0));
    assert_eq!(inbox(&*store).await.as_deref(), Some("1"), "a page without a cursor keeps it");
    store.register_mails(with_cursor("2", Vec::new()), at(0)).await.unwrap();
    let sent = RegisterMailsRequest { stream: "Sent".to_owned(), ..with_cursor("7", Vec::new()) };
    store.register_mails(sent, at(0)).await.unwrap();
    drop(store);
    let store = home.open().await;
    assert_eq!(inbox(&*store).await.as_deref(), Some("2"));
    assert_eq!(store.cursor(&tunnel_id("mail"), "Sent").await.unwrap().as_deref(), Some("7"));
    assert_eq!(store.cursor(&tunnel_id("other"), "INBOX").await.unwrap(), None);
}

pub(crate) async fn large_and_cut_mails_are_read_back(home: &dyn TestHome) {
    let store = home.open().await;
    let (large, huge) = ("large ".repeat(20_000), "huge ".repeat(50_000));
    let stored = StoredBytes {
        hash: store.put_blob(huge.clone().into_bytes()).await.unwrap(),
        size: huge.len() as u64,
    };
    let (headers, why) = (b"Subject: a film".to_vec(), "2 GB; the limit is 100 MB".to_owned());
    let cut = RawMail::HeadersOnly { headers, why: why.clone() };
    let subject = "é".repeat(2_000);
    let mails = vec![
        FetchedMail { subject, ..mail(1, &large) },
        FetchedMail { raw: RawMail::Stored(stored), ..mail(2, &huge) },
        FetchedMail { raw: cut.clone(), size: 2_000_000_000, ..mail(3, "") },
        mail(4, ""),
    ];
    assert_eq!(register(&*store, mails).await, counts(4, 0, 0));
    let mut expected = vec![
        RawMail::Stored(StoredBytes {
            hash: ObjId::of(ObjKind::Bytes, large.as_bytes()),
            size: large.len() as u64,
        }),
        RawMail::Stored(stored),
        cut,
        RawMail::Bytes(Vec::new()),
    ];
    drop(store);
    let store = home.open().await;
    let started = store
        .start_tasks(&tunnel_id("mail"), holder("loop"), lease_for(60), 10, at(0))
        .await
        .unwrap();
    let raws: Vec<_> = started.iter().map(|started| started.raw.clone()).collect();
    assert_eq!(raws, expected);
    assert_eq!(started[0].task.subject, "é".repeat(512), "a subject is cut at 1,024 bytes");
    assert_eq!((started[2].task.size, &started[2].task.cut), (2_000_000_000, &Some(why)));
    for (started, raw) in started.iter().zip(expected.drain(..)) {
        assert_eq!(store.raw_mail(started.task.id).await.unwrap(), raw);
        if let RawMail::Stored(stored) = raw {
            assert_eq!(store.object(stored.hash).await.unwrap().len() as u64, stored.size);
        }
    }
}

pub(crate) async fn account_keeps_its_state(home: &dyn TestHome) {
    let store = home.open().await;
    let tunnel = tunnel_id("mail");
    let new = store.put_account(&tunnel, "team@example.com", None, at(1)).await.unwrap();
    assert_eq!((new.active, new.last_seen_uid, new.last_scanned_at), (true, 0, None));
    assert_eq!(store.put_account(&tunnel, "team@example.com", None, at(2)).await.unwrap(), new);
    put_tunnel(&*store, "mail", StrangerPolicy::Accept, false).await;
    store.set_tunnel_active(&tunnel, false, at(3)).await.unwrap();
    assert!(!store.accounts().await.unwrap()[0].active, "its tunnel is paused");
    let report = ScanReport { registered: 2, backlog: 7, ..ScanReport::default() };
    store.set_scanned(&tunnel, report, at(4)).await.unwrap();
    for (stream, uid) in [("Archive", 30), ("inbox", 12)] {
        let cursor = Some(FolderCursor::first(1, uid, None).json());
        let stream = stream.to_owned();
        let page = RegisterMailsRequest { stream, cursor, ..page(Vec::new()) };
        store.register_mails(page, at(5)).await.unwrap();
    }
    let text = Some("the team");
    let account = store.put_account(&tunnel, "all@example.com", text, at(6)).await.unwrap();
    store.put_account(&tunnel_id("a"), "ann@example.com", None, at(7)).await.unwrap();
    drop(store);
    let store = home.open().await;
    let accounts = store.accounts().await.unwrap();
    assert_eq!(accounts.iter().map(|one| one.tunnel.as_str()).collect::<Vec<_>>(), ["a", "mail"]);
    assert_eq!(accounts[1], account);
    assert_eq!((account.created_at, account.updated_at), (at(1), at(6)));
    assert_eq!((account.active, account.last_seen_uid), (false, 12));
    assert_eq!((account.last_scanned_at, account.last_scan), (Some(at(4)), Some(report)));
    assert_eq!((&*account.address, account.description.as_deref()), ("all@example.com", text));

    register_texts(&*store, &["one"]).await;
    store.remove_account(&tunnel).await.unwrap();
    assert_eq!(store.accounts().await.unwrap().len(), 1);
    assert_eq!(store.cursor(&tunnel, "inbox").await.unwrap(), None);
    assert_eq!(register(&*store, vec![mail(1, "one")]).await, counts(0, 0, 1), "tasks stay");
    assert_matches!(store.remove_account(&tunnel).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn directory_and_secret_survive_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    assert_eq!(store.directory().await.unwrap(), []);
    let person = |name: &str| Person {
        name: name.to_owned(),
        address: Some(format!("{name}@example.com")),
        keywords: vec!["合同".to_owned()],
        case_numbers: Vec::new(),
        active: true,
    };
    store.put_directory(vec![person("ann"), person("joe")]).await.unwrap();
    store.put_directory(vec![person("bob"), person("ann")]).await.unwrap();
    let secret = store.email_secret().await.unwrap();
    assert_ne!(secret, [0; 32]);
    drop(store);
    let store = home.open().await;
    assert_eq!(store.directory().await.unwrap(), [person("bob"), person("ann")]);
    assert_eq!(store.email_secret().await.unwrap(), secret);
    store.put_directory(Vec::new()).await.unwrap();
    assert_eq!(store.directory().await.unwrap(), []);
}

pub(crate) async fn tasks_are_listed_by_tunnel_and_status_in_both_directions(store: &dyn Store) {
    register_texts(store, &["1", "2", "3", "4", "5"]).await;
    let other = RegisterMailsRequest { tunnel: tunnel_id("second"), ..page(vec![mail(1, "x")]) };
    store.register_mails(other, at(0)).await.unwrap();
    assert_eq!(register(store, vec![mail(6, "1")]).await, counts(0, 1, 0));
    let started = store
        .start_tasks(&tunnel_id("mail"), holder("loop"), lease_for(60), 2, at(0))
        .await
        .unwrap();
    assert_eq!(started.len(), 2);
    let list = async |tunnel: Option<&str>, statuses: &[TaskStatus], newest_first| {
        let query = EmailTaskQuery { tunnel: tunnel.map(tunnel_id), statuses: statuses.to_vec() };
        let pages = all_pages(2, newest_first, async |page| {
            store.tasks(query.clone(), page).await.unwrap()
        });
        let pages = pages.await.into_iter();
        let ids = |page: Vec<EmailTask>| page.iter().map(|task| task.id.0.to_string()).collect();
        pages.map(ids).collect::<Vec<String>>().join(" ")
    };
    use TaskStatus::{InProgress, Received, SkippedNoMatch};
    for (tunnel, statuses, oldest, newest) in [
        (None, &[][..], "12 34 56 7", "76 54 32 1"),
        (Some("mail"), &[], "12 34 57", "75 43 21"),
        (Some("second"), &[], "6", "6"),
        (Some("third"), &[], "", ""),
        (None, &[Received], "34 56", "65 43"),
        (Some("mail"), &[InProgress, SkippedNoMatch], "12 7", "72 1"),
    ] {
        assert_eq!(list(tunnel, statuses, false).await, oldest, "{tunnel:?} {statuses:?}");
        assert_eq!(list(tunnel, statuses, true).await, newest, "{tunnel:?} {statuses:?}");
    }
}

pub(crate) async fn registration_wakes_the_task_loop(store: &dyn Store) {
    let mut newest = store.newest_email_task();
    register_texts(store, &["one"]).await;
    assert!(newest.has_changed().unwrap());
    newest.mark_unchanged();
    assert_eq!(register(store, vec![mail(2, "one")]).await, counts(0, 1, 0));
    assert!(!newest.has_changed().unwrap(), "a copy is not processed");
    assert_eq!(event_kinds(store).await, "email_task email_task");
}
