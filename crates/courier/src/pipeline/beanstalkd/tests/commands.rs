//! Every command against a real server, and its errors.

use super::super::wire::{BeanstalkdCommand, BeanstalkdReply, MAX_BODY_BYTES};
use super::*;

#[tokio::test]
async fn job_is_put_peeked_and_deleted() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    assert_eq!(client.stats_tube(&tube).await, Ok(None));
    let id = client.put(&tube, put("\r\nhello\0\r\n")).await.unwrap();
    let job = BeanstalkdJob { id, body: b"\r\nhello\0\r\n".to_vec() };
    assert_eq!(client.peek(id).await, Ok(Some(job)));
    assert_eq!(client.delete(id).await, Ok(true));
    assert_eq!(client.delete(id).await, Ok(false));
    assert_eq!(client.peek(id).await, Ok(None));
    assert_eq!(client.stats_job(id).await, Ok(None));
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn consumer_reserves_deletes_releases_and_buries() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    assert_eq!(consumer.reserve(seconds(0)).await, Ok(None));
    let mut ids = Vec::new();
    for body in ["one", "two", "three", "four"] {
        ids.push(client.put(&tube, put(body)).await.unwrap());
    }
    let jobs = consumer.reserve_some(10, seconds(1)).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["one", "two", "three", "four"]);
    let tube_stats = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((tube_stats.ready, tube_stats.reserved, tube_stats.watching), (0, 4, 1));

    assert_eq!(consumer.touch(&ids).await, Ok(vec![]));
    consumer.delete(&ids[..1]).await.unwrap();
    consumer.release(&ids[1..2], 1, seconds(0)).await.unwrap();
    consumer.release(&ids[2..3], 1, seconds(100)).await.unwrap();
    consumer.bury(&ids[3..], 5).await.unwrap();
    // These jobs are no longer reserved; deleting them again is no error.
    assert_eq!(consumer.touch(&ids).await, Ok(ids.clone()));
    consumer.delete(&ids).await.unwrap();
    let left = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((left.ready, left.reserved, left.delayed, left.buried), (1, 0, 1, 1));
    assert_eq!(consumer.reserve(seconds(1)).await.unwrap().unwrap().id, ids[1]);
    assert_eq!(consumer.reserve_some(0, seconds(9)).await, Ok(vec![]));
}

#[tokio::test]
async fn consumer_reserves_from_its_tubes_only() {
    let server = Beanstalkd::start(&[]);
    let client = server.client();
    let [a, b, c] = ["a", "b", "default"].map(tube);
    for (tube, body) in [(&b, "in b"), (&c, "in c"), (&a, "in a")] {
        client.put(tube, put(body)).await.unwrap();
    }
    let mut consumer = server.consumer(&[&a, &b]);
    let jobs = consumer.reserve_some(5, seconds(1)).await.unwrap();
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["in b", "in a"]);
    let mut rest = server.consumer(&[]);
    let job = rest.reserve(seconds(1)).await.unwrap().unwrap();
    assert_eq!(text(&job), "in c");
}

#[tokio::test]
async fn waiting_consumer_gets_a_new_job_at_once() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let waiting = async {
        let end = Instant::now() + MAX_WAIT;
        while client.stats_tube(&tube).await.unwrap().is_none_or(|stats| stats.waiting == 0) {
            assert!(Instant::now() < end);
        }
        let start = Instant::now();
        client.put(&tube, put("x")).await.unwrap();
        start
    };
    let (job, start) = tokio::join!(consumer.reserve(seconds(30)), waiting);
    assert_eq!(text(&job.unwrap().unwrap()), "x");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

#[tokio::test]
async fn reserve_without_a_job_returns_after_its_wait() {
    let server = Beanstalkd::start(&[]);
    let mut consumer = server.consumer(&[&tube("a")]);
    let start = Instant::now();
    assert_eq!(consumer.reserve(Duration::from_millis(1500)).await, Ok(None));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1400) && took < seconds(5), "{took:?}");
}

#[tokio::test]
async fn deadline_soon_returns_no_job_and_pauses() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let short = PutOptions { ttr: seconds(2), ..put("x") };
    client.put(&tube, short).await.unwrap();
    let job = consumer.reserve(seconds(1)).await.unwrap().unwrap();
    let start = Instant::now();
    // In the last second of a reservation, the server replies DEADLINE_SOON instead of waiting.
    assert_eq!(consumer.reserve(seconds(60)).await, Ok(None));
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
    let mut calls = 0;
    let again = loop {
        if let Some(job) = consumer.reserve(seconds(1)).await.unwrap() {
            break job;
        }
        calls += 1;
        assert!(calls < 30, "the server is asked without a pause");
    };
    assert_eq!(again.id, job.id);
}

#[tokio::test]
async fn server_stats_are_read() {
    let mut server = Beanstalkd::start(&["-z", "1000"]);
    let client = server.client();
    client.put(&tube("a"), put("x")).await.unwrap();
    let stats = client.stats().await.unwrap();
    assert!(stats.version.starts_with('1') && !stats.id.is_empty(), "{stats:?}");
    assert_eq!((stats.draining, stats.max_job_size, stats.ready), (false, 1000, 1));
    assert!(stats.uptime < seconds(60) && stats.connections >= 1, "{stats:?}");
    server.restart(&[]);
    let again = once_up(async || client.stats().await).await;
    assert_ne!(again.id, stats.id, "the id changes with a restart");
}

#[tokio::test]
async fn job_over_the_size_limit_is_rejected_without_affecting_others() {
    let server = Beanstalkd::start(&["-z", "100"]);
    let (client, tube) = (server.client(), tube("a"));
    let bodies = [100, 101, 5, 70_000, 100, 3_000_000, 7];
    let puts = bodies.map(|size| client.put(&tube, put(vec![b'x'; size])));
    let answers = futures_util::future::join_all(puts).await;
    for (size, answer) in bodies.into_iter().zip(answers) {
        match answer {
            Ok(id) => assert_eq!(client.peek(id).await.unwrap().unwrap().body.len(), size),
            Err(error) => assert_eq!(error, BeanstalkdError::TooBig { size, limit: Some(100) }),
        }
    }
    assert_eq!(client.stats_tube(&tube).await.unwrap().unwrap().ready, 4);
    assert_eq!(*client.connections().borrow(), 1);
    // A body over the limit of the client is not sent.
    let size = MAX_BODY_BYTES + 1;
    let rejected = client.put(&tube, put(vec![0; size])).await;
    assert_eq!(rejected, Err(BeanstalkdError::TooBig { size, limit: Some(MAX_BODY_BYTES) }));
}

#[tokio::test]
async fn reserved_job_over_the_size_limit_is_buried_and_the_next_returned() {
    let server = Beanstalkd::start(&["-z", "100000000"]);
    let (client, tube) = (server.client(), tube("a"));
    // Bypasses the check of `put`, as another client could.
    let body = put(vec![b'x'; MAX_BODY_BYTES + 1]);
    let reply = client.connection.ask(BeanstalkdCommand::put(&tube, &body)).await.unwrap();
    let BeanstalkdReply::Inserted(id) = reply else { panic!("{reply:?}") };
    client.put(&tube, put("small")).await.unwrap();
    let mut consumer = server.consumer(&[&tube]);
    let jobs = consumer.reserve_some(5, seconds(5)).await.unwrap();
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["small"]);
    let stats = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((stats.ready, stats.reserved, stats.buried), (0, 1, 1));
    let size = MAX_BODY_BYTES + 1;
    let too_big = Err(BeanstalkdError::TooBig { size, limit: Some(MAX_BODY_BYTES) });
    assert_eq!(client.peek(id).await, too_big);
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn draining_server_rejects_puts_and_returns_existing_jobs() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    client.put(&tube, put("before")).await.unwrap();
    server.signal(Signal::USR1);
    let end = Instant::now() + MAX_WAIT;
    while !client.stats().await.unwrap().draining {
        assert!(Instant::now() < end);
    }
    let both = tokio::join!(client.put(&tube, put("x")), client.put(&tube, put("y")));
    assert_eq!(both, (Err(BeanstalkdError::Draining), Err(BeanstalkdError::Draining)));
    let mut consumer = server.consumer(&[&tube]);
    let job = consumer.reserve(seconds(1)).await.unwrap().unwrap();
    consumer.delete(&[job.id]).await.unwrap();
    assert_eq!(text(&job), "before");
    assert_eq!(client.peek(job.id).await, Ok(None));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn server_without_memory_reports_full() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let server = Beanstalkd::start(&["-z", "60000000"]);
    let (client, tube) = (server.client(), tube("a"));
    let bytes = Some(40_000_000);
    let limit = Rlimit { current: bytes, maximum: bytes };
    prlimit(Some(server.pid()), Resource::As, limit).unwrap();
    let (small, large, after) = tokio::join!(
        client.put(&tube, put("small")),
        client.put(&tube, put(vec![b'x'; 50_000_000])),
        client.put(&tube, put("after")),
    );
    assert!(matches!(large, Err(BeanstalkdError::Full(_))), "{large:?}");
    for (id, body) in [(small, "small"), (after, "after")] {
        assert_eq!(text(&client.peek(id.unwrap()).await.unwrap().unwrap()), body);
    }
    assert_eq!(*client.connections().borrow(), 1);
}
