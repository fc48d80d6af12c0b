//! What is known about a new tunnel: values of options, answers to the questions of its provider,
//! and where its secrets come from.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use monoco_adapters::setup::{ANY_VALUE, SetupQuestion};
use monoco_core::config::{ConfigEnvironment, Secret};
use monoco_core::filter::nearest;
use serde_json::{Map, Value, json};

use super::prompt::Prompt;
use crate::cli::failure::CliError;
use monoco_courier::config::environment::ProcessEnvironment;

/// How to give what is missing.
const OPTIONS_HINT: &str = "give values with --set KEY=VALUE, and secrets with --secret \
                            KEY=env:VARIABLE, KEY=file:PATH, KEY=command:COMMAND or KEY=stdin";

/// The section of a new tunnel, and the secrets that are to be stored in files.
#[derive(Debug, Default)]
pub struct TunnelAnswers {
    section: Map<String, Value>,
    /// Secrets that the user entered, by the file that will have them.
    secret_files: BTreeMap<PathBuf, Secret>,
}

/// Where a secret comes from.
#[derive(Debug, PartialEq, Eq)]
enum SecretOrigin {
    Variable(String),
    File(String),
    Command(String),
    /// Entered by the user, and stored in a file that only the user can read.
    Entered(Secret),
}

impl SecretOrigin {
    /// Parses `env:VARIABLE`, `file:PATH` or `command:COMMAND`. Returns `None` for other texts.
    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let rest = Some(rest.trim()).filter(|rest| !rest.is_empty())?.to_owned();
        match kind {
            "env" => Some(Self::Variable(rest)),
            "file" => Some(Self::File(rest)),
            "command" => Some(Self::Command(rest)),
            _ => None,
        }
    }
}

impl TunnelAnswers {
    pub fn new(provider: &str) -> Self {
        Self {
            section: Map::from_iter([("provider".to_owned(), json!(provider))]),
            ..Self::default()
        }
    }

    /// Answers with a section that another command has built.
    pub fn from_section(section: Map<String, Value>) -> Self {
        Self { section, ..Self::default() }
    }

    /// Sets values of the form `KEY=VALUE`. A value in the form of a JSON list or object is one.
    pub fn set_all(
        &mut self,
        pairs: &[String],
        questions: &[SetupQuestion],
    ) -> Result<(), CliError> {
        for pair in pairs {
            let (key, value) = key_and_value(pair, "--set")?;
            let is_secret = questions.iter().any(|question| question.secret && question.key == key);
            if is_secret && !value.starts_with("${") {
                let message = format!("{key} is a secret, which the file must not have");
                return Err(CliError::usage(message).hint(OPTIONS_HINT));
            }
            let value = match value.starts_with(['[', '{']) {
                true => serde_json::from_str(value).unwrap_or_else(|_| json!(value)),
                false => json!(value),
            };
            self.insert(key, value)?;
        }
        Ok(())
    }

    /// Sets the sources of secrets of the form `KEY=SOURCE`. Each `stdin` takes the next line of
    /// `lines`. Secrets that are entered will be in files of `dir`.
    pub fn set_secrets(
        &mut self,
        pairs: &[String],
        questions: &[SetupQuestion],
        dir: &SecretDir<'_>,
        lines: impl FnOnce(usize) -> Result<VecDeque<String>, CliError>,
    ) -> Result<(), CliError> {
        let pairs: Vec<_> =
            pairs.iter().map(|pair| key_and_value(pair, "--secret")).collect::<Result<_, _>>()?;
        let wanted = pairs.iter().filter(|(_, source)| *source == "stdin").count();
        let mut lines = if wanted > 0 { lines(wanted)? } else { VecDeque::new() };
        for (key, source) in pairs {
            check_secret_key(key, questions)?;
            let origin = match source {
                "stdin" => lines.pop_front().map(|line| SecretOrigin::Entered(Secret::new(line))),
                source => SecretOrigin::parse(source),
            };
            let origin = origin.ok_or_else(|| {
                // The text may be the secret itself, so it is not repeated.
                let expected = "expected env:VARIABLE, file:PATH, command:COMMAND or stdin";
                CliError::usage(format!("--secret {key}: {expected}"))
            })?;
            self.insert_secret(key, origin, dir)?;
        }
        Ok(())
    }

    /// Asks for what is not given: with `only_required`, only for what the provider requires.
    ///
    /// # Errors
    ///
    /// Names all required values that are missing when nothing can be asked.
    pub fn ask(
        &mut self,
        questions: &[SetupQuestion],
        dir: &SecretDir<'_>,
        only_required: bool,
        prompt: &mut dyn Prompt,
    ) -> Result<(), CliError> {
        let mut missing = Vec::new();
        for question in questions {
            let applies = question.only_if.is_none_or(|(key, value)| {
                let default = || questions.iter().find(|it| it.key == key)?.default;
                let found = self.text(key).or_else(default);
                if value == ANY_VALUE { found.is_some() } else { found == Some(value) }
            });
            let skipped = only_required && !question.required;
            if !applies || skipped || self.has(question) {
                continue;
            }
            let text = prompt_text(question);
            let answer = prompt.ask(&text, question.secret)?.filter(|text| !text.is_empty());
            match answer {
                None if question.required => missing.push(question),
                None => {}
                Some(answer) if question.secret => {
                    let entered = || SecretOrigin::Entered(Secret::new(answer.as_str()));
                    let origin = SecretOrigin::parse(&answer).unwrap_or_else(entered);
                    self.insert_secret(question.key, origin, dir)?;
                }
                Some(answer) => self.insert(question.key, json!(answer))?,
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let named = |question: &&SetupQuestion| format!("{} ({})", question.key, question.prompt);
        let missing: Vec<_> = missing.iter().map(named).collect();
        Err(CliError::usage(format!("missing: {}", missing.join(", "))).hint(OPTIONS_HINT))
    }

    /// The section as YAML: one line per key, values in the form of JSON, which is YAML too.
    pub fn yaml(&self) -> String {
        self.section.iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
    }

    /// The files of secrets that the user entered, and their contents.
    pub fn secret_files(&self) -> &BTreeMap<PathBuf, Secret> {
        &self.secret_files
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.section.get(key).and_then(Value::as_str)
    }

    fn has(&self, question: &SetupQuestion) -> bool {
        let is_set = |key: &str| match key.split_once('.') {
            Some((section, key)) => {
                self.section.get(section).is_some_and(|it| it.get(key).is_some())
            }
            None => self.section.contains_key(key),
        };
        let sources = ["_file", "_command"].map(|ending| format!("{}{ending}", question.key));
        is_set(question.key) || (question.secret && sources.iter().any(|key| is_set(key)))
    }

    fn insert_secret(
        &mut self,
        key: &str,
        origin: SecretOrigin,
        dir: &SecretDir<'_>,
    ) -> Result<(), CliError> {
        match origin {
            SecretOrigin::Variable(name) => self.insert(key, json!(format!("${{{name}}}"))),
            SecretOrigin::File(path) => {
                let path = match path.starts_with('~') {
                    true => PathBuf::from(path),
                    false => std::path::absolute(path)?,
                };
                self.insert(&format!("{key}_file"), json!(path))
            }
            // A `${` of the command is for the shell.
            SecretOrigin::Command(command) => {
                self.insert(&format!("{key}_command"), json!(command.replace("${", "$${")))
            }
            SecretOrigin::Entered(secret) => {
                let path = dir.file(key);
                self.secret_files.insert(path.clone(), secret);
                self.insert(&format!("{key}_file"), json!(path))
            }
        }
    }

    /// Sets a key, or a key of a section when it has the form `section.key`.
    fn insert(&mut self, key: &str, value: Value) -> Result<(), CliError> {
        let Some((section, inner)) = key.split_once('.') else {
            self.section.insert(key.to_owned(), value);
            return Ok(());
        };
        let entry = self.section.entry(section.to_owned()).or_insert_with(|| json!({}));
        let Some(entry) = entry.as_object_mut() else {
            return Err(CliError::usage(format!("{key}: {section} is already set to one value")));
        };
        entry.insert(inner.to_owned(), value);
        Ok(())
    }
}

/// Reads files of secrets before they are written.
impl ConfigEnvironment for TunnelAnswers {
    fn variable(&self, name: &str) -> Option<String> {
        ProcessEnvironment.variable(name)
    }

    fn read_secret_file(&self, path: &Path) -> Result<Secret, String> {
        match self.secret_files.get(path) {
            Some(secret) => Ok(secret.clone()),
            None => ProcessEnvironment.read_secret_file(path),
        }
    }
}

/// The directory of secrets that users enter, and the tunnel that they belong to.
#[derive(Clone, Copy, Debug)]
pub struct SecretDir<'a> {
    pub path: &'a Path,
    pub tunnel: &'a str,
}

impl SecretDir<'_> {
    /// The file of the secret `key`. Keys have no dots, so no other tunnel has this file.
    pub fn file(&self, key: &str) -> PathBuf {
        self.path.join(format!("{}.{key}", self.tunnel))
    }
}

fn key_and_value<'a>(pair: &'a str, option: &str) -> Result<(&'a str, &'a str), CliError> {
    let parts = pair.split_once('=').filter(|(key, _)| !key.is_empty());
    // A text without `=` may be a secret, so it is not repeated.
    parts.ok_or_else(|| CliError::usage(format!("{option}: expected KEY=VALUE")))
}

/// Rejects a key that is no secret of the provider.
fn check_secret_key(key: &str, questions: &[SetupQuestion]) -> Result<(), CliError> {
    let keys: Vec<_> = questions.iter().filter(|it| it.secret).map(|it| it.key).collect();
    if keys.contains(&key) {
        return Ok(());
    }
    let hint = match nearest(key, &keys) {
        Some(meant) => format!("did you mean {meant}?"),
        None if keys.is_empty() => "the provider has no secrets".to_owned(),
        None => format!("the secrets of the provider are {}", keys.join(", ")),
    };
    Err(CliError::usage(format!("--secret: unknown secret {key:?}")).hint(hint))
}

fn prompt_text(question: &SetupQuestion) -> String {
    let SetupQuestion { prompt, default, required, .. } = question;
    match (question.secret, default) {
        (true, _) => {
            format!("{prompt}\n  paste it, or enter env:VARIABLE, file:PATH or command:COMMAND: ")
        }
        (false, Some(default)) => format!("{prompt} [{default}]: "),
        (false, None) if *required => format!("{prompt}: "),
        (false, None) => format!("{prompt} [none]: "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::prompt::tests::ScriptedPrompt;
    use super::*;

    const QUESTIONS: &[SetupQuestion] = &[
        SetupQuestion::optional("mode", "how to receive").with_default("socket"),
        SetupQuestion::required("app_token", "app token").secret().only_if("mode", "socket"),
        SetupQuestion::required("signing_secret", "key").secret().only_if("mode", "webhook"),
        SetupQuestion::required("imap.host", "server"),
        SetupQuestion::optional("base_url", "address of the API"),
    ];

    fn dir() -> SecretDir<'static> {
        SecretDir { path: Path::new("/home/ann/secrets"), tunnel: "work" }
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn lines(list: &[&str]) -> VecDeque<String> {
        texts(list).into()
    }

    fn answers(set: &[&str], secrets: &[&str], stdin: &[&str]) -> Result<TunnelAnswers, CliError> {
        let mut answers = TunnelAnswers::new("toy");
        answers.set_all(&texts(set), QUESTIONS)?;
        answers.set_secrets(&texts(secrets), QUESTIONS, &dir(), |_| Ok(lines(stdin)))?;
        Ok(answers)
    }

    #[test]
    fn only_questions_that_apply_and_are_not_answered_are_asked() {
        let mut prompt = ScriptedPrompt::new(&["", "xapp-1", "mail.example.com", ""]);
        let mut asked = answers(&[], &[], &[]).unwrap();
        asked.ask(QUESTIONS, &dir(), false, &mut prompt).unwrap();
        assert_eq!(prompt.asked, ["how to receive", "app token", "server", "address of the API"]);
        assert_eq!(prompt.hidden, 1, "a secret is not shown");
        assert_eq!(
            asked.yaml(),
            "app_token_file: \"/home/ann/secrets/work.app_token\"\n\
             imap: {\"host\":\"mail.example.com\"}\nprovider: \"toy\"\n"
        );
        let path = Path::new("/home/ann/secrets/work.app_token");
        assert_eq!(asked.read_secret_file(path).unwrap().expose(), "xapp-1");
        assert!(!format!("{asked:?}").contains("xapp-1"), "debug output hides secrets");

        let mut prompt = ScriptedPrompt::new(&["env:KEY"]);
        let mut given = answers(&["mode=webhook", "imap.host=a", "imap.port=1"], &[], &[]).unwrap();
        given.ask(QUESTIONS, &dir(), true, &mut prompt).unwrap();
        assert_eq!(prompt.asked, ["key"], "optional values are not asked for");
        assert!(given.yaml().contains("signing_secret: \"${KEY}\"\n"), "{}", given.yaml());
        assert!(given.yaml().contains(r#"imap: {"host":"a","port":"1"}"#), "{}", given.yaml());
    }

    #[test]
    fn without_a_terminal_everything_missing_is_named_at_once() {
        let mut none = ScriptedPrompt::without_terminal();
        let error = answers(&[], &[], &[]).unwrap().ask(QUESTIONS, &dir(), false, &mut none);
        let error = error.unwrap_err();
        assert_eq!(error.message, "missing: app_token (app token), imap.host (server)");
        assert!(error.hint.unwrap().contains("--secret KEY=env:VARIABLE"));
    }

    #[test]
    fn secrets_are_given_by_their_source() {
        for (source, line) in [
            ("env:TOKEN", r#"app_token: "${TOKEN}""#),
            ("file:/run/token", r#"app_token_file: "/run/token""#),
            ("file:~/token", r#"app_token_file: "~/token""#),
            ("command:pass show ${A}", r#"app_token_command: "pass show $${A}""#),
            ("stdin", r#"app_token_file: "/home/ann/secrets/work.app_token""#),
        ] {
            let given = answers(&[], &[&format!("app_token={source}")], &["s3cret"]).unwrap();
            assert_eq!(given.yaml(), format!("{line}\nprovider: \"toy\"\n"));
            assert_eq!(given.secret_files().len(), usize::from(source == "stdin"));
        }
    }

    #[test]
    fn errors_do_not_repeat_a_secret() {
        for (set, secret) in [
            (&["app_token=s3cret"][..], &[][..]),
            (&["s3cret"], &[]),
            (&[], &["s3cret"]),
            (&[], &["app_token=s3cret"]),
            (&[], &["app_tokn=env:A"]),
            (&[], &["app_token=env:"]),
            (&[], &["app_token=stdin"]),
        ] {
            let error = answers(set, secret, &[]).unwrap_err();
            let text = format!("{} {}", error.message, error.hint.unwrap_or_default());
            assert!(!text.contains("s3cret"), "{text}");
        }
        let error = answers(&[], &["app_tokn=env:A"], &[]).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean app_token?"));
        assert!(answers(&["app_token=${TOKEN}"], &[], &[]).is_ok(), "a variable is a source");
    }
}
