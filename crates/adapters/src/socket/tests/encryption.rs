//! Sockets with TLS, directly and through proxies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::support::{IdSink, RunningLoop, SocketServer, WordProtocol, until};
use crate::socket::SocketConnector;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/net").join(name)
}

/// The port of a server, from its URL.
fn port(server: &SocketServer) -> u16 {
    let address = server.url.split('/').nth(2).unwrap();
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// A server in front of another one that encrypts, with the certificate of `localhost`.
async fn encrypted(behind: u16) -> u16 {
    let chain = CertificateDer::pem_file_iter(testdata("localhost.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(testdata("localhost.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", behind)).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    port
}

/// A proxy for `CONNECT localhost:PORT`, which connects to that port of this machine.
async fn http_proxy() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let target = head.strip_prefix("CONNECT localhost:").expect(&head);
                let target: u16 = target.split_once(' ').unwrap().0.parse().unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    port
}

/// A server that sends one message and counts its acknowledgement as the end.
async fn one_message() -> SocketServer {
    SocketServer::start(|mut socket| async move {
        socket.send("m:1").await;
        assert_eq!(socket.text().await.as_deref(), Some("a:1"));
        socket.drain().await;
    })
    .await
}

#[tokio::test]
async fn encrypted_socket_receives_and_acknowledges_directly_and_through_a_proxy() {
    let proxy = format!("http://127.0.0.1:{}", http_proxy().await).parse().unwrap();
    for proxy in [None, Some(proxy)] {
        let server = one_message().await;
        let tls = encrypted(port(&server)).await;
        let protocol = WordProtocol::new(&format!("wss://localhost:{tls}/link?ticket=canary"));
        let ca_file = Some(testdata("ca.pem"));
        let connector = SocketConnector { proxy, ca_file, ..SocketConnector::default() };
        let running = RunningLoop::start(protocol, IdSink::default(), connector);
        until("a message", || running.sink.count() == 1).await;
        assert_eq!(running.sink.losses(), Vec::<String>::new());
        running.stop().await;
        assert_eq!(server.accepted(), 1);
    }
}

#[tokio::test]
async fn socket_with_an_unknown_certificate_is_not_used() {
    let server = one_message().await;
    let tls = encrypted(port(&server)).await;
    let protocol = WordProtocol::new(&format!("wss://localhost:{tls}/link?ticket=canary"));
    let running = RunningLoop::start(protocol, IdSink::default(), SocketConnector::default());
    until("a failed connection", || !running.sink.losses().is_empty()).await;
    let why = running.sink.losses().remove(0);
    let expected = ["unknown CA", "cannot use the CA certificates"];
    assert!(expected.iter().any(|words| why.contains(words)), "{why}");
    assert!(!why.contains("canary"), "{why}");
    assert_eq!((server.accepted(), running.sink.count()), (0, 0));
    running.stop().await;
}

/// Without a listener at the proxy nothing goes around it.
#[tokio::test]
async fn socket_does_not_go_around_its_proxy() {
    let server = one_message().await;
    let tls = encrypted(port(&server)).await;
    let protocol = WordProtocol::new(&format!("wss://localhost:{tls}/link"));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", closed.local_addr().unwrap()).parse().ok();
    drop(closed);
    let ca_file = Some(testdata("ca.pem"));
    let connector = SocketConnector { proxy, ca_file, ..SocketConnector::default() };
    let running = RunningLoop::start(protocol, IdSink::default(), connector);
    until("a failed connection", || !running.sink.losses().is_empty()).await;
    assert!(running.sink.losses()[0].contains("proxy http://127.0.0.1"));
    assert_eq!(server.accepted(), 0);
    running.stop().await;
}
