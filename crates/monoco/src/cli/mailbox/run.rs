//! `monoco mailbox run`: runs a command on the oldest Mail, or on all Mails.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::MailboxContext;
use super::backlog::Backlog;
use super::runner::{MailRunner, RunEnd, RunSignals, code_of};
use crate::cli::failure::{CliError, CliExit};

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Filter that the Mail must match, such as '{type: from, value: ann}'
    #[arg(long)]
    filter: Option<String>,
    /// Process Mails until none is left to claim
    #[arg(long)]
    all: bool,
    /// Name of the agent; a Mail is claimed by one agent per workspace [default: user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Seconds per claim; it is renewed in time [default: courier config, 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub async fn run(mailbox: &MailboxContext<'_>, args: RunArgs) -> Result<(), CliError> {
    let workspace = mailbox.workspace()?;
    let mut signals = RunSignals::new()?;
    let (agent, timeout) = (mailbox.agent(args.agent), args.timeout);
    let work =
        MailRunner { mailbox, workspace: &workspace, command: &args.command, agent, timeout };
    work.check()?;
    mailbox.pull(&workspace, |_, _| ())?;
    // Claims need a running courier, so that its absence is reported at once.
    mailbox.context.client()?;
    let mut backlog = Backlog::new(mailbox, &workspace, args.filter.as_deref())?;
    let mut tried = BTreeSet::new();
    let (mut worked, mut worst) = (0_u64, 0);
    while let Some(mail) = backlog.next(&tried).await? {
        let Some(claim) = work.claim(&mail).await? else {
            tried.insert(mail.id);
            continue;
        };
        worked += 1;
        let code = match work.run(&mail, &claim, &mut signals).await? {
            RunEnd::Code(code) => i32::from(code),
            RunEnd::Lost => CliExit::Held as i32,
            RunEnd::Stopped(signal) => std::process::exit(code_of(signal)),
        };
        if code != 0 {
            worst = code;
        }
        if !args.all {
            break;
        }
    }
    if worked == 0 {
        return Err(CliError::new(CliExit::NotPossible, "there is no Mail to claim"));
    }
    match worst {
        0 => Ok(()),
        // The exit code of the command is passed on.
        code => std::process::exit(code),
    }
}
