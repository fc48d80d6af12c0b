//! `mailbox run` and `watch --exec`: how the end of a command ends the claim on its Mail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::common::until;
use crate::end_to_end::User;
use crate::webhook_peer::{SECRET, body};

/// A user with a running courier and a workspace that pulls all webhook Mails.
pub struct Worker {
    pub user: User,
    pub workspace: PathBuf,
}

impl Worker {
    pub fn new() -> Self {
        Self::with_tunnel("")
    }

    /// The same, with further keys of the tunnel.
    pub fn with_tunnel(keys: &str) -> Self {
        let user = User::new(&format!(
            "courier:\n  service: {{ port: 0, webhook_port: 0 }}\n  debounce: {{ window_ms: 50 }}\n  \
             claims: {{ backoff_ms: 1, max_backoff_ms: 1 }}\n  adapters:\n    \
             ci: {{ provider: webhook, verify: standard, secret: '{SECRET}'{keys} }}\n"
        ));
        let filters = "mailbox: {name: alpha, filters: [{type: provider, value: webhook}]}";
        let workspace = user.workspace("alpha", filters);
        user.types(&workspace, "courier start").ok();
        Self { user, workspace }
    }

    /// Delivers a message and returns the id of its Mail.
    pub fn mail(&self, session: &str) -> String {
        let before = self.ids();
        self.user.curl(&body(session, session, "ann", &format!("about {session}")));
        until("the Mail is in the workspace", || self.ids().len() > before.len());
        self.ids().into_iter().find(|id| !before.contains(id)).unwrap()
    }

    fn ids(&self) -> Vec<String> {
        self.user.types(&self.workspace, "mailbox sync").ok();
        let ids = self.user.types(&self.workspace, "mailbox list --all --format id").ok();
        ids.lines().map(str::to_owned).collect()
    }

    /// Status, number of attempts and reason of the claim of this workspace.
    pub fn claim(&self, id: &str) -> (String, u64, String) {
        let json = self.user.types(&self.workspace, "mailbox list --all --format json").ok();
        let json: Value = serde_json::from_str(&json).unwrap();
        let mails = json["messages"].as_array().unwrap();
        let claim = &mails.iter().find(|mail| mail["id"] == id).unwrap()["claim"];
        let text = |key: &str| claim[key].as_str().unwrap_or_default().to_owned();
        (text("status"), claim["attempts"].as_u64().unwrap(), text("reason"))
    }

    /// Runs a shell script on the next Mail; returns the exit code and stderr.
    fn run(&self, script: &str) -> (i32, String) {
        let ran = self.user.runs(&self.workspace, &["mailbox", "run", "--", "sh", "-c", script]);
        (ran.code, ran.stderr)
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether a process runs; a zombie does not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

#[test]
fn exit_code_of_the_command_ends_the_claim() {
    let worker = Worker::new();
    let done = worker.mail("done");
    assert_eq!(worker.run("exit 0").0, 0);
    assert_eq!(worker.claim(&done).0, "COMPLETED");

    let bad = worker.mail("bad");
    let (code, said) = worker.run("echo not JSON >&2; exit 65");
    assert_eq!(code, 65, "{said}");
    let (status, attempts, reason) = worker.claim(&bad);
    assert_eq!((status.as_str(), attempts), ("DEADLETTER", 1));
    assert!(reason.contains("exit code 65") && reason.contains("not JSON"), "{reason}");

    // Three retries for any other code and for signals, then a dead letter.
    let again = worker.mail("again");
    for (attempt, script) in [(1, "exit 1"), (2, "exit 75"), (3, "kill -KILL $$"), (4, "exit 127")]
    {
        until("the Mail can be claimed again", || {
            worker.run(script);
            worker.claim(&again).1 == attempt
        });
        let (status, ..) = worker.claim(&again);
        assert_eq!(status, if attempt < 4 { "NEW" } else { "DEADLETTER" }, "{script}");
    }
}

#[test]
fn missing_command_claims_nothing() {
    let worker = Worker::new();
    let id = worker.mail("one");
    for args in [
        &["mailbox", "run", "--", "no-such-command"][..],
        &["mailbox", "run", "--", "./no-such-file"],
        &["mailbox", "run", "--", "/etc/passwd"],
        &["mailbox", "watch", "--exec", "no-such-command --option"],
        &["mailbox", "watch", "--exec", "  "],
    ] {
        let ran = worker.user.runs(&worker.workspace, args);
        assert!(ran.code == 1 || ran.code == 64, "{args:?}: {} {}", ran.code, ran.stderr);
        assert_eq!(worker.claim(&id), ("NEW".to_owned(), 0, String::new()), "{args:?}");
    }
}

/// The lease of a killed runner is still valid, so its command must not go on beside the one
/// that claims the Mail later.
#[test]
fn command_ends_when_its_runner_is_killed() {
    let worker = Worker::new();
    let id = worker.mail("one");
    let (pids, again) = (worker.workspace.join("pids"), worker.workspace.join("again"));
    // A child of the command, too, one that ignores SIGTERM, and one in a session of its own.
    let script = "trap '' TERM; sleep 1000 & (setsid sh -c 'echo $$ >other; exec sleep 1000' &)
        while ! test -s other; do sleep 0.01; done
        echo $$ $! $(cat other) >pids.tmp; mv pids.tmp pids; wait; sleep 1000";
    let mut command = worker.user.command(
        &worker.workspace,
        &["mailbox", "run", "--timeout", "1", "--", "sh", "-c", script],
    );
    let mut runner = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the command runs", || exists(&pids));
    let pids = fs::read_to_string(&pids).unwrap();
    assert!(pids.split_whitespace().all(is_running), "{pids}");
    runner.kill().unwrap();
    runner.wait().unwrap();
    until("the command has ended", || !pids.split_whitespace().any(is_running));
    // The claim ends with its lease.
    until("the Mail can be claimed again", || {
        worker.run("touch again");
        exists(&again)
    });
    let (status, attempts, _) = worker.claim(&id);
    assert_eq!((status.as_str(), attempts), ("COMPLETED", 2));
}

#[test]
fn watch_runs_a_shell_command_on_each_mail_until_it_is_stopped() {
    let worker = Worker::new();
    let script = "read first; echo $MONOCO_MAIL_ID >>seen; exit $(cat code)";
    fs::write(worker.workspace.join("code"), "0").unwrap();
    let mut command = worker.user.command(
        &worker.workspace,
        &["mailbox", "watch", "--filter", "{type: text_matches, pattern: about}", "--exec", script],
    );
    let mut watch = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let first = worker.mail("first");
    until("the first is done", || worker.claim(&first).0 == "COMPLETED");
    fs::write(worker.workspace.join("code"), "65").unwrap();
    let second = worker.mail("second");
    until("the second is dead", || worker.claim(&second).0 == "DEADLETTER");
    fs::write(worker.workspace.join("code"), "1").unwrap();
    let third = worker.mail("third");
    until("the third is dead", || worker.claim(&third).0 == "DEADLETTER");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let seen = fs::read_to_string(worker.workspace.join("seen")).unwrap();
    let runs = |id: &str| seen.lines().filter(|line| *line == id).count();
    assert_eq!([runs(&first), runs(&second), runs(&third)], [1, 1, 4]);
}
