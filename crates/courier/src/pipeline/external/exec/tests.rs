//! Real commands: valid answers, failures, leaks and limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use monoco_core::letter::{Letter, LetterId, Verdict, WorkerRequest};
use serde_json::json;

use super::*;
use crate::supervisor::SUPERVISOR_VARIABLE;

const ROOMY: u64 = 1 << 30;
const SOON: Duration = Duration::from_millis(500);
const LONG_ENOUGH: Duration = Duration::from_secs(3);
const LATE: Duration = Duration::from_secs(30);
const ID: LetterId = LetterId { seq: 7, mark: 0xabcd };

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn run(command: &[&str], letter: &[u8], timeout: Duration) -> AttemptResult {
    run_command(&words(command), ROOMY, letter, timeout).await.result
}

async fn sh(script: &str) -> AttemptResult {
    run(&["sh", "-c", script], b"{}", LATE).await
}

fn answered(text: &str) -> AttemptResult {
    AttemptResult::Answered(text.as_bytes().to_vec())
}

fn failed(words: &str) -> AttemptResult {
    AttemptResult::Failed(words.to_owned())
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LATE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A file in which a command writes the ids of its processes.
struct ProcessList(tempfile::TempDir);

impl ProcessList {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pids")
    }

    /// A script that starts a child, and a child in a session of its own, whose parent exits.
    /// Then it writes its own id and continues.
    fn script(&self, then: &str) -> String {
        let path = self.path();
        let path = path.display();
        format!(
            "sleep 300 & echo $! >> {path}; \
             (setsid sh -c 'echo $$ >> {path}; exec sleep 300' &); \
             until [ $(wc -l < {path}) = 2 ]; do :; done; echo $$ >> {path}; {then}"
        )
    }

    fn processes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn are_started(&self) -> bool {
        self.processes().len() == 3
    }

    fn are_gone(&self) -> bool {
        assert!(self.are_started(), "{:?}", self.processes());
        self.processes().iter().all(|process| !Path::new("/proc").join(process).exists())
    }
}

#[tokio::test]
async fn command_gets_the_letter_and_returns_its_output() {
    let letter = Letter {
        from: "ann@example.com".to_owned(),
        to: vec!["bob@example.com".to_owned()],
        data: "Subject: hi\r\n\r\nLunch? é\r\n".to_owned(),
        ..Letter::default()
    };
    let worker = &"tagger".parse().unwrap();
    let request = WorkerRequest {
        id: ID,
        worker,
        nonce: "2",
        attempt: 1,
        letter: &letter,
        may_readdress: false,
    };
    let given = request.to_json(&[]).to_string();
    assert_eq!(run(&["cat"], given.as_bytes(), LATE).await, answered(&format!("{given}\n")));

    let script = "import json, sys\n\
                  letter = json.load(sys.stdin)\n\
                  letter['result'] = 'pass'\n\
                  letter['extra']['seen'] = True\n\
                  print(json.dumps(letter))";
    let AttemptResult::Answered(bytes) =
        run(&["python3", "-c", script], given.as_bytes(), LATE).await
    else {
        panic!("no answer");
    };
    let answer = request.parse_answer(&bytes).unwrap();
    assert_eq!(answer.verdict, Verdict::Pass);
    let changed = answer.letter.unwrap();
    assert_eq!(changed.extra["seen"], json!(true));
    assert_eq!(changed.data, letter.data);
    let AttemptResult::Answered(bytes) = sh("head -c 1000 /dev/urandom; echo").await else {
        panic!("no answer");
    };
    assert!(request.parse_answer(&bytes).is_err(), "any output is returned unparsed");
}

#[tokio::test]
async fn exit_status_determines_the_result() {
    for (script, want) in [
        ("exit 1", failed("exit 1")),
        ("echo '{}'; exit 3", failed("exit 3")),
        ("echo one >&2; echo two >&2; echo >&2; exit 1", failed("exit 1: two")),
        ("printf 'a\\tb\\033[31m\\r\\n' >&2; exit 1", failed("exit 1: a b [31m")),
        ("exit 127", failed("exit 127")),
        ("nosuchprogram", failed("exit 127: sh: 1: nosuchprogram: not found")),
        ("kill -9 $$", failed("killed by signal 9 (out of memory?)")),
        ("kill -15 $$", failed("killed by signal 15")),
        ("true", failed("exit 0 without output")),
        ("echo; echo ' '", failed("exit 0 without output")),
        ("echo complaint >&2; echo '{}'", answered("{}\n")),
    ] {
        assert_eq!(sh(script).await, want, "{script}");
    }
    let long = sh("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1").await;
    assert_eq!(long, failed(&format!("exit 1: {}", "x".repeat(MAX_LINE_CHARS))));
}

#[tokio::test]
async fn missing_command_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("worker");
    fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    let script = script.to_str().unwrap();
    let not_executable = run(&[script], b"{}", LATE).await;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(script, executable).unwrap();
    for (result, why) in [
        (
            run(&["nosuchprogram", "-x"], b"{}", LATE).await,
            "nosuchprogram: No such file or directory".to_owned(),
        ),
        (not_executable, format!("{script}: Permission denied")),
        (run(&[script], b"{}", LATE).await, format!("{script}: No such file or directory")),
        (run(&["/"], b"{}", LATE).await, "/: Permission denied".to_owned()),
    ] {
        let why = format!("cannot be started: {why} (os error ");
        assert!(
            matches!(&result, AttemptResult::Down(words) if words.starts_with(&why)),
            "{result:?}"
        );
    }
    assert_eq!(
        run(&[], b"{}", LATE).await,
        AttemptResult::Down("no command is configured".to_owned())
    );
    let nul = run(&["echo", "a\0b"], b"{}", LATE).await;
    assert!(matches!(&nul, AttemptResult::Down(why) if why.contains("nul byte")), "{nul:?}");
}

#[tokio::test]
async fn arguments_are_not_interpreted_by_a_shell() {
    let odd = "$(exit 9) `exit 9` $HOME * ; exit 9 \" ' \\ \n&";
    assert_eq!(
        run(&["printf", "%s|%s", odd, "-n"], b"{}", LATE).await,
        answered(&format!("{odd}|-n"))
    );
}

#[tokio::test]
async fn command_gets_only_some_variables() {
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there is something to leak");
    let AttemptResult::Answered(bytes) = run(&["env"], b"{}", LATE).await else {
        panic!("no answer")
    };
    let text = String::from_utf8(bytes).unwrap();
    let names = text.lines().filter_map(|line| Some(line.split_once('=')?.0));
    for name in names {
        assert!(PASSED_VARIABLES.contains(&name) || name == SUPERVISOR_VARIABLE, "{text}");
    }
    assert!(text.contains("PATH="), "{text}");
    assert_eq!(sh("pwd").await, answered("/\n"));
}

#[tokio::test]
async fn hanging_command_is_killed_with_its_children() {
    let list = ProcessList::new();
    let before = Instant::now();
    let script = list.script("trap '' TERM HUP INT; echo '{}'; sleep 300");
    let result = run(&["sh", "-c", &script], b"{}", LONG_ENOUGH).await;
    assert_eq!(result, failed("no answer within 3 s"));
    assert!(before.elapsed() < LONG_ENOUGH + EXIT_GRACE, "the wait is bounded");
    assert!(list.are_gone(), "they are gone by then");
}

#[tokio::test]
async fn processes_left_by_a_command_are_killed() {
    let list = ProcessList::new();
    assert_eq!(sh(&list.script("echo '{}'")).await, answered("{}\n"));
    assert!(list.are_gone());
}

#[tokio::test]
async fn dropped_command_is_killed() {
    let list = ProcessList::new();
    let script = list.script("sleep 300");
    let command = words(&["sh", "-c", &script]);
    tokio::select! {
        attempt = run_command(&command, ROOMY, b"{}", LATE) => panic!("{attempt:?}"),
        () = until("it is started", || list.are_started()) => {}
    }
    until("they are gone", || list.are_gone()).await;
}

#[tokio::test]
async fn signal_that_ends_the_command_is_reported() {
    assert_eq!(sh("kill -TERM $$").await, failed("killed by signal 15"));
    // The supervisor is not ended by a signal to its process group.
    let group = "trap 'echo {}; exit' TERM; kill -TERM 0; sleep 300";
    assert_eq!(sh(group).await, answered("{}\n"));
}

#[tokio::test]
async fn command_can_ignore_its_input() {
    let letter = vec![b'x'; 5 << 20];
    let sh = async |script, timeout| run(&["sh", "-c", script], &letter, timeout).await;
    assert_eq!(sh("echo '{}'", LATE).await, answered("{}\n"));
    assert_eq!(sh("exec 0<&-; echo '{}'; sleep 0.1", LATE).await, answered("{}\n"));
    assert_eq!(sh("exec sleep 300", SOON).await, failed("no answer within 0.5 s"));
    // The command reads the letter and a line feed.
    assert_eq!(sh("wc -c", LATE).await, answered("5242881\n"));
    // The command answers before it has read its input.
    let AttemptResult::Answered(echo) = run(&["cat"], &letter, LATE).await else {
        panic!("no echo")
    };
    assert_eq!(echo.len(), letter.len() + 1);
}

#[tokio::test]
async fn command_can_close_its_output_early() {
    let script = "echo '{}'; exec 1>&- 2>&-; sleep 0.2";
    assert_eq!(sh(script).await, answered("{}\n"));
    assert_eq!(sh(&format!("{script}; exit 4")).await, failed("exit 4"));
    assert_eq!(sh("exec 1>&-; sleep 0.1").await, failed("exit 0 without output"));
}

#[tokio::test]
async fn memory_limit_is_enforced() {
    let script = "bytearray(300 << 20); print('{}')";
    let command = words(&["python3", "-c", script]);
    let result = run_command(&command, 200 << 20, b"{}", LATE).await.result;
    assert_eq!(result, failed("exit 1: MemoryError"));
    assert_eq!(run_command(&command, ROOMY, b"{}", LATE).await.result, answered("{}\n"));
    // The smallest limit that can be configured is enough for a small command.
    let small = words(&["echo", "{}"]);
    assert_eq!(run_command(&small, 16 << 20, b"{}", LATE).await.result, answered("{}\n"));
    // The limit applies to all processes together: each of these uses 150 MiB.
    let tree = "import os, time\nos.fork()\nx = b'x' * (150 << 20)\ntime.sleep(300)";
    let tree = words(&["python3", "-c", tree]);
    let result = run_command(&tree, 250 << 20, b"{}", LATE).await.result;
    assert_eq!(result, failed("exit 1: the processes of the command used more than 250 MiB"));
    // The limit of one process applies to child processes and cannot be raised.
    let limit = words(&["sh", "-c", "sh -c 'ulimit -Sv; ulimit -Hv'"]);
    assert_eq!(run_command(&limit, 64 << 20, b"{}", LATE).await.result, answered("65536\n65536\n"));
}

/// Reads a line of `/proc/self/status`.
fn own(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the numbers of open files and of child processes.
fn open_files_and_children() -> (usize, usize) {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let ours = children.map(|list| list.split_whitespace().count()).sum();
    (fs::read_dir("/proc/self/fd").unwrap().count(), ours)
}

/// Runs a test again in a process of its own, where no other test opens files or allocates.
/// Returns whether this is that process.
fn alone(name: &str) -> bool {
    if std::env::var_os("MONOCO_TEST_CHILD").is_some() {
        return true;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("{}::{name}", module_path!().trim_start_matches("monoco_courier::")),
        ])
        .env("MONOCO_TEST_CHILD", "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(output.contains("1 passed"), "{output}");
    false
}

#[tokio::test]
async fn large_output_is_bounded_in_memory_and_time() {
    if !alone("large_output_is_bounded_in_memory_and_time") {
        return;
    }
    let (before, started) = (own("VmHWM:"), Instant::now());
    let list = ProcessList::new();
    let script = list.script("head -c 1000000000 /dev/zero");
    assert_eq!(sh(&script).await, failed("printed more than 49 MiB"));
    until("they are gone", || list.are_gone()).await;
    let noisy = "head -c 1000000000 /dev/zero >&2; printf '\\nlast\\n' >&2; echo '{}'; exit $0";
    let run = async |code| run(&["sh", "-c", noisy, code], b"{}", LATE).await;
    assert_eq!(run("0").await, answered("{}\n"));
    assert_eq!(run("1").await, failed("exit 1: last"));
    let grown = own("VmHWM:") - before;
    assert!(grown < 100 << 10, "{grown} KiB more");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[tokio::test]
async fn many_commands_leave_no_processes_or_files() {
    if !alone("many_commands_leave_no_processes_or_files") {
        return;
    }
    assert_eq!(sh("echo '{}'").await, answered("{}\n"));
    let before = open_files_and_children();
    let mut tries = tokio::task::JoinSet::new();
    for at in 0..60 {
        tries.spawn(async move {
            match at % 3 {
                0 => assert_eq!(sh("cat >&2; echo '{}'").await, answered("{}\n")),
                1 => assert!(matches!(
                    run(&["sleep", "300"], b"{}", SOON).await,
                    AttemptResult::Failed(_)
                )),
                _ => {
                    let dropped = within(SOON, run(&["sleep", "300"], b"{}", LATE)).await;
                    assert!(dropped.is_err());
                }
            }
        });
    }
    while let Some(tried) = tries.join_next().await {
        tried.unwrap();
    }
    until("files and processes are as before", || open_files_and_children() == before).await;
}

#[test]
fn end_of_stderr_is_kept() {
    let mut tail = OutputTail::default();
    for at in 0..10_000 {
        tail.add(format!("line {at}\n").as_bytes());
        assert!(tail.0.len() <= STDERR_TAIL_BYTES);
    }
    assert_eq!(tail.last_line(), "line 9999");
    tail.add(&vec![b'y'; 10 * STDERR_TAIL_BYTES]);
    assert_eq!(tail.0, vec![b'y'; STDERR_TAIL_BYTES]);
    assert_eq!(OutputTail::default().last_line(), "");
}
