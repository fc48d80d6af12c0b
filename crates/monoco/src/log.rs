//! The courier's log: one line for each event, to stderr or to a file that is rotated.
//!
//! ```text
//! 2026-11-16T00:00:00.000Z WARN monoco::courier::sender: not delivered tunnel=ci state=DEAD
//! ```
//!
//! What strangers wrote may be among the values. It can't end a line or pass for
//! another one: everything a terminal might obey is escaped. What is worth a line can
//! be changed while the courier runs.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock::wall_now;

/// Largest log file; then the next one begins.
const MAX_BYTES: u64 = 10 << 20;

/// How many full ones are kept.
pub const KEPT: usize = 5;

/// Most bytes of one value: a line stays one that can be read.
const MAX_VALUE: usize = 4096;

/// The log. Clones write to the same place.
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
    /// To stderr.
    pub fn stderr() -> Self {
        Self::new(LogTarget::Stderr, None)
    }

    /// To a file that is rotated.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        let file = RotatedFile::open(path, MAX_BYTES)?;
        Ok(Self::new(LogTarget::File(file), Some(path.to_owned())))
    }

    fn new(place: LogTarget, path: Option<PathBuf>) -> Self {
        let level = Arc::new(AtomicU8::new(rank(Level::INFO)));
        Self { level, place: Arc::new(Mutex::new(place)), path }
    }

    /// The file, when it is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// From now on, of ours only what is at least so bad counts.
    pub fn set_level(&self, level: Level) {
        self.level.store(rank(level), Ordering::Relaxed);
    }

    /// Opens the file anew, in case somebody has moved it away.
    pub fn reopen(&self) {
        if let LogTarget::File(file) =
            &mut *self.place.lock().unwrap_or_else(PoisonError::into_inner)
        {
            file.reopen();
        }
    }

    /// Takes in everything the process says from now on, panics too.
    pub fn install(&self) {
        let before = std::panic::take_hook();
        let in_file = self.path.is_some();
        std::panic::set_hook(Box::new(move |panic| {
            tracing::error!(panic = %panic, "a task panicked");
            // On a terminal the line says it all; a file has the backtrace as well.
            if in_file {
                before(panic);
            }
        }));
        // Fails when there is one already, as in tests; then that one counts.
        let _ = tracing_subscriber::registry().with(self.clone()).try_init();
    }

    fn write(&self, line: &str) {
        // Whoever panicked while writing has left at worst half a line.
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            // A log that can't be written has nobody to tell.
            LogTarget::Stderr => drop(io::stderr().write_all(line.as_bytes())),
            LogTarget::File(file) => file.write(line),
        }
    }

    /// Ours from the level on, and of others only what is wrong.
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let most =
            if is_ours(metadata) { self.level.load(Ordering::Relaxed) } else { rank(Level::WARN) };
        rank(*metadata.level()) <= most
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("monoco")
}

/// The worse, the lower.
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
            // The level may change, so it is asked each time.
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

/// The message and the values of an event, harmless.
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
        // What has spaces in it could pass for further fields.
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
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_harmful(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

/// Whether it ends a line somewhere, or a terminal would obey it.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
            | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A file that is moved aside when it is full.
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
            // Somebody may have emptied it meanwhile.
            self.size = self.file.metadata().map_or(self.size, |file| file.len());
            if self.size > 0 && self.size + bytes.len() as u64 > self.max {
                self.rotate();
            }
        }
        // One call for one line, so that lines of two processes do not mix. There is
        // nobody to tell when it fails, and the next line may fit again.
        if self.file.write_all(bytes).is_ok() {
            self.size += bytes.len() as u64;
        }
    }

    /// Moves every file on by one; the oldest goes. What fails leaves the log as it is.
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

/// Opens a log for the user alone.
///
/// # Errors
///
/// When it can't be.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The name of a full one; 1 is the youngest.
pub fn old(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written to a file while `say` runs.
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
    fn an_event_is_one_line_whatever_it_says() {
        let hostile = "a\n2026-11-16T00:00:00.000Z ERROR monoco: forged\u{1b}[2J\u{202e}\u{2028}";
        let text = logged(Level::INFO, |_| {
            tracing::info!(tunnel = "ci", count = 3, "plain");
            tracing::info!(tunnel = %"ci x=\"1\"", why = ?"q", "quoted");
            tracing::warn!(from = hostile, "{hostile}");
            tracing::info!(long = "é".repeat(5000), "bounded");
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(!text.chars().any(|c| c != '\n' && is_harmful(c)), "{text:?}");
        let after = |line: &str| line.split_once(": ").unwrap().1.to_owned();
        assert_eq!(after(lines[0]), "plain tunnel=ci count=3");
        assert_eq!(after(lines[1]), "quoted tunnel=\"ci x=\\\"1\\\"\" why=\"\\\"q\\\"\"");
        assert!(lines[2].contains(" WARN monoco::log::tests: a\\n2026-11-16"), "{}", lines[2]);
        assert!(lines[2].contains("\\u{1b}[2J\\u{202e}\\u{2028}"), "{}", lines[2]);
        assert!(lines[3].len() < 2 * MAX_VALUE && lines[3].ends_with('…'), "{}", lines[3].len());
        let stamp = lines[0].split(' ').next().unwrap();
        assert!(monoco_core::time::Timestamp::from_rfc3339(stamp).is_ok(), "{stamp}");
    }

    #[test]
    fn what_counts_can_be_changed_while_it_runs() {
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
    fn a_full_log_is_moved_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let mut log = RotatedFile::open(&path, 30).unwrap();
        for number in 0..20 {
            log.write(&format!("line number {number:02}\n"));
        }
        // Two lines fit into one; five full ones are kept.
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(text(&path), "line number 18\nline number 19\n");
        assert_eq!(text(&old(&path, 1)), "line number 16\nline number 17\n");
        assert_eq!(text(&old(&path, KEPT)), "line number 08\nline number 09\n");
        assert!(!old(&path, KEPT + 1).exists());
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // A line that is longer than a file gets one of its own.
        log.write(&format!("{}\n", "x".repeat(100)));
        log.write("next\n");
        assert_eq!(text(&path), "next\n");
        // Emptied by somebody: then there is room.
        File::create(&path).unwrap();
        log.write("line number 20\n");
        log.write("line number 21\n");
        assert_eq!(text(&path), "line number 20\nline number 21\n");
    }

    #[test]
    fn a_log_that_was_moved_away_is_opened_anew() {
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
