//! `monoco courier logs`: prints, filters and follows the log of the courier.
//!
//! An entry is a line that starts with a time and all lines up to the next such line, for
//! example the backtrace of a panic or the error of a courier that did not start.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::did::TunnelId;
use monoco_core::time::Timestamp;
use serde_json::json;

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, print};
use crate::cli::since;
use monoco_courier::clock::wall_now;
use monoco_courier::log;

/// How often `--follow` reads the log.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes that `--follow` reads at a time.
const MAX_BYTES_PER_READ: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LogsArgs {
    #[command(subcommand)]
    command: Option<LogsCommand>,
    /// Print new entries as they are written, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Maximum number of entries to show
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
    lines: usize,
    /// Minimum log level: error, warn, info, debug or trace [default: all]
    #[arg(long, value_enum, hide_possible_values = true)]
    level: Option<LogLevelArg>,
    /// Show entries about this tunnel
    #[arg(long, value_name = "TUNNEL")]
    adapter: Option<TunnelId>,
    /// Show entries since a time, a day or a duration ago, such as 90s, 10m, 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum LogsCommand {
    /// Delete all log entries
    ///
    /// A running courier continues with an empty log.
    Clean,
}

/// Log levels, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum LogLevelArg {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Conditions that a log entry must meet.
#[derive(Debug, Default)]
struct LogFilter {
    level: Option<LogLevelArg>,
    adapter: Option<String>,
    since: Option<Timestamp>,
}

/// The parsed first line of an entry.
struct LogLineHead<'a> {
    at: Timestamp,
    level: LogLevelArg,
    target: &'a str,
    message: &'a str,
}

pub fn run(context: &CliContext, args: LogsArgs) -> Result<(), CliError> {
    let path = context.home.log();
    if let Some(LogsCommand::Clean) = args.command {
        return clean(context.format, &path);
    }
    if !path.exists() {
        return Err(CliError::new(CliExit::NotPossible, "there is no log yet")
            .hint("a courier in the foreground logs to stderr"));
    }
    let since = args.since.map(|text| since::parse(&text, wall_now())).transpose()?;
    let adapter = args.adapter.map(|tunnel| tunnel.to_string());
    let filter = LogFilter { level: args.level, adapter, since };
    // Opened before the entries are read, so that no entry is missed in between.
    let mut tail = LogTail::at_end(&path)?;
    let end = tail.position;
    for entry in newest(&path, end, args.lines, &filter)? {
        show(context.format, &entry)?;
    }
    if !args.follow {
        return Ok(());
    }
    let mut is_shown = true;
    loop {
        for entry in entries(&tail.next()?) {
            // A continuation line belongs to the entry before it.
            is_shown = if head(entry).is_some() { filter.matches(entry) } else { is_shown };
            if is_shown {
                show(context.format, entry)?;
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn clean(format: OutputFormat, path: &Path) -> Result<(), CliError> {
    let mut removed = 0;
    for number in 1..=log::KEPT {
        removed += u32::from(fs::remove_file(log::old(path, number)).is_ok());
    }
    // Truncated and not removed, because the courier has the file open.
    match fs::OpenOptions::new().write(true).truncate(true).open(path) {
        Ok(_) => removed += 1,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let message = format!("{removed} log files deleted or emptied");
    output::done(format, &message, &json!({"removed": removed}))
}

/// Returns the last `count` matching entries of all log files, oldest first. Reads only the
/// first `end` bytes of the current file.
fn newest(
    path: &Path,
    end: u64,
    count: usize,
    filter: &LogFilter,
) -> Result<VecDeque<String>, CliError> {
    let mut found = VecDeque::new();
    for number in 0..=log::KEPT {
        let (path, most) = match number {
            0 => (path.to_owned(), end),
            number => (log::old(path, number), u64::MAX),
        };
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => file.take(most).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8_lossy(&bytes);
        for entry in entries(&text).into_iter().rev() {
            if found.len() >= count || filter.is_before(entry) {
                return Ok(found);
            }
            if filter.matches(entry) {
                found.push_front(entry.to_owned());
            }
        }
    }
    Ok(found)
}

/// Splits the text of a log into entries.
fn entries(text: &str) -> Vec<&str> {
    let mut entries = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if at > start && head(line).is_some() {
            entries.push(text[start..at].trim_end_matches('\n'));
            start = at;
        }
        at += line.len();
    }
    if at > start {
        entries.push(text[start..at].trim_end_matches('\n'));
    }
    entries
}

/// Parses `2026-11-16T00:00:00.000Z LEVEL target: message`; `None` for a continuation line.
fn head(entry: &str) -> Option<LogLineHead<'_>> {
    let (at, rest) = entry.split_once(' ')?;
    let at = Timestamp::from_rfc3339(at).ok()?;
    let (level, rest) = rest.split_once(' ')?;
    let level = match level {
        "ERROR" => LogLevelArg::Error,
        "WARN" => LogLevelArg::Warn,
        "INFO" => LogLevelArg::Info,
        "DEBUG" => LogLevelArg::Debug,
        "TRACE" => LogLevelArg::Trace,
        _ => return None,
    };
    let (target, message) = rest.split_once(": ")?;
    Some(LogLineHead { at, level, target, message })
}

impl LogFilter {
    fn matches(&self, entry: &str) -> bool {
        let Some(head) = head(entry) else {
            // Output of a courier that did not start: shown only without filters.
            return self.level.is_none() && self.adapter.is_none() && self.since.is_none();
        };
        let about = |tunnel: &String| {
            let word = format!(" tunnel={tunnel}");
            head.message.match_indices(&word).any(|(at, _)| {
                let after = &head.message[at + word.len()..];
                after.is_empty() || after.starts_with([' ', '\n'])
            })
        };
        self.level.is_none_or(|worst| head.level <= worst)
            && self.since.is_none_or(|since| head.at >= since)
            && self.adapter.as_ref().is_none_or(about)
    }

    /// Whether all entries before this one are older than `since`.
    fn is_before(&self, entry: &str) -> bool {
        match (self.since, head(entry)) {
            // The margin of 1 h covers a clock that was set back by minutes.
            (Some(since), Some(head)) => head.at + Duration::from_secs(3600) < since,
            _ => false,
        }
    }
}

fn show(format: OutputFormat, entry: &str) -> Result<(), CliError> {
    match (format, head(entry)) {
        (OutputFormat::Json, Some(LogLineHead { at, level, target, message })) => {
            let level = format!("{level:?}").to_lowercase();
            let at = at.rfc3339();
            output::print_json_line(
                &json!({"at": at, "level": level, "target": target, "message": message}),
            )
        }
        (OutputFormat::Json, None) => output::print_json_line(&json!({ "message": entry })),
        _ => print(&output::escape_lines(entry)),
    }
}

/// Reads what is appended to a log, also after the log was rotated.
struct LogTail {
    path: PathBuf,
    file: File,
    position: u64,
    /// An incomplete last line.
    begun: Vec<u8>,
}

impl LogTail {
    /// Starts at the current end of the log.
    fn at_end(path: &Path) -> Result<Self, CliError> {
        let mut file = File::open(path)?;
        let position = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.to_owned(), file, position, begun: Vec::new() })
    }

    /// Returns the complete lines that were appended since the last call.
    fn next(&mut self) -> Result<String, CliError> {
        // Checked before reading: a file that is rotated later is still read to its end.
        let moved = match fs::metadata(&self.path) {
            Ok(now) => now.ino() != self.file.metadata()?.ino(),
            Err(_) => false,
        };
        if self.file.metadata()?.len() < self.position {
            // The log was truncated, for example by `logs clean`.
            self.position = self.file.seek(SeekFrom::Start(0))?;
            self.begun.clear();
        }
        let mut read = Vec::new();
        (&mut self.file).take(MAX_BYTES_PER_READ).read_to_end(&mut read)?;
        self.position += read.len() as u64;
        let at_end = read.is_empty();
        self.begun.append(&mut read);
        if moved && at_end {
            self.file = File::open(&self.path)?;
            self.position = 0;
        }
        let end = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = self.begun.split_off(end);
        let whole = std::mem::replace(&mut self.begun, rest);
        Ok(String::from_utf8_lossy(&whole).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LOG: &str = "\
error: output of another program
2026-11-16T00:00:00.000Z INFO monoco::serve: courier is listening address=127.0.0.1:1
2026-11-16T01:00:00.000Z WARN monoco::courier: not delivered tunnel=ci state=DEAD
2026-11-16T02:00:00.000Z ERROR monoco::log: a task panicked panic=x tunnel=ci
thread 'main' panicked at x
stack backtrace
2026-11-16T03:00:00.000Z DEBUG monoco::x: y tunnel=ci-2
";

    fn picked(filter: &LogFilter, count: usize) -> Vec<usize> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        fs::write(&path, LOG).unwrap();
        let found = newest(&path, u64::MAX, count, filter).unwrap();
        let all = entries(LOG);
        found.iter().map(|entry| all.iter().position(|one| one == entry).unwrap()).collect()
    }

    #[test]
    fn continuation_lines_belong_to_the_entry_before() {
        let all = entries(LOG);
        assert_eq!(all.len(), 5, "{all:?}");
        assert!(all[3].ends_with("stack backtrace"), "{}", all[3]);
        assert_eq!(entries(""), Vec::<&str>::new());
    }

    #[test]
    fn filters_pick_by_level_tunnel_and_time() {
        let at = |text: &str| Some(Timestamp::from_rfc3339(text).unwrap());
        let none = LogFilter::default;
        for (filter, count, wanted) in [
            (none(), 100, vec![0, 1, 2, 3, 4]),
            (none(), 2, vec![3, 4]),
            (none(), 0, vec![]),
            (LogFilter { level: Some(LogLevelArg::Error), ..none() }, 100, vec![3]),
            (LogFilter { level: Some(LogLevelArg::Info), ..none() }, 100, vec![1, 2, 3]),
            (LogFilter { level: Some(LogLevelArg::Info), ..none() }, 1, vec![3]),
            (LogFilter { adapter: Some("ci".into()), ..none() }, 100, vec![2, 3]),
            (LogFilter { adapter: Some("ci-2".into()), ..none() }, 100, vec![4]),
            (LogFilter { adapter: Some("c".into()), ..none() }, 100, vec![]),
            (LogFilter { since: at("2026-11-16T02:00:00Z"), ..none() }, 100, vec![3, 4]),
            (LogFilter { since: at("2027-01-01T00:00:00Z"), ..none() }, 100, vec![]),
        ] {
            assert_eq!(picked(&filter, count), wanted, "{filter:?} {count}");
        }
    }

    #[test]
    fn tail_continues_after_rotation_and_truncation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        fs::write(&path, "before\n").unwrap();
        let mut tail = LogTail::at_end(&path).unwrap();
        let add = |text: &str| log::append(&path).unwrap().write_all(text.as_bytes()).unwrap();
        let mut seen = String::new();
        let mut look = |tail: &mut LogTail| {
            for _ in 0..3 {
                seen.push_str(&tail.next().unwrap());
            }
            std::mem::take(&mut seen)
        };
        add("one\ntw");
        assert_eq!(look(&mut tail), "one\n");
        add("o\n");
        assert_eq!(look(&mut tail), "two\n");
        // Rotated with a line that was not read yet.
        add("three\n");
        fs::rename(&path, log::old(&path, 1)).unwrap();
        add("four\n");
        assert_eq!(look(&mut tail), "three\nfour\n");
        File::create(&path).unwrap();
        add("5\n");
        assert_eq!(look(&mut tail), "5\n");
    }

    #[test]
    fn rotated_files_are_read_until_enough_entries_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let line = |hour: u32| format!("2026-11-16T{hour:02}:00:00.000Z INFO monoco: {hour}\n");
        fs::write(&path, line(3)).unwrap();
        fs::write(log::old(&path, 1), line(2)).unwrap();
        fs::write(log::old(&path, 2), line(1)).unwrap();
        let found = newest(&path, u64::MAX, 2, &LogFilter::default()).unwrap();
        let hours: Vec<_> = found.iter().map(|entry| head(entry).unwrap().message).collect();
        assert_eq!(hours, ["2", "3"]);
        clean(OutputFormat::Table, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert!(!log::old(&path, 1).exists() && !log::old(&path, 2).exists());
    }
}
