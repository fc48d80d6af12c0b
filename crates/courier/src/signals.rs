//! Process signals: SIGTERM and SIGINT stop the courier, SIGHUP reloads its config.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the courier handles.
pub struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    // With a handler, a write at the file size limit fails with an error instead of
    // ending the process.
    _file_limit: Signal,
}

/// What a signal asks for.
#[derive(PartialEq, Eq)]
pub enum SignalAction {
    Stop,
    Reload,
}

impl ProcessSignals {
    pub fn install() -> std::io::Result<Self> {
        let file_limit = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _file_limit: signal(file_limit)?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hang_up.recv() => SignalAction::Reload,
        }
    }

    /// Waits for a signal that asks to stop.
    pub async fn stop(&mut self) {
        while self.next().await == SignalAction::Reload {}
    }
}
