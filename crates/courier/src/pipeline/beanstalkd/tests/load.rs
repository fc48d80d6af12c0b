//! Many commands at once, and calls that are dropped before they return.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::{join_all, select};
use tokio::time::timeout;

use super::super::connection::received;
use super::super::wire::{BeanstalkdCommand, BeanstalkdReply};
use super::super::{JobId, reply_error};
use super::*;

/// Pseudo-random numbers, the same in each run.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Polls a call at most `polls` times and then drops it, even if it is ready by then.
pub(super) async fn poll_times<T>(polls: u64, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        call.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn ten_thousand_puts_are_reserved_once_and_in_order() {
    const COUNT: usize = 10_000;
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut pending = Vec::new();
    for n in 0..COUNT {
        let command = BeanstalkdCommand::put(&tube, &put(n.to_string()));
        pending.push(client.connection.send(command, None).await.unwrap());
    }
    let mut ids = Vec::new();
    for reply in pending {
        match received(reply.await).unwrap().reply {
            BeanstalkdReply::Inserted(id) => ids.push(id),
            other => panic!("{:?}", reply_error(other)),
        }
    }
    let mut consumer = server.consumer(&[&tube]);
    let mut taken = Vec::new();
    while taken.len() < COUNT {
        let jobs = consumer.reserve_some(500, seconds(1)).await.unwrap();
        assert!(!jobs.is_empty(), "{} came", taken.len());
        consumer.delete(&jobs.iter().map(|job| job.id).collect::<Vec<_>>()).await.unwrap();
        taken.extend(jobs);
    }
    let want: Vec<_> = (0..COUNT).map(|n| (ids[n], n.to_string())).collect();
    let found: Vec<_> = taken.iter().map(|job| (job.id, text(job).to_owned())).collect();
    assert_eq!(found, want);
    assert_eq!(client.stats().await.unwrap().ready, 0);
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_gets_its_own_reply() {
    let server = Beanstalkd::start(&[]);
    let (client, tubes) = (server.client(), [tube("a"), tube("b")]);
    // Two tubes in turn, so that each put needs a `use` before it.
    let calls = (0..2000).map(|n| {
        let (client, tube) = (client.clone(), &tubes[n % 2]);
        async move {
            let id = client.put(tube, put(n.to_string())).await.unwrap();
            let job = client.peek(id).await.unwrap().unwrap();
            assert_eq!((job.id, text(&job)), (id, n.to_string().as_str()));
            let stats = client.stats_job(id).await.unwrap().unwrap();
            assert_eq!(stats.tube, tube.as_str(), "{n}");
            assert_eq!(client.delete(id).await, Ok(true), "{n}");
        }
    });
    join_all(calls).await;
    assert_eq!(client.stats().await.unwrap().ready, 0);
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test]
async fn large_transfers_in_both_directions_do_not_block() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let id = client.put(&tube, put(vec![b'x'; 60_000])).await.unwrap();
    // Far more than the socket buffers hold, in both directions at once.
    let peeks = join_all((0..500).map(|_| client.peek(id)));
    let puts = join_all((0..500).map(|_| client.put(&tube, put(vec![b'y'; 60_000]))));
    let (peeked, inserted) =
        timeout(seconds(60), async { tokio::join!(peeks, puts) }).await.unwrap();
    assert!(peeked.into_iter().all(|job| job.unwrap().unwrap().body.len() == 60_000));
    assert!(inserted.into_iter().all(|id| id.is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_reserves_lose_and_mix_up_no_job() {
    const COUNT: u64 = 4000;
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let putting = async {
        let mut sent = BTreeMap::new();
        for n in 0..COUNT {
            sent.insert(client.put(&tube, put(n.to_string())).await.unwrap(), n.to_string());
        }
        sent
    };
    let taking = async {
        let mut rng = TestRng(4);
        let (mut taken, mut dropped) = (Vec::new(), 0);
        let mut unfinished: Vec<JobId> = Vec::new();
        while taken.len() < usize::try_from(COUNT).unwrap() {
            let limit = usize::try_from(1 + rng.below(30)).unwrap();
            let call = consumer.reserve_some(limit, seconds(1 + rng.below(3)));
            match poll_times(rng.below(8), call).await {
                Some(jobs) => {
                    let jobs = jobs.unwrap();
                    assert!(!jobs.is_empty(), "{} came", taken.len());
                    unfinished.extend(jobs.iter().map(|job| job.id));
                    taken.extend(jobs.into_iter().map(|job| (job.id, text(&job).to_owned())));
                }
                None => dropped += 1,
            }
            // Sometimes another command, which is sometimes dropped as well.
            if rng.below(3) == 0 {
                let call = consumer.delete(&unfinished);
                if let Some(done) = poll_times(rng.below(8), call).await {
                    done.unwrap();
                    unfinished.clear();
                }
            }
        }
        consumer.delete(&unfinished).await.unwrap();
        (taken, dropped)
    };
    let (sent, (taken, dropped)) =
        timeout(seconds(120), async { tokio::join!(putting, taking) }).await.unwrap();
    assert!(dropped >= 200, "{dropped}");
    let once: BTreeMap<_, _> = taken.iter().cloned().collect();
    assert_eq!(once.len(), taken.len(), "a job came twice");
    assert_eq!(once, sent);
    let left = client.stats_tube(&tube).await.unwrap().unwrap();
    assert_eq!((left.ready, left.reserved), (0, 0));
}

#[tokio::test]
async fn job_for_a_dropped_call_is_returned_by_the_next_one() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    drop_waiting_reserve(&mut consumer, &client, &tube).await;
    let id = client.put(&tube, put("x")).await.unwrap();
    // The job is reserved although no call waits for it.
    let stats = client.stats_job(id).await.unwrap().unwrap();
    assert_eq!(stats.state, "reserved");
    let job = consumer.reserve(seconds(0)).await.unwrap().unwrap();
    assert_eq!((job.id, text(&job)), (id, "x"));
    let stats = client.stats_job(id).await.unwrap().unwrap();
    assert_eq!((stats.state.as_str(), stats.reserves), ("reserved", 1));
    consumer.delete(&[id]).await.unwrap();
    assert_eq!(client.peek(id).await, Ok(None));
}

#[tokio::test]
async fn command_behind_a_dropped_reserve_does_not_wait_for_it() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut consumer = server.consumer(&[&tube]);
    let id = client.put(&tube, put("x")).await.unwrap();
    consumer.reserve(seconds(1)).await.unwrap().unwrap();
    drop_waiting_reserve(&mut consumer, &client, &tube).await;
    let start = Instant::now();
    consumer.delete(&[id]).await.unwrap();
    assert!(start.elapsed() < seconds(3), "{:?}", start.elapsed());
    assert_eq!(client.peek(id).await, Ok(None));
}

#[tokio::test]
async fn reservations_of_a_dropped_consumer_are_released() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let (mut consumer, mut other) = (server.consumer(&[&tube]), server.consumer(&[&tube]));
    let held = client.put(&tube, put("held")).await.unwrap();
    consumer.reserve(seconds(1)).await.unwrap().unwrap();
    drop_waiting_reserve(&mut consumer, &client, &tube).await;
    let kept = client.put(&tube, put("kept")).await.unwrap();
    drop(consumer);
    let mut ids = Vec::new();
    while ids.len() < 2 {
        ids.push(other.reserve(seconds(5)).await.unwrap().unwrap().id);
    }
    ids.sort();
    assert_eq!(ids, [held, kept]);
}

#[tokio::test]
async fn dropped_put_does_not_affect_other_replies() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut rng = TestRng(9);
    for n in 0..500 {
        let gone = client.put(&tube, put(format!("gone {n}")));
        let moment = tokio::time::sleep(Duration::from_micros(rng.below(100)));
        select(Box::pin(gone), Box::pin(moment)).await;
        let id = client.put(&tube, put(n.to_string())).await.unwrap();
        assert_eq!(text(&client.peek(id).await.unwrap().unwrap()), n.to_string());
    }
    assert_eq!(*client.connections().borrow(), 1);
}
