//! Errors of commands and their exit codes.

use std::borrow::Cow;
use std::process::ExitCode;

use monoco_courier::home::HomeError;
use monoco_courier::serve::StartError;

/// Exit codes of commands. Scripts depend on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CliExit {
    /// The object does not exist or does not allow the operation. For `courier start`:
    /// the start failed.
    NotPossible = 1,
    /// Another agent holds it. For `courier start`: a courier is already running.
    Held = 2,
    /// No courier is running. For `courier start`: permission denied.
    NoCourier = 3,
    /// The courier failed. For `courier start`: the port is in use.
    Courier = 4,
    /// The command line is invalid.
    Usage = 64,
    /// A local file or directory cannot be read or written.
    LocalFile = 74,
}

/// Error of a command, with an optional next step for the user.
#[derive(Debug)]
pub struct CliError {
    pub exit: CliExit,
    /// For programs: the code of the API, or that of the exit code.
    pub code: Cow<'static, str>,
    pub message: String,
    pub hint: Option<String>,
}

impl CliExit {
    /// Returns the meaning of an exit code of `courier start`.
    pub fn of_start(code: i32) -> Option<Self> {
        let all = [Self::NotPossible, Self::Held, Self::NoCourier, Self::Courier, Self::Usage];
        all.into_iter().find(|exit| *exit as i32 == code)
    }

    /// Returns the code of errors that have no other code.
    const fn code(self) -> &'static str {
        match self {
            Self::NotPossible => "not_possible",
            Self::Held => "held",
            Self::NoCourier => "no_courier",
            Self::Courier => "courier_error",
            Self::Usage => "usage",
            Self::LocalFile => "local_file",
        }
    }
}

impl CliError {
    pub fn new(exit: CliExit, message: impl Into<String>) -> Self {
        Self { exit, code: exit.code().into(), message: message.into(), hint: None }
    }

    pub fn code(self, code: impl Into<Cow<'static, str>>) -> Self {
        Self { code: code.into(), ..self }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub fn no_courier() -> Self {
        Self::new(CliExit::NoCourier, "no courier is running")
            .hint("start it with `monoco courier start`, or `monoco courier start --foreground` to see its log")
    }

    /// Error for a courier that is starting or stopping.
    pub fn not_ready(pid: i32, state: &str) -> Self {
        let message = format!("the courier (process {pid}) is {state}");
        Self::new(CliExit::NoCourier, message)
            .hint("try again in a moment; `monoco courier logs` shows what the courier is doing")
    }

    /// Error for a response of the courier that does not have the expected form.
    pub fn invalid_response(error: &serde_json::Error) -> Self {
        Self::new(CliExit::Courier, format!("cannot parse the courier's response: {error}"))
            .hint("check that CLI and courier have the same version: `monoco courier restart`")
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(CliExit::Usage, message)
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl From<HomeError> for CliError {
    fn from(error: HomeError) -> Self {
        Self::new(CliExit::NotPossible, error.to_string())
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::new(CliExit::LocalFile, error.to_string())
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> Self {
        let message = error.to_string();
        match error {
            StartError::Home(HomeError::Taken(_)) => {
                Self::new(CliExit::Held, message).code("already_running").hint(
                    "`monoco courier status` shows the running courier, `monoco courier stop` \
                     stops it",
                )
            }
            StartError::Home(home) if home.is_permission() => permission_denied(message).hint(
                "change the owner of the directory, or set MONOCO_HOME to a directory that you own",
            ),
            StartError::Config(config) if config.is_permission() => {
                permission_denied(message).hint("change the owner or the permissions of the file")
            }
            StartError::OpenMailbox { path, .. } => {
                let hint = format!("run `chmod go-w {}`", path.display());
                start_failed(message).hint(hint)
            }
            StartError::Config(_) => start_failed(message),
            StartError::ListenRemote { error, .. }
                if error.kind() == std::io::ErrorKind::AddrInUse =>
            {
                Self::new(CliExit::Courier, message).code("port_in_use")
            }
            StartError::Listen { error, .. }
            | StartError::ListenRemote { error, .. }
            | StartError::System(error)
                if error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                permission_denied(message)
            }
            StartError::PortInUse(_) => Self::new(CliExit::Courier, message)
                .code("port_in_use")
                .hint("select other ports with --port and --webhook-port; 0 selects a free port"),
            _ => start_failed(message),
        }
    }
}

fn start_failed(message: String) -> CliError {
    CliError::new(CliExit::NotPossible, message).code("start_failed")
}

fn permission_denied(message: String) -> CliError {
    CliError::new(CliExit::NoCourier, message).code("permission_denied")
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(exit as u8)
    }
}
