//! Logins of the web page: codes that are used once, and the secrets of browsers.
//!
//! ```text
//! `monoco open` ─► code (60 s, once) ─► login (30 days) ─► revoked or expired
//! ```
//!
//! A browser gets a secret of its own, so that the page never sees the owner's token. Only hashes
//! are kept.

use std::time::Duration;

use crate::time::Timestamp;
use crate::token::TokenHash;

/// How long a code can be used.
pub const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// How long a browser stays logged in.
pub const LOGIN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Most codes that can be used at a time; the oldest one is removed for a new one.
const MAX_CODES: usize = 8;

/// Most browsers that are logged in; the oldest login is removed for a new one.
const MAX_LOGINS: usize = 32;

/// One browser that is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLogin {
    pub secret: TokenHash,
    pub created_at: Timestamp,
}

/// All codes and logins of a courier.
#[derive(Clone, Debug, Default)]
pub struct PageLogins {
    codes: Vec<(TokenHash, Timestamp)>,
    logins: Vec<PageLogin>,
}

impl PageLogins {
    /// The logins that were stored, without codes.
    pub fn new(logins: Vec<PageLogin>) -> Self {
        Self { codes: Vec::new(), logins }
    }

    /// The logins to store.
    pub fn logins(&self) -> &[PageLogin] {
        &self.logins
    }

    /// Adds a code, which can be used once until [`CODE_LIFETIME`] has passed.
    pub fn add_code(&mut self, code: TokenHash, now: Timestamp) {
        self.codes.retain(|(_, at)| now.since(*at) < CODE_LIFETIME);
        if self.codes.len() >= MAX_CODES {
            self.codes.remove(0);
        }
        self.codes.push((code, now));
    }

    /// Uses a code to log in a browser. Returns whether the code was valid; it is not any more.
    pub fn redeem(&mut self, code: TokenHash, secret: TokenHash, now: Timestamp) -> bool {
        let Some(index) = self.codes.iter().position(|(known, _)| *known == code) else {
            return false;
        };
        let (_, created_at) = self.codes.remove(index);
        if now.since(created_at) >= CODE_LIFETIME {
            return false;
        }
        self.logins.retain(|login| login.is_valid(now));
        if self.logins.len() >= MAX_LOGINS {
            self.logins.remove(0);
        }
        self.logins.push(PageLogin { secret, created_at: now });
        true
    }

    pub fn is_logged_in(&self, secret: TokenHash, now: Timestamp) -> bool {
        self.logins.iter().any(|login| login.secret == secret && login.is_valid(now))
    }

    /// Ends all logins and codes. Returns the number of logins.
    pub fn revoke_all(&mut self) -> usize {
        self.codes.clear();
        std::mem::take(&mut self.logins).len()
    }
}

impl PageLogin {
    fn is_valid(&self, now: Timestamp) -> bool {
        now.since(self.created_at) < LOGIN_LIFETIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> TokenHash {
        TokenHash([number; 32])
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_ms(i64::try_from(seconds).unwrap() * 1000)
    }

    #[test]
    fn code_logs_in_once_within_its_lifetime() {
        for (redeemed_at, expected) in [(0, true), (59, true), (60, false), (3600, false)] {
            let mut logins = PageLogins::default();
            logins.add_code(hash(1), at(0));
            assert!(!logins.redeem(hash(2), hash(9), at(redeemed_at)), "unknown code");
            let redeemed = logins.redeem(hash(1), hash(9), at(redeemed_at));
            assert_eq!(redeemed, expected, "{redeemed_at} s");
            assert_eq!(logins.is_logged_in(hash(9), at(redeemed_at)), expected);
            assert!(!logins.redeem(hash(1), hash(8), at(redeemed_at)), "second use");
            assert!(!logins.is_logged_in(hash(8), at(redeemed_at)));
        }
    }

    #[test]
    fn login_expires_and_can_be_revoked() {
        let mut logins = PageLogins::default();
        logins.add_code(hash(1), at(0));
        assert!(logins.redeem(hash(1), hash(9), at(0)));
        let end = LOGIN_LIFETIME.as_secs();
        assert!(logins.is_logged_in(hash(9), at(end - 1)));
        assert!(!logins.is_logged_in(hash(9), at(end)));
        logins.add_code(hash(2), at(0));
        assert_eq!(logins.revoke_all(), 1);
        assert!(!logins.is_logged_in(hash(9), at(1)));
        assert!(!logins.redeem(hash(2), hash(8), at(1)), "codes are revoked too");
    }

    #[test]
    fn codes_and_logins_are_bounded() {
        let mut logins = PageLogins::default();
        for number in 0..100 {
            logins.add_code(hash(number), at(0));
            assert!(logins.redeem(hash(number), hash(number), at(0)));
            logins.add_code(hash(number), at(0));
        }
        assert_eq!((logins.codes.len(), logins.logins.len()), (MAX_CODES, MAX_LOGINS));
        assert!(logins.is_logged_in(hash(99), at(0)) && !logins.is_logged_in(hash(0), at(0)));
    }
}
