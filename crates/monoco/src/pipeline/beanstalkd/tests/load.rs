//! Much at once, and calls that are dropped in the middle.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::{join_all, select};
use tokio::time::timeout;

use super::super::connection::arrived;
use super::super::wire::{BeanstalkdCommand, BeanstalkdReply};
use super::super::{JobId, refusal};
use super::*;

/// Numbers without order that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Polls a call so many times and then drops it, even if its answer has just come.
pub(super) async fn for_a_while<T>(polls: u64, call: impl Future<Output = T>) -> Option<T> {
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
async fn ten_thousand_puts_come_out_each_once_and_in_order() {
    const COUNT: usize = 10_000;
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut coming = Vec::new();
    for n in 0..COUNT {
        let command = BeanstalkdCommand::put(&tube, &put(n.to_string()));
        coming.push(client.line.send(command, None).await.unwrap());
    }
    let mut ids = Vec::new();
    for coming in coming {
        match arrived(coming.await).unwrap().reply {
            BeanstalkdReply::Inserted(id) => ids.push(id),
            other => panic!("{:?}", refusal(other)),
        }
    }
    let mut taker = server.taker(&[&tube]);
    let mut taken = Vec::new();
    while taken.len() < COUNT {
        let jobs = taker.reserve_some(500, seconds(1)).await.unwrap();
        assert!(!jobs.is_empty(), "{} came", taken.len());
        taker.delete(&jobs.iter().map(|job| job.id).collect::<Vec<_>>()).await.unwrap();
        taken.extend(jobs);
    }
    let want: Vec<_> = (0..COUNT).map(|n| (ids[n], n.to_string())).collect();
    let found: Vec<_> = taken.iter().map(|job| (job.id, text(job).to_owned())).collect();
    assert_eq!(found, want);
    assert_eq!(client.stats().await.unwrap().ready, 0);
    assert_eq!(*client.connections().borrow(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_gets_its_own_answer() {
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
async fn much_in_both_directions_does_not_stand_still() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let id = client.put(&tube, put(vec![b'x'; 60_000])).await.unwrap();
    // Far more than the buffers of the sockets hold, both ways at once.
    let peeks = join_all((0..500).map(|_| client.peek(id)));
    let puts = join_all((0..500).map(|_| client.put(&tube, put(vec![b'y'; 60_000]))));
    let (peeked, inserted) =
        timeout(seconds(60), async { tokio::join!(peeks, puts) }).await.unwrap();
    assert!(peeked.into_iter().all(|job| job.unwrap().unwrap().body.len() == 60_000));
    assert!(inserted.into_iter().all(|id| id.is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_that_is_dropped_at_any_moment_loses_nothing_and_mixes_up_nothing() {
    const COUNT: u64 = 4000;
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    let putting = async {
        let mut sent = BTreeMap::new();
        for n in 0..COUNT {
            sent.insert(client.put(&tube, put(n.to_string())).await.unwrap(), n.to_string());
        }
        sent
    };
    let taking = async {
        let mut dice = Dice(4);
        let (mut taken, mut dropped) = (Vec::new(), 0);
        let mut unfinished: Vec<JobId> = Vec::new();
        while taken.len() < usize::try_from(COUNT).unwrap() {
            let most = usize::try_from(1 + dice.below(30)).unwrap();
            let call = taker.reserve_some(most, seconds(1 + dice.below(3)));
            match for_a_while(dice.below(8), call).await {
                Some(jobs) => {
                    let jobs = jobs.unwrap();
                    assert!(!jobs.is_empty(), "{} came", taken.len());
                    unfinished.extend(jobs.iter().map(|job| job.id));
                    taken.extend(jobs.into_iter().map(|job| (job.id, text(&job).to_owned())));
                }
                None => dropped += 1,
            }
            // Some other command now and then, and sometimes dropped as well.
            if dice.below(3) == 0 {
                let call = taker.delete(&unfinished);
                if let Some(done) = for_a_while(dice.below(8), call).await {
                    done.unwrap();
                    unfinished.clear();
                }
            }
        }
        taker.delete(&unfinished).await.unwrap();
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
async fn a_job_for_a_call_that_was_dropped_goes_to_the_next() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    give_up_while_waiting(&mut taker, &client, &tube).await;
    let id = client.put(&tube, put("x")).await.unwrap();
    // It is ours from this moment on, although nobody asks.
    let stats = client.stats_job(id).await.unwrap().unwrap();
    assert_eq!(stats.state, "reserved");
    let job = taker.reserve(seconds(0)).await.unwrap().unwrap();
    assert_eq!((job.id, text(&job)), (id, "x"));
    let stats = client.stats_job(id).await.unwrap().unwrap();
    assert_eq!((stats.state.as_str(), stats.reserves), ("reserved", 1));
    taker.delete(&[id]).await.unwrap();
    assert_eq!(client.peek(id).await, Ok(None));
}

#[tokio::test]
async fn a_command_behind_a_long_wait_that_was_given_up_does_not_wait_for_it() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut taker = server.taker(&[&tube]);
    let id = client.put(&tube, put("x")).await.unwrap();
    taker.reserve(seconds(1)).await.unwrap().unwrap();
    give_up_while_waiting(&mut taker, &client, &tube).await;
    let start = Instant::now();
    taker.delete(&[id]).await.unwrap();
    assert!(start.elapsed() < seconds(3), "{:?}", start.elapsed());
    assert_eq!(client.peek(id).await, Ok(None));
}

#[tokio::test]
async fn what_a_dropped_taker_held_goes_to_others() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let (mut taker, mut other) = (server.taker(&[&tube]), server.taker(&[&tube]));
    let held = client.put(&tube, put("held")).await.unwrap();
    taker.reserve(seconds(1)).await.unwrap().unwrap();
    give_up_while_waiting(&mut taker, &client, &tube).await;
    let kept = client.put(&tube, put("kept")).await.unwrap();
    drop(taker);
    let mut ids = Vec::new();
    while ids.len() < 2 {
        ids.push(other.reserve(seconds(5)).await.unwrap().unwrap().id);
    }
    ids.sort();
    assert_eq!(ids, [held, kept]);
}

#[tokio::test]
async fn a_put_whose_caller_went_away_leaves_the_others_their_answers() {
    let server = Beanstalkd::start(&[]);
    let (client, tube) = (server.client(), tube("a"));
    let mut dice = Dice(9);
    for n in 0..500 {
        let gone = client.put(&tube, put(format!("gone {n}")));
        let moment = tokio::time::sleep(Duration::from_micros(dice.below(100)));
        select(Box::pin(gone), Box::pin(moment)).await;
        let id = client.put(&tube, put(n.to_string())).await.unwrap();
        assert_eq!(text(&client.peek(id).await.unwrap().unwrap()), n.to_string());
    }
    assert_eq!(*client.connections().borrow(), 1);
}
