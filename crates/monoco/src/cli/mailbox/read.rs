//! `monoco mailbox read`: one Mail, with foreign text fenced.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use monoco_core::inbound::Artifact;
use monoco_core::mail::{Mail, preview};
use serde_json::{Value, json};

use super::claim::worst;
use super::{MailboxContext, ids, no_such, random};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, print, shown_lines};
use monoco_mailbox::inbox::{self, MailSelector};
use monoco_mailbox::index::IndexReader;
use monoco_mailbox::paths::MailFile;
use monoco_mailbox::untrusted_text::{UntrustedTextFence, remove_lookalikes};

#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// Mails, by their ids, enough of them, or their files; - reads ids from stdin
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print the file itself; into a pipe or a file, byte for byte
    #[arg(long)]
    raw: bool,
    /// Print only the text, without a fence; into a pipe or a file, byte for byte
    #[arg(long, conflicts_with = "raw")]
    content: bool,
}

pub fn run(desk: &MailboxContext<'_>, args: ReadArgs) -> Result<(), CliError> {
    let given = ids(args.ids)?;
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for text in &given {
        match locate(desk, text) {
            Ok(located) => found.push(located),
            Err(failure) => failures.push(failure),
        }
    }
    let format = desk.context.format;
    if format == OutputFormat::Json && !args.raw && !args.content {
        let mut all = Vec::new();
        for located in &found {
            all.push(full(located)?);
        }
        match all.as_slice() {
            [only] if given.len() == 1 => print(&output::json(only))?,
            [] => {}
            all => print(&output::json(&json!({"messages": all})))?,
        }
        return worst(failures, given.len());
    }
    for (at, located) in found.iter().enumerate() {
        if args.raw {
            exact(&located.file)?;
        } else if args.content {
            exact(&located.mail.text)?;
        } else {
            if at > 0 && format == OutputFormat::Table {
                print("")?;
            }
            show(desk, located)?;
        }
    }
    worst(failures, given.len())
}

/// A Mail, and where it was found.
pub struct LocatedMail {
    pub mail: Mail,
    /// Its file as it is.
    pub file: String,
    pub path: PathBuf,
}

/// Finds a Mail: in the workspace's inbox, or where the courier has it.
pub fn locate(desk: &MailboxContext<'_>, text: &str) -> Result<LocatedMail, CliError> {
    let id = desk.id(text)?;
    let wanted = MailSelector::from(&id);
    if let Some(here) = desk.maybe_workspace()?
        && let Some(name) = inbox::find(&here, &wanted, desk.now())?.first()
    {
        let opened = inbox::open(&here.inbox(), name);
        let (mail, file) = opened.map_err(|words| CliError::new(CliExit::NotPossible, words))?;
        return Ok(LocatedMail { mail, file, path: here.inbox().join(name.file()) });
    }
    let entries = match IndexReader::open(&desk.tree.index())? {
        Some(mut index) => index.search(&wanted.part())?,
        None => Vec::new(),
    };
    let entry = entries.into_iter().find(|entry| entry.id == id);
    let entry = entry.ok_or_else(|| no_such(&format!("there is no Mail {id}")))?;
    match desk.tree.find(&entry)? {
        MailFile::Here { path, bytes } => {
            let bad = |why: String| CliError::new(CliExit::NotPossible, why);
            let file = String::from_utf8(bytes).map_err(|error| bad(error.to_string()))?;
            let mail = Mail::parse(&file).map_err(|error| bad(error.to_string()))?;
            Ok(LocatedMail { mail, file, path })
        }
        MailFile::Changed(path) => {
            let message = format!("{} was changed by hand", path.display());
            Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier rebuild` writes it again"))
        }
        MailFile::Gone => {
            let message = format!("{id} has no file: it was thrown away by age, or removed");
            Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier rebuild` writes what was removed by hand again"))
        }
    }
}

/// A fence for a Mail's text.
pub fn fence(text: &str) -> Result<UntrustedTextFence, CliError> {
    loop {
        // Without randomness there is no fence, and then nothing is shown.
        if let Some(fence) = UntrustedTextFence::around(text, random()?) {
            return Ok(fence);
        }
    }
}

/// The authors of a Mail, on one line.
pub fn authors(mail: &Mail) -> String {
    let people = mail.header.participants.from.iter();
    let people: Vec<_> = people
        .map(|person| match &person.name {
            Some(name) => format!("{name} ({})", person.id),
            None => person.id.clone(),
        })
        .collect();
    people.join(", ")
}

fn show(desk: &MailboxContext<'_>, located: &LocatedMail) -> Result<(), CliError> {
    let LocatedMail { mail, path, .. } = located;
    let header = &mail.header;
    let clean = |text: &str| json!(remove_lookalikes(text));
    let maybe = |text: &Option<String>| text.as_deref().map_or(Value::Null, clean);
    let session = match &header.session.name {
        Some(name) => format!("{name} ({})", header.session.id),
        None => header.session.id.clone(),
    };
    let mentions: Vec<_> = header.participants.mentions.iter().map(|m| clean(m)).collect();
    let artifacts: Vec<_> =
        header.artifacts.iter().map(|artifact| clean(&attachment(desk, artifact))).collect();
    let list = |values: Vec<Value>| if values.is_empty() { Value::Null } else { json!(values) };
    let fields = json!({
        "id": header.id,
        "trust": header.trust,
        "from": clean(&authors(mail)),
        "session": clean(&session),
        "thread": maybe(&header.session.thread_key),
        "tunnel": header.tunnel,
        "subject": maybe(&header.title),
        "mentions": list(mentions),
        "label": maybe(&header.binding),
        "filed": maybe(&header.correlation_id),
        "messages": mail.messages.len(),
        "at": header.received_at.ms(),
        "attachments": list(artifacts),
        "preview": clean(&preview(&mail.text)),
        "file": path,
    });
    match desk.context.format {
        OutputFormat::Id => return print(&header.id.to_string()),
        OutputFormat::Compact => {
            let columns = ["id", "trust", "from", "session", "at", "subject", "preview"];
            let columns = columns.map(|name| (name, name));
            return output::one(OutputFormat::Compact, &fields, "id", &columns);
        }
        OutputFormat::Table | OutputFormat::Json => {}
    }
    let names = [
        "id",
        "trust",
        "from",
        "session",
        "thread",
        "tunnel",
        "subject",
        "mentions",
        "label",
        "filed",
        "messages",
        "at",
        "attachments",
        "file",
    ];
    let names = names.map(|name| (name, name));
    output::one(OutputFormat::Table, &fields, "id", &names)?;
    let fenced = fence(&mail.text)?.wrap(&authors(mail), header.trust, &mail.text);
    print("")?;
    print(&shown_lines(&fenced))
}

/// A Mail for programs. The boundary does not occur in the text: whoever hands the text
/// on to an agent can put it around it.
fn full(located: &LocatedMail) -> Result<Value, CliError> {
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

/// What came with a Mail, and where its bytes are.
fn attachment(desk: &MailboxContext<'_>, artifact: &Artifact) -> String {
    let about = format!("{} ({})", artifact.name, artifact.mime_type);
    match &artifact.hash {
        Some(hash) => {
            let hash = hash.to_string();
            let name = hash.rsplit(':').next().unwrap_or_default();
            format!("{about} {}", desk.context.home.dropzone().join(name).display())
        }
        None => format!("{about} {}", artifact.url.as_deref().unwrap_or_default()),
    }
}

/// Prints text as it is; on a terminal, so that it does nothing.
fn exact(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    if stdout.is_terminal() {
        drop(stdout);
        return print(&shown_lines(text));
    }
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::mailbox::tests::MailboxFixture;

    #[test]
    fn a_mail_is_found_here_or_at_the_couriers_by_enough_of_its_id() {
        let mut bench = MailboxFixture::new();
        let (here, there) = (bench.post.deliver("ann", "one"), bench.post.deliver("bob", "two"));
        bench.sync();
        let desk = bench.desk();
        for (entry, place) in [(&here, "alpha"), (&there, "home")] {
            for text in [&entry.id.to_string(), entry.id.uid(), &entry.id.uid()[..6], &entry.file] {
                let located = locate(&desk, text).unwrap();
                assert_eq!(located.mail.header.id, entry.id, "{text}");
                assert!(located.path.display().to_string().contains(place), "{text}");
            }
        }
        for bad in ["ffffff", "webhook_ffffffffffffffffffffffff", "12", "*", "../../x"] {
            let failure = locate(&desk, bad).map(|_| ()).unwrap_err();
            assert_eq!(failure.exit, CliExit::NotPossible, "{bad}");
        }
        fs::write(bench.post.inbound(&there), "give me all your money").unwrap();
        let changed = locate(&desk, &there.id.to_string()).map(|_| ()).unwrap_err();
        assert!(changed.message.contains("changed by hand"), "{changed:?}");
    }

    #[test]
    fn programs_get_the_text_as_it_is_and_are_told_whose_it_is() {
        let mut bench = MailboxFixture::new();
        let entry = bench.post.deliver("ann", "\u{1b}[31m monoco-fence\n---\n");
        let located = locate(&bench.desk(), &entry.id.to_string()).unwrap();
        let value = full(&located).unwrap();
        assert_eq!(value["text"], "\u{1b}[31m monoco-fence\n---\n");
        assert_eq!(
            (&value["trust"], &value["sender_verified"]),
            (&json!("untrusted"), &json!(false))
        );
        assert_eq!(value["source"], "webhook:ci");
        assert_ne!(value["boundary"], full(&located).unwrap()["boundary"], "another each time");
    }
}
