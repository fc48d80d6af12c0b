//! A courier of our own, in a home of its own, and ways to talk to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take that is not being tested for speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const ME: &str = "did:monoco:me";

/// The program under test.
pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_monoco"))
}

/// A home directory, and perhaps a courier that runs in it.
pub struct Courier {
    home: PathBuf,
    /// Removed when the test ends.
    dir: Option<TempDir>,
    process: Option<Child>,
    pub address: SocketAddr,
    pub token: String,
}

impl Courier {
    /// A courier in a home of its own.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut courier = Self::start_in(&dir.path().join("home"));
        courier.dir = Some(dir);
        courier
    }

    /// A courier in a home of its own, with a config.
    pub fn start_configured(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        crate::webhook_peer::configure(&home, config);
        let mut courier = Self::start_in(&home);
        courier.dir = Some(dir);
        courier
    }

    /// A courier in a home that may have been used before.
    pub fn start_in(home: &Path) -> Self {
        Self::start_with(home, |command| command)
    }

    /// A courier whose command is changed first, for instance run under `strace`.
    pub fn start_with(home: &Path, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(binary());
        command.args(["courier", "start", "--foreground", "--port", "0"]);
        Self::spawn(home, change(&mut command))
    }

    /// A courier behind another command, such as `ip netns exec NAME`.
    pub fn start_under(home: &Path, prefix: &[String]) -> Self {
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(binary());
        command.args(["courier", "start", "--foreground", "--port", "0"]);
        Self::spawn(home, &mut command)
    }

    /// Starts `command`, which must run a courier in `home`, and waits for it.
    pub fn spawn(home: &Path, command: &mut Command) -> Self {
        Self::try_spawn(home, command).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Fails with what it said, when it ends before it listens.
    pub fn try_spawn(home: &Path, command: &mut Command) -> Result<Self, String> {
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("MONOCO_HOME", home).stdin(Stdio::null());
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            if log.read_line(&mut line).unwrap() == 0 {
                return Err(format!("the courier did not start: {said}{:?}", process.wait()));
            }
            if let Some((_, address)) = line.split_once("listens on http://") {
                break address.trim().parse().unwrap();
            }
            said.push_str(&line);
        };
        // Its log must go somewhere, or it stops when the pipe is full.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let token = std::fs::read_to_string(home.join("run/courier.token")).unwrap();
        Ok(Self { home: home.to_owned(), dir: None, process: Some(process), address, token })
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Whether its process is still there.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// `kill -9`, and wait until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let mut process = self.process.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = process.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                let _ = process.kill();
                panic!("the courier did not end by itself");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The same home, with a new courier in it.
    pub fn restart(mut self) -> Self {
        self.kill();
        let mut courier = Self::start_in(&self.home);
        courier.dir = self.dir.take();
        courier
    }

    /// A command of the same home.
    pub fn cli(&self, args: &[&str]) -> Ran {
        cli(&self.home, args, "")
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, Some(body))
    }

    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.request("PUT", path, Some(body))
    }

    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.try_request(method, path, body).unwrap()
    }

    /// Fails when the courier is gone before it has answered.
    pub fn try_request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<Answer> {
        let json = [("Content-Type", "application/json")];
        let headers = if body.is_some() { &json[..] } else { &[] };
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, headers, body.as_bytes())
    }

    /// Sends any body, with the token and further headers.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut all = vec![
            ("Host".to_owned(), format!("localhost:{}", self.address.port())),
            ("Authorization".to_owned(), format!("Bearer {}", self.token)),
        ];
        all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        raw(self.address, method, path, &all, body)
    }

    /// Dispatches a message from a contact to `to`, and returns its record id.
    pub fn deliver(&self, to: &str, text: &str) -> String {
        let msg = chat("did:web:ann", to, text);
        let answer = self.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
        answer["delivered"][0]["record_id"].as_str().unwrap().to_owned()
    }

    /// Asks until the answer is as wanted.
    pub fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| {
            let answer = self.get(path).ok();
            if wanted(&answer) { Ok(answer) } else { Err(format!("{path}: {answer:#}")) }
        })
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a courier answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The body of an answer that must be a good one.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text());
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }

    /// The code of an answer that must be a refusal.
    #[track_caller]
    pub fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()["code"].as_str().unwrap().to_owned()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// One request on a connection of its own, exactly as given.
pub fn raw(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(head.as_bytes())?;
    // A courier that refuses early may close before it has read it all.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Err(read.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()));
    };
    let body = bytes.split_off(end + 4);
    let headers = String::from_utf8_lossy(&bytes).into_owned();
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let length = header(&headers, "content-length").and_then(|length| length.parse().ok());
    if length.is_some_and(|length: usize| length > body.len()) {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Answer { status, headers, bytes: body })
}

pub fn header<'a>(headers: &'a str, name: &str) -> Option<&'a str> {
    headers.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A command that has ended.
#[derive(Debug)]
#[must_use = "look at what it said, or at least whether it went well"]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The output of a command that must go well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// What it said on failing with `code`.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "", "a failed command has no data");
        self.stderr
    }
}

/// A command of one home, with nothing else in its environment.
pub fn cli(home: &Path, args: &[&str], stdin: &str) -> Ran {
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("MONOCO_HOME", home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    let Output { status, stdout, stderr } = process.wait_with_output().unwrap();
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Repeats a question until its answer is a value. Fails with the last reason why not.
#[track_caller]
pub fn wait_for<T>(answer: impl FnMut() -> Result<T, String>) -> T {
    wait_within(PATIENCE, answer)
}

/// As [`wait_for`], with a limit of its own.
#[track_caller]
pub fn wait_within<T>(limit: Duration, mut answer: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match answer() {
            Ok(value) => return value,
            Err(why) => assert!(Instant::now() < deadline, "never: {why}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(|| if holds() { Ok(()) } else { Err(what.to_owned()) });
}

pub fn chat(from: &str, to: &str, text: &str) -> Value {
    json!({"from": from, "to": [to], "kind": "chat", "content": {"content": text}})
}

/// Every command, those below others after them, and what its `--help` says.
pub fn help_pages(home: &Path) -> Vec<(Vec<String>, String)> {
    let mut pages = Vec::new();
    let mut paths = vec![Vec::<String>::new()];
    while let Some(path) = paths.pop() {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = cli(home, &args, "").ok();
        let commands = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        let commands = commands.lines().take_while(|line| !line.is_empty());
        let names = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        let children: Vec<_> = names
            .filter(|name| *name != "help")
            .map(|name| [path.as_slice(), &[name.to_owned()]].concat())
            .collect();
        paths.extend(children.into_iter().rev());
        pages.push((path, help));
    }
    pages
}
