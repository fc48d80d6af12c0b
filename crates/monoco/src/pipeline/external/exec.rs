//! Runs a command for each letter: the letter on stdin, the answer on stdout.
//!
//! The command and its children form a process group. The group is killed when the timeout
//! expires, when the output is too long, when the caller is dropped, and when the command has
//! exited. A thread waits for each command, so that no zombie is left when the caller is gone.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use monoco_core::config::InvalidConfig;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, getrlimit, kill_process_group, waitid,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout as within;

use super::{
    AttemptResult, ExternalWorkerConfig, MAX_ANSWER, WorkerTransport, one_line, parallel, seconds,
};
use crate::pipeline::workers::{Worker, WorkerKind, WorkerSection, changed};

pub const KIND: WorkerKind = WorkerKind {
    name: "exec",
    built_in: false,
    keys: &["command", "memory_mb", "timeout_s", "retries", "when_down", "readdress", "parallel"],
    parse,
};

/// Number of commands that run at the same time, by default.
const DEFAULT_PARALLEL: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecTransport {
    /// The program and its arguments. No shell interprets them.
    pub command: Vec<String>,
    /// Maximum address space, in bytes.
    pub memory: u64,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = &section.keys;
    let invalid = |why: &str| Err(keys.invalid_key("command", why));
    let Some(words) = keys.values("command")? else { return invalid("is missing") };
    let command = words.iter().map(|word| word.with_home()).collect::<Result<Vec<_>, _>>()?;
    let Some(program) = command.first().filter(|program| !program.is_empty()) else {
        return invalid("expected a program and its arguments");
    };
    if command.iter().any(|word| word.contains('\0')) {
        return invalid("contains a NUL character");
    }
    if program.contains('/') && !program.starts_with('/') {
        return invalid("expected an absolute path, ~/…, or a program found in PATH");
    }
    let memory = keys.number_or("memory_mb", 16..=65_536_u64, 512)? << 20;
    let transport = WorkerTransport::Exec(ExecTransport { command, memory });
    ExternalWorkerConfig::parse(keys, transport, parallel(keys, DEFAULT_PARALLEL)?)
}

impl ExecTransport {
    pub fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        changed(&[
            ("command", self.command != new.command),
            ("memory_mb", self.memory != new.memory),
        ])
    }
}

/// How long to wait for the last output after the command has exited, and for the exit after
/// it was killed. A process that left the group may keep the pipe open for ever.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// Size of the end of stderr that is kept, in bytes.
const STDERR_TAIL_BYTES: usize = 4 << 10;

/// Longest line of stderr in an error, in characters.
const MAX_LINE_CHARS: usize = 300;

/// Name of the shell that starts the command. Its error messages, such as that the program
/// does not exist, start with it.
const SHELL_NAME: &str = "monoco-exec";

/// Limits the memory, then replaces the shell by the command, whose words are arguments and
/// not interpreted.
const LIMIT_SCRIPT: &str = r#"ulimit -v "$1" && shift && exec "$@""#;

/// The environment variables that a command gets. Others may be secrets.
const PASSED_VARIABLES: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Runs a command for one letter. Dropping the future kills the command.
pub async fn run_command(
    command: &[String],
    memory: u64,
    letter: &[u8],
    timeout: Duration,
) -> AttemptResult {
    if command.is_empty() {
        return AttemptResult::Down("no command is configured".to_owned());
    }
    let mut running = match start(prepare(command, memory)).await {
        Ok(running) => running,
        Err(error) => return AttemptResult::Down(format!("cannot be started: {error}")),
    };
    let (mut out, mut err) = (Vec::new(), OutputTail::default());
    let ended = within(timeout, running.communicate(letter, &mut out, &mut err)).await;
    match ended {
        Ok(Ok(status)) => exit_result(status, out, &err),
        Ok(Err(error)) => {
            running.kill().await;
            AttemptResult::Failed(error.to_string())
        }
        Err(_) => {
            running.kill().await;
            AttemptResult::Failed(format!("no answer within {}", seconds(timeout)))
        }
    }
}

fn exit_result(status: ExitStatus, out: Vec<u8>, err: &OutputTail) -> AttemptResult {
    let last = err.last_line();
    match (status.code(), status.signal()) {
        (Some(0), _) if out.trim_ascii().is_empty() => {
            AttemptResult::Failed("exit 0 without output".to_owned())
        }
        (Some(0), _) => AttemptResult::Answered(out),
        (Some(_), _) if last.starts_with(SHELL_NAME) => {
            // The reason follows the name of the shell and the line number.
            let why = last.split_once(" 1: ").map_or(last.as_str(), |(_, why)| why);
            AttemptResult::Down(format!("cannot be started: {}", why.trim_start_matches("exec: ")))
        }
        (Some(code), _) if last.is_empty() => AttemptResult::Failed(format!("exit {code}")),
        (Some(code), _) => AttemptResult::Failed(format!("exit {code}: {last}")),
        (None, Some(9)) => AttemptResult::Failed("killed by signal 9 (out of memory?)".to_owned()),
        (None, signal) => {
            AttemptResult::Failed(format!("killed by signal {}", signal.unwrap_or_default()))
        }
    }
}

fn prepare(words: &[String], memory: u64) -> Command {
    // A limit of this process cannot be raised.
    let memory = getrlimit(Resource::As).maximum.map_or(memory, |most| memory.min(most));
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", LIMIT_SCRIPT, SHELL_NAME])
        .arg((memory >> 10).to_string())
        .args(words)
        .current_dir("/")
        .env_clear()
        .envs(PASSED_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// A command that has been started.
#[derive(Debug)]
struct RunningCommand {
    group: ProcessGroup,
    pipes: Option<[OwnedFd; 3]>,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// The processes of a command. They are killed on drop.
#[derive(Debug)]
struct ProcessGroup {
    id: Pid,
    /// Whether the group has ended, so that its id may be used by other processes.
    ended: Arc<Mutex<bool>>,
}

/// Starts a command, and a thread that waits for it.
async fn start(mut command: Command) -> io::Result<RunningCommand> {
    let (started_sender, started) = oneshot::channel();
    let watch = move || match spawn(&mut command) {
        // When the receiver is gone, the running command is dropped, and so killed.
        Err(error) => drop(started_sender.send(Err(error))),
        Ok((child, running, exit_sender)) => {
            let (id, ended) = (running.group.id, Arc::clone(&running.group.ended));
            drop(started_sender.send(Ok(running)));
            drop(exit_sender.send(wait(child, id, &ended)));
        }
    };
    std::thread::Builder::new().name("worker".to_owned()).spawn(watch)?;
    started.await.unwrap_or_else(|_| Err(io::Error::other("the thread of the command ended")))
}

type StartedCommand = (Child, RunningCommand, oneshot::Sender<io::Result<ExitStatus>>);

fn spawn(command: &mut Command) -> io::Result<StartedCommand> {
    let mut child = command.spawn()?;
    let id = Pid::from_child(&child);
    let group = ProcessGroup { id, ended: Arc::default() };
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let pipes = pipes.map(|((stdin, out), err)| [stdin.into(), out.into(), err.into()]);
    let (exit_sender, exit) = oneshot::channel();
    Ok((child, RunningCommand { group, pipes, exit }, exit_sender))
}

/// Waits until the command exits, then kills the rest of its process group.
fn wait(mut child: Child, id: Pid, ended: &Mutex<bool>) -> io::Result<ExitStatus> {
    // NOWAIT leaves the exited process as a zombie, so that its id is not reused before the
    // group is killed.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(id), options) {}
    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kill_process_group(id, Signal::KILL);
    *ended = true;
    child.wait()
}

impl ProcessGroup {
    fn kill(&self) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !*ended {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

impl RunningCommand {
    /// Writes the letter and reads the output until the command has exited.
    async fn communicate(
        &mut self,
        letter: &[u8],
        out: &mut Vec<u8>,
        err: &mut OutputTail,
    ) -> io::Result<ExitStatus> {
        let pipes =
            self.pipes.take().ok_or_else(|| io::Error::other("the command has no pipes"))?;
        let [stdin, stdout, stderr] = pipes;
        let stdin = Sender::from_owned_fd(stdin)?;
        let stdout = Receiver::from_owned_fd(stdout)?;
        let stderr = Receiver::from_owned_fd(stderr)?;
        let transfer = async {
            let output = (read_answer(stdout, out), read_errors(stderr, err));
            tokio::try_join!(write_letter(stdin, letter), output.0, output.1).map(drop)
        };
        tokio::pin!(transfer);
        let exit = &mut self.exit;
        let mut transferred = false;
        let status = loop {
            tokio::select! {
                done = &mut transfer, if !transferred => {
                    done?;
                    transferred = true;
                }
                status = &mut *exit => break status,
            }
        };
        if !transferred && let Ok(done) = within(EXIT_GRACE, transfer).await {
            done?;
        }
        status.unwrap_or_else(|_| Err(io::Error::other("the thread of the command ended")))
    }

    /// Kills the command and waits for its exit.
    async fn kill(mut self) {
        self.group.kill();
        let _ = within(EXIT_GRACE, &mut self.exit).await;
    }
}

/// Writes the letter and a line feed, and closes the pipe. The command may ignore them.
async fn write_letter(mut pipe: Sender, letter: &[u8]) -> io::Result<()> {
    if pipe.write_all(letter).await.is_ok() {
        let _ = pipe.write_all(b"\n").await;
    }
    Ok(())
}

/// Reads stdout up to the limit of an answer.
async fn read_answer(mut pipe: Receiver, out: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(()),
            read if out.len() + read > MAX_ANSWER => {
                let why = format!("printed more than {} MiB", MAX_ANSWER >> 20);
                return Err(io::Error::other(why));
            }
            read => out.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Reads stderr and keeps its end.
async fn read_errors(mut pipe: Receiver, tail: &mut OutputTail) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(()),
            read => tail.add(&buffer[..read]),
        }
    }
}

/// The last bytes of stderr.
#[derive(Debug, Default)]
struct OutputTail(Vec<u8>);

impl OutputTail {
    fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(STDERR_TAIL_BYTES)..];
        let excess = (self.0.len() + bytes.len()).saturating_sub(STDERR_TAIL_BYTES);
        self.0.drain(..excess);
        self.0.extend_from_slice(bytes);
    }

    /// Returns the last line that is not empty.
    fn last_line(&self) -> String {
        let mut lines =
            self.0.rsplit(|byte| *byte == b'\n').map(|line| one_line(line, MAX_LINE_CHARS));
        lines.find(|line| !line.is_empty()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
