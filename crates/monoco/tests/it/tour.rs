//! The commands of the README, and both parts of the tour, run as they are written.

use std::process::Command;

use crate::common::{Courier, binary};

const README: &str = include_str!("../../../../README.md");
const SECOND_PART: &str = include_str!("../../../../docs/tour.md");

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
    let tour = [first, second].concat();

    // Each block ends by showing what it printed, so that one script keeps its
    // variables from block to block as a terminal does.
    let mut script = String::from("set -eu\n");
    let mut wanted = Vec::new();
    for block in &tour {
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
    let script = script
        .replace("$PWD/target/release", binary().parent().unwrap().to_str().unwrap())
        .replace("localhost:8644", &format!("localhost:{}", courier.address.port()))
        .replace("localhost:8645", &format!("localhost:{}", courier.webhooks().port()));
    let ran = Command::new("timeout")
        .args(["300", "bash", "-c", &script])
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
