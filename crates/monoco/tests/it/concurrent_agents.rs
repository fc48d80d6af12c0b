//! Eight agents on one box: every record is finished once, whichever agent dies.
//!
//! The takers are processes of their own that use the command line, as an agent's
//! script would.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::ack_checker::{TestRng, batch_dispatch, events, say};
use crate::common::{Courier, ME, binary, chat};

const TAKERS: usize = 8;

/// How many there are to begin with.
const RECORDS: usize = 300;

/// Takes one record for a second, and knows it as `$record` and `$epoch`.
const TAKE: &str = r#"
take() {
    taken=$("$MONOCO" center next --lease 1 --holder "$NAME" --format json 2>&-) || return 1
    record=$(echo "$taken" | sed -n 's/.*"record_id": "\(.*\)".*/\1/p')
    epoch=$(echo "$taken" | sed -n 's/.*"epoch": \([0-9]*\).*/\1/p')
}
"#;

/// Takes and finishes until it is killed. A finish that comes too late is refused,
/// and that is as it should be.
const DILIGENT: &str = r#"
while :; do
    if take; then
        "$MONOCO" center state "$record" READED --epoch "$epoch" --holder "$NAME" >&- 2>&-
    else
        sleep 0.05
    fi
done
"#;

/// Takes one, says which, and never comes to finishing it. Says nothing when there is
/// none for long.
const DOOMED: &str = r#"
for try in $(seq 500); do
    if take; then
        echo "$record $epoch"
        read nothing
    fi
    sleep 0.02
done
"#;

/// A taker and whatever it has started. Killed at the latest when the test ends.
struct Taker(Child);

impl Taker {
    fn start(home: &Path, name: &str, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{TAKE}{script}")]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("MONOCO_HOME", home);
        command.env("MONOCO", binary()).env("NAME", name).process_group(0);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// One that is killed the moment it has taken a record.
    fn killed_in_the_middle(home: &Path, name: &str) -> (String, u64) {
        let mut taker = Self::start(home, name, DOOMED);
        let mut line = String::new();
        BufReader::new(taker.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (record, epoch) = line.trim().split_once(' ').expect("there was nothing to take");
        (record.to_owned(), epoch.parse().unwrap())
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// How often each record was moved to READED.
fn completions(courier: &Courier) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for event in events(courier) {
        if event["kind"] == "marked" && event["detail"]["to"] == "READED" {
            let record = event["record_id"].as_str().unwrap().to_owned();
            *times.entry(record).or_default() += 1;
        }
    }
    times
}

fn fill(courier: &Courier, numbers: std::ops::Range<usize>) -> Vec<String> {
    let line = |n| format!("{}\n", json!({"msg": chat("did:web:ann", ME, &format!("no. {n}"))}));
    let answer = batch_dispatch(courier, &numbers.map(line).collect::<String>());
    let read = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
    let id = |answer: Value| answer["delivered"][0]["record_id"].as_str().unwrap().to_owned();
    answer.text().lines().map(|line| id(read(line))).collect()
}

fn finish(courier: &Courier, record: &str, epoch: u64) -> crate::common::Answer {
    let body = json!({"state": "READED", "epoch": epoch});
    courier.post(&format!("/api/v1/records/{record}/state"), &body)
}

#[test]
fn eight_processes_finish_every_record_once_while_some_of_them_are_killed() {
    let courier = Courier::start();
    let mut dice = TestRng::new();
    let mut records = fill(&courier, 0..RECORDS);
    let start = |number: usize| Taker::start(courier.home(), &format!("taker-{number}"), DILIGENT);
    let mut takers: Vec<_> = (0..TAKERS).map(start).collect();

    let mut orphans = Vec::new();
    let mut kills = 0;
    for number in TAKERS..TAKERS + 12 {
        // Anywhere: while it asks, while it is asked, between taking and finishing.
        std::thread::sleep(Duration::from_millis(20 + dice.below(100)));
        let index = usize::try_from(dice.below(TAKERS as u64)).unwrap();
        takers[index] = start(number);
        kills += 1;
        if number % 3 == 0 {
            // The others may have finished everything by now.
            records.extend(fill(&courier, records.len()..records.len() + 20));
            orphans.push(Taker::killed_in_the_middle(courier.home(), &format!("doomed-{number}")));
            kills += 1;
        }
    }
    let open = format!("/api/v1/boxes/{ME}/INBOX?state=UNREAD,READING&limit=1");
    courier.until(&open, |page| page["records"].as_array().unwrap().is_empty());
    drop(takers);

    let finished = completions(&courier);
    records.sort();
    assert_eq!(finished.keys().cloned().collect::<Vec<_>>(), records, "every record is finished");
    let twice: Vec<_> = finished.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "finished more than once: {twice:?}");

    let returned = events(&courier).iter().filter(|event| event["kind"] == "lease_ended").count();
    assert!(returned >= orphans.len(), "what the dead held came back by the end of its lease");
    for (record, epoch) in &orphans {
        assert_eq!(finish(&courier, record, *epoch).refused(409), "lease_lost");
    }
    assert_eq!(completions(&courier), finished, "late finishes change nothing");
    let records = records.len();
    say(&format!("{records} records, {TAKERS} takers, {kills} kills, {returned} leases ended"));
}
