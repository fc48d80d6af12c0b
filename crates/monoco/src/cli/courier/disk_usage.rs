//! Measures the disk space that the courier occupies, by part.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::Serialize;

use monoco_courier::config;
use monoco_courier::home::Home;

/// Most directory entries that are counted. Enough for some seconds of work.
const MAX_ENTRIES: usize = 500_000;

/// Disk space of one home directory, in bytes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct DiskUsage {
    pub store_bytes: u64,
    pub mailbox_bytes: u64,
    pub dropzone_bytes: u64,
    pub log_bytes: u64,
    /// Free space of the disk with the home directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Whether all files were counted; `false` when there are more than 500,000.
    pub complete: bool,
}

impl DiskUsage {
    pub fn measure(home: &Home) -> Self {
        let mut left = MAX_ENTRIES;
        let mut size = |dir: PathBuf| occupied(dir, &mut left);
        let free = rustix::fs::statvfs(home.path());
        let log = home.log();
        Self {
            store_bytes: size(home.store()),
            mailbox_bytes: size(config::mailbox(home).unwrap_or_else(|_| home.mailbox())),
            dropzone_bytes: size(home.dropzone()),
            log_bytes: size(log.parent().unwrap_or(&log).to_owned()),
            free_bytes: free.ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            complete: left > 0,
        }
    }

    /// Formats the usage on one line.
    pub fn summary(&self) -> String {
        let at_least = if self.complete { "" } else { "at least " };
        let free = self.free_bytes.map_or_else(String::new, |free| format!(", {} free", mib(free)));
        format!(
            "{at_least}store {}, mailbox {}, dropzone {}, log {}{free}",
            mib(self.store_bytes),
            mib(self.mailbox_bytes),
            mib(self.dropzone_bytes),
            mib(self.log_bytes),
        )
    }
}

/// Sums the blocks of all files below `dir`. Does not follow symbolic links below it. Counts
/// at most `left` entries.
fn occupied(dir: PathBuf, left: &mut usize) -> u64 {
    let mut total = 0;
    let mut dirs = vec![dir];
    while let Some(dir) = dirs.pop() {
        // Files may disappear meanwhile, so errors are ignored.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if *left == 0 {
                return total;
            }
            *left -= 1;
            let Ok(found) = entry.metadata() else { continue };
            total += found.blocks() * 512;
            if found.is_dir() {
                dirs.push(dir.join(entry.file_name()));
            }
        }
    }
    total
}

fn mib(bytes: u64) -> String {
    let tenths = bytes * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn write(path: &Path, size: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![1; size]).unwrap();
    }

    #[test]
    fn files_are_counted_by_part_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        write(&home.store().join("blobs/a/b"), 1 << 20);
        write(&dir.path().join("elsewhere/large"), 8 << 20);
        fs::create_dir_all(home.mailbox()).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::os::unix::fs::symlink(elsewhere, home.mailbox().join("link")).unwrap();
        let usage = DiskUsage::measure(&home);
        assert!(((1 << 20)..(2 << 20)).contains(&usage.store_bytes), "{usage:?}");
        assert!(usage.mailbox_bytes < 1 << 20 && usage.complete, "{usage:?}");
        assert!(usage.summary().starts_with("store 1.0 MiB, mailbox 0."), "{}", usage.summary());
        let mut left = 1;
        occupied(home.path().to_owned(), &mut left);
        assert_eq!(left, 0);
    }
}
