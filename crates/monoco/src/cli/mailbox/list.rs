//! `monoco mailbox list`: lists the Mails of a workspace, newest first.

use monoco_core::claim::ClaimState;
use monoco_core::mail::{Mail, MailId, preview};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::claim_lookup::{ClaimLookup, MAX_MAILS_PER_REQUEST};
use super::{MailboxContext, authors};
use crate::cli::failure::CliError;
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note};
use crate::cli::since;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_mailbox::inbox::{self, MailFileName};
use monoco_mailbox::workspace::WorkspaceDir;

/// Maximum number of unreadable files that are reported one by one.
const MAX_NOTES: usize = 10;

#[derive(Debug, clap::Args)]
pub struct MailListArgs {
    /// Filter by status: new, claimed, completed or deadletter
    #[arg(long)]
    status: Option<String>,
    /// Filter by provider, such as webhook
    #[arg(long)]
    provider: Option<String>,
    /// Filter by receive time: a time, a day, or a duration ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Filter by receive time: today
    #[arg(long, conflicts_with = "since")]
    today: bool,
    /// Filter by correlation id
    #[arg(long, value_name = "ID")]
    correlation: Option<String>,
    /// Filter Mails that were never claimed in this workspace
    #[arg(long, conflicts_with = "status")]
    unread: bool,
    /// Maximum number of Mails to show
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// Show all Mails, without a limit
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// Conditions that a listed Mail must meet.
struct MailSearch {
    status: Option<ClaimState>,
    unread: bool,
    provider: Option<String>,
    since: Option<Timestamp>,
    correlation: Option<String>,
    limit: usize,
}

pub async fn run(mailbox: &MailboxContext<'_>, args: MailListArgs) -> Result<(), CliError> {
    let now = mailbox.now();
    let status = args.status.map(|word| {
        ClaimState::parse(&word.to_uppercase()).ok_or_else(|| {
            let known = ClaimState::ALL.map(|state| state.as_str().to_lowercase()).join(", ");
            CliError::usage(format!("unknown status {word:?}; expected one of {known}"))
        })
    });
    let since = match args.since {
        Some(text) => Some(since::parse(&text, now)?),
        None => args.today.then(|| since::today(now)).flatten(),
    };
    let query = MailSearch {
        status: status.transpose()?,
        unread: args.unread,
        provider: args.provider,
        since,
        correlation: args.correlation,
        limit: if args.all { usize::MAX } else { args.limit },
    };
    let workspace = mailbox.workspace()?;
    let rows = search(mailbox, &workspace, &query).await?;
    show(mailbox.context.format, &workspace, &rows)
}

/// One Mail with its claim.
struct MailTableRow {
    name: MailFileName,
    mail: Mail,
    claim: ClaimInfo,
}

/// Returns the newest Mails that match. Opens only as many files as needed.
async fn search(
    mailbox: &MailboxContext<'_>,
    workspace: &WorkspaceDir,
    query: &MailSearch,
) -> Result<Vec<MailTableRow>, CliError> {
    let Some(inbox) = workspace.open_inbox()? else { return Ok(Vec::new()) };
    let stamp = query.since.map(Timestamp::compact);
    let mut names = inbox::newest_first(workspace, mailbox.now())?
        .take_while(|name| stamp.as_deref().is_none_or(|stamp| name.stamp() >= stamp))
        .filter(|name| query.provider.as_deref().is_none_or(|p| p == name.provider()))
        .filter_map(|name| name.id().map(|id| (name, id)));
    let mut claims = ClaimLookup::new(mailbox, &workspace.name);
    let (mut rows, mut unreadable) = (Vec::new(), 0);
    // With a status filter many claims may be read to find a few Mails.
    let by_status = query.status.is_some() || query.unread;
    while rows.len() < query.limit {
        let want = if by_status {
            MAX_MAILS_PER_REQUEST
        } else {
            MAX_MAILS_PER_REQUEST.min(query.limit - rows.len())
        };
        let page: Vec<(MailFileName, MailId)> = names.by_ref().take(want).collect();
        if page.is_empty() {
            break;
        }
        let asked = claims.of(&page).await?;
        for ((name, _), claim) in page.into_iter().zip(asked) {
            let fits = query.status.is_none_or(|status| status == claim.status)
                && (!query.unread || claim.unread());
            if !fits || rows.len() >= query.limit {
                continue;
            }
            match inbox::open(&inbox, &name) {
                Ok((mail, _)) if wanted(query, &mail) => {
                    rows.push(MailTableRow { name, mail, claim });
                }
                Ok(_) => {}
                Err(words) => {
                    unreadable += 1;
                    if unreadable <= MAX_NOTES {
                        note(&format!("skipped {}", escape_line(&words)));
                    }
                }
            }
        }
    }
    if unreadable > MAX_NOTES {
        note(&format!("skipped {} more unreadable files", unreadable - MAX_NOTES));
    }
    Ok(rows)
}

fn wanted(query: &MailSearch, mail: &Mail) -> bool {
    query.since.is_none_or(|since| mail.header.received_at >= since)
        && (query.correlation.is_none() || query.correlation == mail.header.correlation_id)
}

fn show(
    format: OutputFormat,
    workspace: &WorkspaceDir,
    rows: &[MailTableRow],
) -> Result<(), CliError> {
    let columns: &[Column<MailTableRow>] = &[
        ("id", |row| Some(row.mail.header.id.to_string())),
        ("status", |row| row.claim.status.as_str().cell()),
        ("from", |row| authors(&row.mail.header.participants).cell()),
        ("session", |row| {
            let session = &row.mail.header.session;
            session.name.cell().or_else(|| session.id.cell())
        }),
        ("messages", |row| row.mail.messages.len().cell()),
        ("at", |row| row.mail.header.received_at.rfc3339().time()),
        ("text", |row| match &row.mail.header.title {
            Some(title) => preview(&format!("{title}: {}", row.mail.text)).cell(),
            None => preview(&row.mail.text).cell(),
        }),
    ];
    let json: Vec<Value> = match format {
        OutputFormat::Json => rows.iter().map(|row| json_row(workspace, row)).collect(),
        _ => Vec::new(),
    };
    output::list(format, &json!({"messages": json}), rows, columns)
}

/// Builds the JSON of a Mail.
fn json_row(workspace: &WorkspaceDir, MailTableRow { name, mail, claim }: &MailTableRow) -> Value {
    let header = &mail.header;
    json!({
        "id": header.id,
        "status": claim.status.as_str(),
        "claim": claim,
        "provider": header.id.provider(),
        "tunnel": header.tunnel,
        "session": header.session,
        "participants": header.participants,
        "title": header.title,
        "correlation_id": header.correlation_id,
        "binding": header.binding,
        "trust": header.trust,
        "messages": mail.messages.len(),
        "received_at": header.received_at.rfc3339(),
        "preview": preview(&mail.text),
        "file": workspace.inbox().join(name.file()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mailbox::tests::MailboxFixture;
    use monoco_mailbox::fixture::{START, mail};

    const ALL: MailSearch = MailSearch {
        status: None,
        unread: false,
        provider: None,
        since: None,
        correlation: None,
        limit: usize::MAX,
    };

    /// Returns the texts of the Mails that a search finds.
    fn found(fixture: &MailboxFixture, query: MailSearch) -> String {
        let mailbox = fixture.mailbox();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let rows = runtime.unwrap().block_on(search(&mailbox, &fixture.workspace, &query)).unwrap();
        let texts: Vec<_> = rows.into_iter().map(|row| row.mail.text).collect();
        texts.join(" ")
    }

    #[test]
    fn newest_matching_mails_are_listed_without_a_courier() {
        let mut fixture = MailboxFixture::new();
        let first = fixture.post.deliver("ann", "one");
        let second = fixture.post.deliver("ann", "two");
        let mut third = mail(3, "ann", "three");
        third.header.correlation_id = Some("job-7".to_owned());
        fixture.post.deliver_mail(&third);
        fixture.post.deliver("ann", "four");
        fixture.sync();
        fixture.post.shelve(&first, "archive");
        let broken = fixture.workspace.inbox().join(&second.file);
        std::fs::remove_file(&broken).unwrap();
        std::fs::write(&broken, "broken").unwrap();
        let since = Some(Timestamp::from_ms(START + 3_000));
        for (query, expected) in [
            (ALL, "four three one"),
            (MailSearch { limit: 2, ..ALL }, "four three"),
            (MailSearch { since, ..ALL }, "four three"),
            (MailSearch { unread: true, ..ALL }, "four three"),
            (MailSearch { status: Some(ClaimState::Completed), ..ALL }, "one"),
            (MailSearch { status: Some(ClaimState::Claimed), ..ALL }, ""),
            (MailSearch { correlation: Some("job-7".to_owned()), ..ALL }, "three"),
            (MailSearch { correlation: Some("job-7".to_owned()), limit: 1, ..ALL }, "three"),
            (MailSearch { provider: Some("lark".to_owned()), ..ALL }, ""),
        ] {
            assert_eq!(found(&fixture, query), expected);
        }
    }
}
