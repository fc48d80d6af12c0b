//! The token of the API: 256 random bits in `run/courier.token`, readable only by the user.

use std::fs::{self, File};
use std::io::{self, Read};

use monoco_fs::FileOptions;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::{Home, HomeError, make_private};

/// The token that a running courier accepts.
#[derive(Debug)]
pub struct ApiToken {
    home: Home,
    value: watch::Sender<String>,
}

impl ApiToken {
    /// Reads the token of a home directory, and creates it when there is none.
    ///
    /// # Errors
    ///
    /// When the token cannot be read or created, or is malformed: an empty token would
    /// accept every request.
    pub fn open(home: &Home) -> Result<Self, HomeError> {
        let path = home.token_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let token = match fs::symlink_metadata(&path) {
            Ok(_) => {
                make_private(&path, 0o600)?;
                home.token()?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => home.replace_token()?,
            Err(error) => return Err(io(error)),
        };
        Ok(Self { home: home.clone(), value: watch::Sender::new(token) })
    }

    /// Compares `token` with the current token in constant time.
    pub fn matches(&self, token: &str) -> bool {
        token.as_bytes().ct_eq(self.value.borrow().as_bytes()).into()
    }

    /// Replaces the token. The previous one is rejected from now on.
    ///
    /// # Errors
    ///
    /// When the new token cannot be written; the previous one is then still valid.
    pub fn rotate(&self) -> Result<(), HomeError> {
        let token = self.home.replace_token()?;
        self.value.send_replace(token);
        Ok(())
    }

    /// Waits until the current token is replaced.
    pub fn rotated(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut value = self.value.subscribe();
        // Fails only when the courier has ended.
        async move { drop(value.changed().await) }
    }
}

impl Home {
    /// Reads the token.
    ///
    /// # Errors
    ///
    /// When there is none, or it is malformed.
    pub fn token(&self) -> Result<String, HomeError> {
        let path = self.token_path();
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(1024).read_to_string(&mut text));
        read.map_err(|error| HomeError::Io { path: path.clone(), error })?;
        let token = text.trim();
        if token.len() != 64 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(HomeError::BadToken(path));
        }
        Ok(token.to_owned())
    }

    /// Writes a new token. The caller holds the lock of the home directory.
    ///
    /// # Errors
    ///
    /// When the file cannot be written; the previous token then remains.
    pub fn replace_token(&self) -> Result<String, HomeError> {
        let path = self.token_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let mut secret = [0; 32];
        let random = getrandom::fill(&mut secret);
        random.map_err(|error| io(io::Error::other(error.to_string())))?;
        let token = monoco_core::hex::encode(&secret);
        // Atomic and synced: an empty token would keep every later courier from starting.
        monoco_fs::write(&path, token.as_bytes(), FileOptions::PRIVATE_SYNCED)
            .map_err(|error| io(error.into()))?;
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::home::tests::home;

    #[test]
    fn home_and_token_are_private() {
        let (_dir, home) = home();
        ApiToken::open(&home).unwrap();
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(home.path()) & 0o777, 0o700);
        assert_eq!(mode(&home.token_path()) & 0o777, 0o600);
    }

    #[test]
    fn token_is_kept_and_a_malformed_one_is_rejected() {
        let (_dir, home) = home();
        let token = ApiToken::open(&home).unwrap();
        let text = home.token().unwrap();
        assert_eq!(text.len(), 64);
        assert!(token.matches(&text) && !token.matches("") && !token.matches(&text[1..]));
        assert!(ApiToken::open(&home).unwrap().matches(&text));
        for bad in ["", "\n", "short", &"z".repeat(64)] {
            fs::write(home.token_path(), bad).unwrap();
            assert!(matches!(ApiToken::open(&home), Err(HomeError::BadToken(_))), "{bad:?}");
        }
    }

    #[test]
    fn rotated_token_replaces_the_previous_one() {
        let (_dir, home) = home();
        let token = ApiToken::open(&home).unwrap();
        let before = home.token().unwrap();
        token.rotate().unwrap();
        let after = home.token().unwrap();
        assert!(!token.matches(&before) && token.matches(&after));
    }
}
