//! Servers that are none: they answer rubbish, half, too much, late or not at all.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::load::for_a_while;
use super::*;

/// Says the same to everybody, once something was asked, and then waits or closes.
struct Liar {
    address: BeanstalkdAddress,
    /// Ends with the test.
    _tasks: JoinSet<()>,
}

impl Liar {
    async fn start(says: &'static [u8], then_closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 4096];
                // A client that hangs up early is as good as one that listens.
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(says).await;
                if !then_closes {
                    open.push(stream);
                }
            }
        });
        Self { address: BeanstalkdAddress { host: "127.0.0.1".to_owned(), port }, _tasks: tasks }
    }

    fn client(&self) -> BeanstalkdClient {
        BeanstalkdClient::new(self.address.clone(), &TaskTracker::new(), CancellationToken::new())
    }

    fn taker(&self) -> JobConsumer {
        let stop = CancellationToken::new();
        JobConsumer::new(self.address.clone(), Vec::new(), &TaskTracker::new(), stop)
    }
}

#[tokio::test]
async fn rubbish_ends_the_connection_and_never_becomes_an_answer() {
    const LONG: &[u8] = &[b'A'; 5000];
    for (says, closes, why) in [
        (&b"HELLO\r\n"[..], false, "no reply"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", false, "no reply"),
        (b"INSERTED x\r\n", false, "no reply"),
        (b"\xff\xfe\r\n", false, "no reply"),
        (b"INSERTED 1", true, "connection closed"),
        (b"INSERTED 1\r", true, "connection closed"),
        (b"", true, "connection closed"),
        (LONG, false, "more than 1024 bytes"),
        // The answer to something else.
        (b"RESERVED 1 2\r\nab\r\n", false, "answer to Put that is none"),
        (b"DELETED\r\n", false, "answer to Put that is none"),
        (b"BURIED\r\n", false, "answer to Put that is none"),
        (b"USING b\r\n", false, "answer to Put that is none"),
    ] {
        let liar = Liar::start(says, closes).await;
        let client = liar.client();
        let found = down(client.put(&tube("default"), put("x")).await);
        assert!(found.contains(why), "{says:?}: {found}");
        // It was no use, so it is left alone.
        let found = down(client.stats().await);
        assert!(found.contains("not tried again yet"), "{says:?}: {found}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_end_where_it_should_is_no_job() {
    let liar = Liar::start(b"RESERVED 1 2\r\nabcdef\r\n", false).await;
    let why = down(liar.taker().reserve(seconds(1)).await);
    assert!(why.contains("does not end where it should"), "{why}");
    let liar = Liar::start(b"RESERVED 1 9\r\nabc", true).await;
    let why = down(liar.taker().reserve(seconds(1)).await);
    assert!(why.contains("connection closed"), "{why}");
}

#[tokio::test]
async fn an_answer_too_many_is_not_the_next_ones() {
    let liar = Liar::start(b"DELETED\r\nINSERTED 1\r\n", false).await;
    let client = liar.client();
    assert_eq!(client.delete(super::super::JobId(5)).await, Ok(true));
    let put = client.put(&tube("default"), put("x")).await;
    // Over the old connection or a new one: 1 was never the answer to this put.
    down(put);
}

#[tokio::test]
async fn a_put_that_was_misread_is_refused_and_takes_its_connection_along() {
    for says in [&b"BAD_FORMAT\r\n"[..], b"UNKNOWN_COMMAND\r\n", b"EXPECTED_CRLF\r\n"] {
        let liar = Liar::start(says, false).await;
        let client = liar.client();
        let default = tube("default");
        let (first, second) =
            tokio::join!(client.put(&default, put("x")), client.put(&default, put("y")));
        assert!(matches!(first, Err(BeanstalkdError::Refused(_))), "{first:?}");
        let why = down(second);
        assert!(why.contains("misread"), "{why}");
    }
}

#[tokio::test]
async fn no_room_is_no_room_whatever_it_is_called() {
    for says in [&b"OUT_OF_MEMORY\r\n"[..], b"INTERNAL_ERROR\r\n", b"BURIED 7\r\n"] {
        let liar = Liar::start(says, false).await;
        let found = liar.client().put(&tube("default"), put("x")).await;
        assert!(matches!(found, Err(BeanstalkdError::Full(_))), "{says:?}: {found:?}");
    }
    let liar = Liar::start(b"BURIED\r\n", false).await;
    let found = liar.client().release(super::super::JobId(1), 1, seconds(0)).await;
    assert!(matches!(found, Err(BeanstalkdError::Full(_))), "{found:?}");
}

#[tokio::test]
async fn a_tube_that_cannot_be_used_or_watched_ends_the_connection() {
    let liar = Liar::start(b"OUT_OF_MEMORY\r\nINSERTED 1\r\n", false).await;
    let why = down(liar.client().put(&tube("a"), put("x")).await);
    assert!(why.contains("Use was answered"), "the job is in another tube: {why}");
    let liar = Liar::start(b"WATCHING 2\r\nNOT_IGNORED\r\nTIMED_OUT\r\n", false).await;
    let stop = CancellationToken::new();
    let mut taker =
        JobConsumer::new(liar.address.clone(), vec![tube("a")], &TaskTracker::new(), stop);
    let why = down(taker.reserve(seconds(1)).await);
    assert!(why.contains("Watch was answered"), "{why}");
}

#[tokio::test]
async fn statistics_without_figures_are_none() {
    let liar = Liar::start(b"OK 4\r\n---\n\r\n", false).await;
    assert!(down(liar.client().stats().await).contains("without"));
}

/// Answers each line as the table says, one connection only. A real server can't be made
/// to take a job back at a given moment: 1.12 may forget the time of one that is held.
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
async fn a_job_that_ran_out_while_nobody_asked_is_not_handed_out() {
    for (touched, handed_out) in [("TOUCHED\r\n", true), ("NOT_FOUND\r\n", false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = [
            ("reserve-with-timeout 1", "RESERVED 7 1\r\nx\r\n"),
            ("touch 7", touched),
            ("reserve-with-timeout 0", "TIMED_OUT\r\n"),
        ];
        let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut taker = JobConsumer::new(address, Vec::new(), &tasks, stop);
        let taking = async {
            assert!(for_a_while(1, taker.reserve(seconds(1))).await.is_none());
            let job = taker.reserve(seconds(0)).await.unwrap();
            drop(taker);
            job
        };
        let (job, ()) = tokio::join!(taking, play(listener, &table));
        assert_eq!(job.is_some(), handed_out, "{touched}");
    }
}

#[tokio::test]
async fn silence_is_given_up_after_ten_seconds() {
    let silent = Liar::start(b"", false).await;
    let half = Liar::start(b"INSERTED ", false).await;
    let (client, other, mut taker) = (silent.client(), half.client(), silent.taker());
    let start = Instant::now();
    let default = tube("default");
    let (first, second, third) = tokio::join!(
        client.put(&default, put("x")),
        other.put(&default, put("x")),
        taker.reserve(seconds(1)),
    );
    let took = start.elapsed();
    for why in [down(first), down(second), down(third)] {
        assert!(why.contains("no answer within 10 s"), "{why}");
    }
    assert!(took > seconds(9) && took < seconds(30), "{took:?}");
}

#[tokio::test]
async fn a_stream_without_end_is_not_kept() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let flood = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sent = 0_u64;
        // Until the client hangs up, which it does after the first kilobyte.
        while stream.write_all(&[b'A'; 65_536]).await.is_ok() {
            sent += 65_536;
            assert!(sent < 100_000_000, "the client listens for ever");
        }
    };
    let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
    let client = BeanstalkdClient::new(address, &TaskTracker::new(), CancellationToken::new());
    let (answer, ()) = tokio::join!(client.stats(), flood);
    assert!(down(answer).contains("more than 1024 bytes"));
}
