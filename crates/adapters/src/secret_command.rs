//! Gets a secret from its source. A command runs each time, so that a token can be renewed.
//!
//! The command belongs to the user and runs with the environment of the courier, because
//! password managers find their agent through it. It gets no input. After 10 s it is killed with
//! all processes of its group.

use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use monoco_core::config::{Secret, SecretSource};
use monoco_core::retry::Failure;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::Instant;

/// How long a command may run.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long [`CachedSecret`] uses the output of a command.
const CACHE_TIME: Duration = Duration::from_secs(300);

/// Maximum size of the output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Longest part of stderr in an error, in characters.
const MAX_ERROR_CHARS: usize = 300;

/// Returns the secret. A failure is temporary: the user can unlock the password manager.
pub async fn get_secret(source: &SecretSource) -> Result<Secret, Failure> {
    match source {
        SecretSource::Value(secret) => Ok(secret.clone()),
        SecretSource::Command(words) => run(words, COMMAND_TIMEOUT).await.map_err(|why| {
            let detail = format!("the command for the secret {why}");
            Failure::Temporary { detail, retry_after_ms: None, error_code: None }
        }),
    }
}

/// A secret of a tunnel. The output of a command is used for 5 minutes.
#[derive(Debug)]
pub struct CachedSecret {
    key: &'static str,
    source: Option<SecretSource>,
    output: Mutex<Option<(Secret, Instant)>>,
}

impl CachedSecret {
    /// `key` is its name in the config.
    pub fn new(key: &'static str, source: Option<SecretSource>) -> Self {
        Self { key, source, output: Mutex::default() }
    }

    /// Returns the secret, or a permanent failure when the config has none.
    pub async fn get(&self) -> Result<Secret, Failure> {
        let Some(source) = &self.source else {
            let detail = format!("the tunnel has no {}; set it in the config", self.key);
            return Err(Failure::Permanent { detail, error_code: None });
        };
        if let SecretSource::Value(secret) = source {
            return Ok(secret.clone());
        }
        if let Some((secret, since)) = &*self.lock()
            && since.elapsed() < CACHE_TIME
        {
            return Ok(secret.clone());
        }
        let secret = get_secret(source).await?;
        *self.lock() = Some((secret.clone(), Instant::now()));
        Ok(secret)
    }

    /// Makes the next call run the command again, because the provider has rejected the secret.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Secret, Instant)>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a command and returns what it prints, without the line break at the end.
async fn run(words: &[String], timeout: Duration) -> Result<Secret, String> {
    let (program, arguments) = words.split_first().ok_or("is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| format!("cannot be started ({program}): {error}"))?;
    let group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let finish = async {
        let (out, err) = tokio::join!(read_limited(out), read_limited(err));
        (child.wait().await, out, err)
    };
    let ended = tokio::time::timeout(timeout, finish).await;
    drop(group);
    let Ok((status, out, err)) = ended else {
        return Err(format!("did not end within {} s and was killed", timeout.as_secs()));
    };
    let status = status.map_err(|error| format!("cannot be waited for: {error}"))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&err);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let last: String = last.trim().chars().take(MAX_ERROR_CHARS).collect();
        let colon = if last.is_empty() { "" } else { ": " };
        return Err(format!("failed with {status}{colon}{last}"));
    }
    if out.len() as u64 >= MAX_OUTPUT_BYTES {
        return Err("printed 64 KiB or more".to_owned());
    }
    let secret = String::from_utf8(out).map_err(|_| "printed text that is not UTF-8")?;
    let secret = secret.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        return Err("printed nothing".to_owned());
    }
    Ok(Secret::new(secret))
}

/// Reads up to the limit, and drops the rest so that the command does not block.
async fn read_limited(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let (mut kept, Some(mut pipe)) = (Vec::new(), pipe) else { return Vec::new() };
    let mut start = (&mut pipe).take(MAX_OUTPUT_BYTES);
    if start.read_to_end(&mut kept).await.is_ok() {
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    kept
}

/// Kills the processes of a group when it is dropped.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group is gone when all its processes have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn script(text: &str) -> Vec<String> {
        ["/bin/sh", "-c", text].map(str::to_owned).to_vec()
    }

    async fn output(text: &str) -> Result<String, String> {
        run(&script(text), COMMAND_TIMEOUT).await.map(|secret| secret.expose().to_owned())
    }

    #[tokio::test]
    async fn a_command_prints_the_secret() {
        assert_eq!(output("echo ' s3cret '").await.as_deref(), Ok(" s3cret "));
        assert_eq!(output("cat; printf 'a\\nb\\r\\n'").await.as_deref(), Ok("a\nb"), "no input");
        assert_eq!(
            output(&format!("head -c {} /dev/zero >&2; echo a", 1 << 20)).await.as_deref(),
            Ok("a")
        );
        let source = SecretSource::Value(Secret::new("a"));
        assert_eq!(get_secret(&source).await.unwrap().expose(), "a");
    }

    #[tokio::test]
    async fn a_failure_says_why_and_shows_no_output() {
        for (text, why) in [
            (
                "echo s3cret; echo locked >&2; echo >&2; exit 2",
                "failed with exit status: 2: locked",
            ),
            ("echo s3cret; exit 1", "failed with exit status: 1"),
            ("true", "printed nothing"),
            ("printf '\\377'", "printed text that is not UTF-8"),
            ("head -c 70000 /dev/zero", "printed 64 KiB or more"),
        ] {
            assert_eq!(output(text).await, Err(why.to_owned()), "{text}");
        }
        let missing = SecretSource::Command(vec!["/no/such/program".to_owned()]);
        let failure = get_secret(&missing).await.unwrap_err();
        assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
        let start = "the command for the secret cannot be started (/no/such/program): ";
        assert!(failure.detail().starts_with(start), "{failure:?}");
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_its_children() {
        let dir = std::env::temp_dir().join(format!("monoco-secret-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let pid = dir.join("pid");
        let text = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let begin = Instant::now();
        let result = run(&script(&text), Duration::from_secs(1)).await;
        let why = result.map(|secret| secret.expose().to_owned()).unwrap_err();
        assert_eq!(why, "did not end within 1 s and was killed");
        assert!(begin.elapsed() < Duration::from_secs(8));
        let child: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let child = Pid::from_raw(child).unwrap();
        while rustix::process::test_kill_process(child).is_ok() && is_running(child) {
            tokio::task::yield_now().await;
            assert!(begin.elapsed() < Duration::from_secs(20), "the child still runs");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// A killed process whose parent has not waited for it is a zombie, which does not run.
    fn is_running(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }
}
