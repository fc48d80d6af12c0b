//! Checks of the store and of the mailbox files, without a courier.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::claim::MailLocation;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_mailbox::paths::{MAIL_DIRS, MailboxPaths};
use monoco_store::sqlite;

use super::{DoctorCheck, MAX_DIR_ENTRIES, RESTORE_HINT, lost_mails, store_problems};
use monoco_courier::clock::wall_now;
use monoco_courier::courier::mailbox_check::mail_of;

/// Age from which a temporary file is a leftover.
const STALE_AGE: Duration = Duration::from_secs(3600);

/// Checks the store while no courier is running: its format, its files, and whether it knows
/// the Mails of the index and the directories.
pub(super) fn store(dir: &Path, mailbox: &Path) -> Vec<DoctorCheck> {
    let (name, path) = ("store", dir.join("monoco.db"));
    let mails = mails_of_files(mailbox);
    let found = match sqlite::check(dir, &mails) {
        Ok(found) => found,
        Err(error) => {
            let detail = format!("{}: {error}", path.display());
            return vec![DoctorCheck::fail(name, detail, RESTORE_HINT)];
        }
    };
    let mut checks = Vec::new();
    let mut problems = found.problems;
    problems.extend(store_problems(&[], found.missing_blobs.len(), &found.missing_blobs));
    checks.push(match (problems.is_empty(), path.exists()) {
        (false, _) => DoctorCheck::fail(name, problems.join("; "), RESTORE_HINT),
        (true, true) => DoctorCheck::ok(name, path.display().to_string()),
        (true, false) => {
            DoctorCheck::ok(name, "none yet; the courier creates it at the first start")
        }
    });
    if !found.unknown_mails.is_empty() {
        let names: Vec<_> = found.unknown_mails.iter().map(ToString::to_string).collect();
        checks.push(lost_mails(names.len(), &names));
    }
    checks
}

/// The Mails that the index and the directories name.
fn mails_of_files(mailbox: &Path) -> BTreeSet<MailId> {
    let paths = MailboxPaths::new(mailbox.to_owned());
    let index = fs::File::open(paths.index()).map(BufReader::new);
    let lines = index.into_iter().flat_map(|index| index.lines().map_while(Result::ok));
    let entries = lines.filter_map(|line| serde_json::from_str::<MailIndexEntry>(&line).ok());
    let mut mails: BTreeSet<_> = entries.map(|entry| entry.id).collect();
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    for dir in MAIL_DIRS.into_iter().filter_map(MailLocation::dir) {
        let files = entries(mailbox.join(dir)).flat_map(|provider| entries(provider.path()));
        mails.extend(files.filter_map(|file| mail_of(file.file_name().to_str()?)));
    }
    mails
}

/// Checks for temporary files of interrupted writes.
pub(super) fn leftovers(mailbox: &Path) -> DoctorCheck {
    let dir = mailbox.join(".state/tmp");
    let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(wall_now().ms()).unwrap_or(0));
    let old = |written: SystemTime| now.duration_since(written).is_ok_and(|age| age > STALE_AGE);
    let files = fs::read_dir(&dir).into_iter().flatten().flatten().take(MAX_DIR_ENTRIES);
    let stale =
        files.filter(|entry| entry.metadata().and_then(|found| found.modified()).is_ok_and(old));
    match stale.count() {
        0 => DoctorCheck::ok("leftovers", "none"),
        stale => {
            let detail = format!("{stale} unfinished files in {}", dir.display());
            DoctorCheck::warn("leftovers", detail, "`monoco courier restart` removes them")
        }
    }
}

/// Counts the files of dead letters while no courier is running.
pub(super) fn dead_letter_files(mailbox: &Path) -> DoctorCheck {
    let name = "dead letters";
    let entries =
        |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_DIR_ENTRIES);
    let providers = entries(mailbox.join(".deadletter"));
    let dead = providers
        .flat_map(|provider| entries(provider.path()))
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "md"))
        .count();
    match dead {
        0 => DoctorCheck::ok(name, "none"),
        dead => {
            let dir = mailbox.join(".deadletter");
            let hint = "start the courier; `monoco dead list` then shows all with their reasons";
            DoctorCheck::warn(name, format!("{dead} files in {}", dir.display()), hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn leftovers_and_files_of_dead_letters_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Ok);
        assert_eq!(dead_letter_files(dir.path()).state, CheckState::Ok);
        let tmp = dir.path().join(".state/tmp");
        fs::create_dir_all(&tmp).unwrap();
        let file = fs::File::create(tmp.join("x")).unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Ok, "a new file may still be written");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Warn);
        let dead = dir.path().join(".deadletter/ci");
        fs::create_dir_all(&dead).unwrap();
        fs::write(dead.join("a.md"), "").unwrap();
        fs::write(dead.join("a.md.reason.json"), "").unwrap();
        let check = dead_letter_files(dir.path());
        assert_eq!(check.state, CheckState::Warn);
        assert!(check.detail.starts_with("1 files in "), "{}", check.detail);
    }

    #[test]
    fn file_that_is_not_a_database_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let state = || store(dir.path(), &dir.path().join("mailbox"))[0].state;
        assert_eq!(state(), CheckState::Ok);
        for text in ["this is not a database but a text", "short"] {
            fs::write(dir.path().join("monoco.db"), text).unwrap();
            assert_eq!(state(), CheckState::Fail, "{text}");
        }
    }
}
