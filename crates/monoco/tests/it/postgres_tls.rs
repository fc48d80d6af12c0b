//! TLS to a PostgreSQL server: verified certificates, and what the operator reads otherwise.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Courier, cli};
use crate::mail_servers::TestCa;
use crate::pipeline_harness::free_port;
use crate::postgres_problems::{
    WRONG_PASSWORD, assert_no_secret, assert_says, doctor, home, refused_and_diagnosed,
};
use crate::postgres_server::{PASSWORD, PostgresServer, ServerOptions, USER, give_to_server};

/// A server with TLS, whose certificate can be replaced.
struct TlsServer {
    server: PostgresServer,
    files: TempDir,
    port: u16,
}

impl TlsServer {
    fn start(ca: &TestCa) -> Self {
        let (files, port) = (tempfile::tempdir().unwrap(), free_port());
        give_to_server(files.path());
        install(&files, ca);
        let file = |name: &str| files.path().join(name).display().to_string();
        let settings = vec![
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("cert.pem")),
            format!("ssl_key_file={}", file("key.pem")),
        ];
        let auth = "scram-sha-256";
        let options = ServerOptions { auth, settings, port: Some(port), ..Default::default() };
        let server = PostgresServer::start_with(options);
        server.set_access("local all all scram-sha-256\nhostssl all all all scram-sha-256");
        server.sql("SELECT pg_reload_conf()");
        Self { server, files, port }
    }

    /// Replaces the certificate while the server runs.
    fn replace(&self, ca: &TestCa) {
        install(&self.files, ca);
        self.server.sql("SELECT pg_reload_conf()");
    }

    /// A URL with these parameters.
    fn url(&self, password: &str, parameters: &str) -> String {
        format!("postgres://{USER}:{password}@localhost:{}/postgres?{parameters}", self.port)
    }

    #[track_caller]
    fn refused(&self, parameters: &str) -> String {
        refused_and_diagnosed(&format!("store: '{}'", self.url(PASSWORD, parameters)))
    }
}

/// Puts a certificate and its key where the server reads them.
fn install(files: &TempDir, ca: &TestCa) {
    let (certificate, key) = ca.certificate();
    for (from, name) in [(certificate, "cert.pem"), (key, "key.pem")] {
        let to = files.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        give_to_server(&to);
    }
}

#[test]
fn certificate_of_the_server_is_verified() {
    let ca = TestCa::create();
    let server = TlsServer::start(&ca);
    let root = format!("sslrootcert={}", ca.file().display());
    for mode in ["require", "verify-full"] {
        let parameters = format!("sslmode={mode}&{root}");
        let (_dir, home) = home(&format!("store: '{}'", server.url(PASSWORD, &parameters)));
        let courier = Courier::start_in(&home);
        courier.hears(&format!("evt-{mode}"), mode, "ann", "over TLS");
        let sql = "SELECT count(*) || ' ' || bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity
                    USING (pid) WHERE application_name = 'monoco'";
        let found = server.server.sql(sql);
        assert!(found.ends_with(" true") && !found.starts_with("0 "), "{found}");
    }
    // Without the certificate of its authority, and with that of another one.
    let other = TestCa::create();
    let unknown = ["UnknownIssuer", "sslrootcert=FILE"];
    assert_says(&server.refused("sslmode=require"), &unknown);
    let wrong = format!("sslmode=require&sslrootcert={}", other.file().display());
    assert_says(&server.refused(&wrong), &["BadSignature", "sslrootcert=FILE"]);
    // Files that are no certificates.
    let missing = server.refused("sslmode=require&sslrootcert=/nonexistent/ca.pem");
    assert_says(&missing, &["sslrootcert /nonexistent/ca.pem", "No such file"]);
    let (_, key) = ca.certificate();
    let none = server.refused(&format!("sslmode=require&sslrootcert={}", key.display()));
    assert_says(&none, &["sslrootcert", "no certificate"]);
    // A certificate for another name, and one that has expired.
    let another = TestCa::of_another_host();
    server.replace(&another);
    let root = format!("sslmode=require&sslrootcert={}", another.file().display());
    assert_says(&server.refused(&root), &["not valid for name", "for its name in the URL"]);
    let expired = TestCa::expired();
    server.replace(&expired);
    let root = format!("sslmode=require&sslrootcert={}", expired.file().display());
    assert_says(&server.refused(&root), &["expired", "renew"]);
}

#[test]
fn server_and_url_that_disagree_about_tls_are_explained() {
    let server = TlsServer::start(&TestCa::create());
    assert_says(&server.refused("sslmode=disable"), &["28000", "no encryption", "sslmode=require"]);
    assert_says(&server.refused("sslmode=maybe"), &["URL is invalid", "sslmode"]);
    assert_says(&server.refused("sslcert=/etc/me.pem"), &["URL is invalid", "sslcert"]);
    let port = free_port();
    let plain = PostgresServer::start_with(ServerOptions {
        auth: "scram-sha-256",
        port: Some(port),
        ..ServerOptions::default()
    });
    let url = format!("postgres://{USER}:{PASSWORD}@localhost:{port}/postgres?sslmode=require");
    let why = refused_and_diagnosed(&format!("store: '{url}'"));
    assert_says(&why, &["server does not support TLS", "ssl = on"]);
    drop(plain);
}

#[test]
fn password_over_tls_from_a_file_or_a_command_is_shown_nowhere() {
    let ca = TestCa::create();
    let server = TlsServer::start(&ca);
    let parameters = format!("sslmode=require&sslrootcert={}", ca.file().display());
    let secrets = tempfile::tempdir().unwrap();
    let file = |name: &str, password: &str| {
        let file = secrets.path().join(name);
        fs::write(&file, server.url(password, &parameters)).unwrap();
        file.display().to_string()
    };
    let (right, wrong) = (file("right", PASSWORD), file("wrong", WRONG_PASSWORD));
    for (right, wrong) in [
        (format!("store_file: {right}"), format!("store_file: {wrong}")),
        (format!("store_command: [cat, {right}]"), format!("store_command: [cat, {wrong}]")),
    ] {
        assert_says(&refused_and_diagnosed(&wrong), &["28P01", "check the user and the password"]);
        let (_dir, home) = home(&right);
        cli(&home, &["courier", "start", "--port", "0", "--webhook-port", "0"], "").ok();
        let shown = [
            cli(&home, &["courier", "status", "--format", "json"], "").ok(),
            cli(&home, &["courier", "logs"], "").ok(),
            doctor(&home).to_string(),
        ];
        cli(&home, &["courier", "stop"], "").ok();
        for text in shown {
            assert_no_secret(&text);
        }
        let kept = Command::new("grep").args(["-rl", PASSWORD]).arg(&home).output().unwrap();
        let kept = String::from_utf8(kept.stdout).unwrap();
        assert_eq!(kept, "");
    }
}
