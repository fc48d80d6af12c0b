//! A courier with chains, a receiver at the far end of its tunnels, real beanstalkds, and the
//! workers of `docs/workers.md`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Courier, PATIENCE, until};
use crate::webhook_peer::{Receiver, SECRET, configure};

/// A courier whose letters go through chains, and the receiver of what it sends.
pub struct PipelineCourier {
    pub courier: Courier,
    receiver: Receiver,
    tunnels: Vec<String>,
    dir: TempDir,
    /// Everything that came so far, in order.
    came: RefCell<Vec<Arrived>>,
}

/// What came out of a tunnel.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The delivery's own name: the same for every try.
    pub key: String,
    pub to: String,
    pub text: String,
    pub title: Option<String>,
}

impl PipelineCourier {
    /// One with the tunnel `ci`.
    pub fn open(pipeline: &Value) -> Self {
        Self::with_tunnels(&["ci"], pipeline)
    }

    /// One with these tunnels.
    pub fn with_tunnels(tunnels: &[&str], pipeline: &Value) -> Self {
        let (dir, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
        let tunnels: Vec<_> = tunnels.iter().map(|name| (*name).to_owned()).collect();
        let home = dir.path().join("home");
        configure(&home, &config(&tunnels, &receiver, pipeline));
        let courier = Courier::start_in(&home);
        Self { courier, receiver, tunnels, dir, came: RefCell::default() }
    }

    /// One whose config is `text`, with the tunnel `ci` added.
    pub fn from_text(text: &str) -> Self {
        let hub = Self::open(&json!({}));
        let adapters = adapters(&hub.tunnels, &hub.receiver);
        hub.configure(&format!("{text}\n  adapters: {adapters}\n"));
        hub
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A file beside the home.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A place beside the home.
    pub fn place(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Changes the pipeline of the courier that runs.
    pub fn reload(&self, pipeline: &Value) {
        self.configure(&config(&self.tunnels, &self.receiver, pipeline));
    }

    fn configure(&self, text: &str) {
        configure(&self.home(), text);
        self.courier.cli(&["courier", "reload"]).ok();
    }

    /// `kill -9`, and another courier.
    pub fn restart(&mut self) {
        self.courier.kill();
        self.courier = Courier::start_in(&self.home());
    }

    /// `kill -9`, and another courier that finds its pipeline changed.
    pub fn restart_with(&mut self, pipeline: &Value) {
        self.courier.kill();
        configure(&self.home(), &config(&self.tunnels, &self.receiver, pipeline));
        self.courier = Courier::start_in(&self.home());
    }

    /// Hands a letter in; its id.
    #[track_caller]
    pub fn post(&self, letter: &Value) -> String {
        let answer = self.courier.post("/api/v1/letters", letter);
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Everything that is known of a letter.
    #[track_caller]
    pub fn letter(&self, id: &str) -> Value {
        self.courier.get(&format!("/api/v1/letters/{id}")).ok()
    }

    /// Waits until a letter is as wanted.
    #[track_caller]
    pub fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.courier.until(&format!("/api/v1/letters/{id}"), wanted)
    }

    /// Waits until a letter stands so.
    #[track_caller]
    pub fn stands(&self, id: &str, state: &str) -> Value {
        self.until(id, |letter| letter["state"] == state)
    }

    /// How many letters stand so.
    pub fn count(&self, state: &str) -> u64 {
        let answer = self.courier.get("/api/v1/pipeline").ok();
        answer["states"][state].as_u64().unwrap_or_default()
    }

    /// Waits until no letter is under way.
    #[track_caller]
    pub fn settled(&self) {
        let quiet = |states: &Value| {
            ["WAITING", "AWAY"].iter().all(|state| states[state].as_u64().unwrap_or_default() == 0)
        };
        self.courier.until("/api/v1/pipeline", |answer| quiet(&answer["states"]));
    }

    /// Everything that came so far.
    pub fn came(&self) -> Vec<Arrived> {
        let mut came = self.came.borrow_mut();
        came.extend(self.receiver.all().iter().map(|got| Arrived::read(&got.body)));
        came.clone()
    }

    /// Waits until so many different deliveries have come, and returns them, each once.
    #[track_caller]
    pub fn arrivals(&self, count: usize) -> Vec<Arrived> {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let mut seen = BTreeSet::new();
            let mut came = self.came();
            came.retain(|arrived| seen.insert(arrived.key.clone()));
            assert!(came.len() <= count, "{} came, want {count}: {came:#?}", came.len());
            if came.len() == count {
                return came;
            }
            assert!(Instant::now() < deadline, "{} came, want {count}", came.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until each of these words has come, and sees that each came in one delivery.
    #[track_caller]
    pub fn each_once(&self, words: &BTreeSet<String>) {
        self.arrivals(words.len());
        self.settled();
        let mut keys: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let came = self.came();
        for arrived in &came {
            let word = arrived.word().unwrap_or_else(|| panic!("unasked: {arrived:?}"));
            keys.entry(word).or_default().insert(arrived.key.clone());
        }
        let found: BTreeSet<_> = keys.keys().map(|word| (*word).to_owned()).collect();
        assert_eq!(found, *words);
        let twice: Vec<_> = keys.iter().filter(|(_, keys)| keys.len() > 1).collect();
        assert!(twice.is_empty(), "sent twice: {twice:?}");
    }
}

impl Arrived {
    fn read(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap();
        let text = |key: &str| body[key].as_str().map(str::to_owned);
        Self {
            key: text("id").unwrap(),
            to: text("to").unwrap(),
            text: text("text").unwrap_or_default(),
            title: text("title"),
        }
    }

    /// The word that tells a letter from all others, where its text has one: `word-…`.
    pub fn word(&self) -> Option<&str> {
        let at = self.text.find("word-")?;
        let rest = &self.text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        Some(&rest[..end.unwrap_or(rest.len())])
    }
}

/// A config with these tunnels, which all answer to `receiver`.
fn config(tunnels: &[String], receiver: &Receiver, pipeline: &Value) -> String {
    let mut pipeline = pipeline.clone();
    if pipeline["workers"]["send"].is_null() {
        pipeline["workers"]["send"] = json!({"tunnel": tunnels[0]});
    }
    json!({"courier": {
        "debounce": {"window_ms": 50},
        "pipeline": pipeline,
        "adapters": adapters(tunnels, receiver),
    }})
    .to_string()
}

fn adapters(tunnels: &[String], receiver: &Receiver) -> Value {
    let adapter = json!({
        "provider": "webhook", "verify": "standard", "secret": SECRET,
        "send_to": receiver.url("/hook"), "allow_private": true,
    });
    tunnels.iter().map(|name| (name.clone(), adapter.clone())).collect()
}

/// A mail to one recipient.
pub fn mail(to: &str, subject: &str, text: &str) -> Value {
    let data = format!(
        "From: ann@example.com\r\nTo: {to}\r\nSubject: {subject}\r\nDate: Mon, 1 Jun 2026 \
         12:00:00 +0000\r\n\r\n{text}\r\n"
    );
    json!({"from": "ann@example.com", "to": [to], "data": data})
}

/// A mail for one tunnel of several.
pub fn mail_through(tunnel: &str, text: &str) -> Value {
    let mut letter = mail("bob@example.org", "Hello", text);
    letter["extra"] = json!({"tunnel": tunnel});
    letter
}

/// What workers said of a letter, in order.
pub fn verdicts(letter: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let said = letter["verdicts"].as_array().unwrap_or_else(|| panic!("{letter:#}"));
    said.iter().map(|said| (text(&said["worker"]), text(&said["result"]))).collect()
}

/// Verdicts as a table writes them.
pub fn said(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(worker, result)| ((*worker).to_owned(), (*result).to_owned())).collect()
}

/// A port without a listener, for a server that may be restarted. Ports of 10,000 to 29,999
/// are below those that Linux gives to clients and to listeners on port 0, so that none of
/// these takes the port while its server is down.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id();
    let next = || first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
    let mut ports = (0..20_000).map(|_| 10_000 + u16::try_from(next()).unwrap());
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap()
}

/// Waits until a process listens on a port.
#[track_caller]
fn listens(port: u16) {
    let connects = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    until(&format!("a process listens on {port}"), connects);
}

/// A real beanstalkd, with a log on disk.
pub struct Beanstalkd {
    process: Option<Child>,
    port: u16,
    log: PathBuf,
    args: Vec<String>,
    /// Removed when the test ends.
    _dir: Option<TempDir>,
}

impl Beanstalkd {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// One with more arguments.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut beanstalkd = Self::start_in(dir.path(), args);
        beanstalkd._dir = Some(dir);
        beanstalkd
    }

    /// A beanstalkd whose log is in a given directory.
    pub fn start_in(log: &Path, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (port, log) = (free_port(), log.to_owned());
        let mut beanstalkd = Self { process: None, port, log, args, _dir: None };
        beanstalkd.run();
        beanstalkd
    }

    /// Runs, again where it was.
    pub fn run(&mut self) {
        let mut command = Command::new("beanstalkd");
        command.args(["-l", "127.0.0.1", "-p", &self.port.to_string(), "-f0", "-b"]);
        command.arg(&self.log).args(&self.args).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        listens(self.port);
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// As the config names it.
    pub fn url(&self) -> String {
        format!("beanstalkd://{}", self.address())
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// `kill -9`, and everything it knew is gone.
    pub fn kill_and_wipe(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(&self.log).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    pub fn signal(&self, signal: Signal) {
        signal_child(self.process.as_ref().unwrap(), signal);
    }

    /// Waits for a letter in the tube of a worker, as its program does, and deletes the job.
    #[track_caller]
    pub fn take(&self, worker: &str) -> Value {
        let mut stream = BufReader::new(self.connect());
        write!(stream.get_mut(), "watch monoco.worker.{worker}\r\n").unwrap();
        write!(stream.get_mut(), "reserve-with-timeout {}\r\n", PATIENCE.as_secs()).unwrap();
        let mut lines = (&mut stream).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().starts_with("WATCHING"));
        let reserved = lines.next().unwrap();
        let job = reserved.split(' ').nth(1).unwrap_or_else(|| panic!("{worker}: {reserved}"));
        let letter = serde_json::from_str(&lines.next().unwrap()).unwrap();
        write!(stream.get_mut(), "delete {job}\r\n").unwrap();
        assert_eq!(stream.lines().next().unwrap().unwrap(), "DELETED");
        letter
    }

    /// Puts an answer of a worker.
    pub fn answer(&self, answer: &Value) {
        let (mut stream, body) = (BufReader::new(self.connect()), answer.to_string());
        let length = body.len();
        write!(stream.get_mut(), "use monoco.results\r\nput 0 0 60 {length}\r\n{body}\r\n")
            .unwrap();
        let answered = stream.lines().nth(1).unwrap().unwrap();
        assert!(answered.starts_with("INSERTED"), "{answered}");
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap()
    }

    /// How many jobs were ever put into a tube.
    pub fn jobs_in(&self, tube: &str) -> usize {
        let mut stream = self.connect();
        write!(stream, "stats-tube {tube}\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let total = lines
            .take(20)
            .find_map(|line| line.strip_prefix("total-jobs: ").map(|total| total.parse().unwrap()));
        total.unwrap_or_else(|| panic!("no jobs are counted in {tube}"))
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal_child(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A Python program that runs until the test ends.
pub struct Python {
    process: Child,
    _file: tempfile::NamedTempFile,
}

impl Python {
    /// Runs a script, with the sdks at hand and these variables.
    pub fn run(script: &str, variables: &[(&str, &str)]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        let mut command = Command::new("python3");
        command.arg(file.path()).env_clear().envs(variables.iter().copied());
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("PYTHONPATH", sdks());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: command.spawn().unwrap(), _file: file }
    }

    /// Runs a worker behind a tube.
    pub fn behind(beanstalkd: &Beanstalkd, script: &str) -> Self {
        Self::run(script, &[("BEANSTALKD", &beanstalkd.address())])
    }

    /// The worker of the docs that is behind a tube: `tagger`.
    pub fn tagger(beanstalkd: &Beanstalkd) -> Self {
        Self::behind(beanstalkd, &documented("worker.tagger"))
    }

    /// The one that is behind a URL; with the URL.
    pub fn enrich() -> (Self, String) {
        let port = free_port();
        let variables = [("PORT", &*port.to_string()), ("WORKER_SECRET", SECRET)];
        let worker = Self::run(&documented("http.server"), &variables);
        listens(port);
        (worker, format!("http://127.0.0.1:{port}/"))
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.kill();
    }
}

fn sdks() -> PathBuf {
    let sdks = root().join("target/reference-sdks");
    assert!(
        sdks.exists(),
        "the reference SDKs are missing: {sdks:?} does not exist; run ./test once"
    );
    sdks
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The one Python program of `docs/workers.md` with this word in it.
pub fn documented(word: &str) -> String {
    block("python", word)
}

/// The one block of `docs/workers.md` in this language with this word in it.
pub fn block(language: &str, word: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs/workers.md")).unwrap();
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks: Vec<_> = blocks.filter(|block| block.contains(word)).collect();
    assert_eq!(blocks.len(), 1, "{word}");
    blocks[0].to_owned()
}
