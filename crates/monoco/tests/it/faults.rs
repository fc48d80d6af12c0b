//! Power cuts, full and failing disks, and too few of everything.
//!
//! These need root, loop devices, `mkfs.ext4`, `strace` and `python3`. Where one is
//! missing they fail and say so: a test that skips in silence shows nothing.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ack_checker::{AckChecker, LARGE, TestRng, Tracer, long, say, times};
use crate::common::{Answer, Courier, ME, PATIENCE, binary, chat, until};
use crate::crash::load;

/// Runs a tool of the system that must go well.
pub fn tool(program: &str, args: &[&str]) -> String {
    let ran = Command::new(program).args(args).output();
    let ran = ran.unwrap_or_else(|error| panic!("these tests need {program}: {error}"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{program} {args:?}: {said}(these tests need root and loop devices)"
    );
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}

/// Takes a [`Disk`] away when its stdin is closed. `$1` is the directory of the disk and
/// `$PPID` the test process, which is spared. A courier that has files open there would keep
/// the file system and its loop device.
const REMOVE_DISK: &str = r#"
cat >/dev/null
find /proc/[0-9]*/fd -lname "$1/*" 2>/dev/null |
  cut -d/ -f3 | sort -u | grep -vx "$PPID" | xargs -r kill -9
umount "$1/disk" || umount --lazy "$1/disk"
rm -rf "$1"
"#;

/// A file system of its own. It is removed when the test ends, however it ends: a process
/// waits for the end of the test, and does so also when the test is killed.
pub struct Disk {
    dir: PathBuf,
    remover: Child,
}

impl Disk {
    /// A small ext4. Its journal is committed on request, and not by the
    /// clock, which would save by chance what no process has synced.
    pub fn ext4() -> Self {
        let disk = Self::new();
        let image = disk.image();
        tool("truncate", &["-s", "96M", &image]);
        tool("mkfs.ext4", &["-qF", &image]);
        disk.mount();
        disk
    }

    /// One in memory, with these limits.
    pub fn tmpfs(limits: &str) -> Self {
        let disk = Self::new();
        tool("mount", &["-t", "tmpfs", "-o", limits, "none", &disk.place()]);
        disk
    }

    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("monoco-disk-").tempdir().unwrap();
        let mut remover = Command::new("sh");
        remover.args(["-c", REMOVE_DISK, "sh"]).arg(dir.path());
        remover.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal to the process group of the test does not reach the remover.
        let remover = remover.process_group(0).spawn().unwrap();
        let dir = dir.keep();
        fs::create_dir(dir.join("disk")).unwrap();
        Self { dir, remover }
    }

    fn mount(&self) {
        let options = "loop,commit=300,errors=remount-ro";
        tool("mount", &["-o", options, &self.image(), &self.place()]);
    }

    fn image(&self) -> String {
        self.dir.join("image").display().to_string()
    }

    pub fn place(&self) -> String {
        self.dir.join("disk").display().to_string()
    }

    pub fn home(&self) -> PathBuf {
        self.dir.join("disk/home")
    }

    /// Cuts the power: whatever is not on disk now never will be. The courier goes with
    /// it, a moment before: a sync that is under way while the disk is taken away may
    /// still return success, and after the cut no process can report it.
    pub fn cut(&self, courier: &Courier) {
        // FS_IOC_SHUTDOWN with "do not flush the journal".
        let script = "import fcntl, os, signal, struct, sys\n\
                      disk = os.open(sys.argv[1], os.O_RDONLY)\n\
                      os.kill(int(sys.argv[2]), signal.SIGKILL)\n\
                      fcntl.ioctl(disk, 0x8004587D, struct.pack('I', 2))";
        tool("python3", &["-c", script, &self.place(), &courier.pid().to_string()]);
    }

    /// Gives the power back. The courier must be gone.
    pub fn restore(&self) {
        tool("umount", &[&self.place()]);
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// Long enough for a cut to come when the store is at rest. This is the point: while
/// it is busy, the sync of the next message saves what was forgotten for the last.
const REST: Duration = Duration::from_millis(400);

#[test]
fn a_power_cut_at_rest_loses_nothing_that_was_acknowledged() {
    let cuts = times("MONOCO_CUTS", 12);
    let mut disk = Disk::ext4();
    let mut ledger = AckChecker::default();
    for cut in 0..cuts {
        // Every third time the home is new, and this is its first message ever.
        if cut % 3 == 0 {
            (disk, ledger) = (Disk::ext4(), AckChecker::default());
        }
        let mut courier = Courier::start_in(&disk.home());
        let name = format!("no. {cut}");
        match cut % 4 {
            0 => drop(ledger.dispatch(&courier, &name).unwrap().ok()),
            1 => drop(ledger.dispatch(&courier, &long(&name, LARGE)).unwrap().ok()),
            2 => {
                ledger.dispatch(&courier, &name).unwrap().ok();
                let (record, epoch) = ledger.take(&courier, 60).unwrap().unwrap();
                ledger.finish(&courier, &record, epoch).unwrap().ok();
            }
            _ => {
                ledger.dispatch(&courier, &long(&name, LARGE)).unwrap().ok();
                ledger.take(&courier, 60).unwrap().unwrap();
                ledger.post(&courier, &name).unwrap().ok();
            }
        }
        std::thread::sleep(REST);
        disk.cut(&courier);
        courier.kill();
        disk.restore();

        let courier = Courier::start_in(&disk.home());
        ledger.check(&courier);
        ledger.resend(&courier);
        ledger.wait_until_sent(&courier);
        ledger.check(&courier);
    }
    say(&format!("{cuts} cuts at rest"));
}

#[test]
fn a_power_cut_under_load_loses_nothing_that_was_acknowledged() {
    let cuts = times("MONOCO_CUTS", 8);
    let mut dice = TestRng::new();
    let mut messages = 0;
    // A disk of this size takes what eight of them send.
    for first in (0..cuts).step_by(8) {
        let (ledger, names) = (AckChecker::default(), AtomicU64::new(0));
        let disk = Disk::ext4();
        for _ in first..cuts.min(first + 8) {
            let mut courier = Courier::start_in(&disk.home());
            let told = ledger.told();
            load(&courier, &ledger, &names, || {
                let deadline = Instant::now() + PATIENCE;
                while ledger.told() == told && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(dice.below(200)));
                disk.cut(&courier);
            });
            assert!(ledger.told() > told, "the cut came before the load");
            courier.kill();
            disk.restore();
            ledger.check(&Courier::start_in(&disk.home()));
        }
        // The callers who heard nothing try again, as callers do.
        let courier = Courier::start_in(&disk.home());
        ledger.settle(&courier);
        messages += ledger.told();
    }
    say(&format!("{cuts} cuts under load, {messages} messages"));
}

/// The tests above can fail: on a disk that only says that it has synced the log, they
/// see the loss.
#[test]
fn a_disk_that_lies_about_syncs_is_seen_to_lose_messages() {
    let disk = Disk::ext4();
    let ledger = AckChecker::default();
    let mut courier = Courier::start_in(&disk.home());
    let log = disk.home().join("store/monoco.db-wal").display().to_string();
    let lie = ["-e", "trace=fsync", "-e", "inject=fsync:retval=0", "-P", &log];
    let tracer = Tracer::attach(&courier, &lie);
    ledger.dispatch(&courier, "hello").unwrap().ok();
    drop(tracer);
    std::thread::sleep(REST);
    disk.cut(&courier);
    courier.kill();
    disk.restore();
    let complaints = ledger.complaints(&Courier::start_in(&disk.home()));
    assert!(complaints.iter().any(|it| it.contains("is lost")), "{complaints:?}");
}

/// Dispatches until there is no room, and returns the refusal.
fn fill(courier: &Courier, ledger: &AckChecker, size: usize) -> Answer {
    for number in 0..5_000 {
        let answer = ledger.dispatch(courier, &long(&format!("no. {number}"), size)).unwrap();
        if answer.status != 200 {
            return answer;
        }
    }
    panic!("the disk never became full");
}

fn health(courier: &Courier) -> (u16, Value) {
    let answer = courier.get("/health");
    (answer.status, answer.json())
}

/// Fills a disk, frees it, and goes on.
fn full(limits: &str, size: usize, ballast: impl Fn(&Path) -> Vec<PathBuf>) {
    let disk = Disk::tmpfs(limits);
    let ballast = ballast(Path::new(&disk.place()));
    let ledger = AckChecker::default();
    let courier = Courier::start_in(&disk.home());

    let refused = fill(&courier, &ledger, size);
    assert_eq!(refused.refused(507), "storage_full");
    let told = ledger.told();
    assert!(told > 3, "too little fits: {told}");
    let (status, shown) = health(&courier);
    assert_eq!((status, &shown["status"]), (200, &json!("degraded")), "{shown:#}");
    assert_eq!(shown["storage"]["status"], "full", "{shown:#}");
    ledger.check(&courier);
    let again = ledger.dispatch(&courier, &long("once more", size)).unwrap();
    assert_eq!(again.refused(507), "storage_full");

    for file in ballast {
        fs::remove_file(file).unwrap();
    }
    let goes_on = || ledger.dispatch(&courier, &long("there is room", size)).unwrap().status == 200;
    until("it goes on", goes_on);
    assert_eq!(health(&courier).1["status"], "ok");
    ledger.check(&courier);
    let courier = courier.restart();
    ledger.check(&courier);
    ledger.resend(&courier);
    ledger.check(&courier);
    say(&format!("{limits}: full after {told} messages of {size} bytes"));
}

pub fn one_large_file(place: &Path) -> Vec<PathBuf> {
    let path = place.join("ballast");
    fs::write(&path, vec![7; 2 << 20]).unwrap();
    vec![path]
}

#[test]
fn a_full_disk_refuses_small_messages_until_there_is_room() {
    full("size=4m", 10, one_large_file);
}

#[test]
fn a_full_disk_refuses_messages_also_when_the_log_has_been_moved_before() {
    full("size=14m", 10_000, one_large_file);
}

#[test]
fn a_full_disk_refuses_large_messages_until_there_is_room() {
    full("size=5m", LARGE, one_large_file);
}

#[test]
fn a_disk_without_inodes_refuses_large_messages_until_there_are_some() {
    full("size=64m,nr_inodes=70", LARGE, |place| {
        let files: Vec<_> = (0..20).map(|n| place.join(format!("ballast-{n}"))).collect();
        for file in &files {
            fs::write(file, "").unwrap();
        }
        files
    });
}

#[test]
fn health_says_that_the_disk_is_full_for_as_long_as_it_is() {
    let disk = Disk::tmpfs("size=4m");
    let ledger = AckChecker::default();
    let courier = Courier::start_in(&disk.home());
    fill(&courier, &ledger, 10);
    // A caller that finds no work writes nothing, and frees no space.
    let empty = "/api/v1/boxes/did:msgtunnel:stub/TUNNEL_OUTBOX/next";
    for _ in 0..20 {
        assert_eq!(courier.post(empty, &json!({})).status, 204);
        let (status, health) = health(&courier);
        assert_eq!((status, &health["status"]), (200, &json!("degraded")), "{health:#}");
    }
}

/// Every way to write is refused, with this code.
fn writes_are_refused(courier: &Courier, ledger: &AckChecker, status: u16, code: &str) {
    let refused = |answer: &Answer| assert_eq!(answer.refused(status), code);
    refused(&ledger.dispatch(courier, &format!("refused {code}")).unwrap());
    refused(&ledger.dispatch(courier, &long(&format!("refused {code}"), LARGE)).unwrap());
    refused(&ledger.post(courier, &format!("refused {code}")).unwrap());
    let body = json!({"lease_s": 60});
    refused(&courier.post(&format!("/api/v1/boxes/{ME}/INBOX/next"), &body));
    let path = format!("/api/v1/boxes/{ME}/INBOX?state=READING&limit=1");
    let held = courier.get(&path).ok()["records"][0].clone();
    let record = held["record_id"].as_str().unwrap();
    refused(&ledger.finish(courier, record, held["epoch"].as_u64().unwrap()).unwrap());
}

/// A courier with one record that is held, one that waits, and one that is large.
fn busy(home: &Path, ledger: &AckChecker) -> Courier {
    let courier = Courier::start_in(home);
    ledger.dispatch(&courier, "first").unwrap().ok();
    ledger.take(&courier, 600).unwrap().unwrap();
    ledger.dispatch(&courier, &long("second", LARGE)).unwrap().ok();
    ledger.dispatch(&courier, "third").unwrap().ok();
    courier
}

/// Fails the `n`-th sync of `act`, on the log alone or anywhere. The next ones go well,
/// and are not believed.
fn failed_sync(n: u32, log_only: bool, act: impl Fn(&Courier, &AckChecker) -> Answer) {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let ledger = AckChecker::default();
    let courier = busy(&home, &ledger);
    let fail = format!("inject=fsync,fdatasync:error=EIO:when={n}");
    let log = home.join("store/monoco.db-wal").display().to_string();
    let mut args = vec!["-e", "trace=fsync,fdatasync", "-e", &fail];
    if log_only {
        args.extend(["-P", &log]);
    }
    let tracer = Tracer::attach(&courier, &args);
    let answer = act(&courier, &ledger);
    let failed = Instant::now();
    assert_eq!(answer.refused(503), "storage_broken", "sync {n}");
    let (status, health) = health(&courier);
    assert!(failed.elapsed() < Duration::from_secs(1), "health took {:?}", failed.elapsed());
    assert_eq!((status, &health["status"]), (503, &json!("failed")), "{health:#}");
    drop(tracer);

    writes_are_refused(&courier, &ledger, 503, "storage_broken");
    ledger.check(&courier);
    let courier = courier.restart();
    ledger.check(&courier);
    ledger.resend(&courier);
    ledger.dispatch(&courier, "all is well").unwrap().ok();
    ledger.check(&courier);
}

#[test]
fn a_failed_sync_is_no_acknowledgement_and_ends_all_writing() {
    failed_sync(1, true, |courier, ledger| ledger.dispatch(courier, "hello").unwrap());
    failed_sync(1, true, |courier, ledger| ledger.post(courier, "hello").unwrap());
    failed_sync(1, true, |courier, _| {
        courier.post(&format!("/api/v1/boxes/{ME}/INBOX/next"), &json!({}))
    });
    failed_sync(1, true, |courier, ledger| {
        let path = format!("/api/v1/boxes/{ME}/INBOX?state=READING&limit=1");
        let held = courier.get(&path).ok()["records"][0].clone();
        let epoch = held["epoch"].as_u64().unwrap();
        ledger.finish(courier, held["record_id"].as_str().unwrap(), epoch).unwrap()
    });
}

#[test]
fn a_failed_sync_of_a_large_message_is_no_acknowledgement_and_ends_all_writing() {
    let dispatch = |courier: &Courier, ledger: &AckChecker| {
        ledger.dispatch(courier, &long("hello", LARGE)).unwrap()
    };
    failed_sync(1, true, dispatch);
    // Its file, and the directory that names it.
    failed_sync(2, false, dispatch);
    failed_sync(3, false, dispatch);
}

#[test]
fn a_failed_sync_of_a_new_directory_is_no_acknowledgement_and_ends_all_writing() {
    let dispatch = |courier: &Courier, ledger: &AckChecker| {
        ledger.dispatch(courier, &long("hello", LARGE)).unwrap()
    };
    failed_sync(1, false, dispatch);
}

/// A file system can't be made read-only by hand while a file on it is open for
/// writing. The kernel does it when it finds an error, and that is what happens here.
#[test]
fn a_file_system_that_turns_read_only_is_still_read() {
    let disk = Disk::ext4();
    let ledger = AckChecker::default();
    let mut courier = busy(&disk.home(), &ledger);
    let device = tool("findmnt", &["-no", "SOURCE", &disk.place()]);
    let name = device.rsplit('/').next().unwrap();
    fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test").unwrap();
    let options = tool("findmnt", &["-no", "OPTIONS", &disk.place()]);
    let is_read_only = options.starts_with("ro") || options.contains("emergency_ro");
    assert!(is_read_only, "it did not turn read-only: {options}");

    let answer = ledger.dispatch(&courier, "hello").unwrap();
    assert!(matches!(answer.status, 503 | 507), "{} {}", answer.status, answer.text());
    let answer = ledger.dispatch(&courier, &long("hello", LARGE)).unwrap();
    assert!(matches!(answer.status, 503 | 507), "{} {}", answer.status, answer.text());
    assert_ne!(health(&courier).1["status"], "ok");
    ledger.check(&courier);

    courier.kill();
    disk.restore();
    let courier = Courier::start_in(&disk.home());
    ledger.check(&courier);
    ledger.resend(&courier);
    ledger.check(&courier);
}

/// What a courier sees while its disk is remounted read-only and back.
#[test]
fn when_a_file_system_can_be_written_again_so_it_is_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = AckChecker::default();
    let courier = busy(&dir.path().join("home"), &ledger);
    let calls = "pwrite64,ftruncate,fallocate,mkdir,rename,unlink";
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:error=EROFS"));
    let tracer = Tracer::attach(&courier, &["-e", &trace, "-e", &inject]);
    writes_are_refused(&courier, &ledger, 503, "unavailable");
    let (status, health) = health(&courier);
    assert_eq!((status, &health["status"]), (200, &json!("degraded")), "{health:#}");
    drop(tracer);

    ledger.dispatch(&courier, "all is well").unwrap().ok();
    ledger.dispatch(&courier, &long("all is well", LARGE)).unwrap().ok();
    assert_eq!(courier.get("/health").ok()["status"], "ok");
    ledger.resend(&courier);
    // A file that could not be taken away is swept by the next start.
    let courier = courier.restart();
    ledger.check(&courier);
}

/// Processor time that a courier has used.
fn worked(courier: &Courier) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", courier.pid())).unwrap();
    let (_, after) = stat.rsplit_once(") ").unwrap();
    let field = |n: usize| -> u64 { after.split(' ').nth(n).unwrap().parse().unwrap() };
    // utime and stime, in hundredths of a second.
    Duration::from_millis((field(11) + field(12)) * 10)
}

/// A courier under these limits of `prlimit`, which becomes it.
fn limited(home: &Path, limit: &str) -> Courier {
    let mut command = Command::new("prlimit");
    command.arg(limit).arg(binary());
    command.args(["courier", "start", "--foreground", "--port", "0"]);
    Courier::spawn(home, &mut command)
}

#[test]
fn too_many_connections_are_waited_out_without_haste() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = AckChecker::default();
    let courier = limited(&dir.path().join("home"), "--nofile=64");
    ledger.dispatch(&courier, "before").unwrap().ok();

    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(courier.address).unwrap()).collect();
    let files = format!("/proc/{}/fd", courier.pid());
    until("no file is left", || fs::read_dir(&files).unwrap().count() >= 64);
    let before = worked(&courier);
    std::thread::sleep(Duration::from_secs(1));
    let spent = worked(&courier) - before;
    assert!(spent < Duration::from_millis(300), "it spins: {spent:?} of work in a second");
    drop(crowd);

    ledger.dispatch(&courier, "after").unwrap().ok();
    ledger.dispatch(&courier, &long("after", LARGE)).unwrap().ok();
    ledger.check(&courier);
    assert_eq!(courier.get("/health").ok()["status"], "ok");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = AckChecker::default();
    let mut courier = limited(&dir.path().join("home"), "--fsize=1500000");
    let refused = fill(&courier, &ledger, 10_000);
    assert!(matches!(refused.status, 503 | 507), "{} {}", refused.status, refused.text());
    assert!(courier.is_alive());
    ledger.check(&courier);
    let courier = courier.restart();
    ledger.check(&courier);
    courier.post("/api/v1/dispatch", &json!({"msg": chat("did:web:ann", ME, "later")})).ok();
}
