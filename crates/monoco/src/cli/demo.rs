//! `monoco demo`: shows a group chat from the first message to the answer, in a temporary
//! home directory.
//!
//! The demo runs real commands of this program, posts the messages to a real courier and
//! receives the answer over HTTP.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use monoco_adapters::WebhookRequest;
use monoco_adapters::webhook::WebhookVerification;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::config::Secret;
use monoco_core::hex;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::failure::{CliError, CliExit};
use super::output::{self, escape_line, note, print};
use monoco_courier::clock::wall_now;
use monoco_courier::home::{CourierInfo, Home};

/// How long one step of the demo may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two steps at speed 1.
const STEP_PAUSE: Duration = Duration::from_millis(1200);

/// Pause between two messages at speed 1.
const MESSAGE_PAUSE: Duration = Duration::from_millis(600);

/// Merge window of the courier at speed 1.
const MERGE_WINDOW: Duration = Duration::from_secs(2);

/// Shortest merge window: a busy machine posts no faster.
const MIN_MERGE_WINDOW: Duration = Duration::from_secs(1);

/// Largest request that the receiver reads.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Author, text and thread of each message.
const CHAT: [(&str, &str, Option<&str>); 7] = [
    ("Ann", "The nightly build is red again.", None),
    ("Bob", "Looks like the certificate of the staging box.", None),
    ("Cem", "It ran out at midnight.", None),
    ("Cem", "Shall we hold deploy 42?", Some("deploy-42")),
    ("Ann", "@monoco::alpha can you renew it, please?", None),
    ("Bob", "Yes, until the build is green.", Some("deploy-42")),
    ("Bob", "Thanks!", None),
];

#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Speed of the demo: 2 runs twice as fast
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Keep the directory and its running courier
    #[arg(long)]
    keep: bool,
    /// Show the demo in the web page, and keep its courier running
    #[arg(long)]
    open: bool,
}

pub async fn run(args: DemoArgs) -> Result<(), CliError> {
    // Without its courier the page would show nothing.
    let keep = args.keep || args.open;
    let stage = DemoStage::create(args.speed)?;
    let (root, home, secret) = (stage.root.clone(), stage.home.clone(), stage.secret.clone());
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let steps = tokio::task::spawn_blocking(move || stage.run_steps(keep, args.open));
    let ended = tokio::select! {
        ended = steps => Some(ended),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    let kept = keep && matches!(ended, Some(Ok(Ok(()))));
    if !kept {
        clear(&root, &home);
    }
    match ended {
        Some(Ok(Ok(()))) => next(&root, kept.then_some(&secret)),
        Some(Ok(Err(failure))) => Err(failure),
        Some(Err(error)) => {
            Err(CliError::new(CliExit::NotPossible, format!("the demo failed: {error}")))
        }
        None => {
            note("interrupted; the demo directory was removed");
            // The demo thread is not joined; it ends with the process.
            std::process::exit(130);
        }
    }
}

/// Kills the demo's courier, if it is running, and removes the directory.
fn clear(root: &Path, home: &Path) {
    if let Some(pid) = Home::new(home.to_owned()).holder() {
        // The data is removed anyway, so that the courier need not stop cleanly.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let _ = fs::remove_dir_all(root);
}

/// Prints the next steps; `kept` is the secret of a courier that is still running.
fn next(root: &Path, kept: Option<&String>) -> Result<(), CliError> {
    print("")?;
    if let Some(secret) = kept {
        print(&format!("The courier of the demo is still running in {}.", root.display()))?;
        print(&format!("  export MONOCO_HOME={}", root.join("home").display()))?;
        print(&format!("  export DEMO_SECRET={secret}"))?;
        print(&format!("  cd {}", root.join("alpha").display()))?;
        print("  monoco mailbox list")?;
        print("  monoco courier stop")?;
        return Ok(());
    }
    print("The demo is complete and its directory was removed. Next, use your own courier:")?;
    print("  monoco courier start            in ~/.monoco, with all defaults")?;
    print("  monoco courier status           its status; `monoco doctor` checks more")?;
    print("  monoco mailbox sync             makes the current directory a workspace")?;
    print("Configure tunnels in ~/.monoco/courier/config.yaml; the README has an example.")
}

/// Directories and secret of one demo.
struct DemoStage {
    root: PathBuf,
    home: PathBuf,
    secret: String,
    signer: Signer,
    speed: u32,
}

impl DemoStage {
    /// Creates the root directory and the webhook secret.
    fn create(speed: u32) -> Result<Self, CliError> {
        let root =
            std::env::temp_dir().join(format!("monoco-demo-{}", hex::encode(&random::<8>()?)));
        // Fails if the directory exists, so that no foreign directory is used.
        DirBuilder::new().mode(0o700).create(&root)?;
        // 64 hexadecimal digits are also valid base64 without padding.
        let secret = format!("whsec_{}", hex::encode(&random::<32>()?));
        let signer = Signer::new(&WebhookVerification::Standard, &Secret::new(secret.clone()))
            .map_err(|error| CliError::new(CliExit::NotPossible, error.to_string()))?;
        let home = root.join("home");
        Ok(Self { root, home, secret, signer, speed })
    }

    fn run_steps(&self, keep: bool, open: bool) -> Result<(), CliError> {
        let receiver = DemoReceiver::start()?;
        self.prepare(&receiver)?;
        self.scene("Start a courier with one webhook tunnel")?;
        self.show("courier/config.yaml", &self.home.join("courier/config.yaml"))?;
        self.run("", &["courier", "start", "--port", "0"], 0)?;
        if open {
            self.run("", &["open"], 0)?;
        }
        let webhooks = self.webhooks()?;

        self.scene("Two workspaces with different filters")?;
        for name in ["alpha", "beta"] {
            let config = self.root.join(name).join(".monoco/mailbox/config.yaml");
            self.show(&format!("{name}/.monoco/mailbox/config.yaml"), &config)?;
        }

        self.scene("Three people write in a group; each message is posted to the tunnel")?;
        self.chat(webhooks)?;

        self.scene("Messages of one merge window become one Mail; a thread becomes another Mail")?;
        self.files(2)?;
        self.run("alpha", &["mailbox", "sync"], 0)?;
        self.run("beta", &["mailbox", "sync"], 0)?;
        self.run("alpha", &["mailbox", "list"], 0)?;
        self.run("beta", &["mailbox", "list"], 0)?;
        let [burst] = &self.mails("alpha")?[..] else {
            return Err(demo_failed("workspace alpha must have exactly one Mail"));
        };
        let all = self.mails("beta")?;
        let thread = all.iter().find(|id| *id != burst);
        let thread = thread.ok_or_else(|| demo_failed("the thread did not become a Mail"))?;
        self.run("alpha", &["mailbox", "read", burst], 0)?;

        self.scene("Only one agent of a workspace can claim a Mail; workspaces are independent")?;
        self.run("alpha", &["mailbox", "claim", burst, "--agent", "robot-1"], 0)?;
        self.run("alpha", &["mailbox", "claim", burst, "--agent", "robot-2"], 2)?;
        self.run("beta", &["mailbox", "claim", burst, "--agent", "robot-3"], 0)?;

        self.scene("The answer is signed and goes back to the session of the Mail")?;
        let text = "Renewed, and the build is green again.";
        self.run("alpha", &["mailbox", "send", "--reply-to", burst, "-m", text, "--wait"], 0)?;
        self.print_answer(&receiver, text)?;

        self.scene(
            "Complete a Mail, or fail it: a failed Mail is retried, the fourth failure is final",
        )?;
        self.run("alpha", &["mailbox", "done", burst, "--agent", "robot-1"], 0)?;
        self.run("beta", &["mailbox", "done", burst, "--agent", "robot-3"], 0)?;
        self.run("beta", &["mailbox", "claim", thread, "--agent", "robot-3"], 0)?;
        let reason = "no permission to hold deploys";
        let fail = ["mailbox", "fail", thread, "--agent", "robot-3", "--reason", reason];
        self.run("beta", &fail, 0)?;
        self.run("beta", &["mailbox", "list"], 0)?;

        self.scene("Status of the courier")?;
        self.run("", &["courier", "status"], 0)?;
        if !keep {
            self.run("", &["courier", "stop"], 0)?;
        }
        Ok(())
    }

    fn prepare(&self, receiver: &DemoReceiver) -> Result<(), CliError> {
        let window = (MERGE_WINDOW / self.speed).max(MIN_MERGE_WINDOW).as_millis();
        // The config refers to the secret by its environment variable.
        let config = format!(
            "courier:
  adapters:
    demo:
      provider: webhook
      verify: standard
      secret: ${{DEMO_SECRET}}
      send_to: http://{}/answers
      allow_private: true
      debounce: {{ window_ms: {window}, max_wait_ms: 20000 }}
",
            receiver.address
        );
        let alpha = "mailbox:
  name: alpha
  filters:
    - { type: mention, pattern: \"@monoco::alpha\" }
";
        let beta = "mailbox:
  name: beta
  filters:
    - { type: session, value: Ops }
";
        self.write("home/courier", "config.yaml", &config)?;
        self.write("alpha/.monoco/mailbox", "config.yaml", alpha)?;
        self.write("beta/.monoco/mailbox", "config.yaml", beta)
    }

    fn write(&self, dir: &str, name: &str, text: &str) -> Result<(), CliError> {
        let dir = self.root.join(dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(fs::write(dir.join(name), text)?)
    }

    /// Waits, so that the last step can be read, and prints the title of the next one.
    fn scene(&self, title: &str) -> Result<(), CliError> {
        std::thread::sleep(STEP_PAUSE / self.speed);
        print(&format!("\n## {title}"))
    }

    fn show(&self, name: &str, path: &Path) -> Result<(), CliError> {
        print(&format!("\n# {name}"))?;
        print(fs::read_to_string(path)?.trim_end())
    }

    /// Runs a command of this program in one of the workspaces and prints its output.
    fn run(&self, place: &str, args: &[&str], wanted: i32) -> Result<(), CliError> {
        let words: Vec<_> = args.iter().map(|word| quoted(word)).collect();
        let prompt = if place.is_empty() { String::new() } else { format!("{place} ") };
        print(&format!("\n{prompt}$ monoco {}", words.join(" ")))?;
        let (code, output) = self.run_captured(place, args)?;
        if !output.is_empty() {
            // The commands have escaped their output.
            print(&output)?;
        }
        if code != wanted {
            return Err(demo_failed(&format!("`monoco {}` ended with {code}", words.join(" "))));
        }
        if code != 0 {
            print(&format!("(exit code {code})"))?;
        }
        std::thread::sleep(STEP_PAUSE / self.speed);
        Ok(())
    }

    /// Runs a command and returns its exit code and output.
    fn run_captured(&self, place: &str, args: &[&str]) -> Result<(i32, String), CliError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).current_dir(self.root.join(place)).stdin(std::process::Stdio::null());
        command.env("MONOCO_HOME", &self.home).env("DEMO_SECRET", &self.secret);
        command.env_remove("MONOCO_AGENT");
        let ran = command.output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let output = [text(&ran.stderr), text(&ran.stdout)];
        let output: Vec<_> = output.into_iter().filter(|text| !text.is_empty()).collect();
        Ok((ran.status.code().unwrap_or(-1), output.join("\n")))
    }

    fn webhooks(&self) -> Result<SocketAddr, CliError> {
        let running: Option<CourierInfo> = Home::new(self.home.clone()).running();
        running
            .map(|running| running.webhook_address())
            .ok_or_else(|| demo_failed("the courier does not listen for webhooks"))
    }

    fn chat(&self, webhooks: SocketAddr) -> Result<(), CliError> {
        print("")?;
        for (number, (name, text, thread)) in CHAT.into_iter().enumerate() {
            std::thread::sleep(MESSAGE_PAUSE / self.speed);
            let place = thread.map_or_else(|| "Ops".to_owned(), |thread| format!("Ops/{thread}"));
            print(&format!("{name} in {place}: {text}"))?;
            let body = json!({
                "id": format!("evt-{number}"),
                "session": {"id": "room-7", "type": "group", "name": "Ops", "thread_key": thread},
                "from": {"id": name.to_lowercase(), "name": name},
                "text": text,
                "timestamp": wall_now().rfc3339(),
            });
            self.post(webhooks, &format!("evt-{number}"), body.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Posts a signed message and checks that the courier accepted it.
    fn post(&self, webhooks: SocketAddr, id: &str, body: &[u8]) -> Result<(), CliError> {
        let mut head = format!(
            "POST /webhooks/demo HTTP/1.1\r\nHost: {webhooks}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in &self.signer.sign(id, wall_now(), body) {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap_or_default()));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(webhooks)?;
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        if line.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            return Ok(());
        }
        Err(demo_failed(&format!("the webhook listener answered {}", escape_line(line.trim_end()))))
    }

    /// Waits until the courier has written `count` Mail files.
    fn files(&self, count: usize) -> Result<(), CliError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        let dir = self.home.join("mailbox/inbound/webhook");
        loop {
            let found = fs::read_dir(&dir).map_or(0, Iterator::count);
            if found >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(demo_failed(&format!("found {found} Mails, expected {count}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the ids of a workspace's Mails.
    fn mails(&self, place: &str) -> Result<Vec<String>, CliError> {
        let (_, output) = self.run_captured(place, &["mailbox", "list", "--format", "id"])?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Waits for the answer at the receiver, verifies its signature and prints it.
    fn print_answer(&self, receiver: &DemoReceiver, text: &str) -> Result<(), CliError> {
        let got = receiver.got.recv_timeout(STEP_TIMEOUT);
        let DemoRequest { headers, body } =
            got.map_err(|_| demo_failed("the answer did not arrive"))?;
        let push = WebhookRequest { headers: &headers, query: "", body: &body, now: wall_now() };
        self.signer.verify(&push).map_err(|error| demo_failed(&error.to_string()))?;
        let answer: Value = serde_json::from_slice(&body)
            .map_err(|error| demo_failed(&format!("the answer is not JSON: {error}")))?;
        print("\nreceived answer with a valid signature:")?;
        let short = json!({
            "session": answer["session"], "text": answer["text"], "reply_to": answer["reply_to"],
        });
        output::print_json(&short)?;
        if answer["text"] != text || answer["session"]["id"] != "room-7" {
            return Err(demo_failed("the receiver got a different text or session than was sent"));
        }
        Ok(())
    }
}

/// HTTP server on loopback that receives the answer.
struct DemoReceiver {
    address: SocketAddr,
    got: mpsc::Receiver<DemoRequest>,
}

struct DemoRequest {
    headers: HeaderMap,
    body: Vec<u8>,
}

impl DemoReceiver {
    fn start() -> Result<Self, CliError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, got) = mpsc::channel();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // The courier retries a request that was interrupted.
                if let Ok(request) = read_request(stream)
                    && sender.send(request).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { address, got })
    }
}

/// Reads one request and answers 200.
fn read_request(stream: TcpStream) -> std::io::Result<DemoRequest> {
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(MAX_REQUEST_BYTES));
    let mut headers = HeaderMap::new();
    let mut line = String::new();
    reader.read_line(&mut line)?;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { continue };
        if let (Ok(name), Ok(value)) =
            (name.parse::<HeaderName>(), HeaderValue::from_str(value.trim()))
        {
            headers.append(name, value);
        }
    }
    let length = headers.get("content-length").and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\
                  Connection: close\r\n\r\n{\"id\":\"answer-1\"}";
    (&stream).write_all(answer.as_bytes())?;
    Ok(DemoRequest { headers, body })
}

fn demo_failed(why: &str) -> CliError {
    CliError::new(CliExit::NotPossible, format!("the demo failed: {why}"))
}

/// Quotes an argument for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@".contains(c);
    if word.is_empty() || !word.chars().all(plain) {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    word.to_owned()
}

fn random<const N: usize>() -> Result<[u8; N], CliError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        CliError::new(
            CliExit::NotPossible,
            format!("cannot get random bytes from the system: {error}"),
        )
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        for (word, wanted) in
            [("plain-1.md", "plain-1.md"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'")]
        {
            assert_eq!(quoted(word), wanted);
        }
    }
}
