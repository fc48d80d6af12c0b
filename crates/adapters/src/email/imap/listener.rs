//! Watches the folders of an account: connects, scans, waits for mails, and connects again.
//!
//! One connection serves all folders, because providers allow few connections for one account.
//! The server announces mails of the first folder by IDLE. The other folders are checked every
//! `poll_s`, all folders when the server has no IDLE. IDLE is renewed every 4 min 30 s, which
//! shows whether the server still answers, and then all folders are checked, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use monoco_core::retry::Jitter;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::error::ImapError;
use super::login::open_session;
use super::scan::{FolderState, scan_folder};
use super::session::ImapSession;
use super::timing::ImapTiming;
use crate::email::config::EmailConfig;
use crate::{ConnectionEvent, InboundSink};

/// A connection that lasts this long was not a failure, even if no scan was completed.
const GOOD_CONNECTION: Duration = Duration::from_secs(60);

/// Watches the account until `stop`. Retries every failure.
pub async fn listen(
    config: &EmailConfig,
    timing: ImapTiming,
    scan_now: &Notify,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
) {
    let mut folders: Vec<_> = config.folders.iter().cloned().map(FolderState::new).collect();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let begin = Instant::now();
        let watched =
            watch(config, timing, &mut folders, scan_now, sink, stop, &mut failures).await;
        let Err(error) = watched else { return };
        sink.report(ConnectionEvent::Lost(error.to_string()));
        failures = if begin.elapsed() >= GOOD_CONNECTION { 1 } else { failures + 1 };
        let backoff = match error {
            ImapError::Login(_) => timing.login_backoff,
            _ => timing.connect_backoff,
        };
        let jitter = Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX));
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(backoff.delay(failures, jitter)) => {}
            () = scan_now.notified() => {}
        }
    }
}

/// Watches the account through one connection. Returns `Ok` only after `stop`.
async fn watch(
    config: &EmailConfig,
    timing: ImapTiming,
    folders: &mut [FolderState],
    scan_now: &Notify,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
    failures: &mut u32,
) -> Result<(), ImapError> {
    let mut session = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        session = open_session(config, timing) => session?,
    };
    sink.report(ConnectionEvent::Connected);
    let mut can_idle = config.idle && session.can("IDLE");
    let is_asked = AtomicBool::new(false);
    loop {
        // A server with IDLE announces mails. At each renewal the folder is opened all the same.
        let may_ask = is_asked.swap(false, Ordering::Relaxed) && can_idle;
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            scanned = scan_all(&mut session, config, folders, may_ask, sink) => scanned?,
        }
        *failures = 0;
        sink.report(ConnectionEvent::Scanned { backlog: 0 });
        if session.has_news() {
            continue;
        }
        let wake = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = scan_now.notified() => is_asked.store(true, Ordering::Relaxed),
            }
        };
        if can_idle {
            let period = if folders.len() > 1 { timing.idle.min(config.poll) } else { timing.idle };
            let frame = || sink.report(ConnectionEvent::Frame);
            match session.idle(Instant::now() + period, wake, frame).await {
                Ok(_) => {}
                // Some servers advertise IDLE and reject it.
                Err(ImapError::Rejected(_)) => can_idle = false,
                Err(error) => return Err(error),
            }
        } else {
            tokio::select! {
                () = wake => {}
                () = sleep(config.poll) => {}
            }
        }
        if stop.is_cancelled() {
            session.logout().await;
            return Ok(());
        }
    }
}

/// Scans all folders. The first one is open at the end, because IDLE watches the open folder.
async fn scan_all(
    session: &mut ImapSession,
    config: &EmailConfig,
    folders: &mut [FolderState],
    may_ask: bool,
    sink: &dyn InboundSink,
) -> Result<(), ImapError> {
    let mut problem = Ok(());
    let again = if folders.len() > 1 { Some(0) } else { None };
    for n in (0..folders.len()).chain(again) {
        match scan_folder(session, config, &mut folders[n], may_ask, sink).await {
            Ok(()) => {}
            // A folder that does not exist must not stop the others.
            Err(error @ ImapError::Folder(..)) => problem = Err(error),
            Err(error) => return Err(error),
        }
    }
    problem
}
