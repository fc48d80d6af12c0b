//! The courier's log: one line per event, on stderr or in a rotated file.
//!
//! ```text
//! 2026-11-16T00:00:00.000Z WARN monoco::courier::sender: not delivered tunnel=ci state=DEAD
//! ```
//!
//! Values may contain text from outside. It cannot start a new line or control a terminal:
//! unsafe characters are escaped. The level can be changed while the courier runs.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use monoco_core::unsafe_text::push_escaped;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock::wall_now;

/// Size at which the log file is rotated.
const MAX_BYTES: u64 = 10 << 20;

/// Number of rotated files that are kept.
pub const KEPT: usize = 5;

/// Limit of one value in bytes, so that lines stay readable.
const MAX_VALUE: usize = 4096;

/// Log target and level. Clones share the target.
#[derive(Clone, Debug)]
pub struct LogWriter {
    level: Arc<AtomicU8>,
    place: Arc<Mutex<LogTarget>>,
    path: Option<PathBuf>,
}

#[derive(Debug)]
enum LogTarget {
    Stderr,
    File(RotatedFile),
}

impl LogWriter {
    pub fn stderr() -> Self {
        Self::new(LogTarget::Stderr, None)
    }

    /// Logs to a rotated file.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        let file = RotatedFile::open(path, MAX_BYTES)?;
        Ok(Self::new(LogTarget::File(file), Some(path.to_owned())))
    }

    fn new(place: LogTarget, path: Option<PathBuf>) -> Self {
        let level = Arc::new(AtomicU8::new(rank(Level::INFO)));
        Self { level, place: Arc::new(Mutex::new(place)), path }
    }

    /// Path of the log file; `None` for stderr.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Sets the minimum level for events of this program.
    pub fn set_level(&self, level: Level) {
        self.level.store(rank(level), Ordering::Relaxed);
    }

    /// Opens the file again, in case it was moved away.
    pub fn reopen(&self) {
        if let LogTarget::File(file) =
            &mut *self.place.lock().unwrap_or_else(PoisonError::into_inner)
        {
            file.reopen();
        }
    }

    /// Installs the log for all events of the process, including panics.
    pub fn install(&self) {
        let before = std::panic::take_hook();
        let in_file = self.path.is_some();
        std::panic::set_hook(Box::new(move |panic| {
            tracing::error!(panic = %panic, "a task panicked");
            // A file also gets the backtrace.
            if in_file {
                before(panic);
            }
        }));
        // Fails when a log is installed already, as in tests; that one stays.
        let _ = tracing_subscriber::registry().with(self.clone()).try_init();
    }

    fn write(&self, line: &str) {
        // A panic while writing leaves at most a partial line.
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            // There is no place to report an error of the log.
            LogTarget::Stderr => drop(io::stderr().write_all(line.as_bytes())),
            LogTarget::File(file) => file.write(line),
        }
    }

    /// Events of this program from the level on; of libraries only errors and warnings.
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let most =
            if is_ours(metadata) { self.level.load(Ordering::Relaxed) } else { rank(Level::WARN) };
        rank(*metadata.level()) <= most
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("monoco")
}

/// Numeric order of levels: errors are lowest.
fn rank(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

impl<S: Subscriber> Layer<S> for LogWriter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match (is_ours(metadata), self.wants(metadata)) {
            // The level may change, so the event is checked each time.
            (true, _) => Interest::sometimes(),
            (false, true) => Interest::always(),
            (false, false) => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let (at, level, target) = (wall_now().rfc3339(), metadata.level(), metadata.target());
        self.write(&format!("{at} {level} {target}: {}{}\n", fields.message, fields.rest));
    }
}

/// Message and fields of an event, escaped.
#[derive(Default)]
struct LogFields {
    message: String,
    rest: String,
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, &value.to_string());
    }
}

impl LogFields {
    fn put(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            escape(&mut self.message, value);
            return;
        }
        let _ = write!(self.rest, " {}=", field.name());
        // A value with spaces could be read as further fields.
        let quote = value.is_empty() || value.contains([' ', '"', '=']);
        if quote {
            self.rest.push('"');
            escape(&mut self.rest, &value.replace('\\', "\\\\").replace('"', "\\\""));
            self.rest.push('"');
        } else {
            escape(&mut self.rest, value);
        }
    }
}

/// Appends `text` on one line.
fn escape(out: &mut String, text: &str) {
    let mut taken = 0;
    for c in text.chars() {
        taken += c.len_utf8();
        if taken > MAX_VALUE {
            out.push('…');
            return;
        }
        push_escaped(out, c);
    }
}

/// A log file that is rotated when it is full.
#[derive(Debug)]
struct RotatedFile {
    path: PathBuf,
    max: u64,
    file: File,
    size: u64,
}

impl RotatedFile {
    fn open(path: &Path, max: u64) -> io::Result<Self> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), max, file, size })
    }

    fn write(&mut self, line: &str) {
        let bytes = line.as_bytes();
        if self.size + bytes.len() as u64 > self.max {
            // Another program may have truncated the file.
            self.size = self.file.metadata().map_or(self.size, |file| file.len());
            if self.size > 0 && self.size + bytes.len() as u64 > self.max {
                self.rotate();
            }
        }
        // One write per line, so that lines of two processes do not mix. An error is
        // ignored; the next line may succeed.
        if self.file.write_all(bytes).is_ok() {
            self.size += bytes.len() as u64;
        }
    }

    /// Renames every file to the next number and removes the oldest. On an error the log
    /// stays as it is.
    fn rotate(&mut self) {
        for number in (1..KEPT).rev() {
            let _ = fs::rename(old(&self.path, number), old(&self.path, number + 1));
        }
        let _ = fs::rename(&self.path, old(&self.path, 1));
        if let Ok(fresh) = Self::open(&self.path, self.max) {
            *self = fresh;
        }
    }

    fn reopen(&mut self) {
        let same = |file: &File| -> io::Result<bool> {
            Ok(file.metadata()?.ino() == fs::metadata(&self.path)?.ino())
        };
        if !same(&self.file).unwrap_or(false)
            && let Ok(fresh) = Self::open(&self.path, self.max)
        {
            *self = fresh;
        }
    }
}

/// Opens a log file for appending, with mode 0600.
///
/// # Errors
///
/// When the file system returns an error.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Path of a rotated file; 1 is the newest.
pub fn old(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use monoco_core::unsafe_text::is_unsafe;

    use super::*;

    /// Returns the lines that are logged while `say` runs.
    fn logged(level: Level, say: impl FnOnce(&LogWriter)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let log = LogWriter::file(&path).unwrap();
        log.set_level(level);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log.clone()), || {
            say(&log);
        });
        fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn event_is_one_line_without_unsafe_characters() {
        let hostile = "a\n2026-11-16T00:00:00.000Z ERROR monoco: forged\u{1b}[2J\u{202e}\u{2028}\u{200b}\u{e0041}";
        let text = logged(Level::INFO, |_| {
            tracing::info!(tunnel = "ci", count = 3, "plain");
            tracing::info!(tunnel = %"ci x=\"1\"", why = ?"q", "quoted");
            tracing::warn!(from = hostile, "{hostile}");
            tracing::info!(long = "é".repeat(5000), "bounded");
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text:?}");
        let after = |line: &str| line.split_once(": ").unwrap().1.to_owned();
        assert_eq!(after(lines[0]), "plain tunnel=ci count=3");
        assert_eq!(after(lines[1]), "quoted tunnel=\"ci x=\\\"1\\\"\" why=\"\\\"q\\\"\"");
        assert!(
            lines[2].contains(" WARN monoco_courier::log::tests: a\\n2026-11-16"),
            "{}",
            lines[2]
        );
        assert!(
            lines[2].contains("\\u{1b}[2J\\u{202e}\\u{2028}\\u{200b}\\u{e0041}"),
            "{}",
            lines[2]
        );
        assert!(lines[3].len() < 2 * MAX_VALUE && lines[3].ends_with('…'), "{}", lines[3].len());
        let stamp = lines[0].split(' ').next().unwrap();
        assert!(monoco_core::time::Timestamp::from_rfc3339(stamp).is_ok(), "{stamp}");
    }

    #[test]
    fn level_can_be_changed_at_run_time() {
        let say = |word: &str| {
            tracing::debug!("ours {word}");
            tracing::info!(target: "hyper", "theirs {word}");
            tracing::warn!(target: "hyper", "theirs, bad {word}");
        };
        let text = logged(Level::INFO, |log| {
            say("before");
            log.set_level(Level::DEBUG);
            say("after");
            log.set_level(Level::ERROR);
            say("late");
            tracing::warn!("ours late");
        });
        let said: Vec<_> = text.lines().map(|line| line.split_once(": ").unwrap().1).collect();
        let wanted = ["theirs, bad before", "ours after", "theirs, bad after", "theirs, bad late"];
        assert_eq!(said, wanted);
    }

    #[test]
    fn full_log_is_rotated_and_the_oldest_file_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let mut log = RotatedFile::open(&path, 30).unwrap();
        for number in 0..20 {
            log.write(&format!("line number {number:02}\n"));
        }
        // Two lines fit into one file; five rotated files are kept.
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(text(&path), "line number 18\nline number 19\n");
        assert_eq!(text(&old(&path, 1)), "line number 16\nline number 17\n");
        assert_eq!(text(&old(&path, KEPT)), "line number 08\nline number 09\n");
        assert!(!old(&path, KEPT + 1).exists());
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // A line longer than the limit gets a file of its own.
        log.write(&format!("{}\n", "x".repeat(100)));
        log.write("next\n");
        assert_eq!(text(&path), "next\n");
        // Truncated by another program: there is room again.
        File::create(&path).unwrap();
        log.write("line number 20\n");
        log.write("line number 21\n");
        assert_eq!(text(&path), "line number 20\nline number 21\n");
    }

    #[test]
    fn moved_log_file_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let mut log = RotatedFile::open(&path, 1000).unwrap();
        log.write("one\n");
        log.reopen();
        log.write("two\n");
        fs::rename(&path, dir.path().join("moved")).unwrap();
        log.reopen();
        log.write("three\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(fs::read_to_string(dir.path().join("moved")).unwrap(), "one\ntwo\n");
    }
}
