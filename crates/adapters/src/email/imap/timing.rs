//! Time limits of the IMAP client.

use std::time::Duration;

use monoco_core::retry::Backoff;

/// Time limits of one account. Tests use shorter ones.
#[derive(Clone, Copy, Debug)]
pub struct ImapTiming {
    /// Time for a command with a short answer.
    pub command: Duration,
    /// How long the server may send nothing while a response is expected.
    pub silence: Duration,
    /// Time for the answer to DONE. A server that is gone does not answer.
    pub done: Duration,
    /// How long one IDLE lasts. Servers may close a connection that is idle for 30 minutes, and
    /// routers forget it after 5.
    pub idle: Duration,
    /// How long NOOP is trusted to announce mails of an open folder, when a scan is asked for.
    /// Then the folder is opened again, which costs servers time in proportion to its mails.
    pub reopen: Duration,
    /// Delay before the next connection.
    pub connect_backoff: Backoff,
    /// Delay after a rejected login. Providers lock accounts that try too often.
    pub login_backoff: Backoff,
}

impl Default for ImapTiming {
    fn default() -> Self {
        Self {
            command: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            done: Duration::from_secs(15),
            idle: Duration::from_secs(270),
            reopen: Duration::from_secs(60),
            connect_backoff: Backoff {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(300),
            },
            login_backoff: Backoff {
                first: Duration::from_secs(30),
                longest: Duration::from_secs(900),
            },
        }
    }
}
