//! Asks questions on the terminal. Secrets are not shown while they are entered.

use std::collections::VecDeque;
use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::cli::failure::CliError;

/// Longest secret that is read from stdin, in bytes.
const MAX_SECRET_BYTES: usize = 64 << 10;

/// Asks the user for values.
pub trait Prompt {
    /// Asks one question and returns the answer without white space around it. Returns `None`
    /// when there is no terminal.
    fn ask(&mut self, text: &str, hidden: bool) -> Result<Option<String>, CliError>;
}

/// Asks on the terminal of stdin; the questions go to stderr.
pub struct TerminalPrompt;

impl Prompt for TerminalPrompt {
    fn ask(&mut self, text: &str, hidden: bool) -> Result<Option<String>, CliError> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let mut stderr = io::stderr();
        write!(stderr, "{text}")?;
        stderr.flush()?;
        let echo = if hidden { HiddenInput::start() } else { None };
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        if echo.is_some() {
            writeln!(stderr)?;
        }
        Ok(Some(line.trim().to_owned()))
    }
}

/// Turns the echo of the terminal off until it is dropped.
struct HiddenInput(Termios);

impl HiddenInput {
    /// Returns `None` when the terminal cannot be changed.
    fn start() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden).ok()?;
        Some(Self(before))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Reads `count` secrets from stdin, one per line.
pub fn secrets_from_stdin(count: usize) -> Result<VecDeque<String>, CliError> {
    let mut lines = VecDeque::new();
    for line in io::stdin().lock().lines().take(count) {
        let line = line?.trim().to_owned();
        if line.is_empty() || line.len() > MAX_SECRET_BYTES {
            let message = format!("line {} of stdin: expected a secret", lines.len() + 1);
            return Err(CliError::usage(message));
        }
        lines.push_back(line);
    }
    match lines.len() {
        found if found < count => Err(CliError::usage(format!(
            "stdin has {found} lines, expected {count}: one for each --secret KEY=stdin, in order"
        ))),
        _ => Ok(lines),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Gives the answers of a test.
    pub struct ScriptedPrompt {
        answers: VecDeque<String>,
        terminal: bool,
        /// The beginnings of the questions.
        pub asked: Vec<String>,
        pub hidden: usize,
    }

    impl ScriptedPrompt {
        pub fn new(answers: &[&str]) -> Self {
            let answers = answers.iter().map(|answer| (*answer).to_owned()).collect();
            Self { answers, terminal: true, asked: Vec::new(), hidden: 0 }
        }

        pub fn without_terminal() -> Self {
            Self { terminal: false, ..Self::new(&[]) }
        }
    }

    impl Prompt for ScriptedPrompt {
        fn ask(&mut self, text: &str, hidden: bool) -> Result<Option<String>, CliError> {
            if !self.terminal {
                return Ok(None);
            }
            let end = text.find(['\n', ':', '[']).unwrap_or(text.len());
            self.asked.push(text[..end].trim().to_owned());
            self.hidden += usize::from(hidden);
            Ok(Some(self.answers.pop_front().expect("no further question")))
        }
    }
}
