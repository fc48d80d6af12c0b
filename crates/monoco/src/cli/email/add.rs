//! `monoco email add`: completes the section of an account by known servers and questions, and
//! adds it like every tunnel.

use monoco_core::letter::check_address;
use serde_json::{Map, Value, json};

use super::known_servers;
use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, note};
use crate::cli::tunnel::add;
use crate::cli::tunnel::answers::TunnelAnswers;
use crate::cli::tunnel::file::{ConfigFileArgs, TunnelFile};
use crate::cli::tunnel::prompt::{Prompt, TerminalPrompt};

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// Id of the account: its tunnel, and the name of its file
    name: String,
    /// Address of the account
    #[arg(long)]
    address: Option<String>,
    /// Name for the login [default: the address]
    #[arg(long)]
    username: Option<String>,
    /// IMAP server, as HOST or HOST:PORT [default: by the domain of the address]
    #[arg(long, value_name = "HOST")]
    imap: Option<String>,
    /// SMTP server, as HOST or HOST:PORT; "none" for an account that only receives
    /// [default: by the domain of the address]
    #[arg(long, value_name = "HOST")]
    smtp: Option<String>,
    /// Encryption of both servers: implicit, starttls, or none (only on this machine)
    #[arg(long)]
    tls: Option<String>,
    /// File with the certificates of a private CA
    #[arg(long, value_name = "FILE")]
    ca_file: Option<String>,
    /// Environment variable of the courier that has the password
    #[arg(long, value_name = "VAR", group = "secret")]
    password_env: Option<String>,
    /// File that has the password
    #[arg(long, value_name = "FILE", group = "secret")]
    password_file: Option<String>,
    /// Command that prints the password, run at each login
    #[arg(long, value_name = "COMMAND", group = "secret")]
    password_command: Option<String>,
    /// How to log in: plain, login or xoauth2 [default: what the server offers]
    #[arg(long)]
    auth: Option<String>,
    /// Folder to watch (can be repeated) [default: INBOX]
    #[arg(long = "folder", value_name = "FOLDER")]
    folders: Vec<String>,
    /// Mails to fetch at the first connection: new, all, a number, or a date [default: new]
    #[arg(long)]
    backfill: Option<String>,
    /// Forward every mail to this address (can be repeated)
    #[arg(long = "forward-to", value_name = "ADDRESS")]
    forward_to: Vec<String>,
    /// Write the file without testing the connections
    #[arg(long)]
    no_test: bool,
    #[command(flatten)]
    config: ConfigFileArgs,
}

pub async fn run(context: &CliContext, args: AddArgs) -> Result<(), CliError> {
    let file = TunnelFile::new(&context.home, &args.name, &args.config)?;
    file.check_new("monoco email remove")?;
    let no_test = args.no_test;
    let answers = TunnelAnswers::from_section(section(args.complete()?));
    add::add(context, &file, &answers, no_test, "monoco email add").await?;
    if context.format == output::OutputFormat::Json {
        output::print_json(&json!({"id": file.id, "file": file.path}))?;
    }
    Ok(())
}

/// What the user has entered.
struct Answers {
    args: AddArgs,
    address: String,
    imap: String,
    smtp: Option<String>,
    smtp_tls: Option<&'static str>,
}

impl AddArgs {
    /// Completes the arguments by known servers, and by questions on a terminal.
    fn complete(mut self) -> Result<Answers, CliError> {
        let address = match self.address.take() {
            Some(address) => address,
            None => ask("address", "--address")?,
        };
        check_address(&address)
            .map_err(|why| CliError::usage(format!("address {address:?}: {why}")))?;
        let known = known_servers::find(&address);
        if let Some(known) = known.filter(|known| !known.hint.is_empty()) {
            note(known.hint);
        }
        let imap = match (self.imap.take(), known) {
            (Some(host), _) => host,
            (None, Some(known)) => known.imap.to_owned(),
            (None, None) => ask("IMAP server", "--imap")?,
        };
        let smtp = match (self.smtp.take(), known) {
            (Some(host), _) => host,
            (None, Some(known)) => known.smtp.to_owned(),
            (None, None) => ask("SMTP server, or none", "--smtp")?,
        };
        let secret = [&self.password_env, &self.password_file, &self.password_command];
        if secret.iter().all(|source| source.is_none()) {
            let variable = ask(
                "environment variable of the courier that has the password",
                "--password-env, --password-file or --password-command",
            )?;
            self.password_env = Some(variable);
        }
        let is_known = known.is_some_and(|known| known.smtp == smtp && known.starttls);
        Ok(Answers {
            args: self,
            address,
            imap,
            smtp: Some(smtp).filter(|smtp| smtp != "none" && !smtp.is_empty()),
            smtp_tls: is_known.then_some("starttls"),
        })
    }
}

/// Asks on a terminal. Elsewhere the answer must be given as `option`.
fn ask(what: &str, option: &str) -> Result<String, CliError> {
    let answer = TerminalPrompt.ask(&format!("{what}: "), false)?;
    let missing = || CliError::usage(format!("the {what} is missing; give {option}"));
    answer.filter(|answer| !answer.is_empty()).ok_or_else(missing)
}

/// The section of the tunnel, as JSON.
fn section(answers: Answers) -> Map<String, Value> {
    let Answers { args, address, imap, smtp, smtp_tls } = answers;
    let server = |text: &str, tls: Option<&str>| {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, Some(port)),
            _ => (text, None),
        };
        let mut server = json!({"host": host});
        if let Some(port) = port {
            server["port"] = json!(port.parse::<u16>().unwrap_or_default());
        }
        if let Some(tls) = tls {
            server["tls"] = json!(tls);
        }
        if let Some(file) = &args.ca_file {
            server["ca_file"] = json!(file);
        }
        server
    };
    let tls = args.tls.as_deref();
    let mut section = Map::new();
    let mut set = |key: &str, value: Value| section.insert(key.to_owned(), value);
    set("provider", json!("email"));
    set("address", json!(address));
    set("imap", server(&imap, tls));
    if let Some(smtp) = smtp {
        set("smtp", server(&smtp, tls.or(smtp_tls)));
    }
    let texts = [
        ("username", args.username),
        ("password", args.password_env.map(|name| format!("${{{name}}}"))),
        ("password_file", args.password_file),
        ("password_command", args.password_command),
        ("auth", args.auth),
        ("backfill", args.backfill),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            set(key, json!(value));
        }
    }
    if !args.folders.is_empty() {
        set("folders", json!(args.folders));
    }
    if !args.forward_to.is_empty() {
        set("forward", json!([{"to": args.forward_to}]));
    }
    section
}

#[cfg(test)]
mod tests {
    use monoco_core::config::ConfigFile;

    use super::*;
    use monoco_courier::home::Home;

    fn answers(args: &[&str]) -> Answers {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: AddArgs,
        }
        let args = [&["add", "team"], args].concat();
        <Command as clap::Parser>::try_parse_from(args).unwrap().args.complete().ok().unwrap()
    }

    #[test]
    fn servers_of_a_known_provider_are_filled_in() {
        let section =
            section(answers(&["--address", "ann@outlook.com", "--password-env", "MAIL_PASSWORD"]));
        assert_eq!(section["imap"], json!({"host": "outlook.office365.com"}));
        let smtp = json!({"host": "smtp-mail.outlook.com", "tls": "starttls"});
        assert_eq!(section["smtp"], smtp);
        assert_eq!(section["password"], "${MAIL_PASSWORD}");
    }

    #[test]
    fn file_is_read_back_with_hostile_values() {
        let hostile = "a: b # \"c\" 'd'\n---\n{e}";
        let section = section(answers(&[
            "--address",
            "ann@example.com",
            "--imap",
            "127.0.0.1:1143",
            "--smtp",
            "127.0.0.1:1025",
            "--tls",
            "none",
            "--password-command",
            hostile,
            "--forward-to",
            "bob@example.com",
        ]));
        let answers = TunnelAnswers::from_section(section);
        let parsed = ConfigFile::parse(&answers.yaml()).unwrap();
        let root = parsed.root(&answers).unwrap();
        assert_eq!(root.text("password_command").unwrap().as_deref(), Some(hostile));
        assert_eq!(root.section("imap").unwrap().text("port").unwrap().as_deref(), Some("1143"));
        let home = Home::new("/nonexistent".into());
        let file = TunnelFile::new(&home, "team", &ConfigFileArgs::default()).unwrap();
        assert!(file.parse(&answers, "monoco email add").is_ok(), "{}", answers.yaml());
    }
}
