//! `monoco mailbox list`: the Mails of a workspace, the newest first.

use monoco_core::claim::ClaimState;
use monoco_core::mail::{Mail, MailId, preview};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::MailboxContext;
use super::claim_lookup::{ClaimLookup, PAGE};
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, note, shown};
use crate::cli::since;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_mailbox::inbox::{self, MailFileName};
use monoco_mailbox::workspace::WorkspaceDir;

/// Most files that can't be read of which each is named.
const MAX_NOTES: usize = 10;

#[derive(Debug, clap::Args)]
pub struct MailListArgs {
    /// Only those with this status: new, claimed, completed or deadletter
    #[arg(long)]
    status: Option<String>,
    /// Only those of this provider
    #[arg(long)]
    provider: Option<String>,
    /// Only newer ones: a time, a day, or how long ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those of today
    #[arg(long, conflicts_with = "since")]
    today: bool,
    /// Only those filed under this
    #[arg(long, value_name = "ID")]
    correlation: Option<String>,
    /// Only those that nobody of the workspace has ever claimed
    #[arg(long, conflicts_with = "status")]
    unread: bool,
    /// Most Mails to show
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// What is wanted.
struct MailSearch {
    status: Option<ClaimState>,
    unread: bool,
    provider: Option<String>,
    since: Option<Timestamp>,
    correlation: Option<String>,
    limit: usize,
}

pub async fn run(desk: &MailboxContext<'_>, args: MailListArgs) -> Result<(), CliError> {
    let now = desk.now();
    let status = args.status.map(|word| {
        ClaimState::parse(&word.to_uppercase()).ok_or_else(|| {
            let known = ClaimState::ALL.map(|state| state.as_str().to_lowercase()).join(", ");
            CliError::usage(format!("no status {word:?}; there are {known}"))
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
    let here = desk.workspace()?;
    let rows = search(desk, &here, &query).await?;
    show(desk.context.format, &here, &rows)
}

/// One Mail of the list.
struct MailTableRow {
    name: MailFileName,
    mail: Mail,
    standing: ClaimInfo,
}

/// The newest Mails that the query asks for. Files are opened only as far as needed.
async fn search(
    desk: &MailboxContext<'_>,
    here: &WorkspaceDir,
    query: &MailSearch,
) -> Result<Vec<MailTableRow>, CliError> {
    let inbox = here.inbox();
    let stamp = query.since.map(Timestamp::compact);
    let mut names = inbox::newest_first(here, desk.now())?
        .take_while(|name| stamp.as_deref().is_none_or(|stamp| name.stamp() >= stamp))
        .filter(|name| query.provider.as_deref().is_none_or(|p| p == name.provider()))
        .filter_map(|name| name.id().map(|id| (name, id)));
    let mut standings = ClaimLookup::new(desk, &here.name);
    let (mut rows, mut unreadable) = (Vec::new(), 0);
    // Where the status decides, many are asked about to show a few.
    let picky = query.status.is_some() || query.unread;
    while rows.len() < query.limit {
        let want = if picky { PAGE } else { PAGE.min(query.limit - rows.len()) };
        let page: Vec<(MailFileName, MailId)> = names.by_ref().take(want).collect();
        if page.is_empty() {
            break;
        }
        let asked = standings.of(&page).await?;
        for ((name, _), standing) in page.into_iter().zip(asked) {
            let fits = query.status.is_none_or(|status| status == standing.status)
                && (!query.unread || standing.unread());
            if !fits || rows.len() >= query.limit {
                continue;
            }
            match inbox::open(&inbox, &name) {
                Ok((mail, _)) if wanted(query, &mail) => {
                    rows.push(MailTableRow { name, mail, standing })
                }
                Ok(_) => {}
                Err(words) => {
                    unreadable += 1;
                    if unreadable <= MAX_NOTES {
                        note(&format!("passed over {}", shown(&words)));
                    }
                }
            }
        }
    }
    if unreadable > MAX_NOTES {
        note(&format!("and {} more that can't be read", unreadable - MAX_NOTES));
    }
    Ok(rows)
}

fn wanted(query: &MailSearch, mail: &Mail) -> bool {
    query.since.is_none_or(|since| mail.header.received_at >= since)
        && (query.correlation.is_none() || query.correlation == mail.header.correlation_id)
}

fn show(format: OutputFormat, here: &WorkspaceDir, rows: &[MailTableRow]) -> Result<(), CliError> {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| if format == OutputFormat::Json { full(here, row) } else { short(row) })
        .collect();
    let answer = json!({"messages": rows});
    let columns = [
        ("id", "id"),
        ("status", "status"),
        ("from", "from"),
        ("session", "session"),
        ("messages", "messages"),
        ("at", "at"),
        ("text", "text"),
    ];
    output::list(format, &answer, "messages", &columns)
}

/// A row for people.
fn short(MailTableRow { mail, standing, .. }: &MailTableRow) -> Value {
    let header = &mail.header;
    let from: Vec<_> =
        header.participants.from.iter().map(|person| person.display_name()).collect();
    let text = match &header.title {
        Some(title) => preview(&format!("{title}: {}", mail.text)),
        None => preview(&mail.text),
    };
    json!({
        "id": header.id,
        "status": standing.status.as_str(),
        "from": from,
        "session": header.session.name.as_ref().unwrap_or(&header.session.id),
        "messages": mail.messages.len(),
        "at": header.received_at.ms(),
        "text": text,
    })
}

/// A row for programs.
fn full(here: &WorkspaceDir, MailTableRow { name, mail, standing }: &MailTableRow) -> Value {
    let header = &mail.header;
    json!({
        "id": header.id,
        "status": standing.status.as_str(),
        "claim": standing,
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
        "file": here.inbox().join(name.file()),
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

    /// The texts of the Mails that a query finds.
    fn found(bench: &MailboxFixture, query: MailSearch) -> String {
        let desk = bench.desk();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let rows = runtime.unwrap().block_on(search(&desk, &bench.here, &query)).unwrap();
        let texts: Vec<_> = rows.into_iter().map(|row| row.mail.text).collect();
        texts.join(" ")
    }

    #[test]
    fn the_newest_that_are_asked_for_are_listed_without_a_courier() {
        let mut bench = MailboxFixture::new();
        let first = bench.post.deliver("ann", "one");
        let second = bench.post.deliver("ann", "two");
        let mut third = mail(3, "ann", "three");
        third.header.correlation_id = Some("job-7".to_owned());
        bench.post.deliver_mail(&third);
        bench.post.deliver("ann", "four");
        bench.sync();
        bench.post.shelve(&first, "archive");
        let broken = bench.here.inbox().join(&second.file);
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
            assert_eq!(found(&bench, query), expected);
        }
    }
}
