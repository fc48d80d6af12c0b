//! `monoco mailbox list`: lists the Mails of a workspace or of the courier, newest first.

use std::collections::BTreeSet;
use std::path::PathBuf;

use monoco_core::claim::{ClaimState, Workspace};
use monoco_core::mail::{MailId, MailIndexEntry, preview};
use monoco_core::search::{SearchDocument, SearchMark, SearchQuery};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::claim_lookup::{ClaimLookup, MAX_MAILS_PER_REQUEST};
use super::list_source::{MailCandidate, MailSource};
use super::{MailboxContext, authors};
use crate::cli::client::query;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note};
use crate::cli::since;
use monoco_courier::api::views::mails::MailPage;
use monoco_mailbox::claim_info::ClaimInfo;

/// Maximum number of Mails that a search considers.
const MAX_FOUND: usize = 10_000;

/// Maximum number of unreadable files that are reported one by one.
const MAX_NOTES: usize = 10;

#[derive(Debug, clap::Args)]
pub struct MailListArgs {
    /// List all Mails of the courier, not only those of the workspace
    #[arg(long)]
    global: bool,
    /// List Mails that no workspace has claimed or, as far as can be seen, pulled
    #[arg(long)]
    unrouted: bool,
    /// Filter by words in subject, names, session and content, as `monoco search` does
    #[arg(long, value_name = "QUERY")]
    search: Option<String>,
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
#[derive(Clone, Debug, Default)]
pub struct MailSearch {
    status: Option<ClaimState>,
    unread: bool,
    pub provider: Option<String>,
    pub since: Option<Timestamp>,
    correlation: Option<String>,
    text: Option<TextFilter>,
    limit: usize,
}

/// Selects Mails by their text.
#[derive(Clone, Debug)]
enum TextFilter {
    /// The Mails that the courier's index has found.
    Found(BTreeSet<MailId>),
    /// Without the courier, the texts of the files are compared.
    Query(Box<SearchQuery>),
}

/// One Mail with its claim.
struct MailTableRow {
    entry: MailIndexEntry,
    claim: ClaimInfo,
    /// `None` when the file was purged.
    file: Option<PathBuf>,
}

/// The Mails that a search has found.
#[derive(Default)]
struct MailSearchResult {
    rows: Vec<MailTableRow>,
    has_more: bool,
    /// Number of all Mails that match, if it is known without reading them.
    total: Option<u64>,
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
    let text = match args.search {
        Some(text) => Some(TextFilter::new(mailbox, &text).await?),
        None => None,
    };
    let query = MailSearch {
        status: status.transpose()?,
        unread: args.unread,
        provider: args.provider,
        since,
        correlation: args.correlation,
        text,
        limit: if args.all { usize::MAX } else { args.limit },
    };
    let (source, workspace) = if args.global || args.unrouted {
        if args.unrouted && mailbox.remote.is_some() {
            let message = "--unrouted works only on the machine of the courier: it looks at the \
                           links of Mail files";
            return Err(CliError::new(CliExit::NotPossible, message).code("only_local"));
        }
        mailbox.refresh()?;
        let source = MailSource::courier(&mailbox.paths, args.unrouted)?;
        let workspace = mailbox.maybe_workspace()?;
        let shared = || match &mailbox.remote {
            Some(remote) => remote.workspace.clone(),
            None => Workspace::shared(),
        };
        (source, workspace.map_or_else(shared, |workspace| workspace.name))
    } else {
        let workspace = mailbox.workspace()?;
        (MailSource::workspace(&workspace, now)?, workspace.name)
    };
    let found = search(mailbox, source, &workspace, &query).await?;
    show(mailbox.context.format, &found)
}

impl TextFilter {
    /// Asks the courier; parses the query when it does not run.
    async fn new(mailbox: &MailboxContext<'_>, text: &str) -> Result<Self, CliError> {
        match find_mails(mailbox, text).await {
            Err(failure) if failure.exit == CliExit::NoCourier => {
                let query = SearchQuery::parse(text, mailbox.now())
                    .map_err(|error| CliError::usage(format!("--search: {error}")))?;
                if query.has.iter().any(|mark| *mark != SearchMark::Link) || query.status.is_some()
                {
                    let words = "--search: has: and status: need a running courier";
                    return Err(CliError::usage(words.to_owned()));
                }
                Ok(Self::Query(Box::new(query)))
            }
            found => found.map(Self::Found),
        }
    }

    fn matches(&self, entry: &MailIndexEntry, text: impl FnOnce() -> Option<String>) -> bool {
        match self {
            Self::Found(ids) => ids.contains(&entry.id),
            Self::Query(query) => {
                let document = SearchDocument::of_entry(entry, text().unwrap_or_default());
                document.matches(query)
                    && query.tunnels.iter().all(|tunnel| *tunnel == entry.tunnel)
                    && query.since.is_none_or(|since| entry.received_at >= since)
            }
        }
    }
}

/// Returns the newest Mails that the courier's index finds, at most [`MAX_FOUND`].
async fn find_mails(
    mailbox: &MailboxContext<'_>,
    text: &str,
) -> Result<BTreeSet<MailId>, CliError> {
    let client = mailbox.context.client()?;
    let (mut found, mut cursor) = (BTreeSet::new(), None);
    for _ in 0..MAX_FOUND / MAX_MAILS_PER_REQUEST {
        let limit = Some(MAX_MAILS_PER_REQUEST.to_string());
        let q = Some(text.to_owned());
        let parameters = query(&[("q", q), ("limit", limit), ("cursor", cursor)]);
        let page: MailPage = client.get(&format!("/api/v1/messages{parameters}")).await?;
        found.extend(page.messages.into_iter().map(|mail| mail.entry.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(found);
        }
    }
    note(&format!("more Mails match; only the newest {} are listed", found.len()));
    Ok(found)
}

/// Returns the newest Mails that match. Opens only as many files as needed.
async fn search(
    mailbox: &MailboxContext<'_>,
    mut source: MailSource<'_>,
    workspace: &Workspace,
    query: &MailSearch,
) -> Result<MailSearchResult, CliError> {
    let mut claims = ClaimLookup::new(mailbox, workspace);
    let (mut found, mut unreadable) = (MailSearchResult::default(), 0);
    // With such filters many Mails may be read to find a few.
    let is_selective = query.status.is_some()
        || query.unread
        || query.correlation.is_some()
        || query.text.is_some();
    while !found.has_more {
        let want = match query.limit.saturating_sub(found.rows.len()).saturating_add(1) {
            want if !is_selective => want.min(MAX_MAILS_PER_REQUEST),
            _ => MAX_MAILS_PER_REQUEST,
        };
        let page = source.next_page(query, want)?;
        if page.is_empty() {
            break;
        }
        let ids: Vec<_> = page.iter().map(|it| (it.name.clone(), it.id.clone())).collect();
        let mut at = 0;
        for (candidate, claim) in page.into_iter().zip(claims.of(&ids).await?) {
            at += 1;
            let fits = query.status.is_none_or(|status| status == claim.status)
                && (!query.unread || claim.unread());
            if !fits {
                continue;
            }
            match matching(&source, query, candidate) {
                Ok(Some(_)) if found.rows.len() >= query.limit => {
                    found.has_more = true;
                    if !is_selective {
                        let left = ids.len() - at + 1;
                        found.total = source.count_all(query, found.rows.len() + left)?;
                    }
                    break;
                }
                Ok(Some((entry, file))) => found.rows.push(MailTableRow { entry, claim, file }),
                Ok(None) => {}
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
    Ok(found)
}

/// Reads a Mail; `None` when it does not match.
fn matching(
    source: &MailSource<'_>,
    query: &MailSearch,
    candidate: MailCandidate,
) -> Result<Option<(MailIndexEntry, Option<PathBuf>)>, String> {
    let (entry, text) = source.entry(candidate)?;
    let wanted = query.since.is_none_or(|since| entry.received_at >= since)
        && (query.correlation.is_none() || query.correlation == entry.correlation_id);
    let is_found = match &query.text {
        Some(filter) => filter.matches(&entry, || text.or_else(|| source.text(&entry))),
        None => true,
    };
    if !wanted || !is_found {
        return Ok(None);
    }
    let path = source.path(&entry);
    Ok(Some((entry, path)))
}

fn show(format: OutputFormat, found: &MailSearchResult) -> Result<(), CliError> {
    let columns: &[Column<MailTableRow>] = &[
        ("id", |row| row.entry.id.cell()),
        ("status", |row| row.claim.status.cell()),
        ("from", |row| authors(&row.entry.participants).cell()),
        ("session", |row| {
            let session = &row.entry.session;
            session.name.cell().or_else(|| session.id.cell())
        }),
        ("messages", |row| row.entry.messages.cell()),
        ("at", |row| row.entry.received_at.rfc3339().cell()),
        ("text", |row| match &row.entry.title {
            Some(title) => preview(&format!("{title}: {}", row.entry.preview)).cell(),
            None => row.entry.preview.cell(),
        }),
    ];
    let json: Vec<Value> = match format {
        OutputFormat::Json => found.rows.iter().map(json_row).collect(),
        _ => Vec::new(),
    };
    // A table has no room for the session and the number of messages.
    let fits = |(name, _): &&Column<MailTableRow>| {
        format != OutputFormat::Table || !matches!(*name, "session" | "messages")
    };
    let columns: Vec<_> = columns.iter().filter(fits).copied().collect();
    let answer = json!({"messages": json, "has_more": found.has_more, "total": found.total});
    output::list(format, &answer, &found.rows, &columns)?;
    if found.has_more && format != OutputFormat::Json {
        let shown = found.rows.len();
        note(&match found.total {
            Some(total) => {
                let (shown, total) = (grouped(shown as u64), grouped(total));
                format!("showing {shown} of {total} Mails; use --limit or --all")
            }
            None => format!("showing the newest {shown} Mails; more match, use --limit or --all"),
        });
    }
    Ok(())
}

/// Formats a number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Builds the JSON of a Mail.
fn json_row(MailTableRow { entry, claim, file }: &MailTableRow) -> Value {
    json!({
        "id": entry.id,
        "status": claim.status.as_str(),
        "claim": claim,
        "provider": entry.id.provider(),
        "tunnel": entry.tunnel,
        "session": entry.session,
        "participants": entry.participants,
        "title": entry.title,
        "correlation_id": entry.correlation_id,
        "binding": entry.binding,
        "trust": entry.trust,
        "messages": entry.messages,
        "received_at": entry.received_at.rfc3339(),
        "preview": entry.preview,
        "file": file,
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
        text: None,
        limit: usize::MAX,
    };

    /// The filter for Mails when the courier does not run.
    fn words(text: &str) -> Option<TextFilter> {
        let query = SearchQuery::parse(text, Timestamp::from_ms(START)).unwrap();
        Some(TextFilter::Query(Box::new(query)))
    }

    /// Returns the texts of the Mails that a search finds.
    fn found(fixture: &MailboxFixture, query: MailSearch) -> String {
        let mailbox = fixture.mailbox();
        let source = MailSource::workspace(&fixture.workspace, mailbox.now()).unwrap();
        let found = search(&mailbox, source, &fixture.workspace.name, &query);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let rows = runtime.unwrap().block_on(found).unwrap().rows;
        let texts: Vec<_> = rows.into_iter().map(|row| row.entry.preview).collect();
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
            (MailSearch { text: words("thr*"), ..ALL }, "three"),
            (MailSearch { text: words("hre"), ..ALL }, ""),
            (MailSearch { text: words("from:ann"), limit: 1, ..ALL }, "four"),
        ] {
            assert_eq!(found(&fixture, query), expected);
        }
    }

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [(0, "0"), (999, "999"), (1_234, "1,234"), (1_000_000, "1,000,000")] {
            assert_eq!(grouped(number), text);
        }
    }
}
