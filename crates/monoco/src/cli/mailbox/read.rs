//! `monoco mailbox read`: prints Mails, with untrusted text between delimiters.

use std::io::IsTerminal;
use std::path::PathBuf;

use monoco_core::inbound::Artifact;
use monoco_core::mail::{Mail, Trust, preview};
use serde_json::{Value, json};

use super::claim::worst;
use super::{MailboxContext, no_such, random, read_ids};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{
    self, OutputFormat, ToCell, escape_line, escape_lines, print, print_bytes,
};
use monoco_mailbox::inbox::{self, MailSelector};
use monoco_mailbox::index::IndexReader;
use monoco_mailbox::paths::MailFile;
use monoco_mailbox::untrusted_text::{UntrustedTextFence, remove_lookalikes};

#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// Ids of Mails, unique prefixes, or file names; - reads ids from stdin
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print the Mail file; unescaped if stdout is not a terminal
    #[arg(long)]
    raw: bool,
    /// Print only the text, without delimiters; unescaped if stdout is not a terminal
    #[arg(long, conflicts_with = "raw")]
    content: bool,
}

pub fn run(mailbox: &MailboxContext<'_>, args: ReadArgs) -> Result<(), CliError> {
    let given = read_ids(args.ids)?;
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for text in &given {
        match locate(mailbox, text) {
            Ok(located) => found.push(located),
            Err(failure) => failures.push(failure),
        }
    }
    let format = mailbox.context.format;
    if format == OutputFormat::Json && !args.raw && !args.content {
        let mut all = Vec::new();
        for located in &found {
            all.push(mail_json(located)?);
        }
        match all.as_slice() {
            [only] if given.len() == 1 => output::print_json(only)?,
            [] => {}
            all => output::print_json(&json!({"messages": all}))?,
        }
        return worst(format, failures, given.len());
    }
    for (at, located) in found.iter().enumerate() {
        if args.raw {
            print_exact(&located.file)?;
        } else if args.content {
            print_exact(&located.mail.text)?;
        } else {
            if at > 0 && format == OutputFormat::Table {
                print("")?;
            }
            show(mailbox, located)?;
        }
    }
    worst(format, failures, given.len())
}

/// A Mail with the content and path of its file.
pub struct LocatedMail {
    pub mail: Mail,
    /// Content of the file.
    pub file: String,
    pub path: PathBuf,
}

/// Finds a Mail in the workspace's inbox or in the courier's mailbox.
pub fn locate(mailbox: &MailboxContext<'_>, text: &str) -> Result<LocatedMail, CliError> {
    let id = mailbox.id(text)?;
    let wanted = MailSelector::from(&id);
    if let Some(workspace) = mailbox.maybe_workspace()?
        && let Some(name) = inbox::find(&workspace, &wanted, mailbox.now())?.first()
        && let Some(inbox) = workspace.open_inbox()?
    {
        let opened = inbox::open(&inbox, name);
        let (mail, file) = opened.map_err(|words| CliError::new(CliExit::NotPossible, words))?;
        return Ok(LocatedMail { mail, file, path: workspace.inbox().join(name.file()) });
    }
    mailbox.refresh()?;
    let entries = match IndexReader::open(&mailbox.paths.index())? {
        Some(mut index) => index.search(&wanted.part())?,
        None => Vec::new(),
    };
    let entry = entries.into_iter().find(|entry| entry.id == id);
    let entry = entry.ok_or_else(|| no_such(&format!("no Mail matches {id}")))?;
    if let Some(at) = entry.tombstone() {
        let message = format!("{id} was erased at {}", at.rfc3339());
        return Err(CliError::new(CliExit::NotPossible, message).code("erased"));
    }
    match mailbox.paths.find(&entry)? {
        MailFile::Here { path, bytes } => {
            let bad = |why: String| CliError::new(CliExit::NotPossible, why);
            let file = String::from_utf8(bytes).map_err(|error| bad(error.to_string()))?;
            let mail = Mail::parse(&file).map_err(|error| bad(error.to_string()))?;
            Ok(LocatedMail { mail, file, path })
        }
        MailFile::Changed(path) => {
            let message = format!("{} was changed by hand", path.display());
            Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier rebuild` restores the file"))
        }
        MailFile::Gone => {
            let message = format!("{id} has no file: it has expired or was removed");
            Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier rebuild` restores files that were removed by hand"))
        }
    }
}

/// Creates delimiters that do not occur in the text.
pub fn fence(text: &str) -> Result<UntrustedTextFence, CliError> {
    loop {
        // Fails without random numbers, so that text is never printed without delimiters.
        if let Some(fence) = UntrustedTextFence::around(text, random()?) {
            return Ok(fence);
        }
    }
}

/// Formats the authors of a Mail on one line.
pub fn author_line(mail: &Mail) -> String {
    let people = mail.header.participants.from.iter();
    let people: Vec<_> = people
        .map(|person| match &person.name {
            Some(name) => format!("{name} ({})", person.id),
            None => person.id.clone(),
        })
        .collect();
    people.join(", ")
}

fn show(mailbox: &MailboxContext<'_>, located: &LocatedMail) -> Result<(), CliError> {
    let LocatedMail { mail, path, .. } = located;
    let header = &mail.header;
    let clean = |text: &str| Some(remove_lookalikes(text));
    let clean_all = |texts: Vec<String>| Some(remove_lookalikes(&texts.cell()?));
    let session = match &header.session.name {
        Some(name) => format!("{name} ({})", header.session.id),
        None => header.session.id.clone(),
    };
    let artifacts = header.artifacts.iter().map(|artifact| attachment(mailbox, artifact)).collect();
    let id = ("id", Some(header.id.to_string()));
    let trust = ("trust", trust_name(header.trust).cell());
    let from = ("from", clean(&author_line(mail)));
    let session = ("session", clean(&session));
    let subject = ("subject", header.title.as_deref().and_then(clean));
    let at = ("at", header.received_at.rfc3339().cell());
    match mailbox.context.format {
        OutputFormat::Id => return print(&header.id.to_string()),
        OutputFormat::Compact => {
            let preview = ("preview", clean(&preview(&mail.text)));
            let values = [id, trust, from, session, at, subject, preview];
            let values = values.map(|(_, value)| escape_line(&value.unwrap_or_default()));
            return print(&values.join("\t"));
        }
        OutputFormat::Table | OutputFormat::Json => {}
    }
    output::print_values(&[
        id,
        trust,
        from,
        session,
        ("thread", header.session.thread_key.as_deref().and_then(clean)),
        ("tunnel", header.tunnel.as_str().cell()),
        subject,
        ("mentions", clean_all(header.participants.mentions.clone())),
        ("label", header.binding.as_deref().and_then(clean)),
        ("correlation", header.correlation_id.as_deref().and_then(clean)),
        ("messages", mail.messages.len().cell()),
        at,
        ("attachments", clean_all(artifacts)),
        ("file", path.cell()),
    ])?;
    let fenced = fence(&mail.text)?.wrap(&author_line(mail), header.trust, &mail.text);
    print("")?;
    print(&escape_lines(&fenced))
}

/// Returns the trust level as in JSON.
pub const fn trust_name(trust: Trust) -> &'static str {
    match trust {
        Trust::Untrusted => "untrusted",
        Trust::Known => "known",
    }
}

/// Builds the JSON of a Mail. `boundary` does not occur in the text: a program can use it as
/// delimiter when it passes the text to an agent.
fn mail_json(located: &LocatedMail) -> Result<Value, CliError> {
    let LocatedMail { mail, path, .. } = located;
    let header = &mail.header;
    Ok(json!({
        "trust": header.trust,
        "sender_verified": false,
        "source": format!("{}:{}", header.id.provider(), header.tunnel),
        "boundary": fence(&mail.text)?.boundary(),
        "id": header.id,
        "msg_id": mail.msg_id,
        "session": header.session,
        "participants": header.participants,
        "timestamp": header.timestamp.rfc3339(),
        "received_at": header.received_at.rfc3339(),
        "title": header.title,
        "artifacts": header.artifacts,
        "correlation_id": header.correlation_id,
        "reply_to": header.reply_to,
        "binding": header.binding,
        "answer_to": header.answer_to,
        "messages": mail.messages,
        "file": path,
        "text": mail.text,
    }))
}

/// Formats an attachment: name, type, and its file, URL, or the reason why it is missing.
fn attachment(mailbox: &MailboxContext<'_>, artifact: &Artifact) -> String {
    let about = format!("{} ({})", artifact.name, artifact.mime_type);
    match (&artifact.hash, &artifact.missing) {
        (Some(hash), _) => match &mailbox.remote {
            Some(remote) => match remote.attachment(hash) {
                Ok(path) => format!("{about} {}", path.display()),
                Err(failure) => format!("{about} not fetched: {}", failure.message),
            },
            None => {
                let hash = hash.to_string();
                let name = hash.rsplit(':').next().unwrap_or_default();
                format!("{about} {}", mailbox.context.home.dropzone().join(name).display())
            }
        },
        (None, Some(reason)) => format!("{about} not fetched: {reason}"),
        (None, None) => format!("{about} {}", artifact.url.as_deref().unwrap_or_default()),
    }
}

/// Prints text unchanged; escapes it if stdout is a terminal.
fn print_exact(text: &str) -> Result<(), CliError> {
    if std::io::stdout().is_terminal() {
        return print(&escape_lines(text));
    }
    print_bytes(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::mailbox::tests::MailboxFixture;

    #[test]
    fn mail_is_found_by_id_prefix_and_file_in_both_places() {
        let mut fixture = MailboxFixture::new();
        let (workspace, there) =
            (fixture.post.deliver("ann", "one"), fixture.post.deliver("bob", "two"));
        fixture.sync();
        let mailbox = fixture.mailbox();
        for (entry, place) in [(&workspace, "alpha"), (&there, "home")] {
            for text in [&entry.id.to_string(), entry.id.uid(), &entry.id.uid()[..6], &entry.file] {
                let located = locate(&mailbox, text).unwrap();
                assert_eq!(located.mail.header.id, entry.id, "{text}");
                assert!(located.path.display().to_string().contains(place), "{text}");
            }
        }
        for bad in ["ffffff", "webhook_ffffffffffffffffffffffff", "12", "*", "../../x"] {
            let failure = locate(&mailbox, bad).map(|_| ()).unwrap_err();
            assert_eq!(failure.exit, CliExit::NotPossible, "{bad}");
        }
        fs::write(fixture.post.inbound(&there), "changed text").unwrap();
        let changed = locate(&mailbox, &there.id.to_string()).map(|_| ()).unwrap_err();
        assert!(changed.message.contains("changed by hand"), "{changed:?}");
    }

    #[test]
    fn json_contains_the_exact_text_and_marks_it_untrusted() {
        let mut fixture = MailboxFixture::new();
        let entry = fixture.post.deliver("ann", "\u{1b}[31m monoco-fence\n---\n");
        let located = locate(&fixture.mailbox(), &entry.id.to_string()).unwrap();
        let value = mail_json(&located).unwrap();
        assert_eq!(value["text"], "\u{1b}[31m monoco-fence\n---\n");
        assert_eq!(
            (&value["trust"], &value["sender_verified"]),
            (&json!("untrusted"), &json!(false))
        );
        assert_eq!(value["source"], "webhook:ci");
        assert_ne!(
            value["boundary"],
            mail_json(&located).unwrap()["boundary"],
            "another each time"
        );
    }
}
