//! Process of a peer: started on a free port, stopped on drop.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Result;

/// Maximum time until a server answers; it may have to read 1 GiB first.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum time until a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How to start a server and how to check that it is ready.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The command for an address and a data directory.
    pub command: fn(SocketAddr, &Path) -> Command,
    /// A request; any response means ready. An open port is not enough: beanstalkd listens
    /// before it reads its log.
    pub ping: &'static [u8],
}

/// A running server and its data. Both are removed on drop.
pub struct Server {
    child: Child,
    addr: SocketAddr,
    data: TempDir,
}

impl Server {
    /// Starts a server with new data and waits until it answers.
    pub fn start(below: &Path, launch: Launch) -> Result<Self> {
        Self::start_on(TempDir::new_in(below)?, launch)
    }

    /// Stops the process and starts another with the same data.
    pub fn restart(mut self, launch: Launch) -> Result<Self> {
        self.end();
        // `self` keeps an empty directory, which is removed on drop.
        let below = self.data.path().parent().ok_or("the data has no directory")?.to_owned();
        let data = std::mem::replace(&mut self.data, TempDir::new_in(below)?);
        Self::start_on(data, launch)
    }

    fn start_on(data: TempDir, launch: Launch) -> Result<Self> {
        let addr = free_address()?;
        let log = data.path().join("server.log");
        let mut command = (launch.command)(addr, data.path());
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?)
            .spawn()
            .map_err(|err| format!("cannot start {:?}: {err}", command.get_program()))?;
        let mut server = Self { child, addr, data };
        server.wait_until_listening(&log)?;
        server.wait_until_answering(launch.ping)?;
        Ok(server)
    }

    pub fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(stream)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Syncs the files, so that they are not written back during the measurement.
    pub fn sync_files(&self) -> Result<()> {
        Ok(sync_below(self.data.path())?)
    }

    fn wait_until_listening(&mut self, log: &Path) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let output = fs::read_to_string(log).unwrap_or_default();
                return Err(format!(
                    "the server exited during the start ({status}): {}",
                    output.trim()
                )
                .into());
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("the server does not listen after {START_TIMEOUT:?}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn wait_until_answering(&self, ping: &[u8]) -> Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(START_TIMEOUT))?;
        stream.write_all(ping)?;
        match stream.read(&mut [0; 1024]) {
            Ok(bytes) if bytes > 0 => Ok(()),
            Ok(_) => Err("the server closed its first connection".into()),
            Err(err) => Err(format!("the server listens but does not answer: {err}").into()),
        }
    }

    fn end(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// First line of the version output of a program; an error when it is not installed.
pub fn version(program: &str, flag: &str) -> Result<String> {
    let output = Command::new(program)
        .arg(flag)
        .output()
        .map_err(|err| format!("cannot run {program} ({err}); ./bench installs it"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok(stdout.lines().next().unwrap_or_default().to_owned())
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn sync_below(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_below(&path)?;
        } else {
            File::open(path)?.sync_all()?;
        }
    }
    Ok(())
}
