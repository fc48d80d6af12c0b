//! A peer's process: started on a free port of its own, ended with its handle.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;

/// How long a server may take to answer; it may have to read 1 GiB first.
const START: Duration = Duration::from_secs(120);

/// How long an answer may take before the measurement is given up.
const ANSWER: Duration = Duration::from_secs(30);

/// How a server is started, and how it shows that it is there.
#[derive(Clone, Copy)]
pub struct Launch {
    /// What to run, for an address and a data directory.
    pub command: fn(SocketAddr, &Path) -> Command,
    /// A request that any answer will do for. To listen is not enough:
    /// beanstalkd listens first and reads its log afterwards.
    pub ping: &'static [u8],
}

/// A running server and its data. Both are gone when this is.
pub struct Server {
    child: Child,
    addr: SocketAddr,
    data: TempDir,
}

impl Server {
    /// Starts it on data of its own, and waits until it answers.
    pub fn start(below: &Path, launch: Launch) -> Result<Self> {
        Self::start_on(TempDir::new_in(below)?, launch)
    }

    /// Ends the process and starts another on the same data.
    pub fn restart(mut self, launch: Launch) -> Result<Self> {
        self.end();
        // The directory moves on; what is left behind is an empty one.
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
        server.wait_until_it_listens(&log)?;
        server.wait_until_it_answers(launch.ping)?;
        Ok(server)
    }

    /// A new connection to it.
    pub fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(stream)
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Brings its files to the disk, so that what filled the queue is not
    /// written back while the queue is measured.
    pub fn sync_files(&self) -> Result<()> {
        Ok(sync_below(self.data.path())?)
    }

    fn wait_until_it_listens(&mut self, log: &Path) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("the server ended at once ({status}): {}", said.trim()).into());
            }
            if started.elapsed() > START {
                return Err(format!("the server does not listen after {START:?}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn wait_until_it_answers(&self, ping: &[u8]) -> Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(ping)?;
        match stream.read(&mut [0; 1024]) {
            Ok(bytes) if bytes > 0 => Ok(()),
            Ok(_) => Err("the server closed its first connection".into()),
            Err(err) => Err(format!("the server listens but does not answer: {err}").into()),
        }
    }

    fn end(&mut self) {
        // It may have ended by itself; either way there is none to wait for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The first line that a program says about its version, or what is missing.
pub fn version(program: &str, flag: &str) -> Result<String> {
    let output = Command::new(program)
        .arg(flag)
        .output()
        .map_err(|err| format!("cannot run {program} ({err}); ./bench installs it"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().to_owned())
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
