//! Why an IMAP command failed, and what follows from it.

use monoco_core::retry::Failure;

use super::response::{ImapStatus, ResponseCode, shown};
use crate::InboundError;

/// Codes with which a server rejects a command for now (RFC 5530). The command is not at fault.
const TEMPORARY_CODES: [&str; 7] =
    ["UNAVAILABLE", "INUSE", "LIMIT", "OVERQUOTA", "SERVERBUG", "CONTACTADMIN", "THROTTLED"];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImapError {
    /// The connection cannot be opened.
    #[error("{}", .0.detail())]
    Connect(Failure),
    /// The connection is lost or unusable.
    #[error("{0}")]
    Lost(String),
    /// The server rejects the login, or offers none that can be used.
    #[error("{0}")]
    Login(String),
    /// The server answers a command with NO or BAD.
    #[error("{0}")]
    Rejected(RejectedCommand),
    /// The server does not open a folder.
    #[error("cannot open the folder {0:?}: {1}; check `folders`")]
    Folder(String, RejectedCommand),
    /// The courier could not store what was received.
    #[error("{0}")]
    Sink(InboundError),
}

/// The answer of a server that rejects a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server rejects {command}: {text}")]
pub struct RejectedCommand {
    /// The name of the command, without its arguments.
    pub command: &'static str,
    /// What the server wrote.
    pub text: String,
    /// Whether the same command can succeed later.
    pub temporary: bool,
}

impl ImapError {
    pub fn too_slow() -> Self {
        Self::Lost("no answer of the server in time".to_owned())
    }

    /// The failure of a command that the server answered with `status`.
    pub fn rejected(
        command: &'static str,
        status: ImapStatus,
        code: &ResponseCode,
        text: &str,
    ) -> Self {
        let name = code.name();
        let status = if status == ImapStatus::Bad { "BAD" } else { "NO" };
        let code = if name.is_empty() { String::new() } else { format!("[{name}] ") };
        let temporary = TEMPORARY_CODES.contains(&name);
        let text = shown(format!("{status} {code}{text}").as_bytes());
        Self::Rejected(RejectedCommand { command, text, temporary })
    }

    /// Tells whether the mail that was fetched alone can be at fault: a mail that fails in this
    /// way again and again is given up.
    pub fn blames_mail(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Sink(InboundError::Unusable(_)) => true,
            Self::Rejected(rejected) => !rejected.temporary,
            Self::Connect(_) | Self::Login(_) | Self::Folder(..) | Self::Sink(_) => false,
        }
    }

    /// Returns the failure of a single operation, such as a probe.
    pub fn failure(self) -> Failure {
        let detail = self.to_string();
        match self {
            Self::Connect(failure) => failure,
            Self::Login(_) => Failure::Permanent { detail, error_code: Some("login".to_owned()) },
            Self::Rejected(RejectedCommand { temporary: false, .. })
            | Self::Folder(_, RejectedCommand { temporary: false, .. }) => {
                Failure::Permanent { detail, error_code: None }
            }
            Self::Rejected(_) | Self::Folder(..) | Self::Lost(_) | Self::Sink(_) => {
                Failure::Temporary { detail, retry_after_ms: None, error_code: None }
            }
        }
    }
}
