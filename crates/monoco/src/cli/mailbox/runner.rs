//! Runs a command on a claimed Mail. Renews the claim while the command runs, then completes
//! or fails it by the exit code.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::MailboxContext;
use super::backlog::Claimable;
use super::claim::claim_step;
use super::read::{author_line, fence, trust_name};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{escape_line, escape_lines, note};
use monoco_courier::supervisor::{Leftovers, supervised};
use monoco_mailbox::child::{self, CommandChild, CommandJob, CommandOutput, SIGNAL_CODE};
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_mailbox::workspace::WorkspaceDir;

/// Time between SIGTERM and SIGKILL for the command.
const KILL_DELAY: Duration = Duration::from_secs(10);

/// How long a renew request may take.
const RENEW_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to retry reporting the result while the courier is down.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay between two requests while the courier is down.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Exit code of a command that cannot process this Mail, now or later (EX_DATAERR).
const BAD_DATA_EXIT_CODE: u8 = 65;

/// Where programs are searched without a PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Runs one command on Mails for one agent.
pub struct MailRunner<'a> {
    pub mailbox: &'a MailboxContext<'a>,
    pub workspace: &'a WorkspaceDir,
    pub command: &'a [OsString],
    /// Missing when the token of an agent names it.
    pub agent: Option<String>,
    pub timeout: Option<i64>,
}

/// SIGINT and SIGTERM of this process.
pub struct RunSignals {
    interrupt: Stream,
    terminate: Stream,
}

/// How the command on a Mail ended.
pub enum RunEnd {
    /// The command ended with this exit code.
    Code(u8),
    /// The claim was lost; another agent may hold the Mail.
    Lost,
    /// This process received a signal.
    Stopped(Signal),
}

impl RunSignals {
    pub fn new() -> Result<Self, CliError> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for SIGINT or SIGTERM.
    pub async fn received(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
        }
    }
}

/// The error of a command that does not exist.
fn no_command(program: &str) -> CliError {
    CliError::new(CliExit::NotPossible, format!("command not found: {program}"))
        .hint("no Mail was claimed; check the name, or give the path of an executable file")
}

/// Builds the command that runs a shell command line. Fails when its first word is not a
/// command of the shell; a line that starts with an assignment or a quote is not checked.
pub fn shell_command(line: &str) -> Result<Vec<OsString>, CliError> {
    let word = line.split_whitespace().next().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+".contains(&byte);
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", word]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    if line.trim().is_empty() {
        return Err(CliError::usage("--exec: the command is empty"));
    }
    if word.bytes().all(plain) && !shell("command -v -- \"$1\"")?.success() {
        return Err(no_command(word));
    }
    Ok(["sh", "-c", line].map(OsString::from).into())
}

/// Returns the exit code of a process that was ended by a signal.
pub const fn code_of(signal: Signal) -> i32 {
    SIGNAL_CODE + signal.as_raw()
}

impl MailRunner<'_> {
    /// Checks that the command exists and its output can be logged, before a Mail is claimed.
    pub fn check(&self) -> Result<(), CliError> {
        let program = self.command.first().cloned().unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        if child::find_program(&program, &path).is_none() {
            return Err(no_command(&program.to_string_lossy()));
        }
        self.workspace.ensure_logs()?;
        Ok(())
    }

    /// Claims a Mail; `None` when another agent has claimed it.
    pub async fn claim(&self, mail: &Claimable) -> Result<Option<ClaimInfo>, CliError> {
        let asked = self.step(mail, "claim", &json!({"timeout": self.timeout})).await;
        match asked {
            Ok(claim) => Ok(Some(claim)),
            Err(failure) if matches!(failure.exit, CliExit::Held | CliExit::NotPossible) => {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Runs the command on a claimed Mail and ends the claim.
    pub async fn run(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        signals: &mut RunSignals,
    ) -> Result<RunEnd, CliError> {
        let mut child = match self.start(mail, claim) {
            Ok(child) => child,
            Err(failure) => {
                // The command did not start, so the failure is retryable.
                let body = json!({"reason": failure.message, "retryable": true});
                let _ = self.report(mail, claim, "fail", body).await;
                return Err(failure);
            }
        };
        let watched = self.watch(mail, claim, &mut child, signals).await;
        let (status, lost, stopped) = watched?;
        let last_words = child.last_words();
        if lost {
            note(&format!("lost the claim on {}; the command was ended", mail.id));
            return Ok(RunEnd::Lost);
        }
        let code = child::code(status);
        let (step, mut body, word) = match (stopped, code) {
            (Some(_), _) => ("fail", json!({"retryable": true}), "stopped"),
            (None, 0) => ("complete", json!({}), "done"),
            (None, BAD_DATA_EXIT_CODE) => ("fail", json!({"retryable": false}), "failed for good"),
            (None, _) => ("fail", json!({"retryable": true}), "failed"),
        };
        if step == "fail" {
            let how = if stopped.is_some() { "stopped".to_owned() } else { child::how(status) };
            let colon = if last_words.is_empty() { "" } else { ": " };
            body["reason"] = json!(format!("{how}{colon}{last_words}"));
        }
        let claim = self.report(mail, claim, step, body).await?;
        let next = claim.next_retry_at.filter(|_| claim.open());
        let next = next.map(|at| format!(", not before {}", at.rfc3339())).unwrap_or_default();
        note(&format!("{} {word}: {}{next}", mail.id, claim.status.as_str()));
        Ok(stopped.map_or(RunEnd::Code(code), RunEnd::Stopped))
    }

    fn start(&self, mail: &Claimable, claim: &ClaimInfo) -> Result<CommandChild, CliError> {
        let header = &mail.mail.header;
        let text = &mail.mail.text;
        // Escaped as by `read`, because the command may print it to a terminal. The file has
        // the exact bytes.
        let fenced = fence(text)?.wrap(&author_line(&mail.mail), header.trust, text);
        let input = escape_lines(&fenced) + "\n";
        let log = child::create_log(&self.workspace.ensure_logs()?, &mail.id, claim.attempts)?;
        let file = self.workspace.inbox().join(mail.name.file());
        let variables: Vec<(&'static str, OsString)> = vec![
            ("MONOCO_MAIL_ID", mail.id.to_string().into()),
            ("MONOCO_MAIL_FILE", file.into()),
            ("MONOCO_WORKSPACE", self.workspace.name.as_str().into()),
            ("MONOCO_ATTEMPT", claim.attempts.to_string().into()),
            ("MONOCO_TRUST", trust_name(header.trust).into()),
        ];
        let output = CommandOutput {
            out: |bytes| {
                std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
            },
            err: |bytes| std::io::stderr().write_all(bytes),
        };
        let command = supervised(self.command, 0, Leftovers::Keep);
        child::start(CommandJob { command, variables, input, log, output }).map_err(|error| {
            let program = self.command.first().cloned().unwrap_or_default();
            let message = format!("cannot run {}: {error}", program.display());
            CliError::new(CliExit::NotPossible, message)
        })
    }

    /// Waits for the command and renews the claim. Returns how the command ended, whether the
    /// claim was lost, and the signal that this process received.
    async fn watch(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        child: &mut CommandChild,
        signals: &mut RunSignals,
    ) -> Result<(ExitStatus, bool, Option<Signal>), CliError> {
        let term = match (self.timeout, claim.expires_at) {
            (Some(secs), _) => Duration::from_secs(u64::try_from(secs).unwrap_or(1)),
            (None, Some(until)) => until.since(self.mailbox.now()),
            (None, None) => Duration::from_secs(300),
        };
        let mut until = Instant::now() + term;
        let mut renew_at = Instant::now() + term / 3;
        let mut kill_at: Option<Instant> = None;
        let (mut lost, mut stopped) = (false, None);
        loop {
            let far = Instant::now() + Duration::from_secs(86_400);
            tokio::select! {
                status = child.ended() => return Ok((status?, lost, stopped)),
                signal = signals.received() => {
                    // A second signal kills the command at once.
                    if stopped.is_some() {
                        child.kill();
                    } else {
                        child.signal(signal);
                    }
                    stopped = Some(signal);
                    kill_at = Some(kill_at.unwrap_or_else(|| Instant::now() + KILL_DELAY));
                }
                () = sleep_until(kill_at.unwrap_or(far)), if kill_at.is_some() => {
                    child.kill();
                    kill_at = Some(far);
                }
                () = sleep_until(renew_at), if !lost => {
                    let asked_at = Instant::now();
                    match self.renew(mail, claim, until).await {
                        Ok(()) => {
                            until = asked_at + term;
                            renew_at = asked_at + term / 3;
                        }
                        Err(failure) => {
                            let held = matches!(failure.exit, CliExit::Held | CliExit::NotPossible);
                            lost = held || Instant::now() >= until;
                            renew_at = until.min(Instant::now() + RETRY_DELAY);
                        }
                    }
                    if lost {
                        child.signal(Signal::TERM);
                        kill_at = Some(kill_at.unwrap_or_else(|| Instant::now() + KILL_DELAY));
                    }
                }
            }
        }
    }

    /// Renews the claim. Gives up when the claim expires.
    async fn renew(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        until: Instant,
    ) -> Result<(), CliError> {
        let body = json!({"epoch": claim.epoch, "timeout": self.timeout});
        let end = until.min(Instant::now() + RENEW_TIMEOUT);
        let asked = timeout_at(end, self.step(mail, "renew", &body)).await;
        asked.unwrap_or_else(|_| {
            Err(CliError::new(
                CliExit::Courier,
                "the courier did not answer the renew request in time",
            ))
        })?;
        Ok(())
    }

    /// Completes or fails the claim. Retries for 30 s while the courier is down.
    async fn report(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        step: &str,
        mut body: Value,
    ) -> Result<ClaimInfo, CliError> {
        body["epoch"] = json!(claim.epoch);
        let deadline = Instant::now() + REPORT_TIMEOUT;
        let mut waited = false;
        loop {
            match self.step(mail, step, &body).await {
                Err(failure)
                    if matches!(failure.exit, CliExit::NoCourier | CliExit::Courier)
                        && Instant::now() < deadline =>
                {
                    if !std::mem::replace(&mut waited, true) {
                        note(&format!("{}; retrying", escape_line(&failure.message)));
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                other => return other,
            }
        }
    }

    async fn step(
        &self,
        mail: &Claimable,
        step: &str,
        body: &Value,
    ) -> Result<ClaimInfo, CliError> {
        let client = self.mailbox.context.client()?;
        let (id, name) = (mail.id.to_string(), &self.workspace.name);
        claim_step(&client, &id, step, self.agent.as_deref(), name, body).await
    }
}
