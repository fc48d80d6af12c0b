//! Servers that violate the protocol: invalid, partial, surplus, late or missing replies.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::load::poll_times;
use super::*;

/// Sends the same bytes to every client after its first request, then waits or close.
struct InvalidServer {
    address: BeanstalkdAddress,
    /// Aborted at the end of the test.
    _tasks: JoinSet<()>,
}

impl InvalidServer {
    async fn start(reply: &'static [u8], then_close: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 4096];
                // The client may close the connection early.
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(reply).await;
                if !then_close {
                    open.push(stream);
                }
            }
        });
        Self { address: BeanstalkdAddress { host: "127.0.0.1".to_owned(), port }, _tasks: tasks }
    }

    fn client(&self) -> BeanstalkdClient {
        BeanstalkdClient::new(self.address.clone(), &TaskTracker::new(), CancellationToken::new())
    }

    fn consumer(&self) -> JobConsumer {
        let stop = CancellationToken::new();
        JobConsumer::new(self.address.clone(), Vec::new(), &TaskTracker::new(), stop)
    }
}

#[tokio::test]
async fn invalid_reply_ends_the_connection_and_fails_the_command() {
    const LONG: &[u8] = &[b'A'; 5000];
    for (reply, close, why) in [
        (&b"HELLO\r\n"[..], false, "not a reply"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", false, "not a reply"),
        (b"INSERTED x\r\n", false, "not a reply"),
        (b"\xff\xfe\r\n", false, "not a reply"),
        (b"INSERTED 1", true, "connection closed"),
        (b"INSERTED 1\r", true, "connection closed"),
        (b"", true, "connection closed"),
        (LONG, false, "more than 1024 bytes"),
        // Replies to other commands.
        (b"RESERVED 1 2\r\nab\r\n", false, "does not belong to Put"),
        (b"DELETED\r\n", false, "does not belong to Put"),
        (b"BURIED\r\n", false, "does not belong to Put"),
        (b"USING b\r\n", false, "does not belong to Put"),
    ] {
        let server = InvalidServer::start(reply, close).await;
        let client = server.client();
        let found = down(client.put(&tube("default"), put("x")).await);
        assert!(found.contains(why), "{reply:?}: {found}");
        // The next connection is made after a pause.
        let found = down(client.stats().await);
        assert!(found.contains("waiting before the next connection"), "{reply:?}: {found}");
    }
}

#[tokio::test]
async fn surplus_reply_is_not_used_for_the_next_command() {
    let server = InvalidServer::start(b"DELETED\r\nINSERTED 1\r\n", false).await;
    let client = server.client();
    assert_eq!(client.delete(super::super::JobId(5)).await, Ok(true));
    let put = client.put(&tube("default"), put("x")).await;
    // On the old connection or a new one, 1 is never the reply to this put.
    down(put);
}

#[tokio::test]
async fn put_that_cannot_be_parsed_is_rejected_and_ends_the_connection() {
    for reply in [&b"BAD_FORMAT\r\n"[..], b"UNKNOWN_COMMAND\r\n", b"EXPECTED_CRLF\r\n"] {
        let server = InvalidServer::start(reply, false).await;
        let client = server.client();
        let default = tube("default");
        let (first, second) =
            tokio::join!(client.put(&default, put("x")), client.put(&default, put("y")));
        assert!(matches!(first, Err(BeanstalkdError::Rejected(_))), "{first:?}");
        let why = down(second);
        assert!(why.contains("could not parse a put"), "{why}");
    }
}

#[tokio::test]
async fn replies_for_missing_memory_are_reported_as_full() {
    for reply in [&b"OUT_OF_MEMORY\r\n"[..], b"INTERNAL_ERROR\r\n", b"BURIED 7\r\n"] {
        let server = InvalidServer::start(reply, false).await;
        let found = server.client().put(&tube("default"), put("x")).await;
        assert!(matches!(found, Err(BeanstalkdError::Full(_))), "{reply:?}: {found:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let table =
        [("reserve-with-timeout 1", "RESERVED 7 1\r\nx\r\n"), ("release 7 1 0", "BURIED\r\n")];
    let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let mut consumer = JobConsumer::new(address, Vec::new(), &tasks, stop);
    let releasing = async {
        let job = consumer.reserve(seconds(1)).await.unwrap().unwrap();
        let released = consumer.release(&[job.id], 1, seconds(0)).await;
        drop(consumer);
        released
    };
    let (found, ()) = tokio::join!(releasing, play(listener, &table));
    assert!(matches!(found, Err(BeanstalkdError::Full(_))), "{found:?}");
}

#[tokio::test]
async fn failed_use_or_watch_ends_the_connection() {
    let server = InvalidServer::start(b"OUT_OF_MEMORY\r\nINSERTED 1\r\n", false).await;
    let why = down(server.client().put(&tube("a"), put("x")).await);
    assert!(why.contains("Use failed with"), "the job is in another tube: {why}");
    let server = InvalidServer::start(b"WATCHING 2\r\nNOT_IGNORED\r\nTIMED_OUT\r\n", false).await;
    let stop = CancellationToken::new();
    let mut consumer =
        JobConsumer::new(server.address.clone(), vec![tube("a")], &TaskTracker::new(), stop);
    let why = down(consumer.reserve(seconds(1)).await);
    assert!(why.contains("Watch failed with"), "{why}");
}

#[tokio::test]
async fn empty_statistics_are_an_error() {
    let server = InvalidServer::start(b"OK 4\r\n---\n\r\n", false).await;
    assert!(down(server.client().stats().await).contains("without"));
}

/// Replies to each line by the table, on one connection. A real server cannot be made to time
/// out a reservation at a given moment: 1.12 may forget the timeout of an idle connection.
async fn play(listener: TcpListener, table: &[(&str, &str)]) {
    let (stream, _) = listener.accept().await.unwrap();
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = table.iter().find(|(asked, _)| *asked == line).map(|(_, answer)| *answer);
        to.write_all(answer.unwrap_or_else(|| panic!("{line}")).as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn job_whose_reservation_timed_out_is_not_returned() {
    for (touched, returned) in [("TOUCHED\r\n", true), ("NOT_FOUND\r\n", false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = [
            ("reserve-with-timeout 1", "RESERVED 7 1\r\nx\r\n"),
            ("touch 7", touched),
            ("reserve-with-timeout 0", "TIMED_OUT\r\n"),
        ];
        let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut consumer = JobConsumer::new(address, Vec::new(), &tasks, stop);
        let taking = async {
            assert!(poll_times(1, consumer.reserve(seconds(1))).await.is_none());
            let job = consumer.reserve(seconds(0)).await.unwrap();
            drop(consumer);
            job
        };
        let (job, ()) = tokio::join!(taking, play(listener, &table));
        assert_eq!(job.is_some(), returned, "{touched}");
    }
}

#[tokio::test]
async fn missing_reply_is_an_error_after_ten_seconds() {
    let silent = InvalidServer::start(b"", false).await;
    let half = InvalidServer::start(b"INSERTED ", false).await;
    let (client, other, mut consumer) = (silent.client(), half.client(), silent.consumer());
    let start = Instant::now();
    let default = tube("default");
    let (first, second, third) = tokio::join!(
        client.put(&default, put("x")),
        other.put(&default, put("x")),
        consumer.reserve(seconds(1)),
    );
    let took = start.elapsed();
    for why in [down(first), down(second), down(third)] {
        assert!(why.contains("no reply within 10 s"), "{why}");
    }
    assert!(took > seconds(9) && took < seconds(30), "{took:?}");
}
