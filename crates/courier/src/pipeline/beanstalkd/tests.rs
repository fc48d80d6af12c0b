//! The client against real and simulated servers.
//!
//! * [`commands`]: every command, and its errors.
//! * [`load`]: many commands at once, and dropped calls.
//! * [`restarts`]: servers that are killed and restarted.
//! * [`invalid_servers`]: servers that violate the protocol.

mod commands;
mod invalid_servers;
mod load;
mod restarts;

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{
    BeanstalkdAddress, BeanstalkdClient, BeanstalkdError, BeanstalkdJob, JobConsumer, PutOptions,
    TubeName,
};

/// Longest wait for anything that must happen.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A real server, killed at the end of the test.
struct Beanstalkd {
    port: u16,
    child: Child,
}

impl Beanstalkd {
    fn start(arguments: &[&str]) -> Self {
        // Another process may take the free port before it is used.
        (0..20).find_map(|_| Self::start_on(free_port(), arguments)).unwrap()
    }

    /// Starts a server on this port; `None` when it does not come up.
    fn start_on(port: u16, arguments: &[&str]) -> Option<Self> {
        let mut child = Command::new("beanstalkd")
            .args(["-l", "127.0.0.1", "-p", &port.to_string()])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + MAX_WAIT;
        while Instant::now() < end {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(Self { port, child });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    }

    /// Starts a server with its binlog in `dir`, synced after every write.
    fn with_binlog(dir: &Path) -> Self {
        Self::start(&["-b", dir.to_str().unwrap(), "-f0"])
    }

    fn address(&self) -> BeanstalkdAddress {
        BeanstalkdAddress { host: "127.0.0.1".to_owned(), port: self.port }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills the server and starts it again on the same port.
    fn restart(&mut self, arguments: &[&str]) {
        self.kill();
        let end = Instant::now() + MAX_WAIT;
        loop {
            if let Some(again) = Self::start_on(self.port, arguments) {
                *self = again;
                return;
            }
            assert!(Instant::now() < end, "port {} is taken", self.port);
        }
    }

    fn client(&self) -> BeanstalkdClient {
        BeanstalkdClient::new(self.address(), &TaskTracker::new(), CancellationToken::new())
    }

    fn consumer(&self, tubes: &[&TubeName]) -> JobConsumer {
        let tubes = tubes.iter().map(|tube| (*tube).clone()).collect();
        JobConsumer::new(self.address(), tubes, &TaskTracker::new(), CancellationToken::new())
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn tube(name: &str) -> TubeName {
    name.parse().unwrap()
}

fn put(body: impl Into<Vec<u8>>) -> PutOptions {
    let ttr = Duration::from_secs(120);
    PutOptions { body: body.into(), priority: 100, delay: Duration::ZERO, ttr }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn text(job: &BeanstalkdJob) -> &str {
    std::str::from_utf8(&job.body).unwrap()
}

fn down<T: std::fmt::Debug>(result: Result<T, BeanstalkdError>) -> String {
    match result {
        Err(BeanstalkdError::Down(why)) => why,
        other => panic!("should be down: {other:?}"),
    }
}

/// Repeats a call until it succeeds: it fails at once during the pause before a connection.
async fn once_up<T>(mut call: impl AsyncFnMut() -> Result<T, BeanstalkdError>) -> T {
    let end = Instant::now() + MAX_WAIT;
    loop {
        match call().await {
            Ok(value) => return value,
            Err(BeanstalkdError::Down(why)) => assert!(Instant::now() < end, "still down: {why}"),
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Drops a long reserve while the server waits for a job.
async fn drop_waiting_reserve(
    consumer: &mut JobConsumer,
    client: &BeanstalkdClient,
    tube: &TubeName,
) {
    let end = Instant::now() + MAX_WAIT;
    let waits = async || {
        while client.stats_tube(tube).await.unwrap().is_none_or(|stats| stats.waiting == 0) {
            assert!(Instant::now() < end);
        }
    };
    loop {
        match select(pin!(consumer.reserve(seconds(60))), pin!(waits())).await {
            Either::Right(_) => return,
            // After a failure there is a pause before the next connection.
            Either::Left((Err(BeanstalkdError::Down(_)), _)) => assert!(Instant::now() < end),
            Either::Left((other, _)) => panic!("no job was put yet: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl JobConsumer {
    async fn reserve(&mut self, wait: Duration) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        Ok(self.reserve_some(1, wait).await?.pop())
    }
}
