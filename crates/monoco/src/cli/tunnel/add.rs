//! `monoco tunnel add`: asks for what the provider needs, tests it and writes the tunnel's file.

use monoco_adapters::registry::{self, PROVIDERS, Provider};
use monoco_core::config::or_list;
use monoco_core::filter::nearest;
use serde_json::json;

use super::answers::TunnelAnswers;
use super::file::{ConfigFileArgs, TunnelFile};
use super::prompt::{self, Prompt, TerminalPrompt};
use super::show_test;
use super::test_message::{self, TestMessage, TestMessageArgs};
use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat};

#[derive(Debug, clap::Args)]
pub struct TunnelAddArgs {
    /// Provider of the tunnel, such as slack, dingtalk, email or webhook
    provider: String,
    /// Id of the tunnel, and the name of its file [default: the provider]
    #[arg(long)]
    name: Option<String>,
    /// Set a key of the tunnel, as KEY=VALUE (can be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Set the source of a secret: KEY=env:VARIABLE, KEY=file:PATH, KEY=command:COMMAND or
    /// KEY=stdin (can be repeated)
    ///
    /// With stdin, the secret is the next line of stdin. It is stored in a file of its own, which
    /// only you can read.
    #[arg(long, value_name = "KEY=SOURCE")]
    secret: Vec<String>,
    /// Address of the provider's API, same as --set base_url=URL
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Ask only for what the provider requires
    #[arg(long)]
    yes: bool,
    /// Write the file without testing the connections
    #[arg(long)]
    no_test: bool,
    #[command(flatten)]
    message: TestMessageArgs,
    #[command(flatten)]
    config: ConfigFileArgs,
}

pub async fn run(context: &CliContext, args: TunnelAddArgs) -> Result<(), CliError> {
    let provider = find_provider(&args.provider)?;
    let name = args.name.as_deref().unwrap_or(provider.name);
    let file = TunnelFile::new(&context.home, name, &args.config)?;
    file.check_new("monoco tunnel remove")?;
    let mut answers = TunnelAnswers::new(provider.name);
    let mut set = args.set;
    set.extend(args.base_url.map(|url| format!("base_url={url}")));
    let (questions, dir) = (provider.questions, file.secret_dir());
    answers.set_all(&set, questions)?;
    answers.set_secrets(&args.secret, questions, &dir, prompt::secrets_from_stdin)?;
    answers.ask(questions, &dir, args.yes, &mut TerminalPrompt)?;
    let message = args.message.resolve(&file.id)?;
    let message = match message {
        None if !args.yes && !args.no_test && context.home.running().is_some() => {
            ask_for_message(&file, &mut TerminalPrompt)?
        }
        message => message,
    };
    add(context, &file, &answers, args.no_test, "monoco tunnel add").await?;
    if let Some(message) = message {
        test_message::send(context, &message).await?;
    }
    if context.format == OutputFormat::Json {
        output::print_json(&json!({"id": file.id, "file": file.path}))?;
    }
    Ok(())
}

/// Tests the connections of a new tunnel, writes its file and reloads the courier. Also used by
/// `monoco email add`.
pub async fn add(
    context: &CliContext,
    file: &TunnelFile,
    answers: &TunnelAnswers,
    no_test: bool,
    command: &str,
) -> Result<(), CliError> {
    let config = match file.parse(answers, command) {
        // Only the courier may have the variable.
        Err(error)
            if no_test && error.hint.as_deref().is_some_and(|it| it.contains("--no-test")) =>
        {
            None
        }
        config => Some(config?),
    };
    if let Some(config) = config.filter(|_| !no_test) {
        let test = file.probe(&config).await?;
        if context.format != OutputFormat::Json || !test.ok {
            show_test(context.format, &test)?;
        }
    }
    file.write(context, answers)?;
    file.activate(context, no_test)
}

fn find_provider(name: &str) -> Result<&'static Provider, CliError> {
    registry::find(name).ok_or_else(|| {
        let names: Vec<_> = PROVIDERS.iter().map(|provider| provider.name).collect();
        let hint = match nearest(name, &names) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("expected {}", or_list(&names)),
        };
        CliError::usage(format!("unknown provider {name:?}")).hint(hint)
    })
}

/// Asks on the terminal whether to send a test message.
fn ask_for_message(
    file: &TunnelFile,
    prompt: &mut dyn Prompt,
) -> Result<Option<TestMessage>, CliError> {
    let text = "account for a test message, as ADDRESS or KIND:ADDRESS [none]: ";
    let answer = prompt.ask(text, false)?.filter(|answer| !answer.is_empty());
    answer.map(|answer| TestMessage::parse(&answer, &file.id)).transpose()
}

/// Removes the file of a tunnel, and the tunnel from the running courier.
pub fn remove(context: &CliContext, file: &TunnelFile) -> Result<(), CliError> {
    file.remove(context)?;
    let id = &file.id;
    output::done(context.format, &format!("removed tunnel {id}"), &json!({"removed": id}))
}
