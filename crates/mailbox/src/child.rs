//! Runs a command on a Mail: passes the text on stdin and keeps its output in a log.
//!
//! The caller gives a command that leads a process group, so that its processes can be stopped
//! together when the claim is lost, and that ends when this process is killed and cannot end it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use monoco_core::mail::MailId;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::oneshot;

use super::{CheckedDir, MailboxError, at};

/// Size limit of a log. Further output is passed on but not logged.
const MAX_LOG: u64 = 10 << 20;

/// Number of logs that are kept; the oldest are removed.
const MAX_LOGS: usize = 1_000;
const OLDEST: usize = 100;

/// How long to wait for the last output after the command has ended. A process that it
/// left behind may hold the pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Limit of the line that explains a failure, in characters.
const MAX_LINE: usize = 500;

/// Added to the number of the signal that ended a command, as a shell does.
pub const SIGNAL_CODE: i32 = 128;

/// A command to run.
#[derive(Debug)]
pub struct CommandJob {
    /// Leads a process group, and kills what it started on SIGQUIT.
    pub command: Command,
    pub variables: Vec<(&'static str, OsString)>,
    pub input: String,
    /// File that receives the output, from [`create_log`].
    pub log: File,
    /// Where the output goes besides the log.
    pub output: CommandOutput,
}

/// Functions that receive the output of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandOutput {
    pub out: fn(&[u8]) -> io::Result<()>,
    pub err: fn(&[u8]) -> io::Result<()>,
}

#[derive(Debug)]
pub struct CommandChild {
    leader: Pid,
    over: Arc<AtomicBool>,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
    drained: mpsc::Receiver<()>,
    last_line: Arc<Mutex<String>>,
}

/// A log of limited size.
#[derive(Debug)]
struct CommandLog {
    file: File,
    left: u64,
    cut: bool,
}

/// Starts a command.
///
/// # Errors
///
/// When the program does not exist or cannot be started.
pub fn start(mut job: CommandJob) -> io::Result<CommandChild> {
    let log = Arc::new(Mutex::new(CommandLog { file: job.log, left: MAX_LOG, cut: false }));
    job.command.envs(job.variables);
    job.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = job.command.spawn()?;
    let leader = Pid::from_child(&child);

    if let Some(mut stdin) = child.stdin.take() {
        let input = job.input;
        // The command may end without reading all of it.
        std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    let (tell, drained) = mpsc::channel();
    let last_line = Arc::new(Mutex::new(String::new()));
    if let Some(pipe) = child.stdout.take() {
        let (log, tell, pass) = (Arc::clone(&log), tell.clone(), job.output.out);
        std::thread::spawn(move || {
            copy(pipe, &log, pass, |_| ());
            tell.send(())
        });
    }
    if let Some(pipe) = child.stderr.take() {
        let (last, pass) = (Arc::clone(&last_line), job.output.err);
        std::thread::spawn(move || {
            let mut line = Vec::new();
            copy(pipe, &log, pass, |bytes| keep_last_line(&mut line, bytes, &last));
            tell.send(())
        });
    }
    let (say, ended) = oneshot::channel();
    let over = Arc::new(AtomicBool::new(false));
    let ending = Arc::clone(&over);
    std::thread::spawn(move || {
        let status = child.wait();
        ending.store(true, Ordering::SeqCst);
        say.send(status)
    });
    Ok(CommandChild { leader, over, ended, drained, last_line })
}

/// The path of a program, searched in `path` (as in the variable PATH) unless its name
/// contains `/`. `None` when there is no executable file.
pub fn find_program(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let is_executable = |file: &Path| {
        file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let named = Path::new(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return is_executable(named).then(|| named.to_owned());
    }
    std::env::split_paths(path).map(|dir| dir.join(named)).find(|file| is_executable(file))
}

impl CommandChild {
    /// Waits until the command has ended.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        let ended = (&mut self.ended).await;
        ended.unwrap_or_else(|_| {
            Err(io::Error::other("the thread that waits for the command ended early"))
        })
    }

    /// Sends a signal to the process group.
    pub fn signal(&self, signal: Signal) {
        self.unless_over(|leader| kill_process_group(leader, signal));
    }

    /// Kills all processes of the command, also those in process groups of their own.
    pub fn kill(&self) {
        self.unless_over(|leader| kill_process(leader, Signal::QUIT));
    }

    /// The process id may be reused after the command has ended.
    fn unless_over(&self, send: impl FnOnce(Pid) -> rustix::io::Result<()>) {
        if !self.over.load(Ordering::SeqCst) {
            let _ = send(self.leader);
        }
    }

    /// Waits for the last output and returns the last line of stderr.
    pub fn last_words(self) -> String {
        let deadline = Instant::now() + OUTPUT_TIMEOUT;
        for _ in 0..2 {
            let left = deadline.saturating_duration_since(Instant::now());
            let _ = self.drained.recv_timeout(left);
        }
        self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Exit code of a command as a shell reports it.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_CODE + signal));
    u8::try_from(code.unwrap_or(1)).unwrap_or(1)
}

/// The signal that an exit code above 128 stands for.
pub fn signal_of(code: i32) -> Option<i32> {
    Some(code - SIGNAL_CODE).filter(|signal| (1..=64).contains(signal))
}

/// Describes how a command ended.
pub fn how(status: ExitStatus) -> String {
    let code = code(status);
    match signal_of(code.into()) {
        Some(signal) => format!("the command was ended by signal {signal}"),
        None => format!("the command ended with exit code {code}"),
    }
}

/// Creates the log of one attempt in the directory of the logs. Removes the oldest logs when
/// there are too many.
///
/// # Errors
///
/// When the file cannot be created.
pub fn create_log(dir: &CheckedDir, id: &MailId, attempt: u32) -> Result<File, MailboxError> {
    prune(dir).map_err(at(dir.path()))?;
    let name = log_name(id, attempt);
    dir.dir().create_file(&name).map_err(at(&dir.path().join(name)))
}

fn log_name(id: &MailId, attempt: u32) -> String {
    format!("{id}.{attempt}.log")
}

/// Whether a file of this name is a log of a command.
fn is_log_name(name: &str) -> bool {
    let parts = name.strip_suffix(".log").and_then(|stem| stem.rsplit_once('.'));
    let parsed =
        parts.and_then(|(id, attempt)| Some(log_name(&id.parse().ok()?, attempt.parse().ok()?)));
    parsed.as_deref() == Some(name)
}

impl CommandLog {
    fn write(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        // A full disk does not end the command.
        let _ = self.file.write_all(&bytes[..fits]);
        self.left -= fits as u64;
        if fits < bytes.len() && !std::mem::replace(&mut self.cut, true) {
            let _ = self.file.write_all(b"\n[cut after 10 MiB]\n");
        }
    }
}

/// Removes the oldest logs when there are too many. Other files are not touched.
fn prune(dir: &CheckedDir) -> io::Result<()> {
    let names = dir.dir().names()?.into_iter().filter_map(|entry| entry.name);
    let names: Vec<_> = names.filter(|name| is_log_name(name)).collect();
    if names.len() < MAX_LOGS {
        return Ok(());
    }
    let stat = |name: &str| dir.dir().stat(name).ok()?.filter(|stat| stat.is_file);
    let mut logs: Vec<_> =
        names.into_iter().filter_map(|name| Some((stat(&name)?.modified_ms, name))).collect();
    logs.sort();
    for (_, name) in logs.into_iter().take(OLDEST) {
        let _ = dir.dir().remove(&name);
    }
    Ok(())
}

fn copy(
    mut from: impl Read,
    log: &Mutex<CommandLog>,
    pass: fn(&[u8]) -> io::Result<()>,
    mut see: impl FnMut(&[u8]),
) {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                let bytes = &buffer[..read];
                log.lock().unwrap_or_else(PoisonError::into_inner).write(bytes);
                // The reader may be gone; logging continues.
                let _ = pass(bytes);
                see(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Keeps the last non-empty line.
fn keep_last_line(line: &mut Vec<u8>, bytes: &[u8], last: &Mutex<String>) {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        line.extend(part.iter().take(4 * MAX_LINE - line.len().min(4 * MAX_LINE)));
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if !text.is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) =
                text.chars().take(MAX_LINE).collect();
        }
        if part.ends_with(b"\n") {
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::CommandExt;

    use super::*;

    const ID: &str = "webhook_0123456789abcdef01234567";

    const QUIET: CommandOutput = CommandOutput { out: |_| Ok(()), err: |_| Ok(()) };

    fn run(script: &str, input: &str, signal: Option<Signal>) -> (u8, String, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let logs = CheckedDir::open_root(dir.path()).unwrap();
        let file = create_log(&logs, &ID.parse().unwrap(), 2).unwrap();
        let log = dir.path().join(format!("{ID}.2.log"));
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        let job = CommandJob {
            command,
            variables: vec![("MONOCO_MAIL_ID", "webhook_01".into())],
            input: input.to_owned(),
            log: file,
            output: QUIET,
        };
        let mut child = start(job).unwrap();
        if let Some(signal) = signal {
            // The first output shows that the command is ready.
            while fs::read(&log).unwrap().is_empty() {
                std::thread::yield_now();
            }
            child.signal(signal);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let status = runtime.block_on(child.ended()).unwrap();
        let last = child.last_words();
        (code(status), last, fs::read(&log).unwrap())
    }

    #[test]
    fn command_gets_the_text_and_its_output_is_logged() {
        let (code, last, log) =
            run("cat; echo $MONOCO_MAIL_ID; echo a >&2; echo b >&2", "hi ", None);
        assert_eq!((code, last.as_str()), (0, "b"));
        let log = String::from_utf8(log).unwrap();
        for said in ["hi ", "webhook_01\n", "a\n", "b\n"] {
            assert!(log.contains(said), "{log}");
        }
    }

    #[test]
    fn exit_codes_equal_those_of_a_shell() {
        assert_eq!(run("exit 75", "", None).0, 75);
        assert_eq!(run("kill -9 $$", "", None).0, 137);
        assert_eq!(run("exec true", &"x".repeat(1 << 20), None).0, 0, "it need not read");
    }

    #[test]
    fn signal_reaches_all_child_processes() {
        let script =
            "sh -c 'trap \"echo bye; exit 3\" TERM; echo up; while :; do sleep 0.01; done'";
        let (code, _, log) = run(&format!("{script}; exit $?"), "", Some(Signal::TERM));
        assert!(code == 143 || code == 3, "{code}");
        assert!(String::from_utf8_lossy(&log).contains("bye"), "the inner process got it");
    }

    #[test]
    fn program_is_searched_in_the_path_unless_it_has_a_slash() {
        let dir = tempfile::tempdir().unwrap();
        let (path, plain) = (dir.path().join("tool"), dir.path().join("plain"));
        fs::write(&path, "").unwrap();
        fs::write(&plain, "").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let dirs = std::env::join_paths([Path::new("/nonexistent"), dir.path()]).unwrap();
        let find = |program: &OsStr| find_program(program, &dirs);
        assert_eq!(find("tool".as_ref()), Some(path.clone()));
        assert_eq!(find(path.as_os_str()), Some(path.clone()));
        for bad in ["plain", "missing", "", "./tool"] {
            assert_eq!(find(bad.as_ref()), None, "{bad}");
        }
        assert_eq!(find(dir.path().as_os_str()), None, "a directory");
    }

    #[test]
    fn only_the_oldest_own_logs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let logs = CheckedDir::open_root(dir.path()).unwrap();
        for n in 0..MAX_LOGS {
            fs::write(dir.path().join(format!("webhook_{n:024x}.1.log")), "").unwrap();
            fs::write(dir.path().join(format!("notes-{n}.log")), "").unwrap();
        }
        create_log(&logs, &ID.parse().unwrap(), 1).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 * MAX_LOGS - OLDEST + 1);
        assert!((0..MAX_LOGS).all(|n| dir.path().join(format!("notes-{n}.log")).exists()));
        for foreign in [".bashrc", "a.1.log", &format!("{ID}.log"), &format!("{ID}.01.log")] {
            assert!(!is_log_name(foreign), "{foreign}");
        }
    }

    #[test]
    fn log_is_bounded_and_background_processes_are_not_awaited() {
        let (_, _, log) = run("head -c 11000000 /dev/zero", "", None);
        assert!(log.ends_with(b"[cut after 10 MiB]\n"));
        assert_eq!(log.len() as u64, MAX_LOG + 20);
        let before = Instant::now();
        run("sleep 10 & echo $! >&2", "", None);
        assert!(before.elapsed() < Duration::from_secs(9));
    }
}
