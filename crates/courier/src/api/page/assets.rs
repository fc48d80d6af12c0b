//! The files of `page/`, embedded in the program.

use std::sync::LazyLock;

use flate2::Compression;
use monoco_core::hex;
use sha2::{Digest, Sha256};

use crate::api::compression::gzip;

/// One file of the page.
pub struct PageAsset {
    pub name: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    /// The same bytes, compressed by gzip.
    pub compressed: Vec<u8>,
    pub etag: String,
}

/// Embeds files of `page/` by their names.
macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../../page/", $name)).as_slice())),+]
    };
}

/// A test compares the names with the directory.
const FILES: &[(&str, &[u8])] = files![
    "api.js",
    "app.js",
    "claims.js",
    "html.js",
    "icon.svg",
    "index.html",
    "keys.js",
    "language.js",
    "route.js",
    "rules.js",
    "stream.js",
    "strings/en.js",
    "strings/zh.js",
    "style.css",
    "ui.js",
    "vendor/hooks.mjs",
    "vendor/htm.mjs",
    "vendor/preact.mjs",
    "vendor/uplot.css",
    "vendor/uplot.mjs",
    "views/agents.js",
    "views/approvals.js",
    "views/conversations.js",
    "views/dead.js",
    "views/health.js",
    "views/inbox.js",
    "views/mail.js",
    "views/pipeline.js",
    "views/search.js",
    "views/trace.js",
];

/// Compressed when the page is opened first: about 200 KB, a few milliseconds.
static ASSETS: LazyLock<Vec<PageAsset>> = LazyLock::new(|| {
    FILES
        .iter()
        .map(|&(name, bytes)| PageAsset {
            name,
            content_type: content_type(name),
            bytes,
            compressed: gzip(bytes, Compression::best()),
            etag: format!("\"{}\"", &hex::encode(&Sha256::digest(bytes))[..16]),
        })
        .collect()
});

/// Returns the file with this name below `/assets/`.
pub fn find(name: &str) -> Option<&'static PageAsset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use monoco_core::event::EventKind;

    use super::*;

    const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../page");

    /// Largest first view, compressed: what the browser loads for the inbox.
    const MAX_FIRST_VIEW: usize = 60_000;

    fn names(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names(&path, found);
            } else {
                found.insert(path.strip_prefix(DIR).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_served_file_of_the_directory_is_embedded() {
        let mut found = BTreeSet::new();
        names(Path::new(DIR), &mut found);
        // Not served: licences, notes and the settings of the type check.
        found.retain(|name| {
            Path::new(name).extension().is_some_and(|it| it != "md" && it != "json" && it != "mts")
        });
        assert_eq!(found, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }

    #[test]
    fn first_view_is_small_when_compressed() {
        let later = |name: &str| {
            name.starts_with("vendor/uplot")
                || ["strings/zh.js", "rules.js"].contains(&name)
                || (name.starts_with("views/") && name != "views/inbox.js")
        };
        let size: usize =
            ASSETS.iter().filter(|asset| !later(asset.name)).map(|it| it.compressed.len()).sum();
        assert!(size < MAX_FIRST_VIEW, "{size} bytes");
    }

    #[test]
    fn page_listens_to_every_kind_of_event() {
        let stream = fs::read_to_string(Path::new(DIR).join("stream.js")).unwrap();
        for kind in EventKind::ALL {
            assert!(stream.contains(&format!("'{}'", kind.as_str())), "{}", kind.as_str());
        }
    }

    #[test]
    fn vendored_files_have_the_documented_checksums() {
        let notes = fs::read_to_string(Path::new(DIR).join("vendor/README.md")).unwrap();
        for (name, bytes) in FILES.iter().filter(|(name, _)| name.starts_with("vendor/")) {
            let sum = hex::encode(&Sha256::digest(bytes));
            assert!(notes.contains(&sum), "vendor/README.md lacks the checksum {sum} of {name}");
        }
    }
}
