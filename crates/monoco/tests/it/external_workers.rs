//! Workers outside: those of `docs/workers.md`, and those on their bad days.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::until;
use crate::pipeline_harness::{
    Beanstalkd, PipelineCourier, Python, block, documented, free_port, mail, mail_through, said,
    verdicts,
};
use crate::webhook_peer::SECRET;

/// Says `pass` to the letter on its stdin, faster than Python could.
const PASSES: &str = r#"exec sed 's/^{/{"result":"pass",/'"#;

/// What workers know of a letter.
fn extra<'l>(letter: &'l Value, key: &str) -> &'l Value {
    &letter["letter"]["extra"][key]
}

#[test]
fn the_documented_worker_behind_a_tube_tags_letters() {
    let beanstalkd = Beanstalkd::start();
    let config = block("yaml", "kind: beanstalkd");
    let hub = PipelineCourier::from_text(&config.replace("127.0.0.1:11300", &beanstalkd.address()));
    let _worker = Python::tagger(&beanstalkd);
    let id = hub.post(&mail_through("ci", "This is URGENT."));
    let done = hub.stands(&id, "DONE");
    assert_eq!(extra(&done, "tags"), &json!(["urgent"]));
    assert_eq!(verdicts(&done), said(&[("tagger", "pass"), ("send", "pass")]));
    let id = hub.post(&mail_through("ci", "Grüße, 世界"));
    assert_eq!(extra(&hub.stands(&id, "DONE"), "tags"), &json!([]));
    assert!(hub.arrivals(2)[1].text.contains("Grüße, 世界"));
}

#[test]
fn the_documented_worker_that_answers_many_at_once_needs_few_jobs() {
    let beanstalkd = Beanstalkd::start();
    let config = block("yaml", "kind: beanstalkd").replace("tagger", "counter");
    let hub = PipelineCourier::from_text(&config.replace("127.0.0.1:11300", &beanstalkd.address()));
    let post = |number| hub.post(&mail_through("ci", &vec!["word"; number].join(" ")));
    let ids: Vec<_> = (1..=50).map(post).collect();
    for id in &ids {
        hub.stands(id, "AWAY");
    }
    let _worker = Python::behind(&beanstalkd, &documented("worker.counter"));
    let first = extra(&hub.stands(&ids[0], "DONE"), "words").as_i64().unwrap();
    for (number, id) in (0..).zip(&ids) {
        let done = hub.stands(id, "DONE");
        assert_eq!(extra(&done, "words"), &json!(first + number));
        assert_eq!(verdicts(&done), said(&[("counter", "pass"), ("send", "pass")]));
    }
    let jobs = beanstalkd.jobs_in("monoco.results");
    assert!(jobs < 25, "{jobs} jobs for 50 answers");
}

/// Answers its first three letters with one job, of which only the first part is any good.
/// From then on it lets everything pass.
const GARBLES: &str = r#"
import json, os, greenstalk
host, port = os.environ["BEANSTALKD"].split(":")
tubes = {"watch": "monoco.worker.garbler", "use": "monoco.results"}
with greenstalk.Client((host, int(port)), **tubes) as beanstalkd:
    jobs = [beanstalkd.reserve() for _ in range(3)]
    letters = [json.loads(job.body) for job in jobs]
    said = [{"id": letter["id"], "nonce": letter["nonce"]} for letter in letters]
    good, bad = said[0] | {"result": "pass"}, said[1] | {"result": "maybe"}
    beanstalkd.put(json.dumps(good) + json.dumps(bad) + ' {"id": "' + said[2]["id"] + '", "res')
    for job in jobs:
        beanstalkd.delete(job)
    while job := beanstalkd.reserve():
        letter = json.loads(job.body)
        said = {"id": letter["id"], "nonce": letter["nonce"], "result": "pass",
                "extra": {"tries": letter["extra"]["attempt"]}}
        beanstalkd.put(json.dumps(said))
        beanstalkd.delete(job)
"#;

#[test]
fn a_bad_answer_among_many_costs_its_own_letter_alone() {
    let beanstalkd = Beanstalkd::start();
    let worker = json!({"kind": "beanstalkd", "server": beanstalkd.url(), "timeout_s": 2});
    let pipeline = json!({"outbound": ["garbler", "send"], "workers": {"garbler": worker}});
    let hub = PipelineCourier::with_tunnels(&["ci"], &pipeline);
    let ids = ["one", "two", "three"].map(|text| hub.post(&mail_through("ci", text)));
    let _worker = Python::behind(&beanstalkd, GARBLES);
    let tries = ids.map(|id| extra(&hub.stands(&id, "DONE"), "tries").clone());
    // The second was refused; the third was not readable, and too late then.
    assert_eq!(tries, [json!(null), json!(2), json!(2)]);
    assert_eq!(hub.arrivals(3).len(), 3);
}

#[test]
fn the_documented_command_scores_letters() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("scorer.py");
    std::fs::write(&script, documented("json.load(sys.stdin)")).unwrap();
    let config = block("yaml", "kind: exec");
    let hub = PipelineCourier::from_text(
        &config.replace("~/workers/scorer.py", script.to_str().unwrap()),
    );
    let good = hub.post(&mail_through("ci", "The winner is Bob."));
    let bad = hub.post(&mail_through("ci", "Casino and lottery make a winner"));
    let done = hub.stands(&good, "DONE");
    assert_eq!(extra(&done, "score"), &json!(1));
    assert!(done["verdicts"][0]["note"].as_str().unwrap().starts_with("1 bad words of "));
    let trashed = hub.stands(&bad, "TRASHED");
    assert_eq!(verdicts(&trashed), said(&[("scorer", "trash")]));
    assert_eq!(extra(&trashed, "score"), &json!(3));
    assert_eq!(hub.arrivals(1).len(), 1);
}

#[test]
fn the_documented_worker_behind_a_url_checks_who_asks() {
    let (_worker, url) = Python::enrich();
    let config = block("yaml", "kind: http").replace("http://127.0.0.1:8700/", &url);
    let hub = PipelineCourier::from_text(&config.replace("${WORKER_SECRET}", SECRET));
    let mut letter = mail_through("ci", "hello");
    letter["to"] = json!(["bob@example.org", "ann@example.com", "eve@example.org"]);
    let id = hub.post(&letter);
    let done = hub.stands(&id, "DONE");
    assert_eq!(extra(&done, "domains"), &json!(["example.com", "example.org"]));
    assert_eq!(hub.arrivals(3).len(), 3);

    // A signature with another secret is rejected.
    let other = config.replace("${WORKER_SECRET}", "whsec_YW5vdGhlciBzZWNyZXQgYWx0b2dldGhlcg==");
    let hub = PipelineCourier::from_text(&other.replace("kind: http,", "kind: http, retries: 0,"));
    let dead = hub.stands(&hub.post(&mail_through("ci", "hello")), "DEAD");
    assert!(dead["failure"].as_str().unwrap().contains("401"), "{dead:#}");
}

/// Commands on bad days: the script, and words that say what was wrong with it.
const BAD_DAYS: [(&str, &str, &str); 10] = [
    ("hangs", "sleep 1000", "no answer within 1 s"),
    ("forks", "sleep 1000 & sleep 1000", "no answer within 1 s"),
    ("loud", "cat >/dev/null; yes | head -c 1000000000", "printed more than 49 MiB"),
    ("complains", "cat >/dev/null; yes no | head -c 999999999 >&2; exit 1", "exit 1: no"),
    ("exits", "cat >/dev/null; echo oh dear >&2; exit 1", "exit 1: oh dear"),
    ("rubbish", "cat >/dev/null; echo this is no JSON", "invalid answer"),
    ("unknown", r#"sed 's/^{/{"result":"maybe",/'"#, "not pass, skip or trash"),
    ("silent", "cat", "`result` is missing"),
    ("stranger", r#"echo '{"id":"ltr_1_00000000","result":"pass"}'"#, "of another letter"),
    ("forger", r#"sed 's/^{/{"result":"pass",/; s/bob@/eve@/g'"#, "`from` or `to` was changed"),
];

/// How much memory a courier has had at most, in KiB.
fn most_memory(hub: &PipelineCourier) -> u64 {
    let path = format!("/proc/{}/status", hub.courier.pid());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_command_on_a_bad_day_costs_its_own_letter_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let names: Vec<_> = BAD_DAYS.iter().map(|(name, ..)| *name).chain(["good"]).collect();
    let (mut chains, mut workers) = (json!({}), json!({}));
    for name in &names {
        chains[name] = json!({"outbound": [name, "send"]});
        // Workers with large answers need some time.
        let slow = ["loud", "complains"].contains(name);
        workers[name] = json!({
            "kind": "exec", "command": ["sh", path(name)], "retries": u32::from(!slow),
            "timeout_s": if slow { 30 } else { 1 },
        });
        std::fs::write(path(name), PASSES).unwrap();
    }
    for (name, script, _) in BAD_DAYS {
        std::fs::write(path(name), script).unwrap();
    }
    let hub =
        PipelineCourier::with_tunnels(&names, &json!({"tunnels": chains, "workers": workers}));
    let before = most_memory(&hub);
    let ids: Vec<_> = BAD_DAYS
        .iter()
        .map(|(name, ..)| hub.post(&mail_through(name, &format!("word-{name}"))))
        .collect();
    let good = hub.post(&mail_through("good", "word-good"));
    hub.stands(&good, "DONE");
    assert_eq!(hub.letter(&ids[0])["state"], "AWAY", "the hanging worker delays no other letter");

    for ((name, _, words), id) in BAD_DAYS.iter().zip(&ids) {
        let dead = hub.stands(id, "DEAD");
        let failure = dead["failure"].as_str().unwrap();
        assert!(failure.contains(words) && failure.starts_with(name), "{name}: {failure}");
        assert_eq!(verdicts(&dead), [], "{name}");
    }
    let grown = most_memory(&hub) - before;
    assert!(grown < 200 << 10, "{grown} KiB for 2 GB of unwanted output");
    let desk = hub.courier.cli(&["dead", "list", "--format", "id"]).ok();
    for id in &ids {
        assert!(desk.contains(id), "{id}: {desk}");
    }

    // Repaired, each has its letter pass.
    for (name, ..) in BAD_DAYS {
        std::fs::write(path(name), PASSES).unwrap();
    }
    let mut retry = vec!["dead", "retry"];
    retry.extend(ids.iter().map(String::as_str));
    hub.courier.cli(&retry).ok();
    for ((name, ..), id) in BAD_DAYS.iter().zip(&ids) {
        let done = hub.stands(id, "DONE");
        assert_eq!(verdicts(&done), said(&[(name, "pass"), ("send", "pass")]));
    }
    hub.each_once(&names.iter().map(|name| format!("word-{name}")).collect());
}

/// What each worker of this table is, and what starts it when it is down.
struct Down {
    dir: tempfile::TempDir,
    url: String,
    nowhere: Beanstalkd,
    unwatched: Beanstalkd,
}

const POLICIES: [&str; 3] = ["hold", "skip", "dead"];
const KINDS: [&str; 4] = ["exec", "http", "tube", "queue"];

impl Down {
    fn new() -> Self {
        let url = format!("http://127.0.0.1:{}/", free_port());
        let mut nowhere = Beanstalkd::start();
        nowhere.kill();
        let (dir, unwatched) = (tempfile::tempdir().unwrap(), Beanstalkd::start());
        Self { dir, url, nowhere, unwatched }
    }

    fn program(&self) -> String {
        self.dir.path().join("missing").to_str().unwrap().to_owned()
    }

    fn worker(&self, policy: &str, kind: &str) -> Value {
        let mut worker = match kind {
            "exec" => json!({"kind": "exec", "command": [self.program()]}),
            "http" => json!({"kind": "http", "url": self.url, "secret": SECRET,
                             "allow_private": true}),
            "tube" => json!({"kind": "beanstalkd", "server": self.nowhere.url()}),
            _ => json!({"kind": "beanstalkd", "server": self.unwatched.url()}),
        };
        worker["timeout_s"] = json!(1);
        worker["retries"] = json!(0);
        worker["when_down"] = json!(policy);
        worker
    }

    /// Starts those whose letters are held.
    fn repair(&mut self) -> Vec<Python> {
        let program = self.program();
        std::fs::write(&program, format!("#!/bin/sh\n{PASSES}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        self.nowhere.run();
        let port = self.url.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
        let http = documented("http.server");
        let tube = |name: &str, beanstalkd: &Beanstalkd| {
            let script = documented("worker.tagger").replace("tagger", name);
            Python::run(&script, &[("BEANSTALKD", &beanstalkd.address())])
        };
        vec![
            Python::run(&http, &[("PORT", &*port), ("WORKER_SECRET", SECRET)]),
            tube("hold-tube", &self.nowhere),
            tube("hold-queue", &self.unwatched),
        ]
    }
}

#[test]
fn a_worker_that_is_down_has_its_letters_held_passed_on_or_given_up() {
    let mut down = Down::new();
    let (mut chains, mut workers, mut names) = (json!({}), json!({}), Vec::new());
    for policy in POLICIES {
        for kind in KINDS {
            let name = format!("{policy}-{kind}");
            chains[&name] = json!({"outbound": [&name, "send"]});
            workers[&name] = down.worker(policy, kind);
            names.push(name);
        }
    }
    let tunnels: Vec<_> = names.iter().map(String::as_str).collect();
    let hub =
        PipelineCourier::with_tunnels(&tunnels, &json!({"tunnels": chains, "workers": workers}));
    let ids: Vec<_> = names
        .iter()
        .map(|name| (name, hub.post(&mail_through(name, &format!("word-{name}")))))
        .collect();
    let of = |policy: &'static str| ids.iter().filter(move |(name, _)| name.starts_with(policy));
    for (name, id) in of("skip") {
        let done = hub.stands(id, "DONE");
        assert_eq!(verdicts(&done), said(&[(name, "skip"), ("send", "pass")]));
        let note = done["verdicts"][0]["note"].as_str().unwrap();
        assert!(note.contains("is down"), "{note}");
    }
    for (name, id) in of("dead") {
        let dead = hub.stands(id, "DEAD");
        assert!(dead["failure"].as_str().unwrap().contains("is down"), "{name}: {dead:#}");
    }
    for (name, id) in of("hold") {
        let held = hub.until(id, |letter| !letter["failure"].is_null());
        assert!(held["failure"].as_str().unwrap().contains("is down"), "{name}: {held:#}");
        assert!(["WAITING", "AWAY"].contains(&held["state"].as_str().unwrap()), "{name}");
    }
    let shown = hub.courier.get("/api/v1/pipeline").ok();
    assert!(!shown["workers"]["hold-http"]["down"].is_null(), "{shown:#}");

    let _workers = down.repair();
    for (name, id) in of("hold") {
        let done = hub.stands(id, "DONE");
        assert_eq!(verdicts(&done), said(&[(name, "pass"), ("send", "pass")]));
    }
    hub.arrivals(8);
}

#[test]
fn a_letter_whose_worker_is_killed_is_taken_by_another() {
    let beanstalkd = Beanstalkd::start();
    let hub = PipelineCourier::open(&json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {"kind": "beanstalkd", "server": beanstalkd.url()}},
    }));
    let script = r#"
import greenstalk, os, time
host, port = os.environ["BEANSTALKD"].split(":")
client = greenstalk.Client((host, int(port)), watch="monoco.worker.tagger")
client.reserve()
open(os.environ["MARK"], "w").close()
time.sleep(1000)
"#;
    let mark = hub.place("mark");
    let variables = [("BEANSTALKD", &*beanstalkd.address()), ("MARK", &*mark)];
    let mut doomed = Python::run(script, &variables);
    let id = hub.post(&mail("bob@example.org", "Hello", "word-a"));
    until("a worker took the letter", || std::path::Path::new(&mark).exists());
    doomed.kill();
    let killed = Instant::now();
    let _other = Python::tagger(&beanstalkd);
    let done = hub.stands(&id, "DONE");
    // Long before its time was over.
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    assert_eq!(verdicts(&done), said(&[("tagger", "pass"), ("send", "pass")]));
    hub.each_once(&["word-a".to_owned()].into());
}

#[test]
fn a_worker_behind_a_tube_that_never_answers_costs_its_letter_alone() {
    let beanstalkd = Beanstalkd::start();
    let hub = PipelineCourier::open(&json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {
            "kind": "beanstalkd", "server": beanstalkd.url(), "timeout_s": 1, "retries": 1,
        }},
    }));
    // It has a bad day with some letters, and not with others.
    let bad = r#"if "word-bad" in letter["data"]: beanstalkd.put("{}"); beanstalkd.bury(job); continue
                letter["extra"]["tags"]"#;
    let script = documented("worker.tagger").replacen(r#"letter["extra"]["tags"]"#, bad, 1);
    let _worker = Python::run(&script, &[("BEANSTALKD", &beanstalkd.address())]);
    let bad = hub.post(&mail("bob@example.org", "Hello", "word-bad"));
    let good = hub.post(&mail("bob@example.org", "Hello", "word-good"));
    hub.stands(&good, "DONE");
    let dead = hub.stands(&bad, "DEAD");
    assert_eq!(dead["failure"], "tagger: no answer in time");
    assert_eq!(dead["attempts"], 2);
    hub.each_once(&["word-good".to_owned()].into());
}

#[test]
fn a_worker_that_is_fast_always_gets_the_next_letter() {
    let beanstalkd = Beanstalkd::start();
    let hub = PipelineCourier::open(&json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {
            "kind": "beanstalkd", "server": beanstalkd.url(), "in_flight": 2, "timeout_s": 600,
        }},
    }));
    let _worker = Python::tagger(&beanstalkd);
    // A place in the tube that an answer did not free would be missed soon.
    let words: Vec<_> = (0..150).map(|n| format!("word-{n}")).collect();
    for word in &words {
        hub.post(&mail("bob@example.org", "Hello", word));
    }
    hub.each_once(&words.into_iter().collect());
}
