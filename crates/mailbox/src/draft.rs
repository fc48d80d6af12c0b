//! Writes drafts into `outbound/` and reads their status from files.
//!
//! No courier is needed. The file appears complete under a unique name. The courier moves
//! it to the archive or the dead letters when its deliveries have ended.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use monoco_core::claim::MailLocation;
use monoco_core::draft::{Draft, DraftAttachment, InvalidDraft};
use monoco_core::mail::{MailId, from_yaml, front_matter, split};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_fs::FileOptions;
use serde_json::{Value, json};

use super::paths::{MAX_ATTACHMENT_BYTES, OUTBOUND_DIR};
use super::{MailboxError, at};

/// A message to send.
#[derive(Clone, Debug, Default)]
pub struct NewDraft {
    pub to: Vec<String>,
    pub cc: Vec<String>,
    pub bcc: Vec<String>,
    /// The tunnel that the accounts belong to.
    pub tunnel: Option<String>,
    /// The Mail that the message replies to.
    pub reply_to: Option<MailId>,
    pub thread_key: Option<String>,
    pub title: Option<String>,
    pub text: String,
    pub artifacts: Vec<DraftAttachment>,
    /// Send without a notification sound.
    pub silent: bool,
    /// Send with a prominent notification.
    pub urgent: bool,
    /// Do not send before this time.
    pub schedule_at: Option<Timestamp>,
    pub correlation_id: Option<String>,
    pub idempotency_key: Option<String>,
}

/// Status of a draft.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftStatus {
    /// The draft waits to be picked up, or its deliveries have not ended.
    Waiting,
    /// There is no file of this draft.
    Gone,
    /// The deliveries have ended.
    Settled {
        /// Archive or dead letters.
        place: MailLocation,
        path: PathBuf,
        /// What the courier reported; `null` when there is no report.
        outcome: Value,
    },
}

impl NewDraft {
    /// The content of the draft file.
    pub fn render(&self) -> String {
        let mut fields = Vec::new();
        for (key, people) in [("to", &self.to), ("cc", &self.cc), ("bcc", &self.bcc)] {
            if !people.is_empty() {
                fields.push((key, json!(people)));
            }
        }
        let words = [
            ("tunnel", self.tunnel.clone()),
            ("reply_to", self.reply_to.as_ref().map(ToString::to_string)),
            ("thread_key", self.thread_key.clone()),
            ("title", self.title.clone()),
            ("correlation_id", self.correlation_id.clone()),
            ("idempotency_key", self.idempotency_key.clone()),
        ];
        fields.extend(words.into_iter().filter_map(|(key, word)| Some((key, json!(word?)))));
        if !self.artifacts.is_empty() {
            fields.push(("artifacts", json!(self.artifacts)));
        }
        let mut options = serde_json::Map::new();
        for (key, set) in [("silent", self.silent), ("urgent", self.urgent)] {
            if set {
                options.insert(key.to_owned(), json!(true));
            }
        }
        if let Some(at) = self.schedule_at {
            options.insert("schedule_at".to_owned(), json!(at.rfc3339()));
        }
        if !options.is_empty() {
            fields.push(("options", Value::Object(options)));
        }
        format!("{}{}\n", front_matter(&fields), self.text)
    }
}

/// Validates a draft and writes it to `outbound/`. `mark` is a random number that makes
/// the name unique. Returns the path.
///
/// # Errors
///
/// When the draft is invalid or cannot be written.
pub fn post(
    mailbox: &Path,
    provider: &str,
    file: &str,
    now: Timestamp,
    mark: u64,
) -> Result<PathBuf, MailboxError> {
    let dir = mailbox.join(OUTBOUND_DIR).join(provider);
    let name = format!("{}_{mark:016x}.md", now.compact());
    check(file, provider)
        .map_err(|error| MailboxError::Bad { path: "the draft".into(), why: error.to_string() })?;
    put(&dir, &name, file.as_bytes(), 0o600, mark)
}

/// Checks that the text is a draft for this provider.
fn check(file: &str, provider: &str) -> Result<(), InvalidDraft> {
    match Draft::parse(file)?.provider {
        Some(said) if said != provider => Err(InvalidDraft::Field {
            field: "provider".to_owned(),
            why: format!("found {said:?}, expected {provider:?}"),
        }),
        _ => Ok(()),
    }
}

/// An attachment of a draft, with its bytes.
#[derive(Clone, Debug)]
pub struct AttachedFile {
    pub attachment: DraftAttachment,
    bytes: Vec<u8>,
}

/// Reads a file to attach. Writes nothing.
///
/// # Errors
///
/// When the file cannot be read, or is larger than 64 MiB.
pub fn read_attachment(file: &Path) -> Result<AttachedFile, MailboxError> {
    let mut bytes = Vec::new();
    let opened = fs::File::open(file);
    let read = opened.and_then(|file| file.take(MAX_ATTACHMENT_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(at(file))?;
    if bytes.len() as u64 > MAX_ATTACHMENT_BYTES {
        let why = "larger than 64 MiB".to_owned();
        return Err(MailboxError::Bad { path: file.to_owned(), why });
    }
    let hash = ObjId::of(ObjKind::Bytes, &bytes);
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mime_type = mime_type(&name).to_owned();
    Ok(AttachedFile { attachment: DraftAttachment { name, mime_type, hash }, bytes })
}

impl AttachedFile {
    /// Copies the bytes into the dropzone.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn store(&self, dropzone: &Path, mark: u64) -> Result<(), MailboxError> {
        let hash = self.attachment.hash.to_string();
        let name = hash.strip_prefix("sha256:").unwrap_or(&hash);
        let length = self.bytes.len() as u64;
        if !dropzone.join(name).metadata().is_ok_and(|it| it.len() == length) {
            put(dropzone, name, &self.bytes, 0o400, mark)?;
        }
        Ok(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes of the file.
    pub const fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Returns the status of the draft at `path`.
///
/// # Errors
///
/// When the directories cannot be read.
pub fn fate(mailbox: &Path, path: &Path) -> Result<DraftStatus, MailboxError> {
    // The courier renames the file; only this part of the name is kept.
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mark = stem.rsplit('_').next().unwrap_or_default();
    let Some(dir) = path.parent() else { return Ok(DraftStatus::Gone) };
    // The draft moves through these directories in this order, so one pass is enough.
    if path.exists() || !with_mark(&dir.join(".sending"), mark)?.is_empty() {
        return Ok(DraftStatus::Waiting);
    }
    let provider = dir.file_name().unwrap_or_default();
    for place in [MailLocation::Archive, MailLocation::Deadletter] {
        let Some(shelf) = place.dir() else { continue };
        for path in with_mark(&mailbox.join(shelf).join(provider), mark)? {
            if path.extension().is_some_and(|ending| ending == "md") {
                let outcome = outcome(&path).unwrap_or_default();
                return Ok(DraftStatus::Settled { place, path, outcome });
            }
        }
    }
    Ok(DraftStatus::Gone)
}

/// The outcome in the front matter of a draft, or the reason in the file beside it.
fn outcome(path: &Path) -> Option<Value> {
    if let Ok(reason) = fs::read(path.with_extension("reason.json")) {
        return serde_json::from_slice(&reason).ok();
    }
    let text = fs::read_to_string(path).ok()?;
    let (front, _) = split(&text)?;
    let mut front: Value = from_yaml(front).ok()?;
    front.get_mut("outcome").map(Value::take)
}

/// Files in `dir` whose names contain `mark`.
fn with_mark(dir: &Path, mark: &str) -> Result<Vec<PathBuf>, MailboxError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(at(dir))?;
        if entry.file_name().to_string_lossy().contains(mark) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Writes a file atomically and syncs it. The temporary name contains `mark`.
fn put(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    mode: u32,
    mark: u64,
) -> Result<PathBuf, MailboxError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(at(dir))?;
    let (path, temporary) = (dir.join(name), dir.join(format!(".{mark:016x}.tmp")));
    let options = FileOptions { mode, ..FileOptions::PRIVATE_SYNCED };
    let written = monoco_fs::write_via(&temporary, &path, bytes, options);
    written.map_err(|error| at(&path)(error.into()))?;
    Ok(path)
}

/// Media type by file extension.
fn mime_type(name: &str) -> &'static str {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref().unwrap_or_default() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_770_410_700_000);

    #[test]
    fn rendered_draft_parses_to_the_same_fields() {
        let letter = NewDraft {
            to: vec!["ann".to_owned(), "group:a: b\n---".to_owned()],
            cc: vec!["bob".to_owned()],
            tunnel: Some("ci".to_owned()),
            reply_to: Some("webhook_0123456789abcdef01234567".parse().unwrap()),
            title: Some("--- \u{202e}: #".to_owned()),
            text: "---\nto: eve\n---\nhello".to_owned(),
            urgent: true,
            schedule_at: Some(NOW),
            correlation_id: Some("007".to_owned()),
            idempotency_key: Some("key".to_owned()),
            ..NewDraft::default()
        };
        let draft = Draft::parse(&letter.render()).unwrap();
        assert_eq!((&draft.to, &draft.cc), (&letter.to, &letter.cc));
        assert_eq!((draft.title, draft.text), (letter.title.clone(), letter.text.clone()));
        assert_eq!(draft.reply_to, letter.reply_to);
        assert_eq!(draft.tunnel.map(|tunnel| tunnel.to_string()), letter.tunnel);
        assert_eq!(draft.correlation_id, letter.correlation_id);
        assert_eq!(draft.idempotency_key, letter.idempotency_key);
        assert!(draft.options.urgent && !draft.options.silent);
        assert_eq!(draft.options.schedule_at, Some(NOW));
    }

    #[test]
    fn draft_is_validated_before_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let post = |file: &str, mark| post(dir.path(), "webhook", file, NOW, mark);
        for (bad, words) in [
            ("hello", "no front matter"),
            ("---\ntoo: ann\n---\nhello", "did you mean `to`?"),
            ("---\nto: ann\nprovider: lark\n---\nhello", "\"lark\""),
        ] {
            let error = post(bad, 1).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(!dir.path().join("outbound").exists(), "nothing was written");
        let path = post("---\nto: ann\n---\nhello", 7).unwrap();
        assert!(path.ends_with("outbound/webhook/20260206T204500_0000000000000007.md"));
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn attachment_is_stored_once_under_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let (file, dropzone) = (dir.path().join("log.TXT"), dir.path().join("dropzone"));
        fs::write(&file, "red").unwrap();
        let attached = read_attachment(&file).unwrap();
        assert!(!dropzone.exists(), "nothing is written yet");
        attached.store(&dropzone, 1).unwrap();
        attached.store(&dropzone, 2).unwrap();
        let first = attached.attachment;
        assert_eq!((first.name.as_str(), first.mime_type.as_str()), ("log.TXT", "text/plain"));
        let names: Vec<_> = fs::read_dir(&dropzone).unwrap().map(|e| e.unwrap().path()).collect();
        let [kept] = names.as_slice() else { panic!("{names:?}") };
        assert_eq!(fs::read(kept).unwrap(), b"red");
        assert_eq!(
            format!("sha256:{}", kept.file_name().unwrap().display()),
            first.hash.to_string()
        );
    }

    #[test]
    fn status_follows_the_location_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = "---\nto: ann\n---\nhello";
        let path = post(dir.path(), "webhook", file, NOW, 7).unwrap();
        let fate = || super::fate(dir.path(), &path).unwrap();
        assert_eq!(fate(), DraftStatus::Waiting);
        let sending = path.parent().unwrap().join(".sending");
        fs::create_dir(&sending).unwrap();
        let taken = sending.join(path.file_name().unwrap());
        fs::rename(&path, &taken).unwrap();
        assert_eq!(fate(), DraftStatus::Waiting);
        let archive = dir.path().join("archive/webhook");
        fs::create_dir_all(&archive).unwrap();
        fs::remove_file(&taken).unwrap();
        assert_eq!(fate(), DraftStatus::Gone);
        let done = archive.join("20260206T204501_20260206T204500-0000000000000007_0f.md");
        let text = monoco_core::draft::with_outcome(file, &json!({"msg_id": "x"}));
        fs::write(&done, text).unwrap();
        let outcome = json!({"msg_id": "x"});
        assert_eq!(
            fate(),
            DraftStatus::Settled { place: MailLocation::Archive, path: done, outcome }
        );
    }
}
