//! A server of the S3 protocol for one test: `rclone serve s3`, which verifies signatures (version 4)
//! and stores objects as files. It is one binary in a package of PyPI; MinIO and Garage are in no
//! registry that the tests install from, and s3rver of npm does not verify these signatures.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::common::until;
use crate::tidy::root;

const KEY: &str = "hubkey";
pub const SECRET: &str = "s3/secret+of-the-tests";

/// The name of the only bucket.
const BUCKET: &str = "hub";

/// A server that ends with the test. It has the same port after a restart.
pub struct S3Server {
    dir: TempDir,
    port: u16,
    process: Option<Child>,
}

impl S3Server {
    /// # Panics
    ///
    /// When rclone is not installed: tests of the bucket must not be skipped.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("monoco-it-s3-").tempdir().unwrap();
        fs::create_dir_all(dir.path().join("data").join(BUCKET)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { dir, port, process: None };
        server.run();
        server
    }

    /// Starts the server, also after [`Self::stop`].
    pub fn run(&mut self) {
        let rclone = root().join("target/reference-sdks/bin/rclone");
        assert!(rclone.exists(), "rclone is missing; run ./test once: {rclone:?}");
        let log = File::options().create(true).append(true).open(self.dir.path().join("log"));
        let mut server = Command::new(rclone);
        server.args(["serve", "s3", "--addr"]).arg(format!("127.0.0.1:{}", self.port));
        server.arg("--auth-key").arg(format!("{KEY},{SECRET}")).arg(self.dir.path().join("data"));
        server.env_clear().env("HOME", self.dir.path()).env("RCLONE_CONFIG", "/dev/null");
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        self.process = Some(server.spawn().unwrap());
        until("the S3 server is ready", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// The URL of a prefix in its bucket, with the keys.
    pub fn url(&self, prefix: &str) -> String {
        self.url_of(BUCKET, SECRET, prefix)
    }

    /// The URL of a bucket with a secret.
    pub fn url_of(&self, bucket: &str, secret: &str, prefix: &str) -> String {
        let secret = secret.replace('/', "%2F").replace('+', "%2B");
        format!("s3://{KEY}:{secret}@{bucket}/{prefix}?endpoint=http://127.0.0.1:{}", self.port)
    }

    /// The files of the objects below a prefix.
    pub fn objects(&self, prefix: &str) -> Vec<PathBuf> {
        let dir = self.dir.path().join("data").join(BUCKET).join(prefix);
        let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_object = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        paths.filter(is_object).collect()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}
