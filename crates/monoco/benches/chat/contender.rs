//! What receives the frames of an emulator: the courier, or the SDK of the vendor with a handler
//! that appends to a file and syncs it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::RunningCourier;
use crate::emulator::{Emulator, MEASURE_TIMEOUT};

const HANDLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/chat/handler.py");

/// How often the file of the SDK is read.
const LINES_INTERVAL: Duration = Duration::from_millis(20);

/// Where `./bench` and `./test` install the SDKs.
pub fn sdk_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/reference-sdks")
}

/// Starts a courier with one tunnel per app of each emulator, and waits until all are connected.
pub fn start_courier(dir: &Path, emulators: &[Emulator], apps: usize) -> Result<RunningCourier> {
    let data = TempDir::new_in(dir)?;
    let courier = data.path().join("courier");
    std::fs::create_dir_all(courier.join("adapters.d"))?;
    for emulator in emulators {
        let name = emulator.network.name();
        for app in 0..apps {
            let file = courier.join(format!("adapters.d/{name}-{app}.yaml"));
            std::fs::write(file, tunnel(emulator, app))?;
        }
    }
    let courier = RunningCourier::start(data)?;
    for emulator in emulators {
        emulator.wait_for_connections(apps)?;
    }
    Ok(courier)
}

/// The file of a tunnel to one app.
fn tunnel(emulator: &Emulator, app: usize) -> String {
    let keys = emulator.network.tunnel_keys();
    let lines = keys.iter().map(|key| format!("{key}: {:?}\n", emulator.credential(app, key)));
    let lines: String = lines.collect();
    format!("provider: {}\nmax_mb_per_day: 1000000\n{lines}", emulator.network.name())
}

/// A process with the SDK of the vendor. It is stopped on drop.
pub struct SdkHandler {
    child: Child,
    data: TempDir,
}

impl SdkHandler {
    /// Starts the handler and waits until it is connected.
    pub fn start(dir: &Path, emulator: &Emulator) -> Result<Self> {
        let data = TempDir::new_in(dir)?;
        let keys = emulator.network.tunnel_keys();
        // The SDK of DingTalk has no address of the old API.
        let names = keys.iter().filter(|name| **name != "oapi_url");
        let child = Command::new("python3")
            .args([HANDLER, emulator.network.name()])
            .arg(data.path().join("messages.jsonl"))
            .args(names.map(|name| emulator.credential(0, name)))
            .env("PYTHONPATH", sdk_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run python3 ({error}); ./bench installs it"))?;
        let handler = Self { child, data };
        emulator.wait_for_connections(1)?;
        Ok(handler)
    }

    /// Waits until this number of messages is on disk. An SDK that fetches updates confirms them
    /// before its handler has run.
    pub fn wait_for_lines(&self, count: u64) -> Result<()> {
        let file = self.data.path().join("messages.jsonl");
        let started = Instant::now();
        loop {
            let bytes = std::fs::read(&file)?;
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            if lines >= count {
                return Ok(());
            }
            if started.elapsed() > MEASURE_TIMEOUT {
                return Err(format!("{lines} of {count} messages after {MEASURE_TIMEOUT:?}").into());
            }
            thread::sleep(LINES_INTERVAL);
        }
    }
}

impl Drop for SdkHandler {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Versions of the SDKs, from the file that lists the installed ones.
pub fn sdk_versions() -> Result<String> {
    let installed = sdk_dir().join("installed.txt");
    let text = std::fs::read_to_string(&installed)
        .map_err(|error| format!("{}: {error}; ./bench installs the SDKs", installed.display()))?;
    let names = ["dingtalk-stream", "lark-oapi", "python-telegram-bot", "slack-sdk"];
    let wanted = |line: &&str| names.iter().any(|name| line.starts_with(name));
    Ok(text
        .lines()
        .filter(wanted)
        .map(|line| line.replace("==", " "))
        .collect::<Vec<_>>()
        .join(", "))
}
