//! Shell completion: commands, options, states and boxes, and ids that the courier knows.
//!
//! The scripts of bash, zsh and fish run `monoco __complete -- WORDS`, which prints candidates
//! for the last word. Without a courier, or when it does not answer within a second, there are
//! no ids.

use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use monoco_core::claim::ClaimState;
use monoco_core::contact::ContactLevel;
use monoco_core::delivery::SendState;
use monoco_core::did::EndpointKind;
use monoco_core::letter::{ChainDirection, LetterState};
use monoco_core::receipt::ReceiptStatus;
use monoco_core::record::{BoxKind, ReadState};
use serde_json::Value;

use super::CliContext;
use super::client::{Client, segment};
use super::failure::CliError;
use super::output::{escape_line, print};

/// How long a shell waits for the courier.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Boxes whose records are offered.
const MAX_BOXES: usize = 10;

// Bash completes what follows the last colon of a word, so the rest is cut from candidates.
const BASH: &str = r#"_monoco() {
    local line="${COMP_LINE:0:COMP_POINT}" word start candidate
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    start="${word%"${word##*:}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$start"}")
    done < <(monoco __complete -- "${words[@]:1}" 2> /dev/null)
}
complete -o default -F _monoco monoco
"#;

const ZSH: &str = r#"#compdef monoco
_monoco() {
    local -a candidates
    candidates=("${(@f)$(monoco __complete -- "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    if [[ -n "$candidates" ]]; then
        compadd -a candidates
    else
        _files
    fi
}
if [[ "$funcstack[1]" == _monoco ]]; then
    _monoco "$@"
else
    compdef _monoco monoco
fi
"#;

const FISH: &str = r"complete --command monoco --arguments \
    '(monoco __complete -- (commandline -opc)[2..] (commandline -ct) 2> /dev/null)'
";

/// Returns the script of a shell; `None` when the shell completes only commands and options.
pub const fn script(shell: Shell) -> Option<&'static str> {
    match shell {
        Shell::Bash => Some(BASH),
        Shell::Zsh => Some(ZSH),
        Shell::Fish => Some(FISH),
        _ => None,
    }
}

/// Prints the candidates for the last of `words`, the arguments so far.
pub async fn run(context: &CliContext, cli: Command, words: &[String]) -> Result<(), CliError> {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
    let mut candidates = match place(cli, before) {
        Place::Value(path, arg) => values(context, &path, &arg).await,
        Place::Word(command, _, _) if last.starts_with('-') => options(&command),
        Place::Word(command, path, position) => {
            let mut names = subcommands(&command);
            if let Some(arg) = positional(&command, position) {
                names.extend(values(context, &path, arg).await);
            }
            names
        }
    };
    candidates.retain(|candidate| candidate.starts_with(last));
    candidates.sort();
    candidates.dedup();
    candidates.iter().try_for_each(|candidate| print(&escape_line(candidate)))
}

/// What the last word is.
enum Place {
    /// A value of an option of the command with this path.
    Value(Vec<String>, Arg),
    /// An option, a subcommand, or the positional argument with this number.
    Word(Command, Vec<String>, usize),
}

/// Follows the words before the last one through the commands.
fn place(mut command: Command, words: &[String]) -> Place {
    command.build();
    let (mut path, mut position) = (Vec::new(), 0);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix('-') {
            let arg = option_of(&command, option).filter(|arg| takes_value(arg)).cloned();
            if let Some(arg) = arg
                && words.next().is_none()
            {
                return Place::Value(path, arg);
            }
        } else if let Some(sub) = command.find_subcommand(word).cloned() {
            path.push(sub.get_name().to_owned());
            (command, position) = (sub, 0);
        } else {
            position += 1;
        }
    }
    Place::Word(command, path, position)
}

/// Finds an option by its name after the first dash. `--name=value` needs no further word.
fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| match name.strip_prefix('-') {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| name == short.to_string()),
    })
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect()
}

fn subcommands(command: &Command) -> Vec<String> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown.map(|sub| sub.get_name().to_owned()).collect()
}

/// Returns a positional argument by its number. The last one can be repeated.
fn positional(command: &Command, number: usize) -> Option<&Arg> {
    let all: Vec<_> = command.get_positionals().collect();
    let repeated = all.last().filter(|arg| matches!(arg.get_action(), ArgAction::Append));
    all.get(number).or(repeated).copied()
}

/// Returns the candidates for a value: those of the parser, or those of the name of the argument.
async fn values(context: &CliContext, path: &[String], arg: &Arg) -> Vec<String> {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        return possible.iter().map(|value| value.get_name().to_owned()).collect();
    }
    let command = path.first().map_or("", String::as_str);
    let group = path.get(1).is_some_and(|name| name == "group");
    match (command, arg.get_id().as_str()) {
        (_, "box_kind") => words(BoxKind::ALL.map(BoxKind::as_str)),
        ("pipeline", "state") => lower_case(LetterState::ALL.map(LetterState::as_str)),
        ("mailbox", "status") => lower_case(ClaimState::ALL.map(ClaimState::as_str)),
        (_, "state") => {
            let mut states = words(ReadState::ALL.map(ReadState::as_str));
            states.extend(words(SendState::ALL.map(SendState::as_str)));
            states
        }
        (_, "set") => words(ReceiptStatus::ALL.map(ReceiptStatus::as_str)),
        (_, "direction") => words(ChainDirection::ALL.map(ChainDirection::as_str)),
        (_, "level") => words(ContactLevel::ALL.map(ContactLevel::as_str)),
        ("contact", "kind") => EndpointKind::ALL.map(|kind| kind.to_string()).to_vec(),
        (command, name) => {
            let Ok(client) = context.client() else { return Vec::new() };
            let found = tokio::time::timeout(TIMEOUT, ids(&client, command, name, group)).await;
            found.unwrap_or_default()
        }
    }
}

/// Asks the courier for ids.
async fn ids(client: &Client, command: &str, name: &str, group: bool) -> Vec<String> {
    let list = async |path: &str, list: &str, field: &str| {
        client.get(path).await.map_or_else(|_| Vec::new(), |page| fields(&page, list, field))
    };
    let mails = async || list("/api/v1/messages", "messages", "id").await;
    let letters = async || list("/api/v1/letters", "letters", "id").await;
    match (command, name) {
        (_, "tunnel") => list("/api/v1/tunnels", "tunnels", "id").await,
        (_, "owner") => list("/api/v1/boxes", "boxes", "owner").await,
        ("contact", "did") if group => list("/api/v1/groups", "groups", "did").await,
        (_, "group") => list("/api/v1/groups", "groups", "did").await,
        ("contact", "did" | "target" | "reader")
        | ("center", "from" | "source" | "to" | "with" | "reader")
        | ("forget", "did") => list("/api/v1/contacts", "contacts", "did").await,
        ("pipeline", "id" | "ids") => letters().await,
        ("mailbox", "id" | "ids" | "reply_to") => mails().await,
        ("center", "record" | "delivery") => records(client).await,
        ("dead", "id" | "ids") => {
            let mut all = list("/api/v1/dead", "claims", "id").await;
            all.extend(list("/api/v1/dead", "deliveries", "record_id").await);
            all.extend(list("/api/v1/dead", "letters", "id").await);
            all
        }
        ("dead", "workspace") => list("/api/v1/dead", "claims", "workspace").await,
        ("trace", "id") => [mails().await, letters().await, records(client).await].concat(),
        _ => Vec::new(),
    }
}

/// Returns the newest records and deliveries of all boxes.
async fn records(client: &Client) -> Vec<String> {
    let Ok(boxes) = client.get::<Value>("/api/v1/boxes").await else { return Vec::new() };
    let mut all = Vec::new();
    let (owners, kinds) = (fields(&boxes, "boxes", "owner"), fields(&boxes, "boxes", "box"));
    for (owner, kind) in owners.iter().zip(kinds).take(MAX_BOXES) {
        let path = format!("/api/v1/boxes/{}/{kind}", segment(owner));
        let page = client.get::<Value>(&path).await.unwrap_or_default();
        all.extend(fields(&page, "records", "record_id"));
    }
    all
}

/// Returns one field of each entry of a list.
fn fields(page: &Value, list: &str, field: &str) -> Vec<String> {
    let entries = page[list].as_array().into_iter().flatten();
    entries.filter_map(|entry| entry[field].as_str().map(str::to_owned)).collect()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn lower_case<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_lowercase).to_vec()
}
