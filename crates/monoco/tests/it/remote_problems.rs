//! What goes wrong between a courier and its clients on other machines, and what they are told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::common::{Courier, until};
use crate::mail_servers::TestCa;
use crate::remote::{Hub, Machine, install, with_listener};
use crate::webhook_peer::{config, configure};

#[test]
fn each_problem_of_a_client_has_an_error_and_a_next_step() {
    let hub = Hub::start(&config(50));
    let token = hub.courier.agent("one", "read,claim", "alpha");
    let machine = |url: &str| Machine::new(url, &token, &hub.ca.file());
    let (url, port) = (hub.url(), hub.address().port());
    let other_ca = TestCa::create_for("IP:127.0.0.2");
    let other = other_ca.file();
    let plain = hub.courier.address.port();
    let cases = [
        (machine(&url).with("MONOCO_CA", other.to_str().unwrap()), 4, "unknown CA", "MONOCO_CA"),
        (machine(&url).with("MONOCO_CA", "/no/such/file"), 74, "/no/such/file", "MONOCO_CA"),
        (machine(&format!("https://127.0.0.3:{port}")), 4, "not valid for", "MONOCO_URL"),
        (machine("https://127.0.0.2:1"), 3, "cannot connect to https://127.0.0.2:1", "network"),
        (machine("https://127.0.0.2"), 3, "cannot connect to https://127.0.0.2", "443 was used"),
        (machine(&format!("https://127.0.0.1:{plain}")), 4, "does not speak TLS", "courier.remote"),
        (machine(&format!("http://127.0.0.1:{port}")), 4, "needs TLS", "https://"),
        (machine(&format!("http://10.0.0.7:{port}")), 64, "not encrypted", "https://"),
        (machine(&format!("{url}/api")), 64, "has a path", "expected a URL"),
        (machine(&format!("https://a:b@127.0.0.2:{port}")), 64, "password", "expected a URL"),
        (machine(&url).with("MONOCO_TOKEN", ""), 64, "no token", "monoco token add"),
        (machine(&url).with("MONOCO_TOKEN", &"monoco_".repeat(3)), 4, "wrong token", "token add"),
        (machine(&url).with("MONOCO_TOKEN", &hub.courier.token), 4, "owner's token", "token add"),
    ];
    for (machine, code, words, hint) in cases {
        for command in [&["events"][..], &["mailbox", "sync"]] {
            let said = machine.cli(command).failed(code);
            assert!(said.contains(words) && said.contains(hint), "{command:?}: {said}");
            assert!(!said.contains(&token), "{said}");
        }
    }
    // Plain HTTP is accepted only by the listener for this machine.
    machine(&format!("http://127.0.0.1:{plain}")).cli(&["events"]).ok();

    let one = machine(&url);
    let scope = one.cli(&["dead", "list"]).failed(4);
    assert!(scope.contains("does not have the scope operate"), "{scope}");
    let beta = one.work().join(".monoco/mailbox/config.yaml");
    std::fs::write(&beta, "mailbox: {name: beta}").unwrap();
    let foreign = one.cli(&["mailbox", "sync"]).failed(1);
    assert!(foreign.contains("the token is for workspace \"alpha\""), "{foreign}");
    for command in [
        &["courier", "start"][..],
        &["courier", "status"],
        &["doctor"],
        &["token", "list"],
        &["backup", "/tmp/x"],
        &["tunnel", "remove", "ci"],
    ] {
        let said = one.cli(command).failed(1);
        assert!(said.contains("only on the machine of the courier"), "{command:?}: {said}");
    }
    hub.courier.cli(&["token", "revoke", "one"]).ok();
    let revoked = one.cli(&["events"]).failed(4);
    assert!(revoked.contains("was revoked"), "{revoked}");
    let log = std::fs::read_dir(hub.courier.home().join("log")).unwrap();
    for file in log {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains(token.trim_start_matches("monoco_")));
    }
}

#[test]
fn listener_accepts_only_its_names_and_tokens_of_clients() {
    let hub = Hub::start(&config(50));
    let token = hub.courier.agent("one", "read", "alpha");
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let (client, owner) = (bearer(&token), bearer(&hub.courier.token));
    let page = "/api/v1/messages";
    for (path, args, status, code) in [
        (page, &["-H", &client][..], 200, ""),
        (page, &[], 401, "no_token"),
        (page, &["-H", &owner], 401, "wrong_token"),
        (page, &["-H", &client, "-H", "Host: localhost"], 403, "foreign_host"),
        (page, &["-H", &client, "-H", "Origin: https://127.0.0.2"], 403, "foreign_origin"),
        ("/", &[], 401, "no_token"),
        ("/", &["-H", &client], 404, "no_route"),
        ("/api/v1/tokens", &["-H", &client], 403, "missing_scope"),
        ("/health", &[], 200, ""),
    ] {
        let (found, body) = hub.curl(path, args);
        assert_eq!(found, status, "{path} {args:?}: {body}");
        assert!(body.contains(code), "{path} {args:?}: {body}");
    }
    let mut stream = TcpStream::connect(hub.address()).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        let only = format!("1.{}", &version[version.len() - 1..]);
        let (status, _) = hub.curl("/health", &[version, "--tls-max", &only]);
        assert_eq!(status, 200, "{version}");
    }
}

#[test]
fn courier_works_without_a_usable_certificate_and_uses_a_renewed_one_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let ca = TestCa::create_for("IP:127.0.0.2");
    configure(&home, &with_listener(&config(50), dir.path()));
    // Started without the files.
    let courier = Courier::start_in(&home);
    let (key, certificate) = (dir.path().join("key.pem"), dir.path().join("cert.pem"));
    let says = |words: &str| {
        let health = courier.until("/health", |health| {
            health["remote"]["problem"].as_str().is_some_and(|problem| problem.contains(words))
        });
        assert_eq!(
            (&health["status"], &health["remote"]["served"]),
            (&json!("degraded"), &json!(false))
        );
        let doctor = courier.cli(&["doctor"]);
        assert!(doctor.code == 1 && doctor.stdout.contains(words), "{}", doctor.stdout);
        let status = courier.cli(&["courier", "status"]).ok();
        assert!(status.contains("not served") && status.contains("degraded"), "{status}");
    };
    says("cannot read");
    let other = TestCa::create_for("IP:127.0.0.2");
    std::fs::write(&key, "no key").unwrap();
    std::fs::write(&certificate, "no certificate").unwrap();
    says("no certificate found");
    let expired =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../adapters/testdata/net/expired.pem");
    std::fs::copy(expired, &certificate).unwrap();
    says("has expired at");
    // What is not about the certificate works, and another change of the config is applied.
    courier.hears("evt-1", "room-1", "ann", "on this machine");
    courier.mails(1);
    let config = std::fs::read_to_string(home.join("courier/config.yaml")).unwrap();
    configure(&home, &config.replace("window_ms: 50", "window_ms: 60"));
    let reloaded = courier.cli(&["courier", "reload"]);
    let said = format!("{}{}", reloaded.stdout, reloaded.stderr);
    assert!(reloaded.code == 0 && said.contains("window_ms"), "{said}");
    assert!(said.contains("not served") && said.contains("has expired at"), "{said}");

    install(&TestCa::create_for("DNS:other.test"), dir.path());
    says("is not valid for the name 127.0.0.2");
    // The key first, so that no usable pair is there in between.
    std::fs::copy(other.certificate().1, &key).unwrap();
    std::fs::copy(ca.certificate().0, &certificate).unwrap();
    says("does not belong to the certificate");

    // A renewed certificate needs no command.
    install(&ca, dir.path());
    let health = courier.until("/health", |health| health["remote"]["served"] == true);
    assert_eq!((&health["status"], &health["remote"]["problem"]), (&json!("ok"), &Value::Null));
    courier.cli(&["doctor"]).ok();
    let token = courier.agent("one", "read,claim", "alpha");
    let port = health["remote"]["address"].as_str().unwrap().rsplit_once(':').unwrap().1;
    let url = format!("https://127.0.0.2:{port}");
    let machine = |ca: &TestCa| Machine::new(&url, &token, &ca.file());
    assert!(machine(&ca).cli(&["mailbox", "sync"]).ok().starts_with("pulled 1"));
    install(&other, dir.path());
    until("the courier uses the new certificate", || machine(&other).cli(&["events"]).code == 0);
    // A certificate that cannot be used does not replace one that can.
    std::fs::write(&certificate, "no certificate").unwrap();
    let health = courier.until("/health", |health| health["remote"]["problem"].is_string());
    assert_eq!((&health["status"], &health["remote"]["served"]), (&json!("ok"), &json!(true)));
    machine(&other).cli(&["events"]).ok();
}

/// An HTTP proxy that connects everything to `target`, and the requests that it got.
fn start_proxy(target: SocketAddr) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    // Ends with the test.
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|n| n == 1) {
                head.push(byte[0]);
            }
            let _ = sender.send(String::from_utf8_lossy(&head).into_owned());
            let mut server = TcpStream::connect(target).unwrap();
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(Shutdown::Write);
            });
        }
    });
    (address, requests)
}

#[test]
fn client_uses_the_proxy_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let ca = TestCa::create_for("DNS:hub.test");
    install(&ca, dir.path());
    let text = with_listener(&config(50), dir.path()).replace("[127.0.0.2]", "[hub.test]");
    configure(&home, &text);
    let courier = Courier::start_in(&home);
    courier.hears("evt-1", "room-1", "ann", "through a proxy");
    courier.mails(1);
    let health = courier.get("/health").ok();
    let bound: SocketAddr = health["remote"]["address"].as_str().unwrap().parse().unwrap();
    let (proxy, requests) = start_proxy(SocketAddr::from(([127, 0, 0, 1], bound.port())));
    let token = courier.agent("one", "read,claim", "alpha");
    // Only the proxy knows this name.
    let url = format!("https://hub.test:{}", bound.port());
    let machine = || Machine::new(&url, &token, &ca.file());
    let proxied = machine().with("HTTPS_PROXY", &format!("http://ann:pw@{proxy}"));
    assert!(proxied.cli(&["mailbox", "sync"]).ok().starts_with("pulled 1"));
    let request = requests.recv().unwrap();
    assert!(request.starts_with(&format!("CONNECT hub.test:{} ", bound.port())), "{request}");
    assert!(request.contains("Proxy-Authorization: Basic "), "{request}");
    assert!(!request.contains(&token), "{request}");

    let direct = machine().with("HTTPS_PROXY", &format!("http://{proxy}")).with("NO_PROXY", "test");
    let said = direct.cli(&["events"]).failed(3);
    assert!(said.contains("cannot look up the name"), "{said}");
    let gone = machine().with("HTTPS_PROXY", "http://127.0.0.1:1").cli(&["events"]).failed(3);
    assert!(gone.contains("proxy http://127.0.0.1:1") && gone.contains("NO_PROXY"), "{gone}");
    let wrong = machine().with("HTTPS_PROXY", "ftp://127.0.0.1").cli(&["events"]).failed(64);
    assert!(wrong.contains("HTTPS_PROXY"), "{wrong}");
}
