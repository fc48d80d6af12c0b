//! Servers that are killed, restarted with or without their data, or never started.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::JobId;
use super::*;

#[tokio::test]
async fn killed_server_is_down_until_it_is_restarted() {
    let mut server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let mut connections = client.connections();
    assert_eq!(*connections.borrow_and_update(), 0);
    client.put(&tube, put("lost")).await.unwrap();
    assert_eq!(*connections.borrow_and_update(), 1);
    assert_eq!(consumer.reserve(seconds(1)).await.unwrap().map(|job| job.id), Some(JobId(1)));

    server.kill();
    down(client.put(&tube, put("nowhere")).await);
    down(consumer.reserve(seconds(30)).await);
    server.restart(&[]);
    // The same id is another job now, in a tube that must be used and watched again.
    let id = once_up(async || client.put(&tube, put("new")).await).await;
    assert_eq!(id, JobId(1));
    assert!(connections.has_changed().unwrap());
    consumer.delete(&[JobId(1)]).await.unwrap();
    assert_eq!(consumer.touch(&[JobId(1)]).await, Ok(vec![JobId(1)]));
    let job = once_up(async || consumer.reserve(seconds(1)).await).await.unwrap();
    assert_eq!(text(&job), "new", "the job of the new server was not deleted");
    consumer.delete(&[job.id]).await.unwrap();
    assert_eq!(client.peek(job.id).await, Ok(None));
}

#[tokio::test]
async fn reservations_of_an_old_connection_are_not_used_on_a_new_one() {
    let mut server = Beanstalkd::start(&[]);
    let (client, [a, b]) = (server.client(), ["a", "b"].map(tube));
    let mut consumer = server.consumer(&[&a]);
    for _ in 0..3 {
        client.put(&a, put("old")).await.unwrap();
    }
    assert_eq!(consumer.reserve_some(3, seconds(1)).await.unwrap().len(), 3);
    server.restart(&[]);
    // Other jobs have the ids that the consumer had reserved.
    let one = once_up(async || client.put(&b, put("one")).await).await;
    let two = client.put(&b, put("two")).await.unwrap();
    assert_eq!((one, two), (JobId(1), JobId(2)));
    // Connected again, without a reply yet.
    drop_waiting_reserve(&mut consumer, &client, &a).await;
    consumer.delete(&[one]).await.unwrap();
    assert!(client.peek(one).await.unwrap().is_some());
    // After a reply, with a job whose id the consumer had reserved before.
    let new = client.put(&a, put("new")).await.unwrap();
    assert_eq!(consumer.reserve(seconds(1)).await.unwrap().map(|job| job.id), Some(new));
    consumer.delete(&[two, new]).await.unwrap();
    assert!(client.peek(two).await.unwrap().is_some());
    assert_eq!(client.peek(new).await, Ok(None));
}

#[tokio::test]
async fn server_with_binlog_keeps_its_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Beanstalkd::with_binlog(dir.path());
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(client.put(&tube, put(n.to_string())).await.unwrap());
    }
    let first = consumer.reserve_some(5, seconds(1)).await.unwrap();
    consumer.delete(&[first[0].id, first[1].id]).await.unwrap();
    server.restart(&["-b", dir.path().to_str().unwrap(), "-f0"]);
    let mut found = Vec::new();
    let end = Instant::now() + MAX_WAIT;
    while found.len() < 8 {
        assert!(Instant::now() < end, "{} came back", found.len());
        found.extend(once_up(async || consumer.reserve_some(20, seconds(1)).await).await);
    }
    let mut again: Vec<_> = found.iter().map(|job| job.id).collect();
    again.sort();
    assert_eq!(again, ids[2..]);
    assert_eq!(client.connections().borrow().to_owned(), 1, "no command needed a new connection");
}

#[tokio::test]
async fn commands_without_a_reply_fail_when_the_connection_is_lost() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
    let client = BeanstalkdClient::new(address, &TaskTracker::new(), CancellationToken::new());
    let default = tube("default");
    let puts = (0..50).map(|_| client.put(&default, put("x")));
    let dies = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        // The server closes the connection after it has read all puts and replied to two.
        while read.windows(3).filter(|word| word == b"put").count() < 50 {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
        }
        stream.write_all(b"INSERTED 1\r\nINSERTED 2\r\nINSER").await.unwrap();
    };
    let (puts, ()) = tokio::join!(futures_util::future::join_all(puts), dies);
    assert_eq!(puts[..2], [Ok(JobId(1)), Ok(JobId(2))]);
    for answer in &puts[2..] {
        let why = down(answer.clone());
        assert!(why.contains("may or may not have been executed"), "{why}");
    }
    // Nothing was sent again: there was no second connection.
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn connections_to_a_missing_server_are_delayed() {
    let port = free_port();
    let address = BeanstalkdAddress { host: "127.0.0.1".to_owned(), port };
    let tasks = TaskTracker::new();
    let client = BeanstalkdClient::new(address, &tasks, CancellationToken::new());
    let why = down(client.stats().await);
    assert!(why.contains("cannot connect to beanstalkd://127.0.0.1"), "{why}");
    // There are far more calls than connection attempts.
    let (mut tries, start) = (0, Instant::now());
    let mut calls = 0;
    while start.elapsed() < Duration::from_millis(1000) {
        calls += 1;
        let why = down(client.put(&tube("a"), put("x")).await);
        tries += u32::from(!why.contains("waiting before the next connection"));
        tokio::task::yield_now().await;
    }
    assert!(calls > 100 && (1..=5).contains(&tries), "{calls} calls, {tries} tries");
    let _server = Beanstalkd::start_on(port, &[]).unwrap();
    once_up(async || client.stats().await).await;
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn stop_ends_the_task_and_fails_waiting_calls() {
    let server = Beanstalkd::start(&[]);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let client = BeanstalkdClient::new(server.address(), &tasks, stop.clone());
    let mut consumer = JobConsumer::new(server.address(), vec![tube("a")], &tasks, stop.clone());
    client.stats().await.unwrap();
    tasks.close();
    let stopping = async {
        let end = Instant::now() + MAX_WAIT;
        while client.stats_tube(&tube("a")).await.unwrap().is_none() {
            assert!(Instant::now() < end);
        }
        stop.cancel();
    };
    let (reserved, ()) = tokio::join!(consumer.reserve(seconds(60)), stopping);
    assert!(down(reserved).contains("stopping"));
    assert!(down(client.stats().await).contains("stopping"));
    tokio::time::timeout(MAX_WAIT, tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn connection_is_closed_with_the_last_clone() {
    let server = Beanstalkd::start(&[]);
    let tasks = TaskTracker::new();
    let client = BeanstalkdClient::new(server.address(), &tasks, CancellationToken::new());
    let clone = client.clone();
    client.stats().await.unwrap();
    drop(client);
    clone.stats().await.unwrap();
    assert_eq!(*clone.connections().borrow(), 1, "clones share it");
    drop(clone);
    tasks.close();
    tokio::time::timeout(MAX_WAIT, tasks.wait()).await.unwrap();
}
