//! The workers outside: how one letter is given to one of them, once.
//!
//! * [`mod@exec`]: a command, which reads the letter and prints its answer.
//! * [`mod@http`]: a signed POST, answered by its reply.
//! * [`mod@rspamd`]: a spam filter, which has a language of its own.
//!
//! Whatever comes back is data of somebody else: bounded here, and checked by whoever
//! asked. Nothing is tried twice, and nothing is remembered.

use std::time::Duration;

use axum::http::StatusCode;
use monoco_adapters::egress::{Egress, EgressLimits, EgressResponse, EgressUnavailable};
use monoco_core::letter::MAX_DATA;
use monoco_core::retry::Failure;

use super::workers::WorkerResult;

pub mod exec;
pub mod http;
pub mod rspamd;
pub mod tube;
pub mod worker;

#[cfg(test)]
mod scripted;

pub use exec::exec;
pub use http::http;
pub use rspamd::rspamd;

/// Most bytes of an answer that are read.
///
/// The largest `data`, three times: a JSON writer that keeps to ASCII, as Python's does
/// unless told otherwise, makes the six bytes `\u00e9` of the two bytes of an é. And
/// some room for the rest of the letter.
pub const MAX_ANSWER: usize = 3 * MAX_DATA + (1 << 20);

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// What came of giving a letter to a worker once.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptResult {
    /// It answered, readably or not: the caller checks it.
    Answered(Vec<u8>),
    /// The opinion of a worker whose language we know.
    Opinion(WorkerResult),
    /// It was reached and failed: costs a try.
    Failed(String),
    /// It is down: it was not reached at all.
    Down(String),
}

/// The HTTP client for a worker that has so much time.
///
/// # Errors
///
/// [`EgressUnavailable`] when it cannot be built.
pub fn egress(timeout: Duration) -> Result<Egress, EgressUnavailable> {
    Egress::with_limits(EgressLimits {
        // Ends before the worker's time does: whom we can't connect to is down, and not
        // slow.
        connect: CONNECT.min(timeout / 2),
        // Ends after it: each try keeps its own time, and says so.
        total: timeout + CONNECT,
        // One more than is taken, so that too much is told from just enough.
        reply: MAX_ANSWER + 1,
    })
}

/// What it means when a worker could not be asked, or gave no answer.
fn unanswered(failure: &Failure) -> AttemptResult {
    let words = failure.detail().to_owned();
    match failure {
        // Nothing was sent, or nothing may be sent there as things are: no letter is
        // to blame for it.
        Failure::Temporary { .. } | Failure::Permanent { .. } => AttemptResult::Down(words),
        Failure::Unknown { .. } => AttemptResult::Failed(words),
    }
}

/// What a status means that is not a success.
fn refused(peer: &str, reply: &EgressResponse) -> AttemptResult {
    let said = one_line(&reply.body, 200);
    let colon = if said.is_empty() { "" } else { ": " };
    let words = format!("{peer} answered {}{colon}{said}", reply.status);
    match reply.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            AttemptResult::Down(words)
        }
        _ => AttemptResult::Failed(words),
    }
}

/// The beginning of what somebody said, in one line without control characters.
fn one_line(bytes: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * most)]);
    let odd = |c: char| c.is_whitespace() || c.is_control();
    let words: Vec<_> = text.split(odd).filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(most).collect()
}

/// A time for people, such as `30 s`.
fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_kept_short_and_in_one_line() {
        assert_eq!(one_line(b" no\r\n\tsuch \x1b[31mroom\x07 ", 200), "no such [31mroom");
        assert_eq!(one_line("é".repeat(9_000).as_bytes(), 200), "é".repeat(200));
        assert_eq!(one_line(b"\xff", 200), "\u{fffd}");
        assert_eq!(one_line(b"", 200), "");
    }

    #[test]
    fn times_are_read_by_people() {
        assert_eq!(seconds(Duration::from_secs(30)), "30 s");
        assert_eq!(seconds(Duration::from_millis(1_500)), "1.5 s");
    }

    #[test]
    fn the_largest_letter_fits_into_an_answer() {
        let data = "é".repeat(MAX_DATA / 2);
        let ascii: usize = data.chars().map(|_| r"\u00e9".len()).sum();
        assert!(ascii + (1 << 19) < MAX_ANSWER);
    }
}
