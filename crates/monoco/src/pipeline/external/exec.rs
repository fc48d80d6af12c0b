//! A worker that is a command: it reads a letter on stdin and prints its answer.
//!
//! The command and all it starts are one process group, which ends with it: when the
//! time is over, when it prints too much, when nobody waits for it any more, and when
//! it has ended by itself. A thread of its own waits for each command, so that none is
//! left behind as a zombie, whatever becomes of the one who asked.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, getrlimit, kill_process_group, waitid,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout as within;

use super::{AttemptResult, MAX_ANSWER, one_line, seconds};

/// How long to wait for the last output once the command has ended, and for the end
/// once it was killed. Somebody who left the group may hold the pipe for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of the end of stderr is kept.
const TAIL: usize = 4 << 10;

/// Most characters of the line that explains a failure.
const MAX_LINE: usize = 300;

/// What the shell calls itself, and so what its complaints start with: when there is no
/// such program, it says so in our stead.
const NAME: &str = "monoco-exec";

/// Limits the memory, and becomes the command. Its words are arguments: no shell reads
/// them.
const LIMITED: &str = r#"ulimit -v "$1" && shift && exec "$@""#;

/// All that a command gets to know of our environment. Secrets are in it.
const VARIABLES: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Runs a command for one letter. Dropping this ends the command.
pub async fn exec(
    command: &[String],
    memory: u64,
    letter: &[u8],
    timeout: Duration,
) -> AttemptResult {
    if command.is_empty() {
        return AttemptResult::Down("there is no command".to_owned());
    }
    let mut running = match start(prepared(command, memory)).await {
        Ok(running) => running,
        Err(error) => return AttemptResult::Down(format!("can't be started: {error}")),
    };
    let (mut out, mut err) = (Vec::new(), OutputTail::default());
    let ended = within(timeout, running.talk(letter, &mut out, &mut err)).await;
    match ended {
        Ok(Ok(status)) => tried(status, out, &err),
        Ok(Err(error)) => {
            running.end().await;
            AttemptResult::Failed(error.to_string())
        }
        Err(_) => {
            running.end().await;
            AttemptResult::Failed(format!("did not finish within {}", seconds(timeout)))
        }
    }
}

/// What the end of a command means.
fn tried(status: ExitStatus, out: Vec<u8>, err: &OutputTail) -> AttemptResult {
    let last = err.last_line();
    match (status.code(), status.signal()) {
        (Some(0), _) if out.trim_ascii().is_empty() => {
            AttemptResult::Failed("exit 0, and printed nothing".to_owned())
        }
        (Some(0), _) => AttemptResult::Answered(out),
        (Some(_), _) if last.starts_with(NAME) => {
            // After its name and the number of the line.
            let why = last.split_once(" 1: ").map_or(last.as_str(), |(_, why)| why);
            AttemptResult::Down(format!("can't be started: {}", why.trim_start_matches("exec: ")))
        }
        (Some(code), _) if last.is_empty() => AttemptResult::Failed(format!("exit {code}")),
        (Some(code), _) => AttemptResult::Failed(format!("exit {code}: {last}")),
        (None, Some(9)) => AttemptResult::Failed("killed by signal 9 (out of memory?)".to_owned()),
        (None, signal) => {
            AttemptResult::Failed(format!("killed by signal {}", signal.unwrap_or_default()))
        }
    }
}

fn prepared(words: &[String], memory: u64) -> Command {
    // Nobody may raise a limit that is there already.
    let memory = getrlimit(Resource::As).maximum.map_or(memory, |most| memory.min(most));
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", LIMITED, NAME])
        .arg((memory >> 10).to_string())
        .args(words)
        .current_dir("/")
        .env_clear()
        .envs(VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// A command that was started.
#[derive(Debug)]
struct RunningCommand {
    group: ProcessGroup,
    pipes: Option<[OwnedFd; 3]>,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// The processes of a command. Dropping this kills them.
#[derive(Debug)]
struct ProcessGroup {
    id: Pid,
    /// Whether its number may be somebody else's by now.
    over: Arc<Mutex<bool>>,
}

/// Starts a command, and a thread that waits for it.
async fn start(mut command: Command) -> io::Result<RunningCommand> {
    let (tell, started) = oneshot::channel();
    let watch = move || match begin(&mut command) {
        // Whoever asked may be gone by now; then what was started is dropped, and ended.
        Err(error) => drop(tell.send(Err(error))),
        Ok((child, running, say)) => {
            let (id, over) = (running.group.id, Arc::clone(&running.group.over));
            drop(tell.send(Ok(running)));
            drop(say.send(wait(child, id, &over)));
        }
    };
    std::thread::Builder::new().name("worker".to_owned()).spawn(watch)?;
    started.await.unwrap_or_else(|_| Err(io::Error::other("nobody started it")))
}

type StartedCommand = (Child, RunningCommand, oneshot::Sender<io::Result<ExitStatus>>);

fn begin(command: &mut Command) -> io::Result<StartedCommand> {
    let mut child = command.spawn()?;
    let id = Pid::from_child(&child);
    let group = ProcessGroup { id, over: Arc::default() };
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let pipes = pipes.map(|((stdin, out), err)| [stdin.into(), out.into(), err.into()]);
    let (say, ended) = oneshot::channel();
    Ok((child, RunningCommand { group, pipes, ended }, say))
}

/// Waits for the end of a command, and ends what it left behind.
fn wait(mut child: Child, id: Pid, over: &Mutex<bool>) -> io::Result<ExitStatus> {
    // It is seen to have ended, and stays: as long as it is there, nobody else gets its
    // number.
    let still = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(id), still) {}
    let mut over = over.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kill_process_group(id, Signal::KILL);
    *over = true;
    child.wait()
}

impl ProcessGroup {
    fn kill(&self) {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        if !*over {
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
    /// Gives it the letter, and hears what it says until it has ended.
    async fn talk(
        &mut self,
        letter: &[u8],
        out: &mut Vec<u8>,
        err: &mut OutputTail,
    ) -> io::Result<ExitStatus> {
        let pipes = self.pipes.take().ok_or_else(|| io::Error::other("it has no pipes"))?;
        let [stdin, stdout, stderr] = pipes;
        let stdin = Sender::from_owned_fd(stdin)?;
        let stdout = Receiver::from_owned_fd(stdout)?;
        let stderr = Receiver::from_owned_fd(stderr)?;
        let talk = async {
            tokio::try_join!(give(stdin, letter), hear(stdout, out), drain(stderr, err)).map(drop)
        };
        tokio::pin!(talk);
        let ended = &mut self.ended;
        let mut talked = false;
        let status = loop {
            tokio::select! {
                done = &mut talk, if !talked => {
                    done?;
                    talked = true;
                }
                status = &mut *ended => break status,
            }
        };
        if !talked && let Ok(done) = within(LAST_WORDS, talk).await {
            done?;
        }
        status.unwrap_or_else(|_| Err(io::Error::other("nobody waited for it")))
    }

    /// Kills it, and waits until it is gone.
    async fn end(mut self) {
        self.group.kill();
        let _ = within(LAST_WORDS, &mut self.ended).await;
    }
}

/// Writes the letter and a line's end, and closes the pipe. A command need not read it.
async fn give(mut pipe: Sender, letter: &[u8]) -> io::Result<()> {
    if pipe.write_all(letter).await.is_ok() {
        let _ = pipe.write_all(b"\n").await;
    }
    Ok(())
}

/// Reads the answer.
async fn hear(mut pipe: Receiver, out: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(()),
            read if out.len() + read > MAX_ANSWER => {
                let words = format!("printed more than {} MiB", MAX_ANSWER >> 20);
                return Err(io::Error::other(words));
            }
            read => out.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Reads complaints, and keeps the last of them.
async fn drain(mut pipe: Receiver, tail: &mut OutputTail) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(()),
            read => tail.add(&buffer[..read]),
        }
    }
}

/// The end of what was said.
#[derive(Debug, Default)]
struct OutputTail(Vec<u8>);

impl OutputTail {
    fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        let over = (self.0.len() + bytes.len()).saturating_sub(TAIL);
        self.0.drain(..over);
        self.0.extend_from_slice(bytes);
    }

    /// The last line that says something.
    fn last_line(&self) -> String {
        let mut lines = self.0.rsplit(|byte| *byte == b'\n').map(|line| one_line(line, MAX_LINE));
        lines.find(|line| !line.is_empty()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
