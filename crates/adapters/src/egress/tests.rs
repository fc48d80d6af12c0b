//! Requests, uploads, downloads, redirects and kept connections against scripted servers.

use tokio::io::AsyncReadExt as _;

use super::*;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};

async fn post(
    url: &str,
    allow_private: bool,
    limits: EgressLimits,
) -> Result<EgressResponse, Failure> {
    let target = EgressTarget::parse(url, allow_private).unwrap();
    let egress = Egress::with_limits(limits).unwrap();
    egress.post(&target, HeaderMap::new(), b"{}".to_vec()).await
}

fn target(server: &ScriptedServer) -> EgressTarget {
    EgressTarget::parse(&server.url("http"), true).unwrap()
}

fn reader(text: &str) -> ByteReader {
    Box::pin(std::io::Cursor::new(text.as_bytes().to_vec()))
}

/// Allows every port of this machine.
fn local() -> HostRule {
    HostRule::new(&[], &EgressTarget::parse("http://127.0.0.1/", true).unwrap())
}

async fn read(download: EgressDownload) -> std::io::Result<String> {
    let (mut bytes, mut text) = (download.bytes, String::new());
    bytes.read_to_string(&mut text).await.map(|_| text)
}

#[tokio::test]
async fn address_is_checked_when_connecting() {
    let server = ScriptedServer::answering("200 OK", "", "");
    let url = format!("https://localhost:{}/", server.port());
    let refused = post(&url, false, EgressLimits::default()).await.unwrap_err();
    assert!(matches!(refused, Failure::Permanent { .. }), "{refused:?}");
    assert!(refused.detail().contains("allow_private: true"), "{refused:?}");
    assert!(!server.received_more());

    let url = format!("http://localhost:{}/", server.port());
    assert_eq!(post(&url, true, EgressLimits::default()).await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn failure_to_connect_is_temporary() {
    let short = EgressLimits { connect: Duration::from_millis(300), ..EgressLimits::default() };
    // Accepts the connection and never answers the TLS handshake.
    let deaf = ScriptedServer::new([ScriptedAct::Deaf]);
    // Answers a TLS handshake with HTTP.
    let plain = ScriptedServer::answering("400 Bad Request", "", "");
    for url in [
        deaf.url("https"),
        plain.url("https"),
        // No process listens on this port.
        "http://127.0.0.1:1/".to_owned(),
        "https://nowhere.invalid/".to_owned(),
    ] {
        let failure = post(&url, true, short).await.unwrap_err();
        assert!(matches!(failure, Failure::Temporary { .. }), "{url}: {failure:?}");
        assert!(failure.detail().contains("cannot connect to"), "{url}: {failure:?}");
        assert!(!failure.detail().contains("canary"), "{url}: {failure:?}");
    }
}

#[tokio::test]
async fn response_is_read_up_to_the_limit() {
    let server = ScriptedServer::answering("200 OK", "", &"x".repeat(100_000));
    let limits = EgressLimits { reply: 1000, ..EgressLimits::default() };
    let reply = post(&server.url("http"), true, limits).await.unwrap();
    assert_eq!(reply.body, "x".repeat(1000).as_bytes());
}

#[test]
fn client_can_be_built_twice() {
    assert!(Egress::new().is_ok());
    assert!(Egress::new().is_ok());
}

/// The environment names the certificates, so the test runs itself in a child process
/// with another environment.
#[tokio::test]
async fn without_ca_certificates_only_https_fails() {
    const NAME: &str = "egress::tests::without_ca_certificates_only_https_fails";
    if std::env::var_os("MONOCO_TEST_CHILD").is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("MONOCO_TEST_CHILD", "1")
            .env("SSL_CERT_FILE", "/nonexistent/ca.crt")
            .env("SSL_CERT_DIR", "/nonexistent")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(output.contains("1 passed"), "{output}");
        return;
    }
    let failure = post("https://192.0.2.1/", true, EgressLimits::default()).await.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
    assert!(failure.detail().contains("install the CA certificates"), "{failure:?}");
    let server = ScriptedServer::answering("200 OK", "", "");
    let reply = post(&server.url("http"), true, EgressLimits::default()).await;
    assert_eq!(reply.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn methods_headers_and_bodies_are_sent() {
    let egress = Egress::new().unwrap();
    let ok = || ScriptedAct::Answer(answer("200 OK", "connection: close\r\n", "{\"ok\":true}"));
    let server = ScriptedServer::new([ok(), ok(), ok(), ok()]);
    let target = target(&server).with_query(&[("name", "a b&c")]);
    let reply = egress.send(EgressRequest::get(&target).bearer("xoxb-1")).await.unwrap();
    assert_eq!(reply.json::<serde_json::Value>().unwrap()["ok"], true);
    let request = server.request();
    assert!(
        request.starts_with("GET /hook?token=canary-in-the-query&name=a+b%26c HTTP/1.1"),
        "{request}"
    );
    assert!(request.contains("authorization: Bearer xoxb-1"), "{request}");

    egress.send(EgressRequest::post(&target).json(&["é"])).await.unwrap();
    let request = server.request();
    assert!(request.starts_with("POST") && request.ends_with("\r\n\r\n[\"é\"]"), "{request}");
    assert!(request.contains("content-type: application/json; charset=utf-8"), "{request}");

    egress.send(EgressRequest::post(&target).form(&[("a", "1 2"), ("b", "é")])).await.unwrap();
    let request = server.request();
    assert!(request.ends_with("\r\n\r\na=1+2&b=%C3%A9"), "{request}");

    let body = EgressBody::Stream { size: 5, bytes: reader("hello") };
    egress.send(EgressRequest::put(&target).body(body)).await.unwrap();
    let request = server.request();
    assert!(request.starts_with("PUT") && request.ends_with("\r\n\r\nhello"), "{request}");
    assert!(request.contains("content-length: 5"), "{request}");
}

#[tokio::test]
async fn form_with_files_is_streamed_with_its_length() {
    let server = ScriptedServer::answering("200 OK", "", "");
    let fields = vec![
        MultipartField::text("type", "file"),
        MultipartField::file("media", "a \"b\"\n.txt", "text/plain", 3, reader("abc")),
    ];
    let target = target(&server);
    let request = EgressRequest::post(&target).body(EgressBody::Multipart(fields));
    assert_eq!(Egress::new().unwrap().send(request).await.unwrap().status, StatusCode::OK);
    let request = server.request();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let boundary = head.split("boundary=").nth(1).unwrap().split("\r\n").next().unwrap();
    let want = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"type\"\r\n\r\nfile\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"media\"; \
         filename=\"a %22b%22%0A.txt\"\r\nContent-Type: text/plain\r\n\r\nabc\r\n\
         --{boundary}--\r\n"
    );
    assert_eq!(body, want);
    assert!(head.contains(&format!("content-length: {}", want.len())), "{head}");
}

#[tokio::test]
async fn content_that_is_too_short_is_a_temporary_failure() {
    let server = ScriptedServer::new([ScriptedAct::HangUp]);
    let target = target(&server);
    let body = EgressBody::Stream { size: 50, bytes: reader("hello") };
    let failure =
        Egress::new().unwrap().send(EgressRequest::post(&target).body(body)).await.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
    assert!(failure.detail().contains("45 bytes are missing"), "{failure:?}");
}

#[tokio::test]
async fn missing_response_is_unknown_unless_the_request_is_repeatable() {
    let egress = Egress::new().unwrap();
    let server = ScriptedServer::new([ScriptedAct::HangUp]);
    let failure = egress.send(EgressRequest::post(&target(&server))).await.unwrap_err();
    assert!(matches!(failure, Failure::Unknown { .. }), "{failure:?}");
    // Repeated once, on a new connection.
    let server = ScriptedServer::new([ScriptedAct::HangUp, ScriptedAct::HangUp]);
    let failure = egress.send(EgressRequest::get(&target(&server))).await.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
    assert!(server.request().starts_with("GET") && server.request().starts_with("GET"));
    let again = ScriptedAct::Answer(answer("200 OK", "", "fine"));
    let server = ScriptedServer::new([ScriptedAct::HangUp, again]);
    assert_eq!(egress.send(EgressRequest::get(&target(&server))).await.unwrap().body, b"fine");
}

#[tokio::test]
async fn long_poll_has_a_deadline_of_its_own() {
    let limits = EgressLimits { total: Duration::from_millis(50), ..EgressLimits::default() };
    let egress = Egress::with_limits(limits).unwrap();
    let server = ScriptedServer::new([ScriptedAct::Drip(answer("200 OK", "", "late"))]);
    let target = target(&server);
    let request = EgressRequest::get(&target).timeout(Duration::from_secs(30));
    assert_eq!(egress.send(request).await.unwrap().body, b"late");
}

#[tokio::test]
async fn invalid_header_value_fails_without_a_request() {
    let server = ScriptedServer::new([]);
    let target = target(&server);
    let failure =
        Egress::new().unwrap().send(EgressRequest::get(&target).bearer("a\nb")).await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(!failure.detail().contains("a\nb") && !server.received_more());
}

#[tokio::test]
async fn download_is_capped_by_the_announced_and_the_real_size() {
    let egress = Egress::new().unwrap();
    let get = async |server: &ScriptedServer, max| {
        let target = target(server);
        egress.download(EgressRequest::get(&target), max, &local()).await
    };
    let server = ScriptedServer::answering("200 OK", "content-type: text/plain; x=y\r\n", "abc");
    let download = get(&server, 3).await.unwrap();
    assert_eq!((download.size, download.mime_type()), (Some(3), Some("text/plain")));
    assert_eq!(read(download).await.unwrap(), "abc");
    let server = ScriptedServer::answering("200 OK", "", "abcd");
    let failure = get(&server, 3).await.unwrap_err();
    assert!(failure.detail().contains("4 bytes; at most 3"), "{failure:?}");
    // Without a length, the stream ends at the limit.
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000));
    let server = ScriptedServer::new([ScriptedAct::Answer(endless)]);
    let error = read(get(&server, 1000).await.unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    // A connection that ends too early is an error, not a shorter file.
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_owned();
    let server = ScriptedServer::new([ScriptedAct::Answer(cut)]);
    assert!(read(get(&server, 1000).await.unwrap()).await.is_err());
    for (status, is_temporary) in [("503 X", true), ("429 X", true), ("404 X", false)] {
        let server = ScriptedServer::answering(status, "retry-after: 7\r\n", "");
        let failure = get(&server, 9).await.unwrap().into_file(None).unwrap_err();
        let asked = match &failure {
            Failure::Temporary { retry_after_ms, .. } => *retry_after_ms == Some(7_000),
            _ => false,
        };
        assert_eq!(asked, is_temporary, "{failure:?}");
    }
}

#[tokio::test]
async fn redirect_is_followed_to_allowed_hosts_without_the_token() {
    let egress = Egress::new().unwrap();
    let file = ScriptedServer::answering("200 OK", "", "file");
    let location = format!("location: {}\r\n", file.url("http"));
    let server = ScriptedServer::answering("302 Found", &location, "");
    let first = target(&server);
    let request = EgressRequest::get(&first).bearer("xoxb-secret");
    let download = egress.download(request, 100, &local()).await.unwrap();
    assert_eq!(read(download).await.unwrap(), "file");
    assert!(server.request().contains("xoxb-secret"));
    assert!(!file.request().contains("xoxb-secret"), "the token stays with the first host");

    for place in ["https://evil.example/x?secret=1", "http://169.254.169.254/", "file:///etc/x"] {
        let server = ScriptedServer::answering("302 Found", &format!("location: {place}\r\n"), "");
        let first = target(&server);
        let request = EgressRequest::get(&first);
        let failure = egress.download(request, 100, &local()).await.unwrap_err();
        assert!(matches!(failure, Failure::Permanent { .. }), "{place}: {failure:?}");
        assert!(!failure.detail().contains("secret"), "{failure:?}");
    }
}

#[tokio::test]
async fn redirects_are_limited() {
    let looping =
        ScriptedAct::Answer(answer("302 Found", "location: /hook\r\nconnection: close\r\n", ""));
    let server = ScriptedServer::new(vec![looping; 5]);
    let target = target(&server);
    let download =
        Egress::new().unwrap().download(EgressRequest::get(&target), 100, &local()).await.unwrap();
    assert_eq!(download.status, StatusCode::FOUND, "the fifth redirect is not followed");
}

#[test]
fn hosts_of_the_provider_and_of_the_config_are_allowed() {
    let rule = |base: &str| {
        let base = EgressTarget::parse(base, true).unwrap();
        HostRule::new(&["slack.com", ".slack.com"], &base)
    };
    for (base, url, is_allowed) in [
        ("https://slack.com/api/", "https://files.slack.com/x", true),
        ("https://slack.com/api/", "https://slack.com/x", true),
        ("https://slack.com/api/", "https://SLACK.com./x", true),
        ("https://slack.com/api/", "https://slack.com:8443/x", true),
        ("https://slack.com/api/", "http://files.slack.com/x", false),
        ("https://slack.com/api/", "https://evilslack.com/x", false),
        ("https://slack.com/api/", "https://slack.com.evil.example/x", false),
        ("https://slack.com/api/", "https://a:b@files.slack.com/x", false),
        ("https://slack.com/api/", "http://127.0.0.1:80/x", false),
        ("https://slack.com/api/", "https://127.0.0.1/x", false),
        ("https://slack.com/api/", "not a URL", false),
        ("http://127.0.0.1:9000/api/", "http://127.0.0.1:9001/x", true),
        ("http://127.0.0.1:9000/api/", "http://localhost:9001/x", true),
        ("http://127.0.0.1:9000/api/", "http://[::1]:9001/x", true),
        ("http://127.0.0.1:9000/api/", "http://10.0.0.1/x", false),
        ("http://127.0.0.1:9000/api/", "http://169.254.169.254/x", false),
        ("http://127.0.0.1:9000/api/", "https://files.slack.com/x", true),
        ("https://chat.corp.example/api/", "https://chat.corp.example/file", true),
        ("https://chat.corp.example/api/", "https://chat.corp.example:1/file", false),
        ("http://10.0.0.5/api/", "http://10.0.0.5/file", true),
        ("http://10.0.0.5/api/", "http://10.0.0.6/file", false),
    ] {
        let checked = rule(base).http(url);
        assert_eq!(checked.is_ok(), is_allowed, "{base} {url}: {checked:?}");
        let socket = url.replacen("http", "ws", 1);
        assert_eq!(rule(base).socket(&socket).is_ok(), is_allowed, "{base} {socket}");
    }
    assert!(rule("https://slack.com/").socket("https://files.slack.com/").is_err());
}
