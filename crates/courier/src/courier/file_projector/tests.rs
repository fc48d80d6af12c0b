//! Tests of the file projector with a real store: files are written, moved, torn, edited
//! and rebuilt.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use monoco_core::contact::{Contact, ContactLevel};
use monoco_store::ClaimUpdate;

use super::*;
use crate::courier::mailbox_check::{RebuildResult, rebuild_offline};
use crate::courier::test_hub::{TestHub, permanent_failure};

fn projector(hub: &TestHub) -> Arc<FileProjector> {
    Arc::new(FileProjector::new(Arc::clone(hub.store()), hub.tree()))
}

/// Applies all changes without syncing the disk.
async fn follow(projector: &Arc<FileProjector>) -> Result<(), ProjectorError> {
    projector
        .blocking(|projector, handle| {
            while projector.round(true, handle)? == NextStep::Now {}
            Ok(())
        })
        .await
}

async fn sync(projector: &Arc<FileProjector>) {
    projector.blocking(|projector, handle| projector.finish(handle)).await.unwrap();
}

/// A projector that has applied and synced all changes.
async fn settled(hub: &TestHub) -> Arc<FileProjector> {
    let projector = projector(hub);
    follow(&projector).await.unwrap();
    sync(&projector).await;
    projector
}

#[tokio::test]
async fn held_mail_has_no_file_until_its_sender_is_accepted() {
    let hub = TestHub::new().await;
    hub.receive_on("door", "stub", &["1"], &[]).await;
    hub.receive(["2"]).await;
    let projector = settled(&hub).await;
    assert_eq!(hub.names().len(), 1);
    assert_eq!(hub.index().lines().count(), 2);
    let did = "did:msgtunnel:ann.user.door".parse().unwrap();
    let (names, bindings) = (vec!["Ann".to_owned()], Vec::new());
    let contact = Contact { did, names, level: ContactLevel::Friend, here: false, bindings };
    hub.store().put_contact(contact, hub.clock.now()).await.unwrap();
    follow(&projector).await.unwrap();
    assert_eq!(hub.names().len(), 2);
    assert_eq!(hub.index().lines().count(), 3, "and his line comes last");
    assert!(hub.index().lines().last().unwrap().contains("stub_"));
}

/// Each kind of damage that a power cut can cause to unsynced files.
#[tokio::test]
async fn files_damaged_by_a_power_cut_are_repaired_at_the_next_start() {
    let hub = TestHub::new().await;
    let ids = hub.receive_on("ci", "webhook", &["1", "2", "3"], &[b"log"]).await;
    let projector = settled(&hub).await;
    let new = hub.receive_on("ci", "webhook", &["4", "5"], &[b"other log"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[1], permanent_failure()).await;
    follow(&projector).await.unwrap();
    drop(projector);
    let whole = hub.files();
    let progress = hub.store().file_progress().await.unwrap();
    let index = hub.mailbox().join(".state/mails.jsonl");
    assert!(fs::metadata(&index).unwrap().len() > progress.index_bytes, "there is a tail");

    let unsynced = [
        hub.path("inbound", &new[0]).unwrap(),
        hub.path("archive", &ids[0]).unwrap(),
        hub.path(".deadletter", &ids[1]).unwrap(),
    ];
    let reason = PathBuf::from(format!("{}.reason.json", unsynced[2].display()));
    let attachment = whole
        .keys()
        .find(|name| name.starts_with("dropzone") && whole[name.as_str()] == "other log");
    let attachment = hub.dir.path().join(attachment.unwrap());
    let mut files = vec![index.clone(), reason, attachment];
    files.extend(unsynced.clone());
    for file in &files {
        let text = fs::read(file).unwrap();
        // Synced bytes are not lost.
        let floor = if *file == index { usize::try_from(progress.index_bytes).unwrap() } else { 0 };
        let half = floor + (text.len() - floor) / 2;
        let zeros = [&text[..half], &vec![0; text.len() - half]].concat();
        for left in [&text[..floor], &text[..half], &zeros] {
            fs::remove_file(file).unwrap();
            if !left.is_empty() || file.to_string_lossy().ends_with(".md") {
                fs::write(file, left).unwrap();
            }
            follow_again(&hub, progress).await;
            assert_eq!(hub.files(), whole, "{}, {} bytes", file.display(), left.len());
        }
        if *file != index {
            fs::remove_file(file).unwrap();
            follow_again(&hub, progress).await;
            assert_eq!(hub.files(), whole, "{}, removed", file.display());
        }
    }
    // A lost rename: the file is in the old directory, or in both.
    let inbound = hub.mailbox().join("inbound/webhook");
    for path in &unsynced[1..] {
        for both in [false, true] {
            let back = inbound.join(path.file_name().unwrap());
            if both {
                fs::hard_link(path, back).unwrap();
            } else {
                fs::rename(path, back).unwrap();
            }
            follow_again(&hub, progress).await;
            assert_eq!(hub.files(), whole, "{}, {both}", path.display());
        }
    }
}

/// Applies all changes again from an older stored progress.
async fn follow_again(hub: &TestHub, progress: FileProgress) {
    follow(&projector(hub)).await.unwrap();
    hub.store().set_file_progress(progress).await.unwrap();
}

#[tokio::test]
async fn lost_index_is_rewritten_with_a_new_generation() {
    let hub = TestHub::new().await;
    let ids = hub.receive(["1", "2", "3"]).await;
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
        // A running projector notices the loss with the next Mail, another one at its
        // start.
        let projector = settled(&hub).await;
        let after = parts(hub.index());
        assert_eq!(after.1, before.1, "damage {at}");
        let appended = at == 2;
        assert_eq!(after.0 == before.0, appended, "damage {at}: {}", after.0);

        damage(&path);
        hub.receive([format!("new-{at}").as_str()]).await;
        follow(&projector).await.unwrap();
        sync(&projector).await;
        let last = parts(hub.index());
        assert!(last.1.starts_with(&after.1), "damage {at}");
        assert_eq!(last.1.lines().count(), after.1.lines().count() + 1, "damage {at}");
        assert_ne!(last.0, after.0, "damage {at}");
    }
}

#[tokio::test]
async fn changed_file_is_written_again_and_a_linked_copy_keeps_the_edit() {
    let hub = TestHub::new().await;
    let ids = hub.receive(["1", "2", "3"]).await;
    let projector = settled(&hub).await;
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

    let report = projector.check().await.unwrap();
    assert_eq!((report.repaired, report.foreign_files), (3, 0));
    assert_eq!(hub.files(), whole);
    assert_eq!(fs::read_to_string(&linked).unwrap(), "my notes");
    assert_eq!(projector.check().await.unwrap().repaired, 3, "nothing is left to repair");
}

#[tokio::test]
async fn unknown_files_are_reported_and_not_changed() {
    let hub = TestHub::new().await;
    let ids = hub.receive(["1"]).await;
    let projector = settled(&hub).await;
    let ours = hub.path("inbound", &ids[0]).unwrap();
    let name = ours.file_name().unwrap().to_string_lossy().replace("webhook_", "webhook_ffff");
    let subdir = hub.mailbox().join("inbound/webhook");
    fs::create_dir_all(hub.mailbox().join("archive/lark")).unwrap();
    let planted = [
        subdir.join("notes.txt"),
        subdir.join("20260206T204500_webhook_000000000000000000000000.md"),
        subdir.join(&name[..name.len().min(120)]),
        hub.mailbox().join("inbound/readme"),
        hub.mailbox().join("archive/lark").join(ours.file_name().unwrap()),
        subdir.join("20260206T204500_build_0123456789abcdef.md"),
    ];
    for path in &planted {
        fs::write(path, "mine").unwrap();
    }
    let draft = hub.mailbox().join("archive/lark/20260206T204500_build_0123456789abcdef.md");
    fs::write(&draft, "a draft that was sent").unwrap();
    let report = projector.check().await.unwrap();
    assert_eq!(report.foreign_files + report.lost_mails, planted.len(), "{report:?}");
    assert_eq!(report.lost, ["20260206T204500_webhook_000000000000000000000000.md"]);
    assert!(report.foreign.contains(&"inbound/webhook/notes.txt".to_owned()), "{report:?}");
    assert!(planted.iter().all(|path| fs::read_to_string(path).unwrap() == "mine"));
}

#[tokio::test]
async fn files_are_written_again_after_a_failed_sync() {
    let hub = TestHub::new().await;
    let old = hub.receive(["1"]).await;
    let projector = settled(&hub).await;
    let new = hub.receive(["2"]).await;
    follow(&projector).await.unwrap();
    let node = |id| fs::metadata(hub.path("inbound", id).unwrap()).unwrap().ino();
    let before = (node(&old[0]), node(&new[0]));
    // Kept open, so that the inode number is not reused.
    let _held = fs::File::open(hub.path("inbound", &new[0]).unwrap()).unwrap();

    fs::remove_dir_all(hub.dropzone()).unwrap();
    fs::write(hub.dropzone(), "in the way of a sync").unwrap();
    let failed = projector.blocking(|projector, handle| projector.finish(handle)).await;
    assert!(matches!(failed, Err(ProjectorError::Sync(_))), "{failed:?}");
    assert_eq!(hub.store().file_progress().await.unwrap().change, 1, "nothing is noted");

    fs::remove_file(hub.dropzone()).unwrap();
    follow(&projector).await.unwrap();
    sync(&projector).await;
    assert_eq!(node(&old[0]), before.0, "that was on disk");
    assert_ne!(node(&new[0]), before.1, "what can be read proves nothing");
    assert_eq!(hub.store().file_progress().await.unwrap().change, 2);
    assert_eq!(hub.index().lines().count(), 3);
}

#[tokio::test]
async fn rewritten_index_omits_purged_mails_except_the_last() {
    let hub = TestHub::new().await;
    let ids = hub.receive(["1", "2", "3"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[2], ClaimUpdate::Complete).await;
    let projector = settled(&hub).await;
    assert_eq!(hub.store().purge_archived_mails(0, 10, hub.clock.now()).await.unwrap(), 2);
    follow(&projector).await.unwrap();
    assert_eq!(hub.names().len(), 1);
    assert_eq!(hub.index().lines().count(), 4, "readers go on where they were");
    projector.rebuild().await.unwrap();
    let index = hub.index();
    let entry = ids.iter().filter(|id| index.contains(&id.to_string())).collect::<Vec<_>>();
    // Readers recognise the mailbox by the last sequence number.
    assert_eq!(entry, [&ids[1], &ids[2]]);
}

#[tokio::test]
async fn deleted_mailbox_is_written_again() {
    let hub = TestHub::new().await;
    hub.receive(["1", "2"]).await;
    let projector = settled(&hub).await;
    let whole = hub.names();
    fs::remove_dir_all(hub.mailbox()).unwrap();
    projector.check().await.unwrap();
    follow(&projector).await.unwrap();
    assert_eq!(hub.names(), whole);
    assert_eq!(hub.index().lines().count(), 3);
}

#[tokio::test]
async fn rebuild_produces_identical_files() {
    let hub = TestHub::new().await;
    let ids = hub.receive_on("ci", "webhook", &["1", "2", "3"], &[b"log"]).await;
    hub.end(&ids[0], ClaimUpdate::Complete).await;
    hub.end(&ids[1], permanent_failure()).await;
    let projector = settled(&hub).await;
    let whole = hub.files();
    let same = projector.rebuild().await.unwrap();
    assert_eq!(same, RebuildResult { mails: 3, ..RebuildResult::default() });
    drop(projector);

    fs::remove_dir_all(hub.mailbox()).unwrap();
    fs::remove_dir_all(hub.dropzone()).unwrap();
    let store = Arc::clone(hub.store());
    let rebuilt = rebuild_offline(store, hub.mailbox(), hub.dropzone(), None).await.unwrap();
    assert_eq!(rebuilt, RebuildResult { mails: 3, written: 3, ..RebuildResult::default() });
    let (mut found, mut before) = (hub.files(), whole);
    let index = "mailbox/.state/mails.jsonl";
    let lines = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(lines(&found[index]), lines(&before[index]));
    assert_ne!(found.remove(index), before.remove(index), "another generation");
    assert_eq!(found, before);
    drop(settled(&hub).await);
}
