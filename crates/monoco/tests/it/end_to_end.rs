//! The whole story, typed as a user would: from a clean home to an answer that arrives.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Ran, binary, wait_for};
use crate::reference_sdks::python;
use crate::webhook_peer::{Receiver, SECRET};

/// A user with a home directory and no courier yet.
pub struct User {
    dir: tempfile::TempDir,
}

impl User {
    pub fn new(config: &str) -> Self {
        let user = Self { dir: tempfile::tempdir().unwrap() };
        crate::webhook_peer::configure(&user.home(), config);
        user
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join(".monoco")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A workspace with these rules.
    pub fn workspace(&self, name: &str, rules: &str) -> PathBuf {
        let dir = self.path(name);
        std::fs::create_dir_all(dir.join(".monoco/mailbox")).unwrap();
        if !rules.is_empty() {
            std::fs::write(dir.join(".monoco/mailbox/config.yaml"), rules).unwrap();
        }
        dir
    }

    /// A command typed in a directory.
    pub fn command(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(dir).env_clear();
        command.env("HOME", self.dir.path()).env("MONOCO_HOME", self.home()).env("USER", "ann");
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Types a command line in a directory.
    pub fn types(&self, dir: &Path, line: &str) -> Ran {
        self.runs(dir, &line.split(' ').collect::<Vec<_>>())
    }

    pub fn runs(&self, dir: &Path, args: &[&str]) -> Ran {
        let output = self.command(dir, args).output().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// What the courier says about itself.
    pub fn running(&self) -> Value {
        let text = std::fs::read_to_string(self.home().join("run/courier.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Sends a webhook with curl, signed.
    pub fn curl(&self, body: &Value) -> String {
        let body = body.to_string();
        let url =
            format!("http://{}/webhooks/ci", crate::webhook_peer::webhook_address(&self.running()));
        let mut command = Command::new("curl");
        command.args(["-sS", &url, "--data-binary", &body]);
        for (name, value) in crate::webhook_peer::signed(SECRET, body.as_bytes()) {
            command.arg("-H").arg(format!("{name}: {value}"));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until a command line goes well and its output is as wanted.
    #[track_caller]
    pub fn until(&self, dir: &Path, line: &str, wanted: impl Fn(&str) -> bool) -> String {
        wait_for(|| {
            let ran = self.types(dir, line);
            let fits = ran.code == 0 && wanted(&ran.stdout);
            if fits { Ok(ran.stdout) } else { Err(format!("{line}: {ran:?}")) }
        })
    }

    /// Files of one place of the mailbox.
    pub fn files(&self, place: &str) -> Vec<String> {
        let dir = self.home().join("mailbox").join(place).join("webhook");
        let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    /// Waits until a place has so many files.
    #[track_caller]
    pub fn has(&self, place: &str, count: usize) -> Vec<String> {
        wait_for(|| {
            let files = self.files(place);
            if files.len() == count { Ok(files) } else { Err(format!("{place}: {files:?}")) }
        })
    }
}

impl Drop for User {
    /// Whatever happened, no courier stays behind.
    fn drop(&mut self) {
        let _ = self.types(self.dir.path(), "courier kill");
    }
}

fn said(id: &str, from: &str, text: &str) -> Value {
    crate::webhook_peer::body(id, "room-7", from, text)
}

#[test]
fn from_the_first_message_to_an_answer() {
    let receiver = Receiver::start();
    let url = receiver.url("/hook");
    let user = User::new(&format!(
        "courier:\n  service: {{ port: 0, webhook_port: 0 }}\n  debounce: {{ window_ms: 500 }}\n  \
         adapters:\n    ci: {{ provider: webhook, verify: standard, secret: '{SECRET}', \
         send_to: '{url}', allow_private: true }}\n"
    ));
    let here = user.path(".");
    let started = user.types(&here, "courier start").ok();
    assert!(user.types(&here, "courier status").ok().contains("quiet"), "{started}");
    assert_eq!(user.types(&here, "courier start").code, 2, "one is enough");

    // Two projects that want different things.
    let alpha = user.workspace("alpha", "");
    let beta = user.workspace(
        "beta",
        "mailbox:\n  name: beta\n  filters:\n    - { type: from, value: bob }\n    \
         - { type: text_matches, pattern: 'deploy(ed|s)?' }\n",
    );
    let gamma = user.workspace("gamma", "");

    // A burst becomes one Mail, as a file.
    for (id, from, text) in [
        ("evt-1", "ann", "@monoco::alpha the build is red"),
        ("evt-2", "bob", "since I deployed, I think"),
        ("evt-2", "bob", "since I deployed, I think"),
        ("evt-3", "ann", "please have a look"),
    ] {
        assert!(user.curl(&said(id, from, text)).contains("\"ok\":true"));
    }
    let files = user.has("inbound", 1);

    // Both pull it, the third does not, and explains why.
    for dir in [&alpha, &beta] {
        user.types(dir, "mailbox sync").ok();
        assert!(dir.join(".monoco/mailbox/inbox").join(&files[0]).exists(), "{dir:?}");
    }
    user.types(&gamma, "mailbox sync").ok();
    assert_eq!(user.types(&gamma, "mailbox list --format id").ok(), "");
    let mail = user.types(&alpha, "mailbox list --format id").ok().trim().to_owned();
    assert!(files[0].ends_with(&format!("_{mail}.md")));
    let why = user.types(&alpha, &format!("mailbox explain {mail}")).ok();
    assert!(why.contains("@monoco::alpha"), "{why}");
    let why_not = user.types(&gamma, &format!("mailbox explain {mail}")).ok();
    assert!(why_not.contains("@monoco::gamma"), "{why_not}");
    let read = user.types(&alpha, &format!("mailbox read {mail}")).ok();
    for text in ["the build is red", "since I deployed", "please have a look", "untrusted"] {
        assert!(read.contains(text), "{read}");
    }

    // Claims exclude agents of one workspace, and not the other workspace.
    user.types(&alpha, &format!("mailbox claim {mail} --agent one")).ok();
    let held = user.types(&alpha, &format!("mailbox claim {mail} --agent two")).failed(2);
    assert!(held.contains("one"), "{held}");
    user.types(&beta, &format!("mailbox claim {mail} --agent two")).ok();
    user.types(&alpha, &format!("mailbox done {mail} --agent one")).ok();
    assert_eq!(user.files("archive").len(), 0, "beta is still at it");
    user.types(&beta, &format!("mailbox done {mail} --agent two")).ok();
    assert_eq!(user.has("archive", 1), files);
    assert_eq!(user.files("inbound").len(), 0);
    assert_eq!(user.types(&alpha, &format!("mailbox claim {mail}")).code, 1, "it is done");

    // A workspace that comes late still gets it.
    let late = user.workspace("late", "mailbox:\n  filters:\n    - { type: binding, value: x }\n    - { type: session, value: Ops }\n");
    user.types(&late, "mailbox sync").ok();
    assert_eq!(user.types(&late, "mailbox list --format id").ok().trim(), mail);
    user.types(&late, &format!("mailbox claim {mail}")).ok();
    user.types(&late, &format!("mailbox done {mail}")).ok();

    // Four failures, and it is a dead letter with its reason.
    user.curl(&said("evt-4", "ann", "@monoco::alpha and another"));
    let path = user.until(&alpha, "mailbox wait --timeout 10", |path| path.contains("inbox"));
    let second = Path::new(path.trim()).file_stem().unwrap().to_str().unwrap().to_owned();
    let second = second.split_once('_').unwrap().1.to_owned();
    for _ in 0..4 {
        user.until(&alpha, &format!("mailbox claim {second}"), |_| true);
        user.runs(&alpha, &["mailbox", "fail", &second, "--reason", "no idea"]).ok();
    }
    let dead = user.has(".deadletter", 2);
    assert!(dead.iter().any(|name| name.ends_with(".reason.json")), "{dead:?}");
    let desk = user.types(&alpha, "dead list").ok();
    assert!(desk.contains("no idea") && desk.contains(&second[..12]), "{desk}");

    // `run` claims, does and ends by the exit code; its output is the attempt's log.
    user.curl(&said("evt-5", "ann", "@monoco::alpha run this"));
    user.until(&alpha, "mailbox wait --timeout 10", |_| true);
    let ran = user.runs(
        &alpha,
        &["mailbox", "run", "--", "sh", "-c", "cat; echo did $MONOCO_MAIL_ID; exit 0"],
    );
    let said_by_run = ran.ok();
    assert!(said_by_run.contains("run this") && said_by_run.contains("did webhook_"));
    user.has("archive", 2);
    let logs: Vec<_> = std::fs::read_dir(alpha.join(".monoco/mailbox/log")).unwrap().collect();
    assert_eq!(logs.len(), 1);

    // The answer goes back to exactly where the Mail came from, and is signed.
    user.runs(&alpha, &["mailbox", "send", "--reply-to", &mail, "--text", "fixed, sorry"]).ok();
    let got = receiver.next();
    let sent: Value = serde_json::from_str(&got.body).unwrap();
    assert_eq!((&sent["text"], &sent["session"]["id"]), (&"fixed, sorry".into(), &"room-7".into()));
    assert_eq!(sent["reply_to"], "evt-3");
    let script = "import sys, json\nfrom standardwebhooks.webhooks import Webhook\n\
                  g = json.load(sys.stdin)\nWebhook(g['secret']).verify(g['body'], g['headers'])\nprint('signed')";
    let judged = serde_json::json!({"secret": SECRET, "body": got.body, "headers": got.headers});
    assert_eq!(python(script, &judged).trim(), "signed");
    let archived = user.has("archive", 3);
    assert!(archived.len() == 3, "{archived:?}");

    // Everything about it, by any id; and a good end.
    let trace = user.types(&alpha, "trace evt-2").ok();
    for word in ["merged", "claimed", "completed", "alpha", "beta", "late"] {
        assert!(trace.contains(word), "{word}: {trace}");
    }
    user.types(&here, "courier stop").ok();
    assert_eq!(user.types(&here, "courier status").code, 3);

    // What needs no courier works without one.
    assert!(user.types(&alpha, &format!("mailbox read {mail}")).ok().contains("the build is red"));
    user.types(&alpha, "mailbox sync --full").ok();
    assert!(user.types(&alpha, "mailbox list").ok().contains("COMPLETED"));
    user.types(&alpha, &format!("mailbox explain {mail}")).ok();
    assert_eq!(user.types(&alpha, &format!("mailbox claim {mail}")).code, 3);
}
