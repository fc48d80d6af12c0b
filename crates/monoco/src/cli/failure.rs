//! Why a command failed, and the exit code that says so.

use std::process::ExitCode;

use crate::home::HomeError;
use crate::serve::StartError;

/// What the exit codes of commands mean. They are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CliExit {
    /// There is no such thing, or it can't be done with it. For `courier start`:
    /// it failed.
    NotPossible = 1,
    /// Somebody else holds it. For `courier start`: one is already running.
    Held = 2,
    /// No courier is running. For `courier start`: permission denied.
    NoCourier = 3,
    /// The courier failed. For `courier start`: the port is in use.
    Courier = 4,
    /// The command line was not understood.
    Usage = 64,
}

/// A failed command: what is wrong, and what to do about it.
#[derive(Debug)]
pub struct CliError {
    pub exit: CliExit,
    pub message: String,
    pub hint: Option<String>,
}

impl CliExit {
    /// What a `courier start` that ended with this code meant.
    pub fn of_start(code: i32) -> Option<Self> {
        let all = [Self::NotPossible, Self::Held, Self::NoCourier, Self::Courier, Self::Usage];
        all.into_iter().find(|exit| *exit as i32 == code)
    }
}

impl CliError {
    pub fn new(exit: CliExit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub fn no_courier() -> Self {
        Self::new(CliExit::NoCourier, "no courier is running")
            .hint("start one with `monoco courier start`, or to watch it with `monoco courier start --foreground`")
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(CliExit::Usage, message)
    }
}

impl From<HomeError> for CliError {
    fn from(error: HomeError) -> Self {
        Self::new(CliExit::NotPossible, error.to_string())
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::new(CliExit::NotPossible, error.to_string())
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> Self {
        let message = error.to_string();
        match error {
            StartError::Home(HomeError::Taken(_)) => Self::new(CliExit::Held, message)
                .hint("`monoco courier status` shows it, `monoco courier stop` ends it"),
            StartError::Home(home) if home.is_permission() => {
                Self::new(CliExit::NoCourier, message)
                    .hint("make the directory yours, or set MONOCO_HOME to one that is")
            }
            StartError::Config(config) if config.is_permission() => {
                Self::new(CliExit::NoCourier, message).hint("make the file yours")
            }
            StartError::Config(_) => Self::new(CliExit::NotPossible, message),
            StartError::Listen { error, .. } | StartError::System(error)
                if error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Self::new(CliExit::NoCourier, message)
            }
            StartError::PortInUse(_) => Self::new(CliExit::Courier, message).hint(
                "choose others with --port and --webhook-port, or --port 0 for any that are free",
            ),
            _ => Self::new(CliExit::NotPossible, message),
        }
    }
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(exit as u8)
    }
}
