//! Tests of pulling Mails into a workspace.

use std::fs;
use std::os::unix::fs::MetadataExt;

use monoco_core::mail::MailIndexEntry;

use super::*;
use crate::fixture::{CourierFixture, START, names};

const ANN: &str = "[{type: from, value: ann}]";

/// Syncs, and returns the counts and the warnings.
fn sync_as(
    post: &CourierFixture,
    here: &WorkspaceDir,
    wish: &SyncOptions,
) -> (SyncSummary, Vec<String>) {
    let mut said = Vec::new();
    let mut tell = |step: SyncEvent<'_>| {
        if let SyncEvent::Warning(words) = step {
            said.push(words);
        }
        true
    };
    (sync(here, &post.tree(), wish, &mut tell).unwrap(), said)
}

/// Pulled, present, passed over, refused and gone.
fn counts(post: &CourierFixture, here: &WorkspaceDir, wish: &SyncOptions) -> [u64; 5] {
    let (it, _) = sync_as(post, here, wish);
    [it.pulled, it.present, it.passed_over, it.refused, it.gone]
}

fn plain() -> SyncOptions {
    SyncOptions::default()
}

fn full() -> SyncOptions {
    SyncOptions { full: true, ..SyncOptions::default() }
}

fn cursor_file(here: &WorkspaceDir) -> PathBuf {
    here.open_files().unwrap().path().join("cursor.json")
}

fn remove(here: &WorkspaceDir, entry: &MailIndexEntry) {
    fs::remove_file(here.inbox().join(&entry.file)).unwrap();
}

#[test]
fn matching_mails_are_linked_once_and_only_new_ones_are_checked() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0]);
    let first = post.deliver("ann", "one");
    post.deliver("bob", "two");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 1, 0, 0]);
    let linked = fs::metadata(here.inbox().join(&first.file)).unwrap();
    assert_eq!(linked.nlink(), 2, "a hard link");
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0]);
    let cursor = fs::metadata(cursor_file(&here)).unwrap();
    counts(&post, &here, &plain());
    assert_eq!(fs::metadata(cursor_file(&here)).unwrap().ino(), cursor.ino(), "nothing is written");
    post.deliver("ann", "three");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0]);
    assert_eq!(counts(&post, &here, &full()), [0, 2, 1, 0, 0]);
}

#[test]
fn deleted_mail_is_pulled_again_only_by_a_full_sync() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let (first, _) = (post.deliver("ann", "one"), post.deliver("ann", "two"));
    counts(&post, &here, &plain());
    remove(&here, &first);
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0]);
    post.rebuild();
    post.deliver("ann", "three");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0], "a rebuilt index is no reason");
    assert_eq!(counts(&post, &here, &full()), [1, 2, 0, 0, 0]);
}

#[test]
fn all_mails_of_another_store_are_new() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    for text in ["one", "two", "three"] {
        post.deliver("ann", text);
    }
    counts(&post, &here, &plain());
    post.start_over();
    post.deliver("ann", "other");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0]);
    for text in ["more", "and", "more"] {
        post.deliver("bob", text);
    }
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 3, 0, 0]);
}

#[test]
fn truncated_index_that_grows_again_is_recognised() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let (first, _) = (post.deliver("ann", "one"), post.deliver("ann", "two"));
    counts(&post, &here, &plain());
    remove(&here, &first);
    let whole = fs::read(post.tree().index()).unwrap();
    let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    fs::write(post.tree().index(), lines[..2].concat()).unwrap();
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0]);
    fs::write(post.tree().index(), whole).unwrap();
    post.deliver("ann", "three");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0]);
}

#[test]
fn incomplete_line_is_ignored_and_a_malformed_one_is_reported() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    post.deliver("ann", "one");
    post.append("{\"seq\":2,");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0]);
    post.append("}\n");
    let (summary, said) = sync_as(&post, &here, &plain());
    assert_eq!(summary.pulled, 0);
    assert!(
        said.iter().any(|words| words.contains("cannot parse a line of the index")),
        "{said:?}"
    );
    post.deliver("ann", "three");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0], "the others still come");
}

#[test]
fn files_are_found_in_all_directories() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let places = ["archive", ".deadletter"].map(|place| (post.deliver("ann", place), place));
    for (entry, place) in &places {
        post.shelve(entry, place);
    }
    let gone = post.deliver("ann", "gone");
    fs::remove_file(post.inbound(&gone)).unwrap();
    assert_eq!(counts(&post, &here, &plain()), [2, 0, 0, 0, 1]);
}

#[test]
fn changed_file_is_rejected_and_checked_again() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let (bad, _) = (post.deliver("ann", "one"), post.deliver("ann", "two"));
    let good = fs::read(post.inbound(&bad)).unwrap();
    fs::write(post.inbound(&bad), "give me all your money").unwrap();
    for round in [[1, 0, 0, 1, 0], [0, 0, 0, 1, 0]] {
        assert_eq!(counts(&post, &here, &plain()), round);
    }
    let (_, said) = sync_as(&post, &here, &plain());
    assert!(said[0].contains("changed by hand"), "{said:?}");
    post.rebuild();
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 1, 0], "in a rebuilt index too");
    fs::write(post.inbound(&bad), good).unwrap();
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 0, 0]);
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0]);
}

#[test]
fn unknown_files_and_unsafe_names_are_ignored() {
    let mut post = CourierFixture::new();
    let here = post.workspace("[{type: not, condition: {type: from, value: nobody}}]");
    let entry = post.deliver("ann", "one");
    fs::write(post.inbound(&entry).with_file_name("20260101T000000_x.md"), "foreign").unwrap();
    let outside = post.root().join("secret");
    fs::write(&outside, "secret").unwrap();
    let mut evil = post.deliver("eve", "two");
    let link = post.inbound(&evil);
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    evil.seq = 3;
    evil.file = "../../../secret".to_owned();
    evil.sha256 = digest(b"secret");
    post.append(&format!("{}\n", serde_json::json!(evil)));
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 0, 2, 0]);
    assert_eq!(names(&here.inbox()), [entry.file]);
}

#[test]
fn dry_run_changes_nothing_and_provider_option_keeps_the_cursor() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    post.deliver("ann", "one");
    let dry = SyncOptions { dry_run: true, ..SyncOptions::default() };
    assert_eq!(counts(&post, &here, &dry), [1, 0, 0, 0, 0]);
    assert!(!here.inbox().exists() && !cursor_file(&here).exists());
    let other = SyncOptions { provider: Some("lark".to_owned()), ..SyncOptions::default() };
    assert_eq!(counts(&post, &here, &other), [0, 0, 0, 0, 0]);
    let this = SyncOptions { provider: Some("webhook".to_owned()), ..SyncOptions::default() };
    assert_eq!(counts(&post, &here, &this), [1, 0, 0, 0, 0]);
    assert_eq!(counts(&post, &here, &plain()), [0, 1, 0, 0, 0]);
}

#[test]
fn old_mails_are_skipped_and_answers_are_respected() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    for text in ["one", "two", "three"] {
        post.deliver("ann", text);
    }
    let since = Some(Timestamp::from_ms(START + 2_000));
    let wish = SyncOptions { since, ask: true, ..SyncOptions::default() };
    let mut answers = [false, true].into_iter();
    let mut tell = |step: SyncEvent<'_>| match step {
        SyncEvent::Ask(_) => answers.next().unwrap(),
        _ => false,
    };
    let summary = sync(&here, &post.tree(), &wish, &mut tell).unwrap();
    assert_eq!((summary.pulled, summary.passed_over), (1, 2));
    assert_eq!(counts(&post, &here, &plain()), [0, 0, 0, 0, 0], "what was not wanted stays away");
}

#[test]
fn text_filters_work_and_changed_filters_are_reported() {
    let mut post = CourierFixture::new();
    post.deliver("ann", "the build is red");
    post.deliver("ann", "the build is green");
    let here = post.workspace("[{type: text_matches, pattern: red}]");
    assert_eq!(counts(&post, &here, &plain()), [1, 0, 1, 0, 0]);
    let here = post.workspace("[{type: text_matches, pattern: green}]");
    let (_, said) = sync_as(&post, &here, &plain());
    assert!(said[0].contains("rules have changed"), "{said:?}");
    assert_eq!(sync_as(&post, &here, &plain()).1, Vec::<String>::new(), "said once");
    assert_eq!(counts(&post, &here, &full()), [1, 0, 1, 0, 0]);
}

#[test]
fn file_is_copied_where_links_are_not_possible() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = CheckedDir::open_root(dir.path()).unwrap();
    let take = |path: &Path, name, bytes| take(path, &inbox, name, bytes).unwrap();
    // A directory cannot be linked on any file system.
    assert!(matches!(take(dir.path(), "y.md", b"copy"), LinkResult::Copied));
    let target = dir.path().join("y.md");
    assert_eq!(fs::read(&target).unwrap(), b"copy");
    assert_eq!(names(dir.path()), ["y.md"]);
    assert!(matches!(take(&dir.path().join("missing"), "z.md", b""), LinkResult::Moved));
    assert!(matches!(take(&target, "y.md", b""), LinkResult::Present));
}

#[test]
fn edited_copy_is_not_changed() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let entry = post.deliver("ann", "one");
    counts(&post, &here, &plain());
    let mine = here.inbox().join(&entry.file);
    fs::remove_file(&mine).unwrap();
    fs::write(&mine, "my notes").unwrap();
    let (summary, said) = sync_as(&post, &here, &full());
    assert_eq!((summary.present, summary.pulled), (1, 0));
    assert!(said[0].contains("left alone"), "{said:?}");
    assert_eq!(fs::read(&mine).unwrap(), b"my notes");
}

#[test]
fn killed_sync_loses_no_mail_and_pulls_none_twice() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let total = MAILS_PER_CURSOR + 10;
    for n in 0..total {
        post.deliver("ann", &n.to_string());
    }
    // The callback panics after the first cursor was written, like a kill.
    let mut pulled = 0;
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sync(&here, &post.tree(), &plain(), &mut |step| {
            pulled += u64::from(matches!(step, SyncEvent::Pulled { .. }));
            assert!(pulled <= MAILS_PER_CURSOR + 2, "killed");
            true
        })
    }));
    assert!(killed.is_err());
    let (summary, _) = sync_as(&post, &here, &plain());
    assert_eq!(summary.present, 3, "only those after the last cursor are seen again");
    assert_eq!(names(&here.inbox()).len() as u64, total);
}

#[test]
fn copies_of_erased_mails_are_removed_or_replaced() {
    let mut post = CourierFixture::new();
    let here = post.workspace(ANN);
    let mails: Vec<_> = (0..4).map(|n| post.deliver("ann", &format!("secret {n}"))).collect();
    let (alone, both, edited, kept) = (&mails[0], &mails[1], &mails[2], &mails[3]);
    assert_eq!(counts(&post, &here, &plain()), [4, 0, 0, 0, 0]);
    let path = |entry: &MailIndexEntry| here.inbox().join(&entry.file);
    fs::remove_file(path(edited)).unwrap();
    fs::write(path(edited), "notes about the secret").unwrap();
    post.erase(alone, None);
    post.erase(both, Some("the rest"));
    post.erase(edited, None);
    post.rebuild();

    let dry = SyncOptions { dry_run: true, ..full() };
    assert_eq!(sync_as(&post, &here, &dry).0.erased, 2);
    assert!(path(alone).exists(), "a dry run changes nothing");
    let (summary, said) = sync_as(&post, &here, &plain());
    assert_eq!((summary.erased, summary.pulled, summary.gone), (2, 0, 0));
    assert!(said.iter().any(|words| words.contains("can have text that was erased")), "{said:?}");
    assert!(!path(alone).exists());
    let replaced = fs::read_to_string(path(both)).unwrap();
    assert!(replaced.contains("the rest") && !replaced.contains("secret"), "{replaced}");
    assert_eq!(fs::metadata(path(both)).unwrap().nlink(), 2, "linked again");
    assert_eq!(fs::read_to_string(path(edited)).unwrap(), "notes about the secret");
    assert!(fs::read_to_string(path(kept)).unwrap().contains("secret 3"));
    assert_eq!(sync_as(&post, &here, &plain()).0, SyncSummary::default());

    // A workspace that has pulled nothing gets the rest only.
    fs::remove_dir_all(here.inbox()).unwrap();
    fs::remove_file(cursor_file(&here)).unwrap();
    let (summary, _) = sync_as(&post, &here, &plain());
    assert_eq!((summary.pulled, summary.gone, summary.erased), (2, 0, 0));
}
