//! `monoco email add` and `remove`: asks, tests the connections, writes the file of the tunnel.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;

use monoco_adapters::registry::{self, AdapterConfig, AdapterResources};
use monoco_core::config::ConfigFile;
use monoco_core::did::TunnelId;
use monoco_core::letter::check_address;
use monoco_fs::FileOptions;
use serde_json::{Value, json};

use super::known_servers;
use crate::api::views::email::EmailTestView;
use crate::cli::CliContext;
use crate::cli::courier::control;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, escape_line, note};
use crate::config::environment::ProcessEnvironment;
use crate::config::{ADAPTERS_DIR, COMMON_TUNNEL_KEYS};

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
}

pub async fn run(context: &CliContext, args: AddArgs) -> Result<(), CliError> {
    let id: TunnelId = args.name.parse().map_err(|error| CliError::usage(format!("{error}")))?;
    let file = context.home.config_dir().join(ADAPTERS_DIR).join(format!("{id}.yaml"));
    if file.exists() {
        let message = format!("there is an account {id} already: {}", file.display());
        return Err(CliError::new(CliExit::NotPossible, message)
            .hint(format!("edit the file, or remove it with `monoco email remove {id}`")));
    }
    let no_test = args.no_test;
    let section = section(args.complete()?);
    let yaml = yaml(&section);
    let config = parse(&yaml)?;
    if !no_test {
        test(context, id.clone(), config.as_ref()).await?;
    }
    let dir = file.parent().unwrap_or(&file);
    context.home.create()?;
    std::fs::create_dir_all(dir)?;
    monoco_fs::write(&file, yaml.as_bytes(), FileOptions::PRIVATE_SYNCED).map_err(|error| {
        CliError::new(CliExit::LocalFile, format!("cannot write {}: {error}", file.display()))
    })?;
    note(&format!("wrote {}", file.display()));
    if context.home.running().is_some() {
        control::reload(&context.home)?;
    } else {
        note("start the courier with `monoco courier start`");
    }
    if context.format == output::OutputFormat::Json {
        output::print_json(&json!({"id": id, "file": file}))?;
    }
    Ok(())
}

/// Removes the file of an account, and its tunnel from the running courier.
pub fn remove(context: &CliContext, account: &str) -> Result<(), CliError> {
    let id: TunnelId = account.parse().map_err(|error| CliError::usage(format!("{error}")))?;
    let file = context.home.config_dir().join(ADAPTERS_DIR).join(format!("{id}.yaml"));
    match std::fs::remove_file(&file) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("there is no file {}", file.display());
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("an account of courier/config.yaml is removed there"));
        }
        Err(error) => return Err(error.into()),
    }
    if context.home.running().is_some() {
        control::reload(&context.home)?;
    }
    output::done(context.format, &format!("removed account {id}"), &json!({"removed": id}))
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
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage(format!("the {what} is missing; give {option}")));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "{what}: ")?;
    stderr.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.trim() {
        "" => Err(CliError::usage(format!("the {what} is missing; give {option}"))),
        answer => Ok(answer.to_owned()),
    }
}

/// The section of the tunnel, as JSON.
fn section(answers: Answers) -> Value {
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
    let mut section = json!({
        "provider": "email",
        "address": address,
        "imap": server(&imap, tls),
    });
    if let Some(smtp) = smtp {
        section["smtp"] = server(&smtp, tls.or(smtp_tls));
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
            section[key] = json!(value);
        }
    }
    if !args.folders.is_empty() {
        section["folders"] = json!(args.folders);
    }
    if !args.forward_to.is_empty() {
        section["forward"] = json!([{"to": args.forward_to}]);
    }
    section
}

/// Writes a section as YAML: one line per key, values in the form of JSON, which is YAML too.
fn yaml(section: &Value) -> String {
    let fields = section.as_object().into_iter().flatten();
    fields.map(|(key, value)| format!("{key}: {value}\n")).collect()
}

/// Reads the section as the courier will read it.
fn parse(yaml: &str) -> Result<Arc<dyn AdapterConfig>, CliError> {
    let invalid = |error: monoco_core::config::InvalidConfig| {
        CliError::usage(error.to_string()).hint("`monoco email add --help` describes all options")
    };
    let file = ConfigFile::parse(yaml).map_err(invalid)?;
    let environment = ProcessEnvironment;
    let section = file.root(&environment).map_err(invalid)?;
    let section = section.with_shared_keys(&COMMON_TUNNEL_KEYS);
    let provider = registry::find("email").expect("the provider email is registered");
    provider.parse(&section, true).map_err(|error| {
        if error.unset {
            let message = format!("{error}; set it in this shell, too, to test the connections");
            return CliError::usage(message).hint("--no-test writes the file without a test");
        }
        invalid(error)
    })
}

/// Tests connections and logins with the config of the new account.
async fn test(
    context: &CliContext,
    id: TunnelId,
    config: &dyn AdapterConfig,
) -> Result<(), CliError> {
    let resources = AdapterResources::for_tests_of_connections();
    let adapter = config
        .build(id, &resources)
        .map_err(|why| CliError::new(CliExit::NotPossible, escape_line(&why)))?;
    let test = EmailTestView::from(adapter.probe().await);
    if context.format == output::OutputFormat::Json && test.ok {
        return Ok(());
    }
    super::show_test(context.format, &test)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let yaml = yaml(&section);
        let file = ConfigFile::parse(&yaml).unwrap();
        let root = file.root(&ProcessEnvironment).unwrap();
        assert_eq!(root.text("password_command").unwrap().as_deref(), Some(hostile));
        assert_eq!(root.section("imap").unwrap().text("port").unwrap().as_deref(), Some("1143"));
        assert!(parse(&yaml).is_ok(), "{yaml}");
    }
}
