//! Answers to approvals in a chat: `yes kqzwt`, `no kqzwt` or `no kqzwt reason`.
//!
//! The courier posts the held text and a code to each account of `approvals.ask`. A code counts
//! only in a message of the account that it was posted to, in the same direct chat, and only when
//! the answer is the whole message. After three wrong codes the account is locked for 10 min.

use std::time::Duration;

use super::MAX_REASON_BYTES;
use crate::time::Timestamp;

/// Number of letters of a code.
pub const CODE_LETTERS: usize = 5;

/// Wrong codes in a row after which an account is locked.
pub const MAX_WRONG_CODES: u32 = 3;

/// How long an account is locked.
pub const LOCK_DURATION: Duration = Duration::from_secs(600);

/// The letters of codes: none that looks like another one or like a digit, and no vowels, so that
/// an ordinary message such as "no thank you" does not have the form of an answer.
const ALPHABET: &[u8] = b"bcdfghjkmnpqrstvwxz";

/// An answer to the approval with this code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatAnswer {
    /// `true`: approve; `false`: reject.
    pub yes: bool,
    pub code: String,
    /// Why it is rejected.
    pub reason: Option<String>,
}

/// The wrong codes of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrongCodes {
    /// Wrong codes in a row since the last correct one or the last lock.
    pub count: u32,
    pub locked_until: Option<Timestamp>,
}

impl ChatAnswer {
    /// Reads a chat message. Returns `None` when it is not exactly an answer.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace)?;
        let rest = rest.trim_start();
        let (code, reason) = match rest.split_once(char::is_whitespace) {
            Some((code, reason)) => (code, Some(reason.trim()).filter(|reason| !reason.is_empty())),
            None => (rest, None),
        };
        let is_letter = |byte: u8| ALPHABET.contains(&byte.to_ascii_lowercase());
        if code.len() != CODE_LETTERS || !code.bytes().all(is_letter) {
            return None;
        }
        let yes = word.eq_ignore_ascii_case("yes");
        if !yes && !word.eq_ignore_ascii_case("no") || yes && reason.is_some() {
            return None;
        }
        let reason = reason.map(|reason| {
            let cut = reason.floor_char_boundary(MAX_REASON_BYTES);
            reason[..cut].to_owned()
        });
        Some(Self { yes, code: code.to_ascii_lowercase(), reason })
    }

    /// Reads the text of an e-mail, without the mail that it quotes and without its signature.
    /// Returns `None` when the rest is not exactly an answer.
    pub fn parse_mail(text: &str) -> Option<Self> {
        Self::parse(&without_quotes(text))
    }
}

/// Removes quoted lines, the line that introduces them, and the signature.
fn without_quotes(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.trim_end() == "--" {
            break;
        }
        if !line.trim_start().starts_with('>') {
            kept.push(line);
            continue;
        }
        // "On Friday, the courier wrote:" takes one line or two, directly before the quote.
        while kept.last().is_some_and(|line| line.trim().is_empty()) {
            kept.pop();
        }
        if kept.len() > 1 && kept.last().is_some_and(|line| line.trim_end().ends_with([':', '：']))
        {
            while kept.len() > 1 && kept.last().is_some_and(|line| !line.trim().is_empty()) {
                kept.pop();
            }
        }
    }
    kept.join("\n")
}

/// Makes a code of random numbers.
pub fn code(random: [u32; CODE_LETTERS]) -> String {
    let letter = |number: u32| char::from(ALPHABET[number as usize % ALPHABET.len()]);
    random.into_iter().map(letter).collect()
}

impl WrongCodes {
    /// Until when the account is locked; `None` when it is not.
    pub fn lock(&self, now: Timestamp) -> Option<Timestamp> {
        self.locked_until.filter(|until| now < *until)
    }

    /// After another wrong code.
    #[must_use]
    pub fn after_wrong(self, now: Timestamp) -> Self {
        let count = self.count + 1;
        if count < MAX_WRONG_CODES {
            return Self { count, ..self };
        }
        Self { count: 0, locked_until: Some(now + LOCK_DURATION) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    #[test]
    fn only_a_whole_message_is_an_answer() {
        let yes = |code: &str| Some((true, code.to_owned(), None));
        let no =
            |code: &str, why: Option<&str>| Some((false, code.to_owned(), why.map(str::to_owned)));
        for (text, expected) in [
            ("yes kqzwt", yes("kqzwt")),
            ("  Yes  KQZWT \n", yes("kqzwt")),
            ("no kqzwt", no("kqzwt", None)),
            ("NO kqzwt too long,\nshorten it", no("kqzwt", Some("too long,\nshorten it"))),
            ("yes", None),
            ("yes kqzw", None),
            ("yes kqzwtx", None),
            ("yes kq2wt", None),
            ("yes kqzwt please", None),
            ("no thank you", None),
            ("Yes great", None),
            ("no gypsy", None),
            ("oh yes kqzwt", None),
            ("yeskqzwt", None),
            ("> yes kqzwt", None),
            ("yes, kqzwt", None),
            ("да kqzwt", None),
            ("", None),
        ] {
            let found = ChatAnswer::parse(text).map(|it| (it.yes, it.code, it.reason));
            assert_eq!(found, expected, "{text:?}");
        }
        let long = ChatAnswer::parse(&format!("no kqzwt {}", "ä".repeat(1_000))).unwrap();
        assert_eq!(long.reason.unwrap().len(), MAX_REASON_BYTES);
    }

    #[test]
    fn answer_by_mail_may_quote_the_question() {
        for (text, is_answer) in [
            ("yes kqzwt\n", true),
            (
                "yes kqzwt\n\nOn Fri, 6 Feb 2026, courier@example.com wrote:\n> Approve?\n> yes abcde\n",
                true,
            ),
            (
                "yes kqzwt\n\nOn Fri, 6 Feb 2026 at 20:45,\ncourier@example.com wrote:\n\n> Approve?\n",
                true,
            ),
            ("yes kqzwt\n\n-- \nAnn\nExample Inc.\n", true),
            ("> Approve?\n\nyes kqzwt\n", true),
            ("Hello,\n\nyes kqzwt\n", false),
            ("> yes kqzwt\n", false),
            ("On Fri, courier wrote:\n> yes kqzwt\n", false),
            ("yes kqzwt\nbut call me first\n", false),
        ] {
            assert_eq!(ChatAnswer::parse_mail(text).is_some(), is_answer, "{text:?}");
        }
    }

    #[test]
    fn third_wrong_code_locks_for_ten_minutes() {
        let wrong = WrongCodes::default().after_wrong(at(0)).after_wrong(at(1));
        assert_eq!((wrong.count, wrong.lock(at(1))), (2, None));
        let locked = wrong.after_wrong(at(2));
        assert_eq!(locked, WrongCodes { count: 0, locked_until: Some(at(602)) });
        assert_eq!((locked.lock(at(601)), locked.lock(at(602))), (Some(at(602)), None));
    }

    #[test]
    fn code_is_a_valid_answer() {
        let code = code([0, 1, 18, 19, u32::MAX]);
        assert_eq!(&code[..4], "bczb");
        assert!(ChatAnswer::parse(&format!("yes {code}")).is_some());
    }
}
