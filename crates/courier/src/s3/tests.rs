//! What a real server does not do on demand: errors, lost connections and other bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use super::*;

const BYTES: &[u8] = b"the bytes of an attachment";

/// A server that gives one scripted answer per connection. Returns the requests that it got.
fn scripted(answers: Vec<Vec<u8>>) -> (S3Objects, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut peer, _) = listener.accept().unwrap();
            let request = read_request(&mut peer);
            if sender.send(request).is_err() {
                return;
            }
            let _ = peer.write_all(&answer);
        }
    });
    let url = format!("s3://AK:s3cret@hub/p?endpoint=http://{address}");
    (S3Objects::new(S3Location::parse(&url).unwrap()).unwrap(), requests)
}

fn read_request(peer: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = peer.read(&mut part).unwrap();
        request.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let size = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if read == 0 || body.len() >= size.map_or(0, |size| size.parse().unwrap()) {
            return text;
        }
    }
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let size = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n{body}").into()
}

fn error(status: &str, code: &str) -> Vec<u8> {
    answer(status, &format!("<Error><Code>{code}</Code><Message>s3cret</Message></Error>"))
}

fn hash() -> [u8; 32] {
    Sha256::digest(BYTES).into()
}

/// Runs `work`, which blocks, beside the runtime.
async fn blocking<T: Send + 'static>(
    objects: &Arc<S3Objects>,
    work: impl FnOnce(&S3Objects) -> T + Send + 'static,
) -> T {
    let objects = Arc::clone(objects);
    tokio::task::spawn_blocking(move || work(&objects)).await.unwrap()
}

fn put(objects: &S3Objects) -> io::Result<()> {
    objects.put(&hash(), BYTES.len() as u64, &ObjectSource::Bytes(BYTES.into()))
}

fn get(objects: &S3Objects) -> io::Result<Option<Vec<u8>>> {
    let mut found = Vec::new();
    let is_there = objects.get(&hash(), BYTES.len() as u64, &mut |part| {
        found.extend_from_slice(part);
        Ok(true)
    })?;
    Ok(is_there.then_some(found))
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_server_and_lost_connection_are_retried() {
    let busy = error("503 Slow Down", "SlowDown");
    let (objects, requests) = scripted(vec![busy, Vec::new(), answer("200 OK", "")]);
    let objects = Arc::new(objects);
    blocking(&objects, put).await.unwrap();
    let name = hex::encode(&hash());
    for _ in 0..3 {
        let request = requests.recv().unwrap();
        assert!(request.starts_with(&format!("PUT /hub/p/{name} HTTP/1.1")), "{request}");
        assert!(request.contains(&format!("x-amz-content-sha256: {name}")), "{request}");
        assert!(request.ends_with("the bytes of an attachment"), "{request}");
    }
    assert_eq!(objects.failure(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_is_an_error_after_a_limited_time_and_ends_by_itself() {
    let busy = || error("503 Slow Down", "SlowDown");
    let answers = [busy(), busy(), busy(), busy(), answer("200 OK", "")];
    let (objects, _requests) = scripted(answers.to_vec());
    let objects = Arc::new(objects);
    let failure = blocking(&objects, put).await.unwrap_err().to_string();
    assert!(failure.contains("503") && failure.contains("SlowDown"), "{failure}");
    assert_eq!(objects.failure(), Some(failure));
    blocking(&objects, put).await.unwrap();
    assert_eq!(objects.failure(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_breaks_off_continues_after_the_last_byte() {
    let head = |status: &str, size: usize| {
        format!("HTTP/1.1 {status}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n")
    };
    let mut cut = head("200 OK", BYTES.len()).into_bytes();
    cut.extend_from_slice(&BYTES[..10]);
    let mut rest = head("206 Partial Content", BYTES.len() - 10).into_bytes();
    rest.extend_from_slice(&BYTES[10..]);
    // A server without ranges sends everything again.
    let whole = answer("200 OK", str::from_utf8(BYTES).unwrap());
    for second in [rest, whole] {
        let (objects, requests) = scripted(vec![cut.clone(), second]);
        let found = blocking(&Arc::new(objects), get).await.unwrap();
        assert_eq!(found.as_deref(), Some(BYTES));
        assert!(!requests.recv().unwrap().contains("range:"));
        assert!(requests.recv().unwrap().contains("range: bytes=10-"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_object_is_none_and_missing_bucket_is_an_error() {
    for (answer, expected) in [
        (error("404 Not Found", "NoSuchKey"), Ok(None)),
        (error("404 Not Found", "NoSuchBucket"), Err("the bucket hub does not exist")),
        (error("403 Forbidden", "AccessDenied"), Err("may not GET objects of the bucket hub")),
        (error("403 Forbidden", "SignatureDoesNotMatch"), Err("secret of the access key is wrong")),
        (error("403 Forbidden", "RequestTimeTooSkewed"), Err("clock of this machine is wrong")),
        (error("301 Moved Permanently", "PermanentRedirect"), Err("location")),
    ] {
        // One answer: a permanent failure is not retried.
        let (objects, _requests) = scripted(vec![answer]);
        let found = blocking(&Arc::new(objects), get).await;
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
            }
            (found, expected) => panic!("found {found:?}, expected {expected:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_fails_when_other_bytes_are_read() {
    let wrong = answer("200 OK", "monoco check 0000000000000000");
    let (objects, _requests) = scripted(vec![answer("200 OK", ""), wrong]);
    let failure = objects.test_access().await.unwrap_err();
    assert!(failure.detail().contains("other bytes"), "{failure:?}");
    assert!(objects.failure().is_some());
}
