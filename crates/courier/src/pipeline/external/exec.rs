//! Runs a command for each letter: the letter on stdin, the answer on stdout.
//!
//! The command runs under a supervisor, which kills all its processes when the command has
//! exited, and when the pipe of its output is closed: after the timeout, when the output is too
//! long, when the caller is dropped, and when the courier ends in any way. A thread waits for
//! each supervisor, so that no zombie is left when the caller is gone.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::InvalidConfig;
use monoco_mailbox::child::signal_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout as within;

use super::{
    Attempt, AttemptResult, ExternalWorkerConfig, MAX_ANSWER, WorkerTransport, one_line, parallel,
    seconds,
};
use crate::pipeline::workers::{Worker, WorkerKind, WorkerSection, changed};
use crate::supervisor::{self, Leftovers, START_ERROR, supervised};

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
    /// Maximum memory of each process and of all processes together, in bytes.
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
/// it was killed. A process that the command did not start itself may hold the pipe.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// Size of the end of stderr that is kept, in bytes.
const STDERR_TAIL_BYTES: usize = 4 << 10;

/// Longest line of stderr in an error, in characters.
const MAX_LINE_CHARS: usize = 300;

/// The environment variables that a command gets. Others may be secrets.
const PASSED_VARIABLES: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Runs a command for one letter. Dropping the future kills the command.
pub async fn run_command(
    command: &[String],
    memory: u64,
    letter: &[u8],
    timeout: Duration,
) -> Attempt {
    if command.is_empty() {
        return AttemptResult::Down("no command is configured".to_owned()).into();
    }
    let mut running = match start(prepare(command, memory)).await {
        Ok(running) => running,
        Err(error) => return AttemptResult::Down(format!("cannot be started: {error}")).into(),
    };
    let (mut out, mut err) = (Vec::new(), OutputTail::default());
    let ended = within(timeout, running.communicate(letter, &mut out, &mut err)).await;
    let result = match ended {
        Ok(Ok(status)) => exit_result(status, out, &err),
        Ok(Err(error)) => AttemptResult::Failed(error.to_string()),
        Err(_) => AttemptResult::Failed(format!("no answer within {}", seconds(timeout))),
    };
    // Without an exit, the pipes are closed by now: the supervisor kills the command and exits.
    if !running.exit.is_terminated() {
        let _ = within(EXIT_GRACE, &mut running.exit).await;
    }
    Attempt { result, stderr: String::from_utf8_lossy(&err.0).into_owned() }
}

fn exit_result(status: ExitStatus, out: Vec<u8>, err: &OutputTail) -> AttemptResult {
    let last = err.last_line();
    match (status.code(), status.signal().or_else(|| status.code().and_then(signal_of))) {
        (_, Some(9)) => AttemptResult::Failed("killed by signal 9 (out of memory?)".to_owned()),
        (_, Some(signal)) => AttemptResult::Failed(format!("killed by signal {signal}")),
        (Some(0), _) if out.trim_ascii().is_empty() => {
            AttemptResult::Failed("exit 0 without output".to_owned())
        }
        (Some(0), _) => AttemptResult::Answered(out),
        (Some(code), _) => match last.strip_prefix(START_ERROR) {
            Some(why) => AttemptResult::Down(format!("cannot be started: {why}")),
            None if last.is_empty() => AttemptResult::Failed(format!("exit {code}")),
            None => AttemptResult::Failed(format!("exit {code}: {last}")),
        },
        (None, None) => AttemptResult::Failed("ended without an exit code".to_owned()),
    }
}

fn prepare(words: &[String], memory: u64) -> Command {
    let mut command = supervised(words, memory, Leftovers::Kill);
    command
        .current_dir("/")
        .env_clear()
        .envs(PASSED_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A command that has been started. Closing its pipes ends it.
#[derive(Debug)]
struct RunningCommand {
    pipes: Option<[OwnedFd; 3]>,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Starts a command, and a thread that waits for it.
async fn start(mut command: Command) -> io::Result<RunningCommand> {
    let (started_sender, started) = oneshot::channel();
    let watch = move || match command.spawn() {
        Err(error) => drop(started_sender.send(Err(error))),
        Ok(mut child) => {
            let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
            let pipes = pipes.map(|((stdin, out), err)| [stdin.into(), out.into(), err.into()]);
            let (exit_sender, exit) = oneshot::channel();
            // When the receiver is gone, the running command is dropped, and so ended.
            drop(started_sender.send(Ok(RunningCommand { pipes, exit })));
            let exit = child.wait();
            if exit.as_ref().is_ok_and(|status| status.signal().is_some()) {
                // A supervisor that was killed has killed nothing.
                supervisor::kill_orphans();
            }
            drop(exit_sender.send(exit));
        }
    };
    std::thread::Builder::new().name("worker".to_owned()).spawn(watch)?;
    started.await.unwrap_or_else(|_| Err(io::Error::other("the thread of the command ended")))
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
