//! External workers: commands, HTTP services, rspamd, and programs behind beanstalkd tubes.
//!
//! * [`mod@exec`]: a command that reads the letter from stdin and prints its answer.
//! * [`mod@http`]: an HTTP service; the letter is sent in a signed POST.
//! * [`mod@rspamd`]: a spam filter with a protocol of its own.
//! * [`mod@tube`]: a program that reserves letters from a beanstalkd tube.
//! * [`mod@worker`]: leasing, retries and completion, the same for all transports.
//! * [`mod@request`]: runs the transports that answer each request (all but tubes).
//!
//! Answers are untrusted data: their size is limited here, and `WorkerRequest` checks their
//! content. A transport makes one attempt; only the worker's policy retries.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use monoco_adapters::egress::{
    Egress, EgressLimits, EgressResponse, EgressTarget, EgressUnavailable,
};
use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::letter::{Letter, MAX_DATA, WorkerResult, WorkerStep};
use monoco_core::retry::{Backoff, Failure, RetryPolicy};
use monoco_core::time::Timestamp;

use super::workers::{Worker, WorkerAction, changed, downcast};

pub mod exec;
pub mod http;
pub mod request;
pub mod rspamd;
pub mod tube;
pub mod worker;

#[cfg(test)]
mod scripted;

use exec::ExecTransport;
use http::HttpTransport;
use rspamd::RspamdTransport;
use tube::TubeTransport;

/// Longest answer that is read, in bytes.
///
/// Three times the largest `data`, because a JSON writer that escapes non-ASCII characters
/// (the default of Python) turns the two bytes of é into six, plus 1 MiB for the other fields.
pub const MAX_ANSWER: usize = 3 * MAX_DATA + (1 << 20);

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest part of an HTTP error body in an error message, in characters.
const MAX_ERROR_CHARS: usize = 200;

/// Settings of an external worker.
#[derive(Clone, Debug)]
pub struct ExternalWorkerConfig {
    pub transport: WorkerTransport,
    /// Time for one answer.
    pub timeout: Duration,
    pub retry: RetryPolicy,
    pub when_down: WhenDown,
    /// Whether the worker may change the addresses of a letter.
    pub readdress: bool,
    /// Maximum number of letters that the worker has at the same time.
    pub parallel: usize,
}

/// How letters reach an external worker.
#[derive(Clone, Debug)]
pub enum WorkerTransport {
    Exec(ExecTransport),
    Http(HttpTransport),
    Rspamd(RspamdTransport),
    Tube(TubeTransport),
}

/// What happens to letters while a worker cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDown {
    #[default]
    Hold,
    /// They continue in the chain without this worker.
    Skip,
    /// They become dead letters.
    Dead,
}

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptResult {
    /// The raw answer. The caller parses it.
    Answered(Vec<u8>),
    /// The result of a worker whose protocol is known here.
    Decided(WorkerResult),
    /// The worker was reached and failed. Counts as an attempt.
    Failed(String),
    /// The worker was not reached. Does not count as an attempt.
    Down(String),
}

/// One attempt of a worker that answers requests.
#[derive(Debug)]
pub struct Attempt {
    pub result: AttemptResult,
    /// End of what a command wrote to stderr; empty for other workers.
    pub stderr: String,
}

impl From<AttemptResult> for Attempt {
    fn from(result: AttemptResult) -> Self {
        Self { result, stderr: String::new() }
    }
}

impl ExternalWorkerConfig {
    /// Reads the keys that all external workers have. `parallel` is the number of letters
    /// that the worker has at the same time, whose key depends on the transport.
    fn parse(
        keys: &ConfigSection<'_>,
        transport: WorkerTransport,
        parallel: usize,
    ) -> Result<Arc<dyn Worker>, InvalidConfig> {
        let timeout = keys.number_or("timeout_s", 1..=3_600, 30)?;
        let retries: u32 = keys.number_or("retries", 0..=100, 3)?;
        let words = [("hold", WhenDown::Hold), ("skip", WhenDown::Skip), ("dead", WhenDown::Dead)];
        let when_down = keys.one_of("when_down", &words)?.unwrap_or_default();
        let readdress = keys.flag("readdress")?.unwrap_or(false);
        let retry = RetryPolicy {
            backoff: Backoff::DEFAULT,
            max_attempts: Some(retries + 1),
            give_up_after: None,
        };
        let timeout = Duration::from_secs(timeout);
        Ok(Arc::new(Self { transport, timeout, retry, when_down, readdress, parallel }))
    }

    pub fn is_tube(&self) -> bool {
        matches!(self.transport, WorkerTransport::Tube(_))
    }
}

impl Worker for ExternalWorkerConfig {
    fn kind(&self) -> &'static str {
        match self.transport {
            WorkerTransport::Exec(_) => exec::KIND.name,
            WorkerTransport::Http(_) => http::KIND.name,
            WorkerTransport::Rspamd(_) => rspamd::KIND_NAME,
            WorkerTransport::Tube(_) => tube::KIND.name,
        }
    }

    fn work(&self, letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        match &self.transport {
            WorkerTransport::Rspamd(rspamd) => rspamd.work(letter),
            _ => WorkerStep::Needs(WorkerAction::HandOver),
        }
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else {
            let spam =
                self.kind() == rspamd::KIND_NAME && new.kind() == super::workers::spam::KIND.name;
            return if spam { vec!["rspamd"] } else { vec!["kind"] };
        };
        let mut keys = match (&self.transport, &new.transport) {
            (WorkerTransport::Exec(old), WorkerTransport::Exec(new)) => old.changed_keys(new),
            (WorkerTransport::Http(old), WorkerTransport::Http(new)) => old.changed_keys(new),
            (WorkerTransport::Rspamd(old), WorkerTransport::Rspamd(new)) => old.changed_keys(new),
            (WorkerTransport::Tube(old), WorkerTransport::Tube(new)) => old.changed_keys(new),
            _ => vec!["kind"],
        };
        let parallel = if new.is_tube() { "in_flight" } else { "parallel" };
        keys.extend(changed(&[
            ("timeout_s", self.timeout != new.timeout),
            ("retries", self.retry != new.retry),
            ("when_down", self.when_down != new.when_down),
            ("readdress", self.readdress != new.readdress),
            (parallel, self.parallel != new.parallel),
        ]));
        keys
    }
}

/// Reads the maximum number of parallel requests.
fn parallel(keys: &ConfigSection<'_>, default: usize) -> Result<usize, InvalidConfig> {
    keys.number_or("parallel", 1..=64, default)
}

/// Reads the URL of a worker. Errors do not repeat it when it contains variables, because its
/// path may be a secret.
fn target(
    keys: &ConfigSection<'_>,
    key: &str,
    allow_private: bool,
) -> Result<EgressTarget, InvalidConfig> {
    let value = keys.required(key)?;
    let text = value.text()?;
    EgressTarget::parse(&text, allow_private).map_err(|error| {
        let why = if text == value.raw() {
            error.to_string()
        } else {
            "not a valid URL with the content of its variables; expected one like \
             https://example.com/hook, and allow_private: true for a host of your own network"
                .to_owned()
        };
        value.invalid(why)
    })
}

/// Builds the HTTP client of a worker with this timeout.
///
/// # Errors
///
/// [`EgressUnavailable`] when it cannot be built.
pub fn egress(timeout: Duration) -> Result<Egress, EgressUnavailable> {
    Egress::with_limits(EgressLimits {
        // Shorter than the timeout of the worker: a peer that cannot be connected to is down,
        // not slow.
        connect: CONNECT_TIMEOUT.min(timeout / 2),
        // Longer than it: each attempt has a timeout of its own, with its own error.
        total: timeout + CONNECT_TIMEOUT,
        // One byte more than the limit, so that an answer that is too long is noticed.
        reply: MAX_ANSWER + 1,
    })
}

/// Maps an HTTP request without a response.
fn no_response(failure: &Failure) -> AttemptResult {
    let why = failure.detail().to_owned();
    match failure {
        // Nothing was sent, so the letter is not the cause.
        Failure::Temporary { .. } | Failure::Permanent { .. } => AttemptResult::Down(why),
        Failure::Unknown { .. } => AttemptResult::Failed(why),
    }
}

/// Maps an HTTP response whose status is not a success.
fn error_status(peer: &str, reply: &EgressResponse) -> AttemptResult {
    let body = one_line(&reply.body, MAX_ERROR_CHARS);
    let colon = if body.is_empty() { "" } else { ": " };
    let why = format!("{peer} answered {}{colon}{body}", reply.status);
    match reply.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => AttemptResult::Down(why),
        _ => AttemptResult::Failed(why),
    }
}

/// Returns the start of a text in one line without control characters.
fn one_line(bytes: &[u8], max_chars: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * max_chars)]);
    let separator = |c: char| c.is_whitespace() || c.is_control();
    let words: Vec<_> = text.split(separator).filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(max_chars).collect()
}

/// Formats a duration, such as `30 s`.
fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_of_peers_become_one_short_line() {
        assert_eq!(one_line(b" no\r\n\tsuch \x1b[31mroom\x07 ", 200), "no such [31mroom");
        assert_eq!(one_line("é".repeat(9_000).as_bytes(), 200), "é".repeat(200));
        assert_eq!(one_line(b"\xff", 200), "\u{fffd}");
        assert_eq!(one_line(b"", 200), "");
    }

    #[test]
    fn durations_are_shown_in_seconds() {
        assert_eq!(seconds(Duration::from_secs(30)), "30 s");
        assert_eq!(seconds(Duration::from_millis(1_500)), "1.5 s");
    }

    #[test]
    fn largest_letter_fits_into_an_answer() {
        let data = "é".repeat(MAX_DATA / 2);
        let ascii: usize = data.chars().map(|_| r"\u00e9".len()).sum();
        assert!(ascii + (1 << 19) < MAX_ANSWER);
    }
}
