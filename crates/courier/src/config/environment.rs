//! Gives the config reader access to environment variables and secret files.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use monoco_core::config::{ConfigEnvironment, Secret};

/// Largest secret file that is read, in bytes.
const MAX_SECRET_FILE_BYTES: u64 = 64 << 10;

/// Looks up an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables of this process, and secret files of this machine.
pub struct ProcessEnvironment;

impl ConfigEnvironment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        super::variable(name)
    }

    fn read_secret_file(&self, path: &Path) -> Result<Secret, String> {
        FileEnvironment::new(&super::variable).read_secret_file(path)
    }
}

/// Variables as given, and secret files of this machine.
pub struct FileEnvironment<'a> {
    variables: Variables<'a>,
    /// The secret files that were read.
    pub secret_files: RefCell<Vec<PathBuf>>,
}

impl<'a> FileEnvironment<'a> {
    pub fn new(variables: Variables<'a>) -> Self {
        Self { variables, secret_files: RefCell::default() }
    }
}

impl ConfigEnvironment for FileEnvironment<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name)
    }

    fn read_secret_file(&self, path: &Path) -> Result<Secret, String> {
        self.secret_files.borrow_mut().push(path.to_owned());
        let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_SECRET_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_SECRET_FILE_BYTES {
            return Err(format!("{} is larger than 64 KiB", path.display()));
        }
        let text =
            String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
        // Editors end the last line with a line break that is not part of the secret.
        Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
    }
}
