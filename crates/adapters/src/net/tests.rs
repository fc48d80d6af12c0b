//! Connections to servers and proxies that the tests play on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::retry::Failure;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::*;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/net").join(name)
}

fn server(port: u16, tls: TlsMode) -> MailServer {
    let ca_file = Some(testdata("ca.pem"));
    MailServer { host: "localhost".to_owned(), port, tls, ca_file, proxy: None }
}

/// Listens on a free port of this machine.
async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A server with this certificate, which sends `hello` over TLS to each client.
async fn tls_server(certificate: &str) -> u16 {
    let chain = CertificateDer::pem_file_iter(testdata(&format!("{certificate}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(testdata(&format!("{certificate}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, port) = listener().await;
    TaskTracker::new().spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.write_all(b"hello").await;
            let _ = stream.shutdown().await;
        }
    });
    port
}

async fn detail_of(server: &MailServer) -> (String, Option<String>) {
    let failure = connect(server, ConnectLimits::default()).await.unwrap_err();
    (failure.detail().to_owned(), failure.error_code().map(str::to_owned))
}

#[tokio::test]
async fn tls_connection_trusts_the_ca_file() {
    let port = tls_server("localhost").await;
    for host in ["localhost", "127.0.0.1"] {
        let server = MailServer { host: host.to_owned(), ..server(port, TlsMode::Implicit) };
        let mut stream = connect(&server, ConnectLimits::default()).await.unwrap();
        assert!(stream.is_encrypted());
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }
}

#[tokio::test]
async fn certificate_problems_say_what_to_do() {
    let code = Some(CERTIFICATE_ERROR.to_owned());
    let other = server(tls_server("other").await, TlsMode::Implicit);
    let (detail, found) = detail_of(&other).await;
    assert!(detail.contains("not valid for \"localhost\""), "{detail}");
    assert!(detail.contains("set `host` to a name in the certificate"), "{detail}");
    assert_eq!(found, code);

    let expired = server(tls_server("expired").await, TlsMode::Implicit);
    let (detail, found) = detail_of(&expired).await;
    assert!(detail.contains("the certificate has expired"), "{detail}");
    assert_eq!(found, code);

    let port = tls_server("localhost").await;
    let unknown = MailServer { ca_file: None, ..server(port, TlsMode::Implicit) };
    let (detail, found) = detail_of(&unknown).await;
    // Without certificates of the system there is nothing to verify with.
    let expected = ["issued by an unknown CA", "cannot use the CA certificates"];
    assert!(expected.iter().any(|words| detail.contains(words)), "{detail}");
    assert!(detail.contains("`ca_file`"), "{detail}");
    assert_eq!(found, code);

    let missing = Some(testdata("no such file"));
    let missing = MailServer { ca_file: missing, ..server(port, TlsMode::Implicit) };
    let (detail, _) = detail_of(&missing).await;
    assert!(detail.contains("`ca_file` ") && detail.contains("no such file"), "{detail}");
}

#[tokio::test]
async fn plain_port_is_not_mistaken_for_tls() {
    let (listener, port) = listener().await;
    TaskTracker::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"* OK ready\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 100]).await;
    });
    let (detail, _) = detail_of(&server(port, TlsMode::Implicit)).await;
    assert!(detail.contains("check `port` and `tls`"), "{detail}");
}

#[tokio::test]
async fn silent_server_does_not_hang_the_handshake() {
    let (_listener, port) = listener().await;
    let limits = ConnectLimits { connect: Duration::from_secs(5), tls: Duration::from_millis(50) };
    let failure = connect(&server(port, TlsMode::Implicit), limits).await.unwrap_err();
    assert!(failure.detail().ends_with("the TLS handshake takes too long"), "{failure:?}");
}

#[tokio::test]
async fn refused_connection_is_temporary() {
    let (listener, port) = listener().await;
    drop(listener);
    let failure = connect(&server(port, TlsMode::Plain), ConnectLimits::default()).await;
    let failure = failure.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
    let start = format!("cannot connect to localhost:{port}: ");
    assert!(failure.detail().starts_with(&start), "{failure:?}");
}

#[tokio::test]
async fn plain_connection_leaves_this_machine_never() {
    // An address for documentation: the check comes before the connection.
    let away = MailServer { host: "192.0.2.1".to_owned(), ..server(143, TlsMode::Plain) };
    let failure = connect(&away, ConnectLimits::default()).await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(failure.detail().contains("`tls: none` is for this machine only"), "{failure:?}");

    let proxy = Some("socks5://127.0.0.1:9".parse().unwrap());
    let proxied = MailServer { proxy, ..server(143, TlsMode::Plain) };
    let failure = connect(&proxied, ConnectLimits::default()).await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
}

#[test]
fn loopback_is_recognised_in_every_notation() {
    let is = |host: &str| {
        MailServer { host: host.to_owned(), ..server(1, TlsMode::Plain) }.is_loopback_name()
    };
    assert!(is("localhost") && is("LOCALHOST") && is("127.0.0.1") && is("127.9.9.9"));
    assert!(is("::1") && is("::ffff:127.0.0.1"));
    assert!(!is("localhost.example.com") && !is("10.0.0.1") && !is("::2"));
}

/// Plays a proxy: reads each request and answers it, then says `hello` as the mail server.
async fn proxy(dialogue: Vec<(Vec<u8>, Vec<u8>)>) -> u16 {
    let (listener, port) = listener().await;
    TaskTracker::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for (expected, answer) in dialogue {
            let mut request = vec![0; expected.len()];
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(request, expected, "{}", String::from_utf8_lossy(&request));
            stream.write_all(&answer).await.unwrap();
        }
        stream.write_all(b"hello").await.unwrap();
    });
    port
}

async fn through(url: String) -> Result<String, String> {
    let proxy = Some(url.parse().unwrap());
    let host = "imap.example.com".to_owned();
    let server = MailServer { host, proxy, ..server(143, TlsMode::StartTls) };
    let connected = connect(&server, ConnectLimits::default()).await;
    let mut stream = connected.map_err(|failure| failure.detail().to_owned())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    Ok(text)
}

#[tokio::test]
async fn socks5_proxy_gets_the_name_and_the_password() {
    let mut target = vec![5, 1, 0, 3, 16];
    target.extend(b"imap.example.com");
    target.extend([0, 143]);
    let port = proxy(vec![
        (vec![5, 2, 0, 2], vec![5, 2]),
        (b"\x01\x03ann\x03a:b".to_vec(), vec![1, 0]),
        (target.clone(), vec![5, 0, 0, 1, 10, 0, 0, 1, 0, 80]),
    ])
    .await;
    assert_eq!(through(format!("socks5://ann:a%3Ab@127.0.0.1:{port}")).await.unwrap(), "hello");

    let port =
        proxy(vec![(vec![5, 1, 0], vec![5, 0]), (target, vec![5, 5, 0, 1, 0, 0, 0, 0, 0, 0])])
            .await;
    let error = through(format!("socks5://127.0.0.1:{port}")).await.unwrap_err();
    let expected = format!(
        "cannot connect to imap.example.com:143: proxy socks5://127.0.0.1:{port}: \
         connection refused"
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn http_proxy_gets_the_name_and_the_password() {
    let request = "CONNECT imap.example.com:143 HTTP/1.1\r\nHost: imap.example.com:143\r\n";
    let with_login = format!("{request}Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n\r\n");
    let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n".to_vec();
    let port = proxy(vec![(with_login.into_bytes(), answer)]).await;
    assert_eq!(through(format!("http://ann:secret@127.0.0.1:{port}")).await.unwrap(), "hello");

    let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".to_vec();
    let port = proxy(vec![(format!("{request}\r\n").into_bytes(), answer)]).await;
    let error = through(format!("http://127.0.0.1:{port}")).await.unwrap_err();
    assert!(
        error.ends_with("it answers \"HTTP/1.1 407 Proxy Authentication Required\""),
        "{error}"
    );
}

#[test]
fn proxy_urls_are_checked_and_never_shown_with_the_password() {
    let url: ProxyUrl = "socks5://ann:secret@[::1]:1081".parse().unwrap();
    assert_eq!((url.host(), url.port()), ("::1", 1081));
    assert_eq!(format!("{url:?}"), "socks5://[::1]:1081");
    let default: ProxyUrl = "socks5://proxy.example.com".parse().unwrap();
    assert_eq!(default.port(), 1080);
    for (text, why) in [
        ("socks4://h:1", "unknown kind of proxy \"socks4\""),
        ("https://h:1", "unknown kind of proxy \"https\""),
        ("http://h:1/path", "a proxy has no path"),
        ("127.0.0.1:1080", "relative URL without a base"),
        ("http://h:99999", "invalid port number"),
    ] {
        let error = text.parse::<ProxyUrl>().unwrap_err().to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}
