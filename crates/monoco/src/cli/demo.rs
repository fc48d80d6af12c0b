//! `monoco demo`: a lively group chat, from the first message to the answer, in a home
//! that is thrown away.
//!
//! Everything that is shown is done: the commands are run by this very program, the
//! messages are posted to a real courier, and the answer arrives at a real receiver.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use monoco_adapters::webhook::WebhookVerification;
use monoco_adapters::webhook::wire::Signer;
use monoco_adapters::{Secret, WebhookRequest};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::failure::{CliError, CliExit};
use super::output::{self, note, print, shown};
use crate::clock::wall_now;
use crate::home::{CourierInfo, Home};

/// How long any single step may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two steps, at speed 1.
const PAUSE: Duration = Duration::from_millis(1200);

/// Between two messages, at speed 1.
const TYPING: Duration = Duration::from_millis(600);

/// How long the courier waits for another message, at speed 1.
const WINDOW: Duration = Duration::from_secs(2);

/// At least, at any speed: a busy machine posts no faster.
const SHORTEST: Duration = Duration::from_secs(1);

/// Largest request that the receiver takes.
const MAX_REQUEST: u64 = 1 << 20;

/// Who says what, and in which thread.
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
    /// How many times faster
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Leave the directory and its courier for you to look at
    #[arg(long)]
    keep: bool,
}

pub async fn run(args: DemoArgs) -> Result<(), CliError> {
    let stage = DemoStage::set(args.speed)?;
    let (root, home, secret) = (stage.root.clone(), stage.home.clone(), stage.secret.clone());
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let played = tokio::task::spawn_blocking(move || stage.play(args.keep));
    let ended = tokio::select! {
        ended = played => Some(ended),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    let kept = args.keep && matches!(ended, Some(Ok(Ok(()))));
    if !kept {
        clear(&root, &home);
    }
    match ended {
        Some(Ok(Ok(()))) => next(&root, kept.then_some(&secret)),
        Some(Ok(Err(failure))) => Err(failure),
        Some(Err(error)) => {
            Err(CliError::new(CliExit::NotPossible, format!("the demo broke: {error}")))
        }
        None => {
            note("interrupted; nothing is left behind");
            // The play goes on in its thread, and nobody waits for that.
            std::process::exit(130);
        }
    }
}

/// Ends the courier, if one runs, and removes the directory.
fn clear(root: &Path, home: &Path) {
    if let Some(pid) = Home::new(home.to_owned()).holder() {
        // What is thrown away needs no care.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let _ = fs::remove_dir_all(root);
}

/// Where to go next; `kept` is the secret of a courier that still runs.
fn next(root: &Path, kept: Option<&String>) -> Result<(), CliError> {
    print("")?;
    if let Some(secret) = kept {
        print(&format!("Its courier still runs, in {}.", root.display()))?;
        print(&format!("  export MONOCO_HOME={}", root.join("home").display()))?;
        print(&format!("  export DEMO_SECRET={secret}"))?;
        print(&format!("  cd {}", root.join("alpha").display()))?;
        print("  monoco mailbox list")?;
        print("  monoco courier stop")?;
        return Ok(());
    }
    print("That was all of it, and nothing is left behind. Next, with a courier of your own:")?;
    print("  monoco courier start            in ~/.monoco, with every default")?;
    print("  monoco courier status           how it is; `monoco doctor` looks closer")?;
    print("  monoco mailbox sync             in any directory: it becomes a workspace")?;
    print("Tunnels are set up in ~/.monoco/courier/config.yaml; the README has an example.")
}

/// Where the demo plays.
struct DemoStage {
    root: PathBuf,
    home: PathBuf,
    secret: String,
    signer: Signer,
    speed: u32,
}

impl DemoStage {
    /// Makes the directories, with a config and two workspaces.
    fn set(speed: u32) -> Result<Self, CliError> {
        let root = std::env::temp_dir().join(format!("monoco-demo-{}", hex(&random::<8>()?)));
        // Fails when it is there: nobody else's directory is used.
        DirBuilder::new().mode(0o700).create(&root)?;
        // Hexadecimal digits are those of base64 too, and 64 of them are whole.
        let secret = format!("whsec_{}", hex(&random::<32>()?));
        let signer = Signer::new(&WebhookVerification::Standard, &Secret::new(secret.clone()))
            .map_err(|error| CliError::new(CliExit::NotPossible, error.to_string()))?;
        let home = root.join("home");
        Ok(Self { root, home, secret, signer, speed })
    }

    fn play(&self, keep: bool) -> Result<(), CliError> {
        let receiver = Receiver::start()?;
        self.prepare(&receiver)?;
        self.scene("A courier of its own, with one webhook tunnel")?;
        self.show("courier/config.yaml", &self.home.join("courier/config.yaml"))?;
        self.run("", &["courier", "start", "--port", "0"], 0)?;
        let webhooks = self.webhooks()?;

        self.scene("Two workspaces, each with its own rules")?;
        for name in ["alpha", "beta"] {
            let config = self.root.join(name).join(".monoco/mailbox/config.yaml");
            self.show(&format!("{name}/.monoco/mailbox/config.yaml"), &config)?;
        }

        self.scene("Three people talk in a group, and each message is posted to the tunnel")?;
        self.chat(webhooks)?;

        self.scene("A burst becomes one Mail; a thread is a Mail of its own")?;
        self.files(2)?;
        self.run("alpha", &["mailbox", "sync"], 0)?;
        self.run("beta", &["mailbox", "sync"], 0)?;
        self.run("alpha", &["mailbox", "list"], 0)?;
        self.run("beta", &["mailbox", "list"], 0)?;
        let [burst] = &self.mails("alpha")?[..] else {
            return Err(broken("alpha was called once, and has not one Mail"));
        };
        let all = self.mails("beta")?;
        let thread = all.iter().find(|id| *id != burst);
        let thread = thread.ok_or_else(|| broken("the thread became no Mail"))?;
        self.run("alpha", &["mailbox", "read", burst], 0)?;

        self.scene("Agents of one workspace exclude each other; two workspaces do not")?;
        self.run("alpha", &["mailbox", "claim", burst, "--agent", "robot-1"], 0)?;
        self.run("alpha", &["mailbox", "claim", burst, "--agent", "robot-2"], 2)?;
        self.run("beta", &["mailbox", "claim", burst, "--agent", "robot-3"], 0)?;

        self.scene("The answer goes back to exactly where the Mail came from, signed")?;
        let text = "Renewed, and the build is green again.";
        self.run("alpha", &["mailbox", "send", "--reply-to", burst, "-m", text, "--wait"], 0)?;
        self.arrived(&receiver, text)?;

        self.scene(
            "Done is done; what failed is tried again, and the fourth failure is a dead letter",
        )?;
        self.run("alpha", &["mailbox", "done", burst, "--agent", "robot-1"], 0)?;
        self.run("beta", &["mailbox", "done", burst, "--agent", "robot-3"], 0)?;
        self.run("beta", &["mailbox", "claim", thread, "--agent", "robot-3"], 0)?;
        let reason = "nobody may hold deploys";
        let fail = ["mailbox", "fail", thread, "--agent", "robot-3", "--reason", reason];
        self.run("beta", &fail, 0)?;
        self.run("beta", &["mailbox", "list"], 0)?;

        self.scene("And this is how the courier is")?;
        self.run("", &["courier", "status"], 0)?;
        if !keep {
            self.run("", &["courier", "stop"], 0)?;
        }
        Ok(())
    }

    fn prepare(&self, receiver: &Receiver) -> Result<(), CliError> {
        let window = (WINDOW / self.speed).max(SHORTEST).as_millis();
        // The secret stays in the environment, as it should.
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

    /// Says what comes next, and gives people time to read what was.
    fn scene(&self, title: &str) -> Result<(), CliError> {
        std::thread::sleep(PAUSE / self.speed);
        print(&format!("\n## {title}"))
    }

    fn show(&self, name: &str, path: &Path) -> Result<(), CliError> {
        print(&format!("\n# {name}"))?;
        print(fs::read_to_string(path)?.trim_end())
    }

    /// Runs a command of this program in one of the workspaces, and shows what it says.
    fn run(&self, place: &str, args: &[&str], wanted: i32) -> Result<(), CliError> {
        let words: Vec<_> = args.iter().map(|word| quoted(word)).collect();
        let prompt = if place.is_empty() { String::new() } else { format!("{place} ") };
        print(&format!("\n{prompt}$ monoco {}", words.join(" ")))?;
        let (code, said) = self.quietly(place, args)?;
        if !said.is_empty() {
            // What these commands print is harmless already.
            print(&said)?;
        }
        if code != wanted {
            return Err(broken(&format!("`monoco {}` ended with {code}", words.join(" "))));
        }
        if code != 0 {
            print(&format!("(exit code {code})"))?;
        }
        std::thread::sleep(PAUSE / self.speed);
        Ok(())
    }

    /// Its exit code, and everything it said.
    fn quietly(&self, place: &str, args: &[&str]) -> Result<(i32, String), CliError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).current_dir(self.root.join(place)).stdin(std::process::Stdio::null());
        command.env("MONOCO_HOME", &self.home).env("DEMO_SECRET", &self.secret);
        command.env_remove("MONOCO_AGENT");
        let ran = command.output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let said = [text(&ran.stderr), text(&ran.stdout)];
        let said: Vec<_> = said.into_iter().filter(|said| !said.is_empty()).collect();
        Ok((ran.status.code().unwrap_or(-1), said.join("\n")))
    }

    fn webhooks(&self) -> Result<SocketAddr, CliError> {
        let running: Option<CourierInfo> = Home::new(self.home.clone()).running();
        running
            .and_then(|running| running.webhook_address)
            .ok_or_else(|| broken("the courier takes no webhooks"))
    }

    fn chat(&self, webhooks: SocketAddr) -> Result<(), CliError> {
        print("")?;
        for (number, (name, text, thread)) in CHAT.into_iter().enumerate() {
            std::thread::sleep(TYPING / self.speed);
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

    /// Posts a signed message, and sees that it was kept.
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
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        if line.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            return Ok(());
        }
        Err(broken(&format!("the tunnel answered {}", shown(line.trim_end()))))
    }

    /// Waits until the courier has written so many Mails.
    fn files(&self, count: usize) -> Result<(), CliError> {
        let deadline = Instant::now() + PATIENCE;
        let dir = self.home.join("mailbox/inbound/webhook");
        loop {
            let found = fs::read_dir(&dir).map_or(0, Iterator::count);
            if found >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(broken(&format!("there are {found} Mails and not {count}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The ids of a workspace's Mails.
    fn mails(&self, place: &str) -> Result<Vec<String>, CliError> {
        let (_, said) = self.quietly(place, &["mailbox", "list", "--format", "id"])?;
        Ok(said.lines().map(str::to_owned).collect())
    }

    /// The answer, as whoever is there got it.
    fn arrived(&self, receiver: &Receiver, text: &str) -> Result<(), CliError> {
        let got = receiver.got.recv_timeout(PATIENCE);
        let DemoRequest { headers, body } = got.map_err(|_| broken("the answer did not arrive"))?;
        let push = WebhookRequest { headers: &headers, body: &body, now: wall_now() };
        self.signer.verify(&push).map_err(|error| broken(&error.to_string()))?;
        let answer: Value = serde_json::from_slice(&body)
            .map_err(|error| broken(&format!("the answer is not JSON: {error}")))?;
        print("\nthe receiver got, and the signature is right:")?;
        let short = json!({
            "session": answer["session"], "text": answer["text"], "reply_to": answer["reply_to"],
        });
        print(&output::json(&short))?;
        if answer["text"] != text || answer["session"]["id"] != "room-7" {
            return Err(broken("that is not the answer that was sent"));
        }
        Ok(())
    }
}

/// Somebody on loopback who takes answers.
struct Receiver {
    address: SocketAddr,
    got: mpsc::Receiver<DemoRequest>,
}

struct DemoRequest {
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Receiver {
    fn start() -> Result<Self, CliError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (say, got) = mpsc::channel();
        // It ends with the demo.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // One that breaks off is tried again by the courier.
                if let Ok(request) = take(stream)
                    && say.send(request).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { address, got })
    }
}

/// Reads one request, and says that it is well.
fn take(stream: TcpStream) -> std::io::Result<DemoRequest> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(MAX_REQUEST));
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

fn broken(why: &str) -> CliError {
    CliError::new(CliExit::NotPossible, format!("the demo broke: {why}"))
}

/// A word as a shell wants it.
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
        CliError::new(CliExit::NotPossible, format!("no random numbers: {error}"))
    })?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_as_a_shell_wants_them() {
        for (word, wanted) in
            [("plain-1.md", "plain-1.md"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'")]
        {
            assert_eq!(quoted(word), wanted);
        }
    }
}
