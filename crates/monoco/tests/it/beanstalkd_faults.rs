//! beanstalkd only carries: killed, wiped, full, draining, stopped, and the courier
//! killed as well. Every letter is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ack_checker::{TestRng, say, times};
use crate::common::{Courier, PATIENCE};
use crate::crash::signal;
use crate::faults::Disk;
use crate::pipeline_harness::{
    Beanstalkd, PipelineCourier, Python, documented, mail, said, verdicts,
};

/// How long the unfinished may take to arrive after a beanstalkd is back. They are put
/// again within 30 s; a slow machine has some more.
const BACK: Duration = Duration::from_secs(60);

/// A chain with one worker behind a tube.
fn tagged(beanstalkd: &Beanstalkd) -> Value {
    json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {"kind": "beanstalkd", "server": beanstalkd.url()}},
    })
}

/// The worker of the docs, who takes ten milliseconds for each letter.
fn slow_tagger(beanstalkd: &Beanstalkd) -> Python {
    let slow = r#"time.sleep(0.01); letter["extra"]["tags"]"#;
    let script = documented("worker.tagger").replacen(r#"letter["extra"]["tags"]"#, slow, 1);
    Python::run(&script, &[("BEANSTALKD", &beanstalkd.address())])
}

/// Four threads hand in so many letters each. Returns their words.
fn flood(courier: &Courier, each: usize, meanwhile: impl FnOnce()) -> BTreeSet<String> {
    let word = |thread: usize, n: usize| format!("word-{thread}-{n}");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for n in 0..each {
                    let letter = mail("bob@example.org", "Hello", &word(thread, n));
                    let answer = courier.post("/api/v1/letters", &letter);
                    assert_eq!(answer.status, 202, "{}", answer.text());
                }
            });
        }
        meanwhile();
    });
    (0..4).flat_map(|thread| (0..each).map(move |n| word(thread, n))).collect()
}

/// Waits until so many have come.
#[track_caller]
fn came(hub: &PipelineCourier, count: usize) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while hub.came().len() < count {
        assert!(Instant::now() < deadline, "{} of {count} came", hub.came().len());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills and wipes a beanstalkd twice under load, and sees that everything comes, once.
fn wiped_twice(hub: &PipelineCourier, beanstalkd: &mut Beanstalkd, what: &str) {
    let mut back = Instant::now();
    let words = flood(&hub.courier, 75, || {
        for some in [30, 120] {
            came(hub, some);
            beanstalkd.kill_and_wipe();
            beanstalkd.run();
            back = Instant::now();
        }
    });
    hub.arrivals(words.len());
    let took = back.elapsed();
    say(&format!("{what}: all there {took:?} after the beanstalkd was back"));
    assert!(took < BACK, "{took:?}");
    hub.each_once(&words);
}

#[test]
fn a_beanstalkd_with_a_worker_is_wiped_under_load_and_no_letter_is_lost() {
    let mut beanstalkd = Beanstalkd::start();
    let mut pipeline = tagged(&beanstalkd);
    // Lost jobs are not waited for before they are overdue.
    pipeline["workers"]["tagger"]["timeout_s"] = json!(600);
    let hub = PipelineCourier::open(&pipeline);
    let _workers = [slow_tagger(&beanstalkd), slow_tagger(&beanstalkd)];
    wiped_twice(&hub, &mut beanstalkd, "a worker behind a tube");
}

#[test]
fn a_beanstalkd_that_is_the_queue_is_wiped_under_load_and_no_letter_is_lost() {
    let mut beanstalkd = Beanstalkd::start();
    let hub = PipelineCourier::open(&json!({
        "queue": beanstalkd.url(),
        "outbound": ["subject", "limit", "send"],
        "workers": {
            "subject": {"template": "[Team] {subject}"},
            "limit": {"per_tunnel": "60/s"},
        },
    }));
    wiped_twice(&hub, &mut beanstalkd, "the queue");
}

#[test]
fn letters_wait_for_a_worker_whose_beanstalkd_drains() {
    let mut beanstalkd = Beanstalkd::start();
    let hub = PipelineCourier::open(&tagged(&beanstalkd));
    let _worker = Python::tagger(&beanstalkd);
    hub.stands(&hub.post(&mail("bob@example.org", "Hello", "word-a")), "DONE");
    beanstalkd.signal(Signal::USR1);
    let id = hub.post(&mail("bob@example.org", "Hello", "word-b"));
    let held = hub.until(&id, |letter| !letter["failure"].is_null());
    assert!(held["failure"].as_str().unwrap().contains("drain"), "{held:#}");
    assert_eq!(verdicts(&held), []);
    beanstalkd.kill();
    beanstalkd.run();
    hub.stands(&id, "DONE");
    hub.each_once(&["word-a", "word-b"].map(str::to_owned).into());
}

/// Puts jobs that no consumer reserves until a beanstalkd accepts no more.
fn fill(beanstalkd: &Beanstalkd) {
    let mut stream = TcpStream::connect(beanstalkd.address()).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    // Small ones go where there is no room for large ones.
    for size in [2_000, 100, 1] {
        let job = "x".repeat(size);
        let full = (0..10_000).any(|_| {
            write!(stream, "put 0 0 60 {size}\r\n{job}\r\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            assert!(line.starts_with("INSERTED") || line.starts_with("OUT_OF_MEMORY"), "{line}");
            line.starts_with("OUT_OF_MEMORY")
        });
        assert!(full, "it never became full");
    }
}

#[test]
fn letters_wait_for_a_worker_whose_beanstalkd_is_full() {
    let disk = Disk::tmpfs("size=256k");
    let mut beanstalkd = Beanstalkd::start_in(Path::new(&disk.place()), &["-s", "16384"]);
    let hub = PipelineCourier::open(&tagged(&beanstalkd));
    fill(&beanstalkd);
    let id = hub.post(&mail("bob@example.org", "Hello", "word-a"));
    let held = hub.until(&id, |letter| !letter["failure"].is_null());
    assert!(held["failure"].as_str().unwrap().contains("is down"), "{held:#}");
    beanstalkd.kill_and_wipe();
    beanstalkd.run();
    let _worker = Python::tagger(&beanstalkd);
    hub.stands(&id, "DONE");
    hub.each_once(&["word-a".to_owned()].into());
    // Before the disk it writes to.
    drop(beanstalkd);
}

#[test]
fn a_queue_that_drains_is_full_or_gone_holds_no_letter_up() {
    for what in ["draining", "full", "gone"] {
        let disk = Disk::tmpfs("size=256k");
        let mut beanstalkd = Beanstalkd::start_in(Path::new(&disk.place()), &["-s", "16384"]);
        let hub = PipelineCourier::open(&json!({
            "queue": beanstalkd.url(),
            "outbound": ["subject", "send"],
            "workers": {"subject": {"template": "[Team] {subject}"}},
        }));
        let passes = |word: &str| {
            let posted = Instant::now();
            hub.stands(&hub.post(&mail("bob@example.org", "Hello", word)), "DONE");
            assert!(posted.elapsed() < Duration::from_secs(20), "{what}: {:?}", posted.elapsed());
        };
        passes("word-well");
        match what {
            "draining" => beanstalkd.signal(Signal::USR1),
            "full" => fill(&beanstalkd),
            _ => beanstalkd.kill_and_wipe(),
        }
        passes("word-ill");
        beanstalkd.kill_and_wipe();
        beanstalkd.run();
        passes("word-again");
        hub.each_once(&["word-well", "word-ill", "word-again"].map(str::to_owned).into());
        // Before the disk it writes to.
        drop(beanstalkd);
    }
}

#[test]
fn a_letter_that_is_too_large_for_a_tube_is_given_up_alone() {
    let beanstalkd = Beanstalkd::start_with(&["-z", "4000"]);
    let hub = PipelineCourier::open(&tagged(&beanstalkd));
    let _worker = Python::tagger(&beanstalkd);
    let large = hub.post(&mail("bob@example.org", "Hello", &"word ".repeat(1_000)));
    let small = hub.post(&mail("bob@example.org", "Hello", "word-small"));
    hub.stands(&small, "DONE");
    let dead = hub.stands(&large, "DEAD");
    assert!(dead["failure"].as_str().unwrap().contains("-z"), "{dead:#}");
    hub.each_once(&["word-small".to_owned()].into());
}

#[test]
fn a_beanstalkd_that_stands_still_is_waited_for() {
    let beanstalkd = Beanstalkd::start();
    let mut pipeline = tagged(&beanstalkd);
    pipeline["queue"] = json!(beanstalkd.url());
    let hub = PipelineCourier::open(&pipeline);
    let _worker = slow_tagger(&beanstalkd);
    let words = flood(&hub.courier, 15, || {
        came(&hub, 5);
        beanstalkd.signal(Signal::STOP);
        // As long as it stands, and no condition says how long that is.
        std::thread::sleep(Duration::from_secs(3));
        beanstalkd.signal(Signal::CONT);
    });
    hub.each_once(&words);
}

#[test]
fn a_courier_killed_at_random_moments_sends_every_letter_once() {
    // A kill uses up an attempt of the letters that are at a worker: they have enough of them.
    let mut beanstalkd = Beanstalkd::start();
    let mut hub = PipelineCourier::open(&json!({"outbound": ["send"]}));
    let stamp = hub.file("stamp.sh", r#"exec sed 's/^{/{"result":"pass",/'"#);
    hub.reload(&json!({
        "outbound": ["stamp", "tagger", "send"],
        "workers": {
            "stamp": {"kind": "exec", "command": ["sh", stamp], "parallel": 4, "retries": 100},
            "tagger": {"kind": "beanstalkd", "server": beanstalkd.url(), "timeout_s": 10,
                       "retries": 100},
        },
    }));
    let _worker = Python::tagger(&beanstalkd);
    let (mut dice, names) = (TestRng::new(), AtomicU64::new(0));
    // What callers were told: the letter, once they were.
    let told: Mutex<BTreeMap<String, Option<String>>> = Mutex::default();
    let rounds = times("MONOCO_ROUNDS", 20);
    let acknowledged = || told.lock().unwrap().values().flatten().count() as u64;
    let mut round = 0;
    // A slow machine acknowledges less per round, and gets more rounds.
    while round < rounds || acknowledged() <= rounds {
        assert!(round < 10 * rounds, "too little load: {} letters", acknowledged());
        round += 1;
        let moment = Duration::from_millis(dice.below(300));
        load(&hub.courier, &names, &told, moment);
        if round % 5 == 0 {
            beanstalkd.kill_and_wipe();
            beanstalkd.run();
        }
        hub.restart();
    }
    hub.settled();
    let acknowledged = acknowledged();
    let told = told.into_inner().unwrap();
    let all = ["stamp", "tagger", "send"].map(|worker| (worker, "pass"));
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let deadline = Instant::now() + 2 * PATIENCE;
    for (word, id) in told.iter().filter_map(|(word, id)| Some((word, id.as_ref()?))) {
        let letter = hub.letter(id);
        assert_eq!((&letter["state"], verdicts(&letter)), (&json!("DONE"), said(&all)), "{word}");
        while !keys.contains_key(word) {
            assert!(Instant::now() < deadline, "{word} was accepted and never came");
            for arrived in hub.came() {
                let word = arrived.word().unwrap().to_owned();
                keys.entry(word).or_default().insert(arrived.key);
            }
        }
    }
    let twice: Vec<_> = keys.iter().filter(|(_, keys)| keys.len() > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    let unasked: Vec<_> = keys.keys().filter(|word| !told.contains_key(*word)).collect();
    assert!(unasked.is_empty(), "{unasked:?}");
    say(&format!("{round} kills, {acknowledged} letters"));
}

/// Hands letters in until the courier is killed, which is after a moment.
fn load(
    courier: &Courier,
    names: &AtomicU64,
    told: &Mutex<BTreeMap<String, Option<String>>>,
    moment: Duration,
) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let word = format!("word-{}", names.fetch_add(1, Ordering::Relaxed));
                    let letter = mail("bob@example.org", "Hello", &word);
                    told.lock().unwrap().insert(word.clone(), None);
                    let Ok(answer) = courier.try_request("POST", "/api/v1/letters", Some(&letter))
                    else {
                        return;
                    };
                    assert_eq!(answer.status, 202, "{}", answer.text());
                    let id = answer.json()["id"].as_str().unwrap().to_owned();
                    told.lock().unwrap().insert(word, Some(id));
                    // Commands take longer than callers: not more than they can do.
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        std::thread::sleep(moment);
        signal(courier, Signal::KILL);
        over.store(true, Ordering::Relaxed);
    });
}
