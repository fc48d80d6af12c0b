//! A command at work on a claimed Mail: the claim is renewed while it lives, and ended
//! by its exit code.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitStatus;
use std::time::Duration;

use monoco_core::mail::Trust;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::MailboxContext;
use super::backlog::Claimable;
use super::claim::take_step;
use super::read::{authors, fence};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{note, shown, shown_lines};
use monoco_mailbox::child::{self, CommandChild, CommandJob, CommandOutput};
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_mailbox::workspace::WorkspaceDir;

/// How long a command has to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// How long one question to the courier may take.
const ANSWER: Duration = Duration::from_secs(10);

/// How long to try to tell a courier that is being restarted how it went.
const TELL: Duration = Duration::from_secs(30);

/// How long to wait between two tries.
const AGAIN: Duration = Duration::from_millis(500);

/// What a command says when it wants to be run again.
const RETRY: u8 = 75;

/// Who works, with what, and for how long at a time.
pub struct MailRunner<'a> {
    pub desk: &'a MailboxContext<'a>,
    pub here: &'a WorkspaceDir,
    pub command: &'a [OsString],
    pub agent: String,
    pub timeout: Option<i64>,
}

/// Signals that end us.
pub struct RunSignals {
    interrupt: Stream,
    terminate: Stream,
}

/// How a command's work on a Mail ended.
pub enum RunEnd {
    /// By itself, with this exit code.
    Code(u8),
    /// Somebody else may have the Mail by now.
    Lost,
    /// We were told to stop.
    Stopped(Signal),
}

impl RunSignals {
    pub fn new() -> Result<Self, CliError> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits until we are told to stop.
    pub async fn told(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
        }
    }
}

/// The exit code of a process that a signal ended.
pub const fn code_of(signal: Signal) -> i32 {
    128 + signal.as_raw()
}

impl MailRunner<'_> {
    /// Claims a Mail; `None` when somebody else was quicker.
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

    /// Runs the command on a Mail that is claimed, and ends the claim.
    pub async fn run(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        signals: &mut RunSignals,
    ) -> Result<RunEnd, CliError> {
        let mut child = match self.start(mail, claim) {
            Ok(child) => child,
            Err(failure) => {
                // Nobody has worked on it, so it is nobody's fault but ours.
                let body = json!({"reason": failure.message, "retryable": true});
                let _ = self.tell(mail, claim, "fail", body).await;
                return Err(failure);
            }
        };
        let watched = self.watch(mail, claim, &mut child, signals).await;
        let (status, lost, stopped) = watched?;
        let last_words = child.last_words();
        if lost {
            note(&format!("the claim on {} was lost; the command was ended", mail.id));
            return Ok(RunEnd::Lost);
        }
        let code = child::code(status);
        let (step, mut body, word) = match (stopped, code) {
            (Some(_), _) => ("fail", json!({"retryable": true}), "stopped"),
            (None, 0) => ("complete", json!({}), "done"),
            (None, RETRY) => ("fail", json!({"retryable": true}), "to be tried again"),
            (None, _) => ("fail", json!({"retryable": false}), "failed"),
        };
        if step == "fail" {
            let how = if stopped.is_some() { "stopped".to_owned() } else { child::how(status) };
            let colon = if last_words.is_empty() { "" } else { ": " };
            body["reason"] = json!(format!("{how}{colon}{last_words}"));
        }
        let told = self.tell(mail, claim, step, body).await?;
        let next = told.next_retry_at.filter(|_| told.open());
        let next = next.map(|at| format!(", not before {}", at.rfc3339())).unwrap_or_default();
        note(&format!("{} {word}: {}{next}", mail.id, told.status.as_str()));
        Ok(stopped.map_or(RunEnd::Code(code), RunEnd::Stopped))
    }

    fn start(&self, mail: &Claimable, claim: &ClaimInfo) -> Result<CommandChild, CliError> {
        let header = &mail.mail.header;
        let text = &mail.mail.text;
        // As `read` shows it: a command that only repeats it must not move the cursor of
        // whoever looks on. The file has the bytes.
        let fenced = fence(text)?.wrap(&authors(&mail.mail), header.trust, text);
        let input = shown_lines(&fenced) + "\n";
        let log = child::log_path(&self.here.log(), &mail.id.to_string(), claim.attempts);
        let file = self.here.inbox().join(mail.name.file());
        let trust = match header.trust {
            Trust::Untrusted => "untrusted",
            Trust::Known => "known",
        };
        let variables: Vec<(&'static str, OsString)> = vec![
            ("MONOCO_MAIL_ID", mail.id.to_string().into()),
            ("MONOCO_MAIL_FILE", file.into()),
            ("MONOCO_WORKSPACE", self.here.name.as_str().into()),
            ("MONOCO_ATTEMPT", claim.attempts.to_string().into()),
            ("MONOCO_TRUST", trust.into()),
        ];
        let output = CommandOutput {
            out: |bytes| {
                std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
            },
            err: |bytes| std::io::stderr().write_all(bytes),
        };
        child::start(CommandJob { command: self.command, variables, input, log: &log, output })
            .map_err(|error| {
                let program = self.command.first().cloned().unwrap_or_default();
                let message = format!("can't run {}: {error}", program.display());
                CliError::new(CliExit::NotPossible, message)
            })
    }

    /// Waits for the command, and keeps the claim. Returns how the command ended, whether
    /// the claim was lost, and which signal told us to stop.
    async fn watch(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        child: &mut CommandChild,
        signals: &mut RunSignals,
    ) -> Result<(ExitStatus, bool, Option<Signal>), CliError> {
        let term = match (self.timeout, claim.expires_at) {
            (Some(secs), _) => Duration::from_secs(u64::try_from(secs).unwrap_or(1)),
            (None, Some(until)) => until.since(self.desk.now()),
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
                told = signals.told() => {
                    // Whoever says it twice means it.
                    child.signal(if stopped.is_some() { Signal::KILL } else { told });
                    stopped = Some(told);
                    kill_at = Some(kill_at.unwrap_or_else(|| Instant::now() + GRACE));
                }
                () = sleep_until(kill_at.unwrap_or(far)), if kill_at.is_some() => {
                    child.signal(Signal::KILL);
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
                            renew_at = until.min(Instant::now() + AGAIN);
                        }
                    }
                    if lost {
                        child.signal(Signal::TERM);
                        kill_at = Some(kill_at.unwrap_or_else(|| Instant::now() + GRACE));
                    }
                }
            }
        }
    }

    /// Renews the claim. Once it has ended an answer is of no use any more.
    async fn renew(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        until: Instant,
    ) -> Result<(), CliError> {
        let body = json!({"epoch": claim.epoch, "timeout": self.timeout});
        let end = until.min(Instant::now() + ANSWER);
        let asked = timeout_at(end, self.step(mail, "renew", &body)).await;
        asked.unwrap_or_else(|_| {
            Err(CliError::new(CliExit::Courier, "the courier does not answer"))
        })?;
        Ok(())
    }

    /// Tells the courier how it went, and does not give up when it is just being restarted.
    async fn tell(
        &self,
        mail: &Claimable,
        claim: &ClaimInfo,
        step: &str,
        mut body: Value,
    ) -> Result<ClaimInfo, CliError> {
        body["epoch"] = json!(claim.epoch);
        let deadline = Instant::now() + TELL;
        let mut waited = false;
        loop {
            match self.step(mail, step, &body).await {
                Err(failure)
                    if matches!(failure.exit, CliExit::NoCourier | CliExit::Courier)
                        && Instant::now() < deadline =>
                {
                    if !std::mem::replace(&mut waited, true) {
                        note(&format!("{}; trying again", shown(&failure.message)));
                    }
                    tokio::time::sleep(AGAIN).await;
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
        let client = self.desk.context.client()?;
        let (id, name) = (mail.id.to_string(), &self.here.name);
        let answer = take_step(&client, &id, step, &self.agent, name, body).await?;
        serde_json::from_value(answer).map_err(|error| {
            CliError::new(CliExit::Courier, format!("the courier's answer makes no sense: {error}"))
        })
    }
}
