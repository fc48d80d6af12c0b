//! Every command against a real server, and everything it refuses.

use super::super::wire::MOST_BODY;
use super::*;

#[tokio::test]
async fn a_job_is_put_looked_at_and_deleted() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    assert_eq!(client.stats_tube(&tube).await, Ok(None));
    let id = client.put(&tube, put("\r\nhello\0\r\n")).await.unwrap();
    let job = BeanstalkdJob { id, body: b"\r\nhello\0\r\n".to_vec() };
    assert_eq!(client.peek(id).await, Ok(Some(job.clone())));
    assert_eq!(client.peek_ready(&tube).await, Ok(Some(job)));
    assert_eq!(client.peek_delayed(&tube).await, Ok(None));
    assert_eq!(client.peek_buried(&tube).await, Ok(None));
    assert_eq!(client.delete(id).await, Ok(true));
    assert_eq!(client.delete(id).await, Ok(false));
    assert_eq!(client.peek(id).await, Ok(None));
    assert_eq!(client.stats_job(id).await, Ok(None));
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn what_a_client_holds_it_can_touch_release_and_bury() {
    let server = Beanstalkd::start(&[]);
    let (client, other, tube) = (server.client(), server.client(), tube("a"));
    let id = client.put(&tube, put("x")).await.unwrap();
    // Nobody can give back what he does not hold.
    assert_eq!(client.touch(id).await, Ok(false));
    assert_eq!(client.bury(id, 1).await, Ok(false));
    assert_eq!(client.release(id, 1, seconds(0)).await, Ok(false));
    assert_eq!(client.kick_job(id).await, Ok(false));

    assert_eq!(client.reserve_job(id).await.unwrap().unwrap().id, id);
    assert_eq!(other.reserve_job(id).await, Ok(None));
    assert_eq!(other.delete(id).await, Ok(false));
    assert_eq!(client.touch(id).await, Ok(true));
    assert_eq!(client.release(id, 7, seconds(60)).await, Ok(true));
    let delayed = client.peek_delayed(&tube).await.unwrap().unwrap();
    assert_eq!((delayed.id, text(&delayed)), (id, "x"));
    assert_eq!(client.kick_job(id).await, Ok(true));

    client.reserve_job(id).await.unwrap().unwrap();
    assert_eq!(client.bury(id, 9).await, Ok(true));
    assert_eq!(client.peek_buried(&tube).await.unwrap().unwrap().id, id);
    assert_eq!(client.kick(&tube, 10).await, Ok(1));
    assert_eq!(client.kick(&tube, 10).await, Ok(0));
    let stats = client.stats_job(id).await.unwrap().unwrap();
    assert_eq!((stats.tube.as_str(), stats.state.as_str(), stats.priority), ("a", "ready", 9));
    assert_eq!((stats.reserves, stats.timeouts, stats.releases), (2, 0, 1));
    assert_eq!((stats.buries, stats.kicks), (1, 2));
    assert!(stats.age < SOON && stats.ttr == seconds(120));
}

#[tokio::test]
async fn times_are_rounded_up_and_nobody_has_less_than_a_second() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let times = |delay, ttr| PutOptions {
        delay: Duration::from_millis(delay),
        ttr: Duration::from_millis(ttr),
        ..put("x")
    };
    for (delay, ttr, state, want_ttr) in [
        (0, 0, "ready", 1),
        (1, 1001, "delayed", 2),
        (100_000, 60_000, "delayed", 60),
        (u64::MAX, u64::MAX, "delayed", u64::from(u32::MAX)),
    ] {
        let id = client.put(&tube, times(delay, ttr)).await.unwrap();
        let stats = client.stats_job(id).await.unwrap().unwrap();
        assert_eq!((stats.state.as_str(), stats.ttr), (state, seconds(want_ttr)), "{delay} {ttr}");
        assert!(stats.time_left <= seconds(delay.div_ceil(1000)), "{stats:?}");
    }
}

#[tokio::test]
async fn a_taker_takes_and_gives_back() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    assert_eq!(taker.reserve(seconds(0)).await, Ok(None));
    let mut ids = Vec::new();
    for body in ["one", "two", "three", "four"] {
        ids.push(client.put(&tube, put(body)).await.unwrap());
    }
    let jobs = taker.reserve_some(10, seconds(1)).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["one", "two", "three", "four"]);
    let tube_stats = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((tube_stats.ready, tube_stats.reserved, tube_stats.watching), (0, 4, 1));

    assert_eq!(taker.touch(&ids).await, Ok(vec![]));
    taker.delete(&ids[..1]).await.unwrap();
    taker.release(&ids[1..2], 1, seconds(0)).await.unwrap();
    taker.release(&ids[2..3], 1, seconds(100)).await.unwrap();
    taker.bury(&ids[3..], 5).await.unwrap();
    // What was given back is not ours any more, and saying so again is no error.
    assert_eq!(taker.touch(&ids).await, Ok(ids.clone()));
    taker.delete(&ids).await.unwrap();
    let left = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((left.ready, left.reserved, left.delayed, left.buried), (1, 0, 1, 1));
    assert_eq!(taker.reserve(seconds(1)).await.unwrap().unwrap().id, ids[1]);
    assert_eq!(taker.reserve_some(0, seconds(9)).await, Ok(vec![]));
}

#[tokio::test]
async fn a_taker_sees_its_tubes_only() {
    let server = Beanstalkd::start(&[]);
    let client = server.client();
    let [a, b, c] = ["a", "b", "default"].map(tube);
    for (tube, body) in [(&b, "in b"), (&c, "in c"), (&a, "in a")] {
        client.put(tube, put(body)).await.unwrap();
    }
    let mut taker = server.taker(&[&a, &b]);
    let jobs = taker.reserve_some(5, seconds(1)).await.unwrap();
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["in b", "in a"]);
    let mut rest = server.taker(&[]);
    let job = rest.reserve(seconds(1)).await.unwrap().unwrap();
    assert_eq!(text(&job), "in c");
}

#[tokio::test]
async fn a_waiting_taker_is_woken_at_once() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    let waiting = async {
        let end = Instant::now() + SOON;
        while client.stats_tube(&tube).await.unwrap().is_none_or(|stats| stats.waiting == 0) {
            assert!(Instant::now() < end);
        }
        let start = Instant::now();
        client.put(&tube, put("x")).await.unwrap();
        start
    };
    let (job, start) = tokio::join!(taker.reserve(seconds(30)), waiting);
    assert_eq!(text(&job.unwrap().unwrap()), "x");
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_wait_in_vain_takes_as_long_as_it_should() {
    let server = Beanstalkd::start(&[]);
    let mut taker = server.taker(&[&tube("a")]);
    let start = Instant::now();
    assert_eq!(taker.reserve(Duration::from_millis(1500)).await, Ok(None));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1400) && took < seconds(5), "{took:?}");
}

#[tokio::test]
async fn a_deadline_is_no_job_and_no_busy_loop() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    let short = PutOptions { ttr: seconds(2), ..put("x") };
    client.put(&tube, short).await.unwrap();
    let job = taker.reserve(seconds(1)).await.unwrap().unwrap();
    let start = Instant::now();
    // Its last second is the server's, which says so instead of waiting on.
    assert_eq!(taker.reserve(seconds(60)).await, Ok(None));
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
    let mut calls = 0;
    let again = loop {
        if let Some(job) = taker.reserve(seconds(1)).await.unwrap() {
            break job;
        }
        calls += 1;
        assert!(calls < 30, "it is asked again and again");
    };
    assert_eq!(again.id, job.id);
}

#[tokio::test]
async fn the_server_says_who_it_is() {
    let mut server = Beanstalkd::start(&["-z", "1000"]);
    let client = server.client();
    client.put(&tube("a"), put("x")).await.unwrap();
    let stats = client.stats().await.unwrap();
    assert!(stats.version.starts_with('1') && !stats.id.is_empty(), "{stats:?}");
    assert_eq!((stats.draining, stats.max_job_size, stats.ready), (false, 1000, 1));
    assert!(stats.uptime < seconds(60) && stats.connections >= 1, "{stats:?}");
    server.restart(&[]);
    let again = once_up(async || client.stats().await).await;
    assert_ne!(again.id, stats.id, "each life has its own name");
}

#[tokio::test]
async fn a_job_that_is_too_big_harms_no_other() {
    let server = Beanstalkd::start(&["-z", "100"]);
    let (client, tube) = (server.client(), tube("a"));
    let bodies = [100, 101, 5, 70_000, 100, 3_000_000, 7];
    let puts = bodies.map(|size| client.put(&tube, put(vec![b'x'; size])));
    let answers = futures_util::future::join_all(puts).await;
    for (size, answer) in bodies.into_iter().zip(answers) {
        match answer {
            Ok(id) => assert_eq!(client.peek(id).await.unwrap().unwrap().body.len(), size),
            Err(error) => assert_eq!(error, BeanstalkdError::TooBig { size, most: Some(100) }),
        }
    }
    assert_eq!(client.stats_tube(&tube).await.unwrap().unwrap().ready, 4);
    assert_eq!(*client.connections().borrow(), 1);
    // What nobody takes is not even sent.
    let size = MOST_BODY + 1;
    let refused = client.put(&tube, put(vec![0; size])).await;
    assert_eq!(refused, Err(BeanstalkdError::TooBig { size, most: Some(MOST_BODY) }));
}

#[tokio::test]
async fn a_foreign_job_that_is_too_big_is_buried_and_the_next_one_taken() {
    let server = Beanstalkd::start(&["-z", "100000000"]);
    let (client, tube) = (server.client(), tube("a"));
    // Past the check of our own `put`, as somebody else's client might.
    let body = put(vec![b'x'; MOST_BODY + 1]);
    client.line.ask(super::super::wire::BeanstalkdCommand::put(&tube, &body)).await.unwrap();
    client.put(&tube, put("small")).await.unwrap();
    let mut taker = server.taker(&[&tube]);
    let jobs = taker.reserve_some(5, seconds(5)).await.unwrap();
    assert_eq!(jobs.iter().map(text).collect::<Vec<_>>(), ["small"]);
    let stats = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((stats.ready, stats.reserved, stats.buried), (0, 1, 1));
    let size = MOST_BODY + 1;
    let too_big = Err(BeanstalkdError::TooBig { size, most: Some(MOST_BODY) });
    assert_eq!(client.peek_buried(&tube).await, too_big);
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn a_server_that_drains_takes_nothing_and_gives_what_it_has() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    client.put(&tube, put("before")).await.unwrap();
    server.signal(Signal::USR1);
    let end = Instant::now() + SOON;
    while !client.stats().await.unwrap().draining {
        assert!(Instant::now() < end);
    }
    let both = tokio::join!(client.put(&tube, put("x")), client.put(&tube, put("y")));
    assert_eq!(both, (Err(BeanstalkdError::Draining), Err(BeanstalkdError::Draining)));
    let mut taker = server.taker(&[&tube]);
    let job = taker.reserve(seconds(1)).await.unwrap().unwrap();
    taker.delete(&[job.id]).await.unwrap();
    assert_eq!(text(&job), "before");
    assert_eq!(client.peek(job.id).await, Ok(None));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_without_memory_has_no_room() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let server = Beanstalkd::start(&["-z", "60000000"]);
    let (client, tube) = (server.client(), tube("a"));
    let most = Some(40_000_000);
    let limit = Rlimit { current: most, maximum: most };
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
