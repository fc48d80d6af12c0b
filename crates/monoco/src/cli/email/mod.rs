//! `monoco email`: adds, inspects and steers e-mail accounts, their tasks and the directory.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::CliContext;
use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, note};
use super::tunnel::file::{ConfigFileArgs, TunnelFile};
use super::tunnel::{self, show_test};
use monoco_courier::api::views::email::{
    DirectoryImportView, DirectoryView, EmailAccountView, EmailAccountsView, EmailTaskPage,
    EmailTaskView, InvalidLineView, PersonView,
};

mod add;
mod known_servers;

/// How often `scan` looks at the progress of a round.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// How long `scan` waits for the end of a round that makes no progress.
const STALLED_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Subcommand)]
pub enum EmailCommand {
    /// Add an e-mail account
    ///
    /// Asks on a terminal for what is missing, tests the connections, and writes
    /// courier/adapters.d/NAME.yaml. The file names where the password comes from, never the
    /// password itself. Example: monoco email add team --address team@example.com
    /// --password-command 'pass show team'
    Add(Box<add::AddArgs>),
    /// List all e-mail accounts
    List,
    /// Remove an e-mail account that `email add` has added
    ///
    /// Mails that were received stay. The account on the server is not changed.
    Remove {
        /// Id of the account
        account: String,
        #[command(flatten)]
        config: ConfigFileArgs,
    },
    /// Pause an e-mail account: close its connection, process none of its tasks and send nothing
    Pause {
        /// Id of the account
        account: String,
    },
    /// Resume a paused e-mail account
    Resume {
        /// Id of the account
        account: String,
    },
    /// Check the folders of accounts now, and show each round until Ctrl-C
    Scan {
        /// Id of the account [default: all accounts]
        account: Option<String>,
        /// Exit after one round; with 1 when a mail failed
        #[arg(long)]
        once: bool,
    },
    /// Show an e-mail account, its last round and its tasks
    Status {
        /// Id of the account [default: all accounts]
        account: Option<String>,
    },
    /// List e-mail tasks, newest first
    Tasks {
        /// Id of the account [default: all accounts]
        #[arg(long)]
        account: Option<String>,
        /// Statuses, separated by commas: received, in_progress, forwarded, skipped_no_match, error
        #[arg(long)]
        status: Option<String>,
        /// Maximum number of tasks
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Position of the next page, as printed by the previous command
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Retry e-mail tasks that failed or that no rule matched
    ///
    /// A mail that was forwarded before is not forwarded again: its dead deliveries are retried.
    Retry {
        /// Ids of tasks; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Test the connections and logins of an account
    Test {
        /// Id of the account
        account: String,
    },
    /// Import or show the directory of people that mails are forwarded to
    #[command(subcommand)]
    Directory(DirectoryCommand),
}

#[derive(Debug, clap::Subcommand)]
pub enum DirectoryCommand {
    /// Replace the directory by a CSV file
    ///
    /// The first line names the columns: name, address, keywords, case_numbers, active. Keywords
    /// and case numbers are separated by semicolons. Invalid lines are reported and left out; the
    /// exit code is then 1.
    Import {
        /// CSV file in UTF-8; - reads stdin
        file: PathBuf,
    },
    /// List the people of the directory
    List,
}

const ACCOUNT: &[Column<EmailAccountView>] = &[
    ("account", |account| account.id.cell()),
    ("address", |account| account.address.cell()),
    ("status", |account| if account.active { account.status.cell() } else { "paused".cell() }),
    ("tasks", |account| account.tasks.statuses.values().sum::<i64>().cell()),
    ("dead", |account| account.tasks.dead.cell()),
    ("last scan", |account| account.last_scanned_at.cell()),
];

const ACCOUNT_FIELDS: &[Column<EmailAccountView>] = &[
    ("account", |account| account.id.cell()),
    ("address", |account| account.address.cell()),
    ("description", |account| account.description.cell()),
    ("active", |account| account.active.cell()),
    ("status", |account| account.status.cell()),
    ("mode", |account| account.mode.cell()),
    ("last UID", |account| account.last_seen_uid.cell()),
    ("last scan", |account| account.last_scanned_at.cell()),
    ("last round", |account| Some(round(account.last_round.as_ref()?))),
    ("tasks", |account| {
        let statuses = account.tasks.statuses.iter();
        let counts: Vec<_> = statuses.map(|(status, count)| format!("{count} {status}")).collect();
        counts.cell()
    }),
    ("copies", |account| account.tasks.copies.cell()),
    ("dead", |account| account.tasks.dead.cell()),
    ("last error", |account| account.last_error.cell()),
    ("at", |account| account.last_error_at.cell()),
];

const TASK: &[Column<EmailTaskView>] = &[
    ("id", |task| task.id.cell()),
    ("account", |task| task.account.cell()),
    ("uid", |task| task.uid.cell()),
    ("status", |task| if task.copy_of.is_some() { "copy".cell() } else { task.status.cell() }),
    ("attempts", |task| task.attempts.cell()),
    ("subject", |task| task.subject.cell()),
    ("error", |task| task.error.cell()),
];

/// What `monoco dead show` shows of a task.
pub const TASK_FIELDS: &[Column<EmailTaskView>] = &[
    ("task", |task| task.id.cell()),
    ("account", |task| task.account.cell()),
    ("folder", |task| task.folder.cell()),
    ("uid", |task| task.uid.cell()),
    ("subject", |task| task.subject.cell()),
    ("status", |task| task.status.cell()),
    ("attempts", |task| task.attempts.cell()),
    ("error", |task| task.error.cell()),
    ("forward", |task| task.forward.cell()),
    ("created", |task| task.created_at.cell()),
    ("updated", |task| task.updated_at.cell()),
];

pub async fn run(context: &CliContext, command: EmailCommand) -> Result<(), CliError> {
    let format = context.format;
    match command {
        EmailCommand::Add(args) => add::run(context, *args).await,
        EmailCommand::Remove { account, config } => {
            tunnel::add::remove(context, &TunnelFile::new(&context.home, &account, &config)?)
        }
        EmailCommand::List => {
            let answer: EmailAccountsView = accounts(&context.client()?).await?;
            output::list(format, &answer, &answer.accounts, ACCOUNT)
        }
        EmailCommand::Pause { account } => steer(context, &account, "pause").await,
        EmailCommand::Resume { account } => steer(context, &account, "resume").await,
        EmailCommand::Scan { account, once } => scan(context, account, once).await,
        EmailCommand::Status { account } => status(context, account).await,
        EmailCommand::Tasks { account, status, limit, cursor } => {
            let query = query(&[
                ("account", account),
                ("status", status),
                ("limit", Some(limit.to_string())),
                ("cursor", cursor),
            ]);
            let path = format!("/api/v1/email/tasks{query}");
            let page: EmailTaskPage = context.client()?.get(&path).await?;
            output::page(format, &page, &page.tasks, TASK, page.next_cursor.as_deref())
        }
        EmailCommand::Retry { ids } => {
            let (client, mut tasks) = (context.client()?, Vec::new());
            for id in super::mailbox::read_ids(ids)? {
                let path = format!("/api/v1/email/tasks/{}/retry", segment(&id));
                tasks.push(client.post::<EmailTaskView>(&path, &json!({})).await?);
            }
            output::list(format, &json!({"tasks": tasks}), &tasks, TASK)
        }
        EmailCommand::Test { account } => {
            let path = format!("/api/v1/email/accounts/{}/test", segment(&account));
            show_test(format, &context.client()?.post(&path, &json!({})).await?)
        }
        EmailCommand::Directory(DirectoryCommand::Import { file }) => import(context, file).await,
        EmailCommand::Directory(DirectoryCommand::List) => {
            let answer: DirectoryView = context.client()?.get("/api/v1/email/directory").await?;
            let columns: &[Column<PersonView>] = &[
                ("name", |person| person.name.cell()),
                ("address", |person| person.address.cell()),
                ("keywords", |person| person.keywords.cell()),
                ("case numbers", |person| person.case_numbers.cell()),
                ("active", |person| person.active.cell()),
            ];
            output::list(format, &answer, &answer.people, columns)
        }
    }
}

async fn accounts(client: &Client) -> Result<EmailAccountsView, CliError> {
    client.get("/api/v1/email/accounts").await
}

/// Returns one account, or all of them.
async fn selected(
    client: &Client,
    account: Option<String>,
) -> Result<Vec<EmailAccountView>, CliError> {
    match account {
        Some(id) => {
            let path = format!("/api/v1/email/accounts/{}", segment(&id));
            Ok(vec![client.get(&path).await?])
        }
        None => Ok(accounts(client).await?.accounts),
    }
}

async fn steer(context: &CliContext, account: &str, verb: &str) -> Result<(), CliError> {
    let path = format!("/api/v1/email/accounts/{}/{verb}", segment(account));
    let account: EmailAccountView = context.client()?.post(&path, &json!({})).await?;
    output::one(context.format, &account, &account.id, ACCOUNT)
}

async fn status(context: &CliContext, account: Option<String>) -> Result<(), CliError> {
    let accounts = selected(&context.client()?, account).await?;
    if context.format == OutputFormat::Json {
        return output::print_json(&json!({"accounts": accounts}));
    }
    for (at, account) in accounts.iter().enumerate() {
        if at > 0 && context.format == OutputFormat::Table {
            output::print("")?;
        }
        output::one(context.format, account, &account.id, ACCOUNT_FIELDS)?;
    }
    Ok(())
}

fn round(round: &monoco_courier::api::views::email::EmailRoundView) -> String {
    format!(
        "{} registered, {} forwarded, {} skipped, {} failed, {} left, {} ms",
        round.registered,
        round.forwarded,
        round.skipped,
        round.failed,
        round.backlog,
        round.duration_ms
    )
}

/// Starts rounds and shows their progress.
async fn scan(context: &CliContext, account: Option<String>, once: bool) -> Result<(), CliError> {
    let client = context.client()?;
    let columns: &[Column<EmailAccountView>] = &[
        ("account", |account| account.id.cell()),
        ("at", |account| account.last_scanned_at.cell()),
        ("round", |account| Some(round(account.last_round.as_ref()?))),
    ];
    loop {
        let mut failed = false;
        for before in selected(&client, account.clone()).await?.iter().filter(|it| it.active) {
            let path = format!("/api/v1/email/accounts/{}/scan", segment(&before.id));
            client.post::<EmailAccountView>(&path, &json!({})).await?;
            let after = wait_for_round(&client, before).await?;
            failed |= after.last_round.as_ref().is_some_and(|round| round.failed > 0);
            output::stream_entry(context.format, &after, columns)?;
        }
        if once {
            return match failed {
                true => Err(CliError::new(CliExit::NotPossible, "some mails failed")
                    .hint("`monoco email tasks --status error` shows why")),
                false => Ok(()),
            };
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

/// Waits until the account has been scanned again, and shows how many mails are left.
async fn wait_for_round(
    client: &Client,
    before: &EmailAccountView,
) -> Result<EmailAccountView, CliError> {
    let path = format!("/api/v1/email/accounts/{}", segment(&before.id));
    let counted = std::io::stderr().is_terminal();
    let mut last_change = std::time::Instant::now();
    let mut last_seen = (before.last_seen_uid, 0);
    loop {
        let now: EmailAccountView = client.get(&path).await?;
        let done: i64 = now.tasks.statuses.values().sum();
        let waiting = now.tasks.statuses.get("received").copied().unwrap_or(0);
        if counted {
            let line = format!("\r{}: {done} mails, {waiting} to process", escape_line(&now.id));
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        if now.last_scanned_at > before.last_scanned_at {
            if counted {
                let _ = std::io::stderr().write_all(b"\r\x1b[K");
            }
            return Ok(now);
        }
        let seen = (now.last_seen_uid, done);
        if seen != last_seen {
            (last_seen, last_change) = (seen, std::time::Instant::now());
        }
        if now.status == "down" || last_change.elapsed() > STALLED_AFTER {
            let why = now.last_error.unwrap_or_else(|| "it makes no progress".to_owned());
            let message = format!("account {} is not scanned: {}", now.id, escape_line(&why));
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint(format!("`monoco email test {}` tests its connections", now.id)));
        }
        tokio::time::sleep(PROGRESS_INTERVAL).await;
    }
}

async fn import(context: &CliContext, file: PathBuf) -> Result<(), CliError> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())?
    } else {
        std::fs::read_to_string(&file).map_err(|error| {
            CliError::new(CliExit::LocalFile, format!("cannot read {}: {error}", file.display()))
        })?
    };
    let path = "/api/v1/email/directory";
    let answer: DirectoryImportView = context.client()?.put_text(path, "text/csv", text).await?;
    let columns: &[Column<InvalidLineView>] =
        &[("line", |line| line.line.cell()), ("why", |line| line.why.cell())];
    output::list(context.format, &answer, &answer.invalid, columns)?;
    if context.format != OutputFormat::Json {
        note(&format!("imported {} people", answer.imported));
    }
    if answer.invalid.is_empty() {
        return Ok(());
    }
    let message = format!("{} lines were not imported", answer.invalid.len());
    Err(CliError::new(CliExit::NotPossible, message))
}
