//! The commands of the README, both parts of the tour, docs/answer-a-mail.md and
//! docs/first-chat-message.md, run as they are written.

use std::process::Command;

use serde_json::Value;

use crate::common::{Courier, binary};
use crate::mail_checker::answering;
use crate::webhook_peer::Receiver;

const README: &str = include_str!("../../../../README.md");
const SECOND_PART: &str = include_str!("../../../../docs/tour.md");
const FIRST_CHAT_MESSAGE: &str = include_str!("../../../../docs/first-chat-message.md");
const ANSWER_A_MAIL: &str = include_str!("../../../../docs/answer-a-mail.md");

/// The fenced blocks of a document that start with `fence`.
pub fn blocks(document: &'static str, fence: &str) -> Vec<&'static str> {
    let mut blocks = Vec::new();
    let mut rest = document;
    while let Some((_, after)) = rest.split_once(&format!("```{fence}\n")) {
        let (block, after) = after.split_once("```").unwrap();
        blocks.push(block);
        rest = after;
    }
    blocks
}

#[test]
fn the_first_two_commands_are_what_they_should_be() {
    assert_eq!(
        blocks(README, "sh"),
        ["cargo run --release -- courier start --foreground\n", "./test\n"],
        "the harness runs the first through the built binary, and this is the second"
    );
}

#[test]
fn the_tour_works_when_pasted() {
    let courier = Courier::start();
    let [first, second] = [README, SECOND_PART].map(|document| blocks(document, "sh tour"));
    assert!(first.len() >= 5 && second.len() >= 8, "{first:?} {second:?}");
    run(&courier, &[first, second].concat());
}

#[test]
fn a_mail_is_answered_with_the_five_documented_requests() {
    let receiver = Receiver::start();
    let courier = Courier::start_configured(&answering(&receiver, 50));
    courier.hears("evt-1", "room-7", "ann", "the build is red");
    courier.mails(1);
    let steps = blocks(ANSWER_A_MAIL, "sh tour");
    assert_eq!(steps.len(), 6, "the variables, and five requests: {steps:?}");
    run(&courier, &steps);
    let sent: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!((&sent["text"], &sent["to"]), (&"Fixed in 4f2a91c.".into(), &"room-7".into()));
    assert_eq!(courier.mails(1)[0]["status"], "COMPLETED");
}

#[test]
fn a_first_chat_message_is_received_and_answered_as_documented() {
    let courier = Courier::start();
    let steps = blocks(FIRST_CHAT_MESSAGE, "sh tour");
    assert!(steps.len() >= 5, "{steps:?}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let steps: Vec<_> = steps
        .iter()
        .map(|step| step.replace("sim slack", &format!("sim slack --port {port}")))
        .map(|step| step.replace("127.0.0.1:8661", &format!("127.0.0.1:{port}")))
        .collect();
    run(&courier, &steps.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Runs the blocks as one script, and checks that each prints its lines after `#→`.
fn run(courier: &Courier, tour: &[&str]) {
    // Each block ends by showing what it printed, so that one script keeps its
    // variables from block to block as a terminal does.
    // Jobs of a block that fails must not outlive the script.
    let mut script = String::from("set -eum\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    let mut wanted = Vec::new();
    for block in tour {
        let commands: String = block
            .lines()
            .filter(|line| !line.starts_with("#→"))
            .map(|l| format!("{l}\n"))
            .collect();
        script.push_str(&commands);
        script.push_str("echo ---- end of block\n");
        let lines = block.lines().filter_map(|line| line.strip_prefix("#→ "));
        wanted.push(lines.collect::<Vec<_>>());
    }
    let bin = binary().parent().unwrap().to_str().unwrap();
    let script = script
        .replace("$PWD/target/release", bin)
        .replace("localhost:8644", &format!("localhost:{}", courier.address.port()))
        .replace("localhost:8645", &format!("localhost:{}", courier.webhooks().port()));
    let ran = Command::new("timeout")
        .args(["300", "bash", "-c", &script])
        .env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap()))
        .env("MONOCO_HOME", courier.home())
        .env("HOME", courier.home().parent().unwrap())
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}\n{stderr}");
    let printed: Vec<_> = stdout.split("---- end of block\n").collect();
    for ((block, wanted), printed) in tour.iter().zip(wanted).zip(printed) {
        for line in wanted {
            let found = printed.contains(line) || stderr.contains(line);
            assert!(found, "{block}\nsaid\n{printed}\nand not\n{line}\n{stderr}");
        }
    }
}
