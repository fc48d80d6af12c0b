//! The web page of a home directory: its host name and the browsers that are logged in.
//!
//! Both are in `run/page.json`, so that a browser stays logged in when the courier restarts. The
//! host name is random: cookies have no port, so a cookie of plain `localhost` would be sent to
//! every other server of the machine.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use monoco_core::hex;
use monoco_core::page_login::{PageLogin, PageLogins};
use monoco_core::time::Timestamp;
use monoco_core::token::{TokenHash, TokenSecret};
use monoco_fs::FileOptions;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{Home, HomeError, make_private};

/// The contents of the file `run/page.json`.
#[derive(Debug, Serialize, Deserialize)]
struct PageFile {
    host: String,
    logins: Vec<StoredLogin>,
}

/// The hash of a browser's secret, and when it logged in.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLogin {
    secret: String,
    #[serde(with = "monoco_core::time::rfc3339")]
    created_at: Timestamp,
}

/// Host name and logins of the web page of a running courier.
#[derive(Debug)]
pub struct PageAccess {
    path: PathBuf,
    host: String,
    logins: Mutex<PageLogins>,
    /// Number of revocations, so that open streams end.
    revocations: watch::Sender<u64>,
}

impl PageAccess {
    /// Reads the file of a home directory, and creates it when there is none or it is malformed:
    /// then all browsers have to log in again.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or created.
    pub fn open(home: &Home) -> Result<Self, HomeError> {
        let path = home.page_path();
        let stored = match fs::symlink_metadata(&path) {
            Ok(_) => {
                make_private(&path, 0o600)?;
                let text =
                    fs::read(&path).map_err(|error| HomeError::Io { path: path.clone(), error })?;
                serde_json::from_slice::<PageFile>(&text).ok().filter(|file| is_host(&file.host))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(HomeError::Io { path, error }),
        };
        let is_new = stored.is_none();
        let PageFile { host, logins } = match stored {
            Some(file) => file,
            None => PageFile { host: new_host(&path)?, logins: Vec::new() },
        };
        let logins = logins
            .into_iter()
            .filter_map(|StoredLogin { secret, created_at }| {
                Some(PageLogin { secret: TokenHash(hex::decode(&secret)?), created_at })
            })
            .collect();
        let logins = Mutex::new(PageLogins::new(logins));
        let access = Self { path, host, logins, revocations: watch::Sender::new(0) };
        if is_new {
            access.store(&access.lock())?;
        }
        Ok(access)
    }

    /// The host name of the page, without its port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Makes a code that logs in one browser.
    ///
    /// # Errors
    ///
    /// When the system has no random bytes.
    pub fn new_code(&self, now: Timestamp) -> Result<TokenSecret, HomeError> {
        let code = TokenSecret::from_random(random(&self.path)?);
        self.lock().add_code(code.hash(), now);
        Ok(code)
    }

    /// Logs in a browser. Returns its secret, or `None` for a code that is unknown, used or
    /// expired.
    ///
    /// # Errors
    ///
    /// When the login cannot be stored.
    pub fn log_in(
        &self,
        code: TokenHash,
        now: Timestamp,
    ) -> Result<Option<TokenSecret>, HomeError> {
        let secret = TokenSecret::from_random(random(&self.path)?);
        let mut logins = self.lock();
        if !logins.redeem(code, secret.hash(), now) {
            return Ok(None);
        }
        self.store(&logins)?;
        Ok(Some(secret))
    }

    pub fn is_logged_in(&self, secret: TokenHash, now: Timestamp) -> bool {
        self.lock().is_logged_in(secret, now)
    }

    /// Logs out all browsers and ends their streams. Returns how many were logged in.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: the logins are ended until the courier restarts.
    pub fn revoke_all(&self) -> Result<usize, HomeError> {
        let mut logins = self.lock();
        let count = logins.revoke_all();
        self.revocations.send_modify(|number| *number += 1);
        self.store(&logins)?;
        Ok(count)
    }

    /// Waits until all logins are revoked.
    pub fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut revocations = self.revocations.subscribe();
        // Fails only when the courier has ended.
        async move { drop(revocations.changed().await) }
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, PageLogins> {
        self.logins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the file. A login is rare, so the caller waits for the disk.
    fn store(&self, logins: &PageLogins) -> Result<(), HomeError> {
        let logins = logins.logins().iter().map(|login| StoredLogin {
            secret: hex::encode(&login.secret.0),
            created_at: login.created_at,
        });
        let file = PageFile { host: self.host.clone(), logins: logins.collect() };
        let io = |error: io::Error| HomeError::Io { path: self.path.clone(), error };
        let text = serde_json::to_vec(&file).map_err(|error| io(error.into()))?;
        monoco_fs::write(&self.path, &text, FileOptions::PRIVATE_SYNCED)
            .map_err(|error| io(error.into()))
    }
}

impl Home {
    /// Path of the host name and the logins of the web page.
    pub fn page_path(&self) -> PathBuf {
        self.path().join("run/page.json")
    }

    /// Path of the file that `monoco open` opens in the browser.
    pub fn open_path(&self) -> PathBuf {
        self.path().join("run/open.html")
    }

    /// The host name of the page; `None` before the first start of the courier.
    pub fn page_host(&self) -> Option<String> {
        let file: PageFile = serde_json::from_slice(&fs::read(self.page_path()).ok()?).ok()?;
        is_host(&file.host).then_some(file.host)
    }
}

fn new_host(path: &std::path::Path) -> Result<String, HomeError> {
    Ok(format!("monoco-{}.localhost", hex::encode(&random::<8>(path)?)))
}

/// Whether the text is a host name that [`new_host`] makes.
fn is_host(text: &str) -> bool {
    let label = text.strip_prefix("monoco-").and_then(|rest| rest.strip_suffix(".localhost"));
    label.is_some_and(|label| hex::decode::<8>(label).is_some())
}

fn random<const N: usize>(path: &std::path::Path) -> Result<[u8; N], HomeError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| HomeError::Io {
        path: path.to_owned(),
        error: io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::home::tests::home;

    #[test]
    fn host_and_logins_survive_a_restart_and_no_secret_is_stored() {
        let (_dir, home) = home();
        let now = Timestamp::from_ms(1_000);
        let access = PageAccess::open(&home).unwrap();
        let code = access.new_code(now).unwrap();
        let secret = access.log_in(code.hash(), now).unwrap().unwrap();
        assert!(access.log_in(code.hash(), now).unwrap().is_none());
        let mode = fs::metadata(home.page_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = fs::read_to_string(home.page_path()).unwrap();
        assert!(!text.contains(&secret.expose()["monoco_".len()..]));
        let again = PageAccess::open(&home).unwrap();
        assert_eq!(again.host(), access.host());
        assert_eq!(home.page_host().as_deref(), Some(access.host()));
        assert!(again.is_logged_in(secret.hash(), now));
        assert_eq!(again.revoke_all().unwrap(), 1);
        assert!(!PageAccess::open(&home).unwrap().is_logged_in(secret.hash(), now));
    }

    #[test]
    fn malformed_file_is_replaced() {
        let (_dir, home) = home();
        for bad in ["", "{}", r#"{"host":"evil.test","logins":[]}"#] {
            fs::write(home.page_path(), bad).unwrap();
            assert!(is_host(PageAccess::open(&home).unwrap().host()), "{bad:?}");
        }
    }
}
