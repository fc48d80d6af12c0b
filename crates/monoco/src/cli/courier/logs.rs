//! `monoco courier logs`: the log that a courier in the background writes.
//!
//! An entry is a line that starts with a time, and whatever follows until the next
//! such line: the backtrace of a panic, or what a courier said that did not start.

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
use crate::cli::output::{self, OutputFormat, note, print};
use crate::cli::since;
use crate::clock::wall_now;
use crate::log;

/// How often `--follow` looks.
const LOOK: Duration = Duration::from_millis(200);

/// Most bytes taken at once.
const AT_ONCE: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LogsArgs {
    #[command(subcommand)]
    command: Option<LogsCommand>,
    /// Go on as things are said
    #[arg(long, short)]
    follow: bool,
    /// Most entries to show
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
    lines: usize,
    /// Only what is at least so bad: error, warn, info, debug or trace
    #[arg(long, value_enum, hide_possible_values = true)]
    level: Option<LogLevelArg>,
    /// Only what is about this tunnel
    #[arg(long, value_name = "TUNNEL")]
    adapter: Option<TunnelId>,
    /// Only what was said since: a time, a day, or how long ago, such as 90s, 10m, 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum LogsCommand {
    /// Throw the log away
    ///
    /// A courier that runs goes on with an empty one.
    Clean,
}

/// How bad something is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum LogLevelArg {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// What is to be seen.
#[derive(Debug, Default)]
struct LogFilter {
    level: Option<LogLevelArg>,
    adapter: Option<String>,
    since: Option<Timestamp>,
}

/// The head of an entry.
struct LogLineHead<'a> {
    at: Timestamp,
    level: LogLevelArg,
    target: &'a str,
    said: &'a str,
}

pub fn run(context: &CliContext, args: LogsArgs) -> Result<(), CliError> {
    let path = context.home.log();
    if let Some(LogsCommand::Clean) = args.command {
        return clean(&path);
    }
    if !path.exists() {
        return Err(CliError::new(CliExit::NotPossible, "there is no log yet")
            .hint("a courier in the foreground says it where it was started"));
    }
    let since = args.since.map(|text| since::parse(&text, wall_now())).transpose()?;
    let adapter = args.adapter.map(|tunnel| tunnel.to_string());
    let filter = LogFilter { level: args.level, adapter, since };
    // Opened before the rest is read, so that nothing falls in between.
    let mut tail = LogTail::at_end(&path)?;
    let end = tail.position;
    for entry in newest(&path, end, args.lines, &filter)? {
        show(context.format, &entry)?;
    }
    if !args.follow {
        return Ok(());
    }
    let mut shows = true;
    loop {
        for entry in entries(&tail.next()?) {
            // What has no head goes with what was before it.
            shows = if head(entry).is_some() { filter.takes(entry) } else { shows };
            if shows {
                show(context.format, entry)?;
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn clean(path: &Path) -> Result<(), CliError> {
    let mut removed = 0;
    for number in 1..=log::KEPT {
        removed += u32::from(fs::remove_file(log::old(path, number)).is_ok());
    }
    // Emptied and not removed: the courier has it open.
    match fs::OpenOptions::new().write(true).truncate(true).open(path) {
        Ok(_) => removed += 1,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    note(&format!("cleaned {removed} files"));
    Ok(())
}

/// The last entries of all logs that pass, oldest first. Of the current one only the
/// first `end` bytes count.
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
            if filter.takes(entry) {
                found.push_front(entry.to_owned());
            }
        }
    }
    Ok(found)
}

/// Cuts text into entries.
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

/// `2026-11-16T00:00:00.000Z LEVEL target: said`.
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
    let (target, said) = rest.split_once(": ")?;
    Some(LogLineHead { at, level, target, said })
}

impl LogFilter {
    fn takes(&self, entry: &str) -> bool {
        let Some(head) = head(entry) else {
            // Words of a courier that did not start. Nobody asked for less, so they count.
            return self.level.is_none() && self.adapter.is_none() && self.since.is_none();
        };
        let about = |tunnel: &String| {
            let word = format!(" tunnel={tunnel}");
            head.said.match_indices(&word).any(|(at, _)| {
                let after = &head.said[at + word.len()..];
                after.is_empty() || after.starts_with([' ', '\n'])
            })
        };
        self.level.is_none_or(|worst| head.level <= worst)
            && self.since.is_none_or(|since| head.at >= since)
            && self.adapter.as_ref().is_none_or(about)
    }

    /// Whether everything before is too old as well.
    fn is_before(&self, entry: &str) -> bool {
        match (self.since, head(entry)) {
            // Clocks are set back by minutes; whoever asks for more reads a little more.
            (Some(since), Some(head)) => head.at + Duration::from_secs(3600) < since,
            _ => false,
        }
    }
}

fn show(format: OutputFormat, entry: &str) -> Result<(), CliError> {
    match (format, head(entry)) {
        (OutputFormat::Json, Some(LogLineHead { at, level, target, said })) => {
            let level = format!("{level:?}").to_lowercase();
            let at = at.rfc3339();
            print(&output::json_line(
                &json!({"at": at, "level": level, "target": target, "said": said}),
            ))
        }
        (OutputFormat::Json, None) => print(&output::json_line(&json!({ "said": entry }))),
        _ => print(&output::shown_lines(entry)),
    }
}

/// The growing end of a log, over its rotation.
struct LogTail {
    path: PathBuf,
    file: File,
    position: u64,
    /// A line whose end is not there yet.
    begun: Vec<u8>,
}

impl LogTail {
    /// What is written from now on.
    fn at_end(path: &Path) -> Result<Self, CliError> {
        let mut file = File::open(path)?;
        let position = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.to_owned(), file, position, begun: Vec::new() })
    }

    /// The whole lines that have come since.
    fn next(&mut self) -> Result<String, CliError> {
        // Asked first: what is moved aside after this is read to its end below.
        let moved = match fs::metadata(&self.path) {
            Ok(now) => now.ino() != self.file.metadata()?.ino(),
            Err(_) => false,
        };
        if self.file.metadata()?.len() < self.position {
            // Somebody has emptied it.
            self.position = self.file.seek(SeekFrom::Start(0))?;
            self.begun.clear();
        }
        let mut read = Vec::new();
        (&mut self.file).take(AT_ONCE).read_to_end(&mut read)?;
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
error: nothing of ours
2026-11-16T00:00:00.000Z INFO monoco::serve: the courier listens address=127.0.0.1:1
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
    fn entries_keep_what_belongs_to_them() {
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
    fn a_tail_follows_over_rotation_and_emptying() {
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
        // Moved aside with something that nobody has seen.
        add("three\n");
        fs::rename(&path, log::old(&path, 1)).unwrap();
        add("four\n");
        assert_eq!(look(&mut tail), "three\nfour\n");
        File::create(&path).unwrap();
        add("5\n");
        assert_eq!(look(&mut tail), "5\n");
    }

    #[test]
    fn older_files_are_read_when_one_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("courier.log");
        let line = |hour: u32| format!("2026-11-16T{hour:02}:00:00.000Z INFO monoco: {hour}\n");
        fs::write(&path, line(3)).unwrap();
        fs::write(log::old(&path, 1), line(2)).unwrap();
        fs::write(log::old(&path, 2), line(1)).unwrap();
        let found = newest(&path, u64::MAX, 2, &LogFilter::default()).unwrap();
        let hours: Vec<_> = found.iter().map(|entry| head(entry).unwrap().said).collect();
        assert_eq!(hours, ["2", "3"]);
        clean(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert!(!log::old(&path, 1).exists() && !log::old(&path, 2).exists());
    }
}
