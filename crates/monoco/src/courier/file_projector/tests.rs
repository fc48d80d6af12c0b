//! The mailbox's files against a real store: written, moved, torn, edited, rebuilt.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use monoco_core::contact::{Contact, ContactLevel};
use monoco_core::mail::Mail;
use monoco_store::ClaimUpdate;

use super::*;
use crate::courier::mailbox_check::{RebuildResult, rebuild_offline};
use crate::courier::test_hub::{TestHub, for_good};

fn filer(hub: &TestHub) -> Arc<FileProjector> {
    Arc::new(FileProjector::new(Arc::clone(hub.store()), hub.tree()))
}

/// Follows until there is nothing to follow, without bringing it to disk.
async fn follow(filer: &Arc<FileProjector>) -> Result<(), ProjectorError> {
    filer
        .blocking(|filer, handle| {
            while filer.round(true, handle)? == NextStep::Now {}
            Ok(())
        })
        .await
}

async fn sync(filer: &Arc<FileProjector>) {
    filer.blocking(|filer, handle| filer.finish(handle)).await.unwrap();
}

/// The files of a hub whose courier followed everything and stopped.
async fn settled(hub: &TestHub) -> Arc<FileProjector> {
    let filer = filer(hub);
    follow(&filer).await.unwrap();
    sync(&filer).await;
    filer
}

#[tokio::test]
async fn a_mail_has_one_file_and_it_follows_the_claims() {
    let hub = TestHub::new().await;
    let ids = hub.hear(["1", "2", "3"]).await;
    let filer = settled(&hub).await;
    assert_eq!(hub.names().len(), 3);
    let path = hub.path("inbound", &ids[0]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
    let mail = Mail::parse(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((mail.text.as_str(), &mail.header.id), ("text of 1", &ids[0]));
    let node = fs::metadata(&path).unwrap().ino();

    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[1], for_good()).await;
    follow(&filer).await.unwrap();
    let archived = hub.path("archive", &ids[0]).unwrap();
    assert_eq!(fs::metadata(&archived).unwrap().ino(), node, "moved, not copied");
    let dead = hub.path(".deadletter", &ids[1]).unwrap();
    let reason = fs::read_to_string(format!("{}.reason.json", dead.display())).unwrap();
    let reason: serde_json::Value = serde_json::from_str(&reason).unwrap();
    assert_eq!(reason["reasons"], serde_json::json!([{"workspace": "shared", "reason": "no"}]));
    assert_eq!(hub.names().len(), 4);

    let shared = monoco_core::claim::Workspace::shared();
    hub.store().retry_claim(&ids[1], &shared, hub.clock.now()).await.unwrap();
    follow(&filer).await.unwrap();
    assert_eq!(hub.names().len(), 3, "the reason leaves with it: {:?}", hub.names());
    let lines: Vec<_> = hub.index().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], r#"{"monoco_index":1,"generation":1}"#);
    let seqs =
        lines[1..].iter().map(|line| serde_json::from_str::<MailIndexEntry>(line).unwrap().seq);
    assert_eq!(seqs.collect::<Vec<_>>(), [1, 2, 3], "one line each, whatever happened");
}

#[tokio::test]
async fn what_came_with_a_mail_is_in_the_dropzone_by_its_hash() {
    let hub = TestHub::new().await;
    hub.hear_on("ci", "webhook", &["1", "2"], &[b"log", b"log", b"other"]).await;
    settled(&hub).await;
    let mut dropped: Vec<_> = fs::read_dir(hub.dropzone())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    dropped.sort();
    assert_eq!(dropped, ["log", "other"]);
}

#[tokio::test]
async fn nothing_is_seen_of_a_stranger_until_somebody_lets_him_in() {
    let hub = TestHub::new().await;
    hub.hear_on("door", "stub", &["1"], &[]).await;
    hub.hear(["2"]).await;
    let filer = settled(&hub).await;
    assert_eq!(hub.names().len(), 1);
    assert_eq!(hub.index().lines().count(), 2);
    let did = "did:msgtunnel:ann.user.door".parse().unwrap();
    let (names, bindings) = (vec!["Ann".to_owned()], Vec::new());
    let contact = Contact { did, names, level: ContactLevel::Friend, here: false, bindings };
    hub.store().put_contact(contact, hub.clock.now()).await.unwrap();
    follow(&filer).await.unwrap();
    assert_eq!(hub.names().len(), 2);
    assert_eq!(hub.index().lines().count(), 3, "and his line comes last");
    assert!(hub.index().lines().last().unwrap().contains("stub_"));
}

/// What a power cut may leave of what was not on disk yet, one damage at a time.
#[tokio::test]
async fn whatever_a_power_cut_leaves_is_made_whole_at_the_next_start() {
    let hub = TestHub::new().await;
    let ids = hub.hear_on("ci", "webhook", &["1", "2", "3"], &[b"log"]).await;
    let filer = settled(&hub).await;
    let new = hub.hear_on("ci", "webhook", &["4", "5"], &[b"other log"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[1], for_good()).await;
    follow(&filer).await.unwrap();
    drop(filer);
    let whole = hub.files();
    let filed = hub.store().file_progress().await.unwrap();
    let index = hub.mailbox().join(".state/mails.jsonl");
    assert!(fs::metadata(&index).unwrap().len() > filed.index_bytes, "there is a tail");

    let unsynced = [
        hub.path("inbound", &new[0]).unwrap(),
        hub.path("archive", &ids[0]).unwrap(),
        hub.path(".deadletter", &ids[1]).unwrap(),
    ];
    let reason = PathBuf::from(format!("{}.reason.json", unsynced[2].display()));
    let dropped = whole
        .keys()
        .find(|name| name.starts_with("dropzone") && whole[name.as_str()] == "other log");
    let dropped = hub.dir.path().join(dropped.unwrap());
    let mut files = vec![index.clone(), reason, dropped];
    files.extend(unsynced.clone());
    for file in &files {
        let text = fs::read(file).unwrap();
        // What was noted is on disk.
        let floor = if *file == index { usize::try_from(filed.index_bytes).unwrap() } else { 0 };
        let half = floor + (text.len() - floor) / 2;
        let zeros = [&text[..half], &vec![0; text.len() - half]].concat();
        for left in [&text[..floor], &text[..half], &zeros] {
            fs::remove_file(file).unwrap();
            if !left.is_empty() || file.to_string_lossy().ends_with(".md") {
                fs::write(file, left).unwrap();
            }
            follow_again(&hub, filed).await;
            assert_eq!(hub.files(), whole, "{}, {} bytes", file.display(), left.len());
        }
        if *file != index {
            fs::remove_file(file).unwrap();
            follow_again(&hub, filed).await;
            assert_eq!(hub.files(), whole, "{}, removed", file.display());
        }
    }
    // A rename that was lost: the file is still where it was, or in both places.
    let inbound = hub.mailbox().join("inbound/webhook");
    for path in &unsynced[1..] {
        for both in [false, true] {
            let back = inbound.join(path.file_name().unwrap());
            if both {
                fs::hard_link(path, back).unwrap();
            } else {
                fs::rename(path, back).unwrap();
            }
            follow_again(&hub, filed).await;
            assert_eq!(hub.files(), whole, "{}, {both}", path.display());
        }
    }
}

/// A new courier follows everything, and dies before it is noted.
async fn follow_again(hub: &TestHub, filed: FileProgress) {
    follow(&filer(hub)).await.unwrap();
    hub.store().set_file_progress(filed).await.unwrap();
}

#[tokio::test]
async fn an_index_that_is_lost_comes_back_complete_under_another_generation() {
    let hub = TestHub::new().await;
    let ids = hub.hear(["1", "2", "3"]).await;
    hub.end(&ids[1], ClaimUpdate::Complete).await;
    drop(settled(&hub).await);
    let path = hub.mailbox().join(".state/mails.jsonl");
    let damages: [fn(&Path); 4] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "rubbish").unwrap(),
        |path| fs::write(path, fs::read_to_string(path).unwrap() + "{}\n").unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/null", path).unwrap();
        },
    ];
    let parts = |index: String| {
        let (head, lines) = index.split_once('\n').unwrap();
        (head.to_owned(), lines.to_owned())
    };
    for (at, damage) in damages.into_iter().enumerate() {
        let before = parts(hub.index());
        damage(&path);
        // While the courier runs it is noticed with the next Mail; else at the start.
        let filer = settled(&hub).await;
        let after = parts(hub.index());
        assert_eq!(after.1, before.1, "damage {at}");
        let appended = at == 2;
        assert_eq!(after.0 == before.0, appended, "damage {at}: {}", after.0);

        damage(&path);
        hub.hear([format!("new-{at}").as_str()]).await;
        follow(&filer).await.unwrap();
        sync(&filer).await;
        let last = parts(hub.index());
        assert!(last.1.starts_with(&after.1), "damage {at}");
        assert_eq!(last.1.lines().count(), after.1.lines().count() + 1, "damage {at}");
        assert_ne!(last.0, after.0, "damage {at}");
    }
}

#[tokio::test]
async fn a_changed_file_is_written_again_and_who_linked_it_keeps_his_edits() {
    let hub = TestHub::new().await;
    let ids = hub.hear(["1", "2", "3"]).await;
    let filer = settled(&hub).await;
    let whole = hub.files();
    let linked = hub.dir.path().join("linked.md");
    let path = hub.path("inbound", &ids[0]).unwrap();
    fs::hard_link(&path, &linked).unwrap();
    fs::set_permissions(&linked, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&linked, "my notes").unwrap();
    fs::remove_file(hub.path("inbound", &ids[1]).unwrap()).unwrap();
    let third = hub.path("inbound", &ids[2]).unwrap();
    let moved = hub.mailbox().join("archive/webhook");
    fs::create_dir_all(&moved).unwrap();
    fs::rename(&third, moved.join(third.file_name().unwrap())).unwrap();

    let report = filer.check().await.unwrap();
    assert_eq!((report.repaired, report.foreign_files), (3, 0));
    assert_eq!(hub.files(), whole);
    assert_eq!(fs::read_to_string(&linked).unwrap(), "my notes");
    assert_eq!(filer.check().await.unwrap().repaired, 3, "nothing is left to repair");
}

#[tokio::test]
async fn foreign_files_are_reported_and_left_alone() {
    let hub = TestHub::new().await;
    let ids = hub.hear(["1"]).await;
    let filer = settled(&hub).await;
    let ours = hub.path("inbound", &ids[0]).unwrap();
    let name = ours.file_name().unwrap().to_string_lossy().replace("webhook_", "webhook_ffff");
    let shelf = hub.mailbox().join("inbound/webhook");
    fs::create_dir_all(hub.mailbox().join("archive/lark")).unwrap();
    let planted = [
        shelf.join("notes.txt"),
        shelf.join("20260206T204500_webhook_000000000000000000000000.md"),
        shelf.join(&name[..name.len().min(120)]),
        hub.mailbox().join("inbound/readme"),
        hub.mailbox().join("archive/lark").join(ours.file_name().unwrap()),
        shelf.join("20260206T204500_build_0123456789abcdef.md"),
    ];
    for path in &planted {
        fs::write(path, "mine").unwrap();
    }
    let draft = hub.mailbox().join("archive/lark/20260206T204500_build_0123456789abcdef.md");
    fs::write(&draft, "a draft that was sent").unwrap();
    let report = filer.check().await.unwrap();
    assert_eq!(report.foreign_files, planted.len(), "{:?}", report.foreign);
    assert!(report.foreign.contains(&"inbound/webhook/notes.txt".to_owned()), "{report:?}");
    assert!(planted.iter().all(|path| fs::read_to_string(path).unwrap() == "mine"));
}

#[tokio::test]
async fn a_link_in_the_place_of_a_directory_holds_up_nobody_else() {
    let hub = TestHub::new().await;
    let outside = hub.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let tree = hub.tree();
    symlink(&outside, hub.mailbox().join("inbound/webhook")).unwrap();
    let filer = Arc::new(FileProjector::new(Arc::clone(hub.store()), tree));
    let ids = hub.hear(["1"]).await;
    let stub = hub.hear_on("ci", "stub", &["2"], &[]).await;
    follow(&filer).await.unwrap();
    sync(&filer).await;
    assert!(hub.path("inbound", &stub[0]).is_some());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(filer.report().bad.contains_key(&ids[0]), "{:?}", filer.report());
    assert_eq!(hub.index().lines().count(), 2);

    fs::remove_file(hub.mailbox().join("inbound/webhook")).unwrap();
    filer.check().await.unwrap();
    follow(&filer).await.unwrap();
    assert!(hub.path("inbound", &ids[0]).is_some());
    assert_eq!(filer.report().bad.len(), 0);
    assert_eq!(hub.index().lines().count(), 3, "and workspaces see it");
}

#[tokio::test]
async fn what_can_not_be_written_now_is_written_later() {
    let hub = TestHub::new().await;
    let filer = settled(&hub).await;
    let tmp = hub.mailbox().join(".state/tmp");
    fs::remove_dir(&tmp).unwrap();
    fs::write(&tmp, "in the way").unwrap();
    let ids = hub.hear(["1"]).await;
    let stop = CancellationToken::new();
    let story = async {
        until(|| filer.report().trouble.is_some()).await;
        assert_eq!(hub.path("inbound", &ids[0]), None);
        fs::remove_file(&tmp).unwrap();
        until(|| hub.path("inbound", &ids[0]).is_some()).await;
        until(|| filer.report().trouble.is_none()).await;
        stop.cancel();
    };
    tokio::join!(Arc::clone(&filer).run(stop.clone()), story);
    let filed = hub.store().file_progress().await.unwrap();
    assert_eq!(filed.change, 1, "and noted before the end");
    assert_eq!(filed.index_bytes, hub.index().len() as u64);
}

async fn until(mut met: impl FnMut() -> bool) {
    let wait = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
}

#[tokio::test]
async fn after_a_failed_sync_what_was_written_since_is_written_again() {
    let hub = TestHub::new().await;
    let old = hub.hear(["1"]).await;
    let filer = settled(&hub).await;
    let new = hub.hear(["2"]).await;
    follow(&filer).await.unwrap();
    let node = |id| fs::metadata(hub.path("inbound", id).unwrap()).unwrap().ino();
    let before = (node(&old[0]), node(&new[0]));
    // Held on to, so that the number is not given to the next file.
    let _held = fs::File::open(hub.path("inbound", &new[0]).unwrap()).unwrap();

    fs::remove_dir_all(hub.dropzone()).unwrap();
    fs::write(hub.dropzone(), "in the way of a sync").unwrap();
    let failed = filer.blocking(|filer, handle| filer.finish(handle)).await;
    assert!(matches!(failed, Err(ProjectorError::Sync(_))), "{failed:?}");
    assert_eq!(hub.store().file_progress().await.unwrap().change, 1, "nothing is noted");

    fs::remove_file(hub.dropzone()).unwrap();
    follow(&filer).await.unwrap();
    sync(&filer).await;
    assert_eq!(node(&old[0]), before.0, "that was on disk");
    assert_ne!(node(&new[0]), before.1, "what can be read proves nothing");
    assert_eq!(hub.store().file_progress().await.unwrap().change, 2);
    assert_eq!(hub.index().lines().count(), 3);
}

#[tokio::test]
async fn a_new_index_leaves_out_what_is_gone_but_for_the_last() {
    let hub = TestHub::new().await;
    let ids = hub.hear(["1", "2", "3"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[2], ClaimUpdate::Complete).await;
    let filer = settled(&hub).await;
    assert_eq!(hub.store().purge_archived_mails(0, 10, hub.clock.now()).await.unwrap(), 2);
    follow(&filer).await.unwrap();
    assert_eq!(hub.names().len(), 1);
    assert_eq!(hub.index().lines().count(), 4, "readers go on where they were");
    filer.rebuild().await.unwrap();
    let index = hub.index();
    let named = ids.iter().filter(|id| index.contains(&id.to_string())).collect::<Vec<_>>();
    // By the last number readers tell that this is the mailbox they know.
    assert_eq!(named, [&ids[1], &ids[2]]);
}

#[tokio::test]
async fn a_mailbox_that_is_thrown_away_comes_back() {
    let hub = TestHub::new().await;
    hub.hear(["1", "2"]).await;
    let filer = settled(&hub).await;
    let whole = hub.names();
    fs::remove_dir_all(hub.mailbox()).unwrap();
    filer.check().await.unwrap();
    follow(&filer).await.unwrap();
    assert_eq!(hub.names(), whole);
    assert_eq!(hub.index().lines().count(), 3);
}

#[tokio::test]
async fn a_rebuild_makes_the_same_tree_again() {
    let hub = TestHub::new().await;
    let ids = hub.hear_on("ci", "webhook", &["1", "2", "3"], &[b"log"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[1], for_good()).await;
    let filer = settled(&hub).await;
    let whole = hub.files();
    let same = filer.rebuild().await.unwrap();
    assert_eq!(same, RebuildResult { mails: 3, ..RebuildResult::default() });
    drop(filer);

    fs::remove_dir_all(hub.mailbox()).unwrap();
    fs::remove_dir_all(hub.dropzone()).unwrap();
    let store = Arc::clone(hub.store());
    let rebuilt = rebuild_offline(store, hub.mailbox(), hub.dropzone()).await.unwrap();
    assert_eq!(rebuilt, RebuildResult { mails: 3, written: 3, ..RebuildResult::default() });
    let (mut found, mut before) = (hub.files(), whole);
    let index = "mailbox/.state/mails.jsonl";
    let lines = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(lines(&found[index]), lines(&before[index]));
    assert_ne!(found.remove(index), before.remove(index), "another generation");
    assert_eq!(found, before);
    drop(settled(&hub).await);
}
