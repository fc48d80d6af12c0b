//! Processes of worker commands: none outlives its command, its time limit or the courier.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Courier, PATIENCE};
use crate::pipeline_harness::{PipelineCourier, mail};

/// A courier whose worker starts a child, and a child in a session of its own whose parent has
/// exited. The worker writes the ids of its processes to a file and hangs.
struct HangingWorker {
    fixture: PipelineCourier,
    list: String,
    letter: String,
}

impl HangingWorker {
    fn start(timeout_s: u32) -> Self {
        let fixture = PipelineCourier::open(&json!({}));
        let list = fixture.place("processes");
        let script = format!(
            "echo $$ >> {list}
             sleep 1000 & echo $! >> {list}
             (setsid sh -c 'echo $$ >> {list}; exec sleep 1000' &)
             exec sleep 1000\n"
        );
        let command = ["sh".to_owned(), fixture.file("worker.sh", &script)];
        let worker =
            json!({"kind": "exec", "command": command, "retries": 0, "timeout_s": timeout_s});
        fixture.reload(&json!({"outbound": ["hangs", "send"], "workers": {"hangs": worker}}));
        let letter = fixture.post(&mail("bob@example.org", "Hello", "hello"));
        let this = Self { fixture, list, letter };
        this.until("three processes are started", || this.processes().len() == 3);
        this
    }

    fn processes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.list).unwrap_or_default();
        text.split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn are_gone(&self) {
        self.until("no process is left", || !self.processes().iter().any(is_alive));
    }
}

fn is_alive(process: &String) -> bool {
    Path::new("/proc").join(process).exists()
}

fn parent(process: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
}

fn kill(process: &str) {
    assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
}

#[test]
fn no_process_of_a_worker_is_left_after_its_time_limit() {
    let worker = HangingWorker::start(3);
    let dead = worker.fixture.stands(&worker.letter, "DEAD");
    assert!(dead["failure"].as_str().unwrap().contains("no answer within 3 s"), "{dead:#}");
    worker.are_gone();
}

#[test]
fn no_process_of_a_worker_is_left_after_the_courier_stopped() {
    let worker = HangingWorker::start(600);
    worker.fixture.courier.cli(&["courier", "stop"]).ok();
    worker.are_gone();
}

#[test]
fn no_process_of_a_worker_is_left_after_the_courier_was_killed() {
    let mut worker = HangingWorker::start(600);
    worker.fixture.courier.kill();
    worker.are_gone();
}

#[test]
fn no_process_of_a_command_is_left_after_the_courier_and_its_supervisor_were_killed() {
    let mut worker = HangingWorker::start(600);
    let command = worker.processes()[0].clone();
    let supervisor = parent(&command);
    assert_eq!(parent(&supervisor), worker.fixture.courier.pid().to_string());
    kill(&supervisor);
    worker.fixture.courier.kill();
    worker.until("the command is gone", || !is_alive(&command));
    // The next courier ends the processes that only the supervisor could have found.
    let left = worker.processes();
    let _next = Courier::start_in(worker.fixture.courier.home());
    worker.until("no process is left", || !left.iter().any(is_alive));
}

#[test]
fn no_process_of_a_command_is_left_after_its_supervisor_was_killed() {
    let worker = HangingWorker::start(600);
    kill(&parent(&worker.processes()[0]));
    worker.are_gone();
    let dead = worker.fixture.stands(&worker.letter, "DEAD");
    assert!(dead["failure"].as_str().unwrap().contains("signal 9"), "{dead:#}");
}
