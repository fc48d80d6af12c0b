//! `monoco mailbox run`: a command works on the oldest Mail, or on all of them.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::MailboxContext;
use super::backlog::Backlog;
use super::claim::agent;
use super::runner::{MailRunner, RunEnd, RunSignals, code_of};
use crate::cli::failure::{CliError, CliExit};

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Only a Mail that this rule matches, such as '{type: from, value: ann}'
    #[arg(long)]
    rule: Option<String>,
    /// Go on until there is nothing left to claim
    #[arg(long)]
    all: bool,
    /// Who you are: agents of one workspace exclude each other [default: your user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Hold the claim for so many seconds at a time [default: as configured, 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub async fn run(desk: &MailboxContext<'_>, args: RunArgs) -> Result<(), CliError> {
    let here = desk.workspace()?;
    let mut signals = RunSignals::new()?;
    desk.pull(&here, |_, _| ())?;
    // Claiming needs it, whatever the files show.
    desk.context.client()?;
    let mut backlog = Backlog::new(desk, &here, args.rule.as_deref())?;
    let (agent, timeout) = (agent(args.agent), args.timeout);
    let work = MailRunner { desk, here: &here, command: &args.command, agent, timeout };
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
        // What the command said is what we say.
        code => std::process::exit(code),
    }
}
