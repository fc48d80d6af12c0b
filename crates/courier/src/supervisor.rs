//! Runs a command under supervision: no process that it starts outlives its caller.
//!
//! The supervisor is this program in a mode of its own, started by [`supervised`]. It is a
//! subreaper: a descendant whose parent has exited becomes its child, also one in a session of
//! its own. It kills all descendants when they use too much memory together, on SIGQUIT, and
//! when the caller has exited or has closed the pipe that is the supervisor's standard output;
//! when the command has exited, as [`Leftovers`] says.
//! It starts the command through a second mode, which asks the kernel to kill the command if
//! the supervisor is killed, and limits the address space. Processes that a killed supervisor
//! could not kill are found by [`kill_orphans`].

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use monoco_mailbox::child::SIGNAL_CODE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, geteuid, getpid, getppid, getrlimit,
    kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, wait,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::home::process::ProcessIdentity;

/// First arguments of the two modes.
const SUPERVISE: &str = "--supervise-command";
const EXECUTE: &str = "--execute-command";

/// Start of the line on stderr when the command cannot be started, and its exit code.
pub const START_ERROR: &str = "monoco-exec: ";
pub const START_ERROR_CODE: u8 = 127;

/// The supervisor of a process whose command must leave none behind.
pub const SUPERVISOR_VARIABLE: &str = "MONOCO_SUPERVISOR";

/// How often the memory of the descendants is measured.
const MEMORY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What the pipe of signals contains.
const STOP: u8 = b's';
const KILL: u8 = b'k';

/// How often [`kill_orphans`] searches again, because a process has started another one.
const MAX_ORPHAN_SEARCHES: usize = 100;

/// How long [`kill_orphans`] waits until a killed process has exited.
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What happens to processes that a command leaves behind when it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    Kill,
    /// They stay, unless the command was asked to stop or was ended by a signal.
    Keep,
}

impl Leftovers {
    const fn as_arg(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Keep => "keep",
        }
    }
}

/// Returns a command that runs `words` under supervision, in a process group of its own. Each
/// process, and all together, can use `memory` bytes; 0 for no limit. The supervisor survives
/// signals to its group such as SIGTERM, so that the command can handle them. Its exit code is
/// that of the command, or 128 and the number of the signal that ended the command.
///
/// The caller pipes stdout, and closes the pipe to end the command.
pub fn supervised(words: &[impl AsRef<OsStr>], memory: u64, leftovers: Leftovers) -> Command {
    let mut command = Command::new(program());
    command.args([SUPERVISE, leftovers.as_arg(), &memory.to_string()]);
    command.args(words).process_group(0);
    command
}

/// Runs a mode of the supervisor if the arguments of this process select one.
pub fn run_mode() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let result = match args.next()? {
        mode if mode == SUPERVISE => supervise(args.collect()),
        mode if mode == EXECUTE => Err(execute(args)),
        _ => return None,
    };
    Some(ExitCode::from(result.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "{START_ERROR}{error}");
        START_ERROR_CODE
    })))
}

/// Path of this program, which may have been replaced since it was started.
fn program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if !cfg!(test) {
        return running;
    }
    // Unit tests are another program. The program itself is in the parent directory.
    let directory =
        fs::read_link(running).ok().and_then(|path| Some(path.ancestors().nth(2)?.into()));
    directory.unwrap_or_else(PathBuf::new).join("monoco")
}

/// Starts the command, waits for it and kills what it left.
fn supervise(mut args: Vec<OsString>) -> io::Result<u8> {
    let own = getpid();
    set_child_subreaper(Some(own))?;
    let keeps = !args.is_empty() && args.remove(0) == Leftovers::Keep.as_arg();
    let memory = number(args.first())?;
    let signals = signal_pipe()?;
    args.insert(0, own.as_raw_pid().to_string().into());
    let mut command = Command::new(program());
    command.arg(EXECUTE).args(args);
    match keeps {
        // A process that is kept has no supervisor after this one has exited.
        true => command.env_remove(SUPERVISOR_VARIABLE),
        false => command.env(SUPERVISOR_VARIABLE, ProcessIdentity::of(own).to_string()),
    };
    let mut child = command.spawn()?;
    let end = watch(&mut child, own, memory, signals);
    if !(keeps && matches!(end, Ok(CommandEnd::Exited(_)))) {
        kill_children(own);
    }
    match end? {
        CommandEnd::Exited(status) | CommandEnd::Stopped(status) => {
            let code = status.code().unwrap_or(SIGNAL_CODE + status.signal().unwrap_or_default());
            Ok(u8::try_from(code).unwrap_or(u8::MAX))
        }
        CommandEnd::OutOfMemory => {
            let most = memory >> 20;
            let _ =
                writeln!(io::stderr(), "the processes of the command used more than {most} MiB");
            Ok(1)
        }
        CommandEnd::Killed => Ok(u8::try_from(SIGNAL_CODE + Signal::KILL.as_raw()).unwrap_or(1)),
    }
}

enum CommandEnd {
    Exited(ExitStatus),
    /// The command exited after a signal that asked it to, or was ended by one.
    Stopped(ExitStatus),
    OutOfMemory,
    /// The caller has exited, or asked to kill the command.
    Killed,
}

/// Registers the signals of the supervisor, which are then no longer fatal for this process; the
/// command gets the default. Returns a pipe from which they are read: [`STOP`] for one that asks
/// the command to stop, [`KILL`] for SIGQUIT.
fn signal_pipe() -> io::Result<PipeReader> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let context = runtime.enter();
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(context);
    let (reader, mut writer) = io::pipe()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let byte = tokio::select! {
                    _ = quit.recv() => KILL,
                    _ = terminate.recv() => STOP,
                    _ = interrupt.recv() => STOP,
                    _ = hangup.recv() => STOP,
                };
                if writer.write_all(&[byte]).is_err() {
                    return;
                }
            }
        });
    })?;
    Ok(reader)
}

/// Waits until the command has exited or must be killed.
fn watch(
    child: &mut Child,
    own: Pid,
    memory: u64,
    mut signals: PipeReader,
) -> io::Result<CommandEnd> {
    let exit = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let stdout = io::stdout();
    let interval = (memory > 0).then_some(&MEMORY_INTERVAL);
    let mut is_stopped = false;
    loop {
        // The error of a pipe without a reader is always reported.
        let mut events = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&exit, PollFlags::IN),
            PollFd::new(&stdout, PollFlags::empty()),
        ];
        let count = match poll(&mut events, interval) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let [signalled, exited, closed] = events.map(|event| !event.revents().is_empty());
        if signalled {
            let mut byte = [0];
            signals.read_exact(&mut byte)?;
            if byte[0] == KILL {
                return Ok(CommandEnd::Killed);
            }
            is_stopped = true;
        } else if exited {
            let status = child.wait()?;
            // A command that a signal has ended was not finished either.
            let is_stopped = is_stopped || status.signal().is_some();
            return Ok(if is_stopped {
                CommandEnd::Stopped(status)
            } else {
                CommandEnd::Exited(status)
            });
        } else if closed {
            return Ok(CommandEnd::Killed);
        } else if count == 0 && memory_of_descendants(own) > memory {
            return Ok(CommandEnd::OutOfMemory);
        }
    }
}

/// Kills all descendants and waits for them.
fn kill_children(own: Pid) {
    // Ends when no child is left. Children of a killed child become children of this process.
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Ok(None) => {}
            Err(_) => return,
        }
        let children = children(own);
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
        }
        let _ = wait(WaitOptions::empty());
    }
}

/// Kills the processes of this user whose supervisor was killed and could not kill them: those
/// in sessions of their own. Their environment names the supervisor.
pub fn kill_orphans() {
    for _ in 0..MAX_ORPHAN_SEARCHES {
        let orphans = orphans();
        if orphans.is_empty() {
            return;
        }
        for orphan in orphans {
            let _ = pidfd_send_signal(&orphan, Signal::KILL);
            let _ = poll(&mut [PollFd::new(&orphan, PollFlags::IN)], Some(&KILL_TIMEOUT));
        }
    }
}

fn orphans() -> Vec<OwnedFd> {
    let (own, user) = (getpid(), geteuid().as_raw());
    // Elsewhere, such as in a container, the same number is another supervisor.
    let namespace = |process: &Path| fs::read_link(process.join("ns/pid")).ok();
    let Some(own_namespace) = namespace(Path::new("/proc/self")) else { return Vec::new() };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        if pid == own || entry.metadata().ok()?.uid() != user {
            return None;
        }
        // Opened before the environment is read, so that a reused id is not killed.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let supervisor = supervisor_in(&environment)?;
        let is_here = namespace(&entry.path())? == own_namespace;
        (is_here && !supervisor.is_running()).then_some(process)
    });
    processes.collect()
}

fn supervisor_in(environment: &[u8]) -> Option<ProcessIdentity> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| {
        variable.strip_prefix(SUPERVISOR_VARIABLE.as_bytes())?.strip_prefix(b"=")
    })?;
    ProcessIdentity::parse(std::str::from_utf8(value).ok()?)
}

/// Returns the children of all threads of a process.
fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}

/// Returns the memory of all descendants in bytes. A page that several processes share counts
/// once in total.
fn memory_of_descendants(of: Pid) -> u64 {
    let (mut found, mut next) = (children(of), 0);
    while let Some(process) = found.get(next).copied() {
        found.extend(children(process));
        next += 1;
    }
    found.into_iter().map(|process| proportional_memory(process).unwrap_or(0)).sum()
}

fn proportional_memory(process: Pid) -> Option<u64> {
    let text =
        fs::read_to_string(Path::new("/proc").join(process.to_string()).join("smaps_rollup"));
    let text = text.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Replaces this process by the command. Returns only when that fails.
fn execute(mut args: impl Iterator<Item = OsString>) -> io::Error {
    let prepared = (|| {
        let supervisor = number(args.next().as_ref())?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The supervisor may have died before.
        if getppid().map(|parent| parent.as_raw_pid().cast_unsigned().into()) != Some(supervisor) {
            return Err(io::Error::other("the supervisor ended"));
        }
        let memory = number(args.next().as_ref())?;
        if memory > 0 {
            // A limit of this process cannot be raised.
            let most = getrlimit(Resource::As).maximum.map_or(memory, |most| memory.min(most));
            setrlimit(Resource::As, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        args.next().ok_or_else(|| io::Error::other("no command"))
    })();
    match prepared {
        Err(error) => error,
        Ok(program) => {
            let error = Command::new(&program).args(args).exec();
            io::Error::other(format!("{}: {error}", program.display()))
        }
    }
}

fn number(arg: Option<&OsString>) -> io::Result<u64> {
    let number = arg.and_then(|arg| arg.to_str()?.parse().ok());
    number.ok_or_else(|| io::Error::other("expected a number"))
}
