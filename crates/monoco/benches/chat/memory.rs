//! Memory of many tunnels, and of a large file that is fetched.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::Result;
use crate::common::courier::{RunningCourier, unexpected_response};
use crate::common::http::Conn;
use crate::common::resources::{peak_bytes, resident_bytes};
use crate::contender::start_courier;
use crate::emulator::{Emulator, Network};
use crate::plan::Plan;
use crate::report::{Report, mib};

/// Pause after the last connection, so that its start is not measured.
const SETTLE: Duration = Duration::from_secs(2);

/// Maximum time until the file is in a Mail.
const FILE_TIMEOUT: Duration = Duration::from_secs(120);

pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    report.heading("memory of the courier", &["MiB".to_owned()]);
    for network in [Network::DingTalk, Network::Slack, Network::Telegram] {
        let emulator = Emulator::start(network, plan.tunnels)?;
        let courier = start_courier(&plan.dir, &emulator, plan.tunnels)?;
        thread::sleep(SETTLE);
        let used = resident_bytes(courier.pid())?;
        let what = format!("{} tunnels, {}", plan.tunnels, network.name());
        report.row(&what, "100 tunnels < 100 MiB", std::iter::once(mib(used)));
    }
    let added = file_memory(plan)?;
    let what = format!("added by a file of {} MB", plan.file_bytes >> 20);
    report.row(&what, "< 16 MiB", std::iter::once(mib(added)));
    Ok(())
}

/// Peak memory while a file is fetched, beyond that before it.
fn file_memory(plan: &Plan) -> Result<u64> {
    let emulator = Emulator::start(Network::Slack, 1)?;
    let courier = start_courier(&plan.dir, &emulator, 1)?;
    // The first message needs memory that later ones use again.
    emulator.say(1, None)?;
    wait_for_mails(&courier, |mails| mails.len() == 1)?;
    let before = resident_bytes(courier.pid())?;
    // Resets the peak to the present use.
    std::fs::write(format!("/proc/{}/clear_refs", courier.pid()), "5")?;
    let file = json!({"name": "large.bin", "size": plan.file_bytes});
    let say = json!({"chat": "general", "user": "bob", "text": "a file", "mention": true,
                     "files": [file]});
    emulator.post("say", &say)?;
    wait_for_mails(&courier, |mails| mails.len() == 2)?;
    let stored = disk_usage(&courier.home().join("store"))?;
    if stored < plan.file_bytes {
        return Err(format!("the file was not stored: the store has {stored} bytes").into());
    }
    Ok(peak_bytes(courier.pid())?.saturating_sub(before))
}

fn wait_for_mails(courier: &RunningCourier, fits: impl Fn(&[Value]) -> bool) -> Result<()> {
    let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
    let started = Instant::now();
    loop {
        let (status, answer) = conn.request("GET", "/api/v1/messages", "", b"")?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        let answer: Value = serde_json::from_slice(answer)?;
        if answer["messages"].as_array().is_some_and(|mails| fits(mails)) {
            return Ok(());
        }
        if started.elapsed() > FILE_TIMEOUT {
            return Err(format!("no Mail within {FILE_TIMEOUT:?}: {answer}").into());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes of all files below a directory.
fn disk_usage(dir: &std::path::Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => disk_usage(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
