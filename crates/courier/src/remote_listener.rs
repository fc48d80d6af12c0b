//! The listener for other machines: its certificate, and whether it is served.
//!
//! A certificate that cannot be used must not keep the courier from its other work. Then the
//! address is not bound, `/health` is degraded, and the files are read again every 2 s until they
//! can be used. A renewed certificate is used within 10 s.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::time::Timestamp;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::wall_now;
use crate::config::{Config, RemoteConfig};
use crate::tls::ServerCertificate;

/// How often the files of the certificate are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How often a certificate that cannot be used is checked again.
const PROBLEM_INTERVAL: Duration = Duration::from_secs(2);

/// The listener for other machines, bound while it has a certificate.
#[derive(Debug)]
pub struct RemoteListener {
    /// The address of the config.
    listen: SocketAddr,
    state: watch::Sender<ListenerState>,
    /// Held while the address is bound, so that this happens once.
    binding: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct ListenerState {
    bound: Option<BoundListener>,
    /// Why the files cannot be used, or the address cannot be bound.
    problem: Option<String>,
}

#[derive(Clone, Debug)]
struct BoundListener {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    certificate: ServerCertificate,
}

/// What is known about the listener at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteListenerStatus {
    /// The address that is bound, or that of the config.
    pub address: SocketAddr,
    pub is_served: bool,
    /// When the certificate in use expires.
    pub expires_at: Option<Timestamp>,
    /// Why the listener is not served, or why a renewed certificate is not used.
    pub problem: Option<String>,
}

impl RemoteListenerStatus {
    /// Whether clients that verify the certificate can use the listener at `now`.
    pub fn is_usable(&self, now: Timestamp) -> bool {
        self.is_served && self.expires_at.is_some_and(|at| now <= at)
    }
}

impl RemoteListener {
    /// Loads the certificate and binds the address. Without a certificate that can be used, the
    /// address is bound later.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub async fn start(remote: &RemoteConfig) -> io::Result<Self> {
        let state = watch::Sender::new(ListenerState::default());
        let listener = Self { listen: remote.listen, state, binding: Mutex::default() };
        match ServerCertificate::load(remote, wall_now()) {
            Ok(certificate) => {
                listener.serve_with(certificate).await?;
            }
            Err(error) => listener.set_problem(error.to_string()),
        }
        Ok(listener)
    }

    /// Uses a certificate for the next connections, and binds the address if that is still to do.
    /// Open connections keep the certificate they began with. Returns whether it is another one.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub async fn serve_with(&self, certificate: ServerCertificate) -> io::Result<bool> {
        let _binding = self.binding.lock().await;
        let old = self.state.borrow().bound.clone();
        let is_new = old.as_ref().is_none_or(|old| !old.certificate.is_same(&certificate));
        let (listener, address) = match old {
            Some(old) => (old.listener, old.address),
            None => {
                let listener = TcpListener::bind(self.listen).await?;
                let address = listener.local_addr()?;
                tracing::info!(%address, "listens for other machines, with TLS");
                (Arc::new(listener), address)
            }
        };
        let validity = certificate.validity;
        if is_new && validity.is_ending(wall_now()) {
            let expires_at = validity.not_after.rfc3339();
            tracing::warn!(expires_at, "the certificate for other machines expires soon");
        }
        let bound = Some(BoundListener { listener, address, certificate });
        self.state.send_if_modified(|state| {
            let had_problem = state.problem.is_some();
            *state = ListenerState { bound, problem: None };
            is_new || had_problem
        });
        Ok(is_new)
    }

    /// Accepts a connection, with the settings of its handshake. Waits while the address is not
    /// bound.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Arc<ServerConfig>)> {
        let mut state = self.state.subscribe();
        let listener = loop {
            let bound = state.borrow_and_update().bound.clone();
            match bound {
                Some(bound) => break bound.listener,
                None => background::changed(&mut state).await,
            }
        };
        let (stream, peer) = listener.accept().await?;
        // The certificate may have been replaced while the connection was awaited.
        let config = state.borrow().bound.as_ref().map(|bound| bound.certificate.config());
        let config = config.ok_or_else(|| io::Error::other("the listener has no certificate"))?;
        Ok((stream, peer, config))
    }

    pub fn status(&self) -> RemoteListenerStatus {
        let ListenerState { bound, problem } = self.state.borrow().clone();
        RemoteListenerStatus {
            address: bound.as_ref().map_or(self.listen, |bound| bound.address),
            is_served: bound.is_some(),
            expires_at: bound.map(|bound| bound.certificate.validity.not_after),
            problem,
        }
    }

    pub fn changes(&self) -> RemoteListenerChanges {
        RemoteListenerChanges(self.state.subscribe())
    }

    fn set_problem(&self, problem: String) {
        self.state.send_if_modified(|state| {
            let is_new = state.problem.as_ref() != Some(&problem);
            if is_new {
                tracing::error!(problem, "cannot use the certificate for other machines");
                state.problem = Some(problem);
            }
            is_new
        });
    }
}

/// Notifies of changes of a [`RemoteListener`].
pub struct RemoteListenerChanges(watch::Receiver<ListenerState>);

impl RemoteListenerChanges {
    /// Waits for the next change.
    pub async fn next(&mut self) {
        background::changed(&mut self.0).await;
    }
}

/// Reads the files of the certificate again when they have changed, or could not be used.
struct CertificateCheck {
    listener: Arc<RemoteListener>,
    config: watch::Receiver<Arc<Config>>,
    /// The files that were read last.
    last: Option<[FileMark; 2]>,
}

/// Inode, size and time of the last change; `None` for a missing file.
type FileMark = Option<(u64, u64, i64, i64)>;

fn mark(path: &Path) -> FileMark {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
}

impl BackgroundTask for CertificateCheck {
    const NAME: &'static str = "check of the certificate for other machines";
    type Error = Infallible;

    async fn step(&mut self) -> Result<NextStep, Infallible> {
        let remote = self.config.borrow().remote.clone();
        let Some(remote) = remote else { return Ok(NextStep::Poll(CHECK_INTERVAL)) };
        let now = wall_now();
        let status = self.listener.status();
        let marks = [mark(&remote.certificate), mark(&remote.key)];
        let is_unchanged = self.last.replace(marks) == Some(marks);
        if is_unchanged && status.problem.is_none() && status.is_usable(now) {
            return Ok(NextStep::Poll(CHECK_INTERVAL));
        }
        match ServerCertificate::load(&remote, now) {
            Ok(certificate) => {
                let expires_at = certificate.validity.not_after.rfc3339();
                match self.listener.serve_with(certificate).await {
                    Ok(true) => tracing::info!(expires_at, "uses a new certificate"),
                    Ok(false) => {}
                    Err(error) => {
                        let address = remote.listen;
                        self.listener.set_problem(format!("cannot listen on {address}: {error}"));
                    }
                }
            }
            Err(error) => self.listener.set_problem(error.to_string()),
        }
        let has_problem = self.listener.status().problem.is_some();
        Ok(NextStep::Poll(if has_problem { PROBLEM_INTERVAL } else { CHECK_INTERVAL }))
    }
}

/// Checks the certificate until `stop` is cancelled.
pub async fn check_certificate(
    listener: Arc<RemoteListener>,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    background::run(&mut CertificateCheck { listener, config, last: None }, &stop).await;
}
