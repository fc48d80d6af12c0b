//! Runs a command under supervision: no process that it starts outlives it or its caller.
//!
//! The supervisor is this program in a mode of its own, started by [`supervised`]. It is a
//! subreaper: a descendant whose parent has exited becomes its child, also one in a session of
//! its own. It kills all descendants when the command has exited, when they use too much memory
//! together, and when the caller has exited or has closed the pipe that is the supervisor's
//! standard output. It starts the command through a second mode, which asks the kernel to kill
//! the command if the supervisor is killed, and limits the address space.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit,
    kill_process, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setrlimit,
    wait,
};
use tokio::signal::unix::{SignalKind, signal};

/// First arguments of the two modes.
const SUPERVISE: &str = "--supervise-command";
const EXECUTE: &str = "--execute-command";

/// Start of the line on stderr when the command cannot be started, and its exit code.
pub const START_ERROR: &str = "monoco-exec: ";
pub const START_ERROR_CODE: u8 = 127;

/// Added to the number of the signal that ended the command, as a shell does.
pub const SIGNAL_CODE: i32 = 128;

/// How often the memory of the descendants is measured.
const MEMORY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Returns a command that runs `words` under supervision, in a process group of its own. Each
/// process, and all together, can use `memory` bytes; 0 for no limit. The supervisor survives
/// signals to its group such as SIGTERM, so that the command can handle them. Its exit code is
/// that of the command, or 128 and the number of the signal that ended the command.
///
/// The caller pipes stdout, and closes the pipe to end the command.
pub fn supervised(words: &[impl AsRef<OsStr>], memory: u64) -> Command {
    let mut command = Command::new(program());
    command.arg(SUPERVISE).arg(memory.to_string()).args(words).process_group(0);
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
    // A registered signal is no longer fatal for this process. The command gets the default.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _context = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        drop(signal(kind)?);
    }
    let memory = number(args.first())?;
    args.insert(0, own.as_raw_pid().to_string().into());
    let mut child = Command::new(program()).arg(EXECUTE).args(args).spawn()?;
    let end = watch(&mut child, own, memory);
    kill_children(own);
    match end? {
        CommandEnd::Exited(status) => {
            let code = status.code().unwrap_or(SIGNAL_CODE + status.signal().unwrap_or_default());
            Ok(u8::try_from(code).unwrap_or(u8::MAX))
        }
        CommandEnd::OutOfMemory => {
            let most = memory >> 20;
            let _ =
                writeln!(io::stderr(), "the processes of the command used more than {most} MiB");
            Ok(1)
        }
        CommandEnd::CallerGone => Ok(1),
    }
}

enum CommandEnd {
    Exited(ExitStatus),
    OutOfMemory,
    CallerGone,
}

/// Waits until the command has exited or must be killed.
fn watch(child: &mut Child, own: Pid, memory: u64) -> io::Result<CommandEnd> {
    let exit = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let stdout = io::stdout();
    let interval = (memory > 0).then_some(&MEMORY_INTERVAL);
    loop {
        // The error of a pipe without a reader is always reported.
        let mut events =
            [PollFd::new(&exit, PollFlags::IN), PollFd::new(&stdout, PollFlags::empty())];
        match poll(&mut events, interval) {
            Ok(0) if memory_of_descendants(own) > memory => return Ok(CommandEnd::OutOfMemory),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) if !events[0].revents().is_empty() => {
                return child.wait().map(CommandEnd::Exited);
            }
            Ok(_) => return Ok(CommandEnd::CallerGone),
            Err(error) => return Err(error.into()),
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
