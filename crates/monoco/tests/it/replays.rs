//! Letters afterwards: listed, moved by hand, replayed, given up, and counted.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Courier, binary, cli};
use crate::letters::{LINES, chain, hand_in};
use crate::pipeline_harness::{PipelineCourier, free_port, mail, said, verdicts};
use crate::reference_sdks::python;

#[test]
fn letters_are_listed_thrown_away_taken_out_and_hurried() {
    let hub = PipelineCourier::open(&json!({
        "outbound": ["limit", "send"],
        "workers": {"limit": {"per_recipient": "1/h"}},
    }));
    let courier = &hub.courier;
    let post = |text: &str| hub.post(&mail("bob@example.org", "Hello", text));
    let first = post("word-1");
    hub.stands(&first, "DONE");
    let (second, third) = (post("word-2"), post("word-3"));
    for id in [&second, &third] {
        hub.until(id, |letter| letter["worker"] == "limit");
    }
    let ids = |args: &[&str], wanted: &[&String]| {
        let args = [&["pipeline", "letters", "--format", "id"], args].concat();
        let shown = courier.cli(&args).ok();
        assert_eq!(shown.lines().collect::<Vec<_>>(), wanted, "{args:?}");
    };
    ids(&[], &[&third, &second, &first]);
    ids(&["--worker", "limit"], &[&third, &second]);
    ids(&["--state", "done,dead"], &[&first]);
    ids(&["--direction", "outbound", "--tunnel", "ci", "--limit", "1"], &[&third]);
    ids(&["--since", "2099-01-01"], &[]);
    let page = courier.get("/api/v1/letters?state=WAITING&state=DONE&limit=2").ok();
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = courier.get(&format!("/api/v1/letters?state=waiting,done&cursor={cursor}")).ok();
    assert_eq!(rest["letters"][0]["id"], first.as_str());
    for bad in ["state=x", "worker=A", "direction=up", "tunnel=a%20b", "since=x", "limit=0", "x=1"]
    {
        let refused = courier.get(&format!("/api/v1/letters?{bad}"));
        assert_eq!(refused.refused(400), "bad_parameter", "{bad}");
    }

    // Thrown away, with a reason that is shown; out again, and hurried.
    let put = ["pipeline", "trash", "put", &second, "--reason", "sent by mistake"];
    assert!(courier.cli(&put).ok().contains("TRASHED"));
    let bin = courier.cli(&["pipeline", "trash", "list"]).ok();
    let short = |id: &str| id.rsplit_once('_').unwrap().0.to_owned();
    assert!(bin.contains(&short(&second)) && bin.contains("sent by mistake"), "{bin}");
    assert_eq!(courier.cli(&["pipeline", "trash"]).ok(), bin);
    let both = format!("{second}\n");
    let out = cli(courier.home(), &["pipeline", "trash", "restore", "-"], &both).ok();
    assert!(out.contains(&short(&second)) && out.contains("WAITING"), "{out}");
    hub.until(&second, |letter| letter["worker"] == "limit");
    cli(courier.home(), &["pipeline", "retry", "-"], &format!("{second} {third}")).ok();
    let waited = hub.stands(&second, "DONE");
    assert_eq!(verdicts(&waited), said(&[("limit", "pass"), ("send", "pass")]));
    hub.stands(&third, "DONE");
    assert_eq!(hub.arrivals(3).len(), 3);

    // What is through stays through.
    for verb in ["retry", "trash", "restore", "replay"] {
        let refused = courier.post(&format!("/api/v1/letters/{first}/{verb}"), &json!({}));
        assert_eq!(refused.refused(409), "wrong_state", "{verb}");
        assert!(refused.text().contains("cannot be undone"), "{}", refused.text());
    }
    let said = courier.cli(&["pipeline", "retry", &first]).failed(1);
    assert!(said.contains(&first) && said.contains("from DONE to WAITING"), "{said}");
    // One that can't be moved does not keep the other from it.
    let fourth = post("word-4");
    hub.until(&fourth, |letter| letter["worker"] == "limit");
    let ran = courier.cli(&["pipeline", "trash", "put", &first, &fourth]);
    assert_eq!((ran.code, ran.stdout.contains(&short(&fourth))), (1, true), "{ran:?}");
    let shown = courier.cli(&["pipeline", "show", &fourth, "--data"]).ok();
    assert!(shown.contains("by hand") && shown.contains("word-4"), "{shown}");
}

/// What a replay says: which letters, how they were, how they would be, and what moved.
fn replayed(courier: &Courier, args: &[&str]) -> Vec<(String, String, String, bool)> {
    let args = [&["pipeline", "replay", "--since", "1h", "--format", "json"], args].concat();
    let answer: Value = serde_json::from_str(&courier.cli(&args).ok()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let one = |it: &Value| {
        let (was, would) = (text(&it["was"]["state"]), text(&it["would"]["state"]));
        (text(&it["id"]), was, would, it["moved"] == true)
    };
    answer["differ"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn a_replay_shows_exactly_what_a_changed_chain_would_change() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let post = |subject: &str| hub.post(&mail("bob@example.org", subject, "hi"));
    let (casino, hello, both) = (post("casino"), post("hello"), post("hello casino"));
    let other = post("other");
    let by_hand = post("by hand: casino");
    for (id, state) in
        [(&casino, "TRASHED"), (&hello, "DONE"), (&both, "TRASHED"), (&other, "DONE")]
    {
        hub.stands(id, state);
    }
    // A person let this one through.
    hub.stands(&by_hand, "TRASHED");
    courier.cli(&["pipeline", "trash", "restore", &by_hand]).ok();
    hub.stands(&by_hand, "DONE");
    hub.arrivals(3);
    assert_eq!(replayed(courier, &["--dry-run"]), [], "nothing has changed");

    hub.reload(&chain("hello"));
    let owned = |id: &str, was: &str, would: &str, moved| {
        (id.to_owned(), was.to_owned(), would.to_owned(), moved)
    };
    let wanted =
        [owned(&casino, "TRASHED", "DONE", false), owned(&hello, "DONE", "TRASHED", false)];
    assert_eq!(replayed(courier, &["--dry-run"]), wanted);
    assert_eq!(replayed(courier, &["--dry-run", "--direction", "inbound"]), []);
    assert_eq!(replayed(courier, &["--dry-run", "--tunnel", "elsewhere"]), []);
    // Page by page it is the same.
    let (mut found, mut cursor, mut evaluated) = (Vec::new(), Value::Null, 0);
    loop {
        let ask = json!({"dry_run": true, "limit": 2, "cursor": cursor});
        let answer = courier.post("/api/v1/pipeline/replay", &ask).ok();
        evaluated += answer["evaluated"].as_u64().unwrap();
        found.extend(answer["differ"].as_array().unwrap().iter().map(|it| it["id"].clone()));
        cursor = answer["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((evaluated, found), (5, vec![json!(casino), json!(hello)]));
    // Looking has changed nothing.
    assert_eq!(hub.letter(&casino)["state"], "TRASHED");

    // For good: what was thrown away goes through, what was sent is not sent again.
    let moved = [owned(&casino, "TRASHED", "DONE", true), owned(&hello, "DONE", "TRASHED", false)];
    assert_eq!(replayed(courier, &[]), moved);
    let done = hub.stands(&casino, "DONE");
    let passed = ["spam", "subject", "footer", "send"].map(|worker| (worker, "pass"));
    assert_eq!(verdicts(&done), said(&passed));
    hub.arrivals(4);
    hub.settled();
    assert_eq!(hub.letter(&hello)["state"], "DONE");
    let ran = courier.cli(&["pipeline", "replay", "--since", "1h", "--dry-run"]);
    assert!(ran.stderr.contains("5 letters evaluated, 1 would differ"), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
    for bad in [
        json!({"dry_run": true, "limit": 501}),
        json!({"dry_run": true, "since": "x"}),
        json!({"dry_run": true, "direction": "up"}),
        json!({"dry_run": true, "cursor": "x"}),
        json!({}),
    ] {
        let refused = courier.post("/api/v1/pipeline/replay", &bad);
        assert!([400, 422].contains(&refused.status), "{bad}: {}", refused.text());
    }
}

/// Runs a command on a terminal, and prints what that shows.
const ON_A_TERMINAL: &str = r#"
import json, os, pty, sys
ask = json.load(sys.stdin)
pid, terminal = pty.fork()
if pid == 0:
    os.execve(ask["command"][0], ask["command"], {"MONOCO_HOME": ask["home"]})
shown = b""
try:
    while part := os.read(terminal, 65536):
        shown += part
except OSError:
    pass  # it has ended
os.waitpid(pid, 0)
sys.stdout.write(shown.decode())
"#;

#[test]
fn on_a_terminal_a_long_replay_says_how_far_it_is() {
    let hub = PipelineCourier::open(&json!({"outbound": ["trash"]}));
    let lines = format!("{}\n", mail("bob@example.org", "Hello", "How are you?")).repeat(900);
    for _ in 0..2 {
        let answer = hand_in(&hub.courier, "", &[LINES], lines.as_bytes());
        assert_eq!(answer.text().lines().filter(|line| line.contains("ltr_")).count(), 900);
    }
    let replay = ["pipeline", "replay", "--since", "1h", "--dry-run"];
    let command: Vec<_> = [binary().to_str().unwrap()].into_iter().chain(replay).collect();
    let shown = python(ON_A_TERMINAL, &json!({"command": command, "home": hub.home()}));
    // A progress count, removed again, and at last the whole.
    let counts = shown.matches(" letters evaluated, 0 differ \r\u{1b}[K").count();
    assert!(counts >= 2, "{shown:?}");
    assert!(shown.ends_with("1800 letters evaluated, 0 would differ\r\n"), "{shown:?}");
    let piped = hub.courier.cli(&replay);
    assert_eq!(piped.stderr, "1800 letters evaluated, 0 would differ\n", "no terminal, no count");
}

#[test]
fn letters_that_were_given_up_lie_on_the_desk_of_the_dead() {
    let hub = PipelineCourier::open(&json!({
        "outbound": ["mine", "send"],
        "workers": {"mine": {"kind": "exec", "command": ["false"], "retries": 0}},
    }));
    let courier = &hub.courier;
    let id = hub.post(&mail("bob@example.org", "Hello", "hi"));
    hub.stands(&id, "DEAD");
    let dead = courier.get("/api/v1/dead").ok();
    assert_eq!(dead["letters"][0]["id"], id.as_str());
    assert_eq!(dead["letters"][0]["worker"], "mine");
    let list = courier.cli(&["dead", "list"]).ok();
    let short = id.rsplit_once('_').unwrap().0;
    assert!(list.contains(short) && list.contains("letter") && list.contains("mine"), "{list}");
    assert!(courier.cli(&["dead", "show", short]).ok().contains("DEAD"));
    let doctor = courier.cli(&["doctor"]);
    assert!(doctor.stdout.contains("WARN  dead letters: 1\n"), "{doctor:?}");

    // Another try fails as the first did; without its worker it goes on.
    assert!(courier.cli(&["dead", "retry", &id]).ok().contains("WAITING"));
    hub.stands(&id, "DEAD");
    hub.reload(&json!({"outbound": ["send"]}));
    cli(courier.home(), &["dead", "retry", "-"], &id).ok();
    hub.stands(&id, "DONE");
    hub.arrivals(1);
    let said = courier.cli(&["dead", "retry", &id]).failed(1);
    assert!(said.contains("is not a dead letter"), "{said}");

    hub.reload(&json!({
        "outbound": ["mine", "send"],
        "workers": {"mine": {"kind": "exec", "command": ["false"], "retries": 0}},
    }));
    let id = hub.post(&mail("bob@example.org", "Hello", "rubbish"));
    hub.stands(&id, "DEAD");
    assert!(courier.cli(&["dead", "drop", &id]).ok().contains("TRASHED"));
    assert_eq!(courier.get("/api/v1/dead").ok()["letters"], json!([]));
}

#[test]
fn what_is_counted_is_shown_and_a_worker_that_is_down_is_said() {
    let away = format!("beanstalkd://127.0.0.1:{}", free_port());
    let mut pipeline = chain("casino");
    pipeline["tunnels"] = json!({"other": {"outbound": ["mine", "send"]}});
    pipeline["workers"]["mine"] = json!({"kind": "beanstalkd", "server": away});
    let hub = PipelineCourier::with_tunnels(&["ci", "other"], &pipeline);
    let courier = &hub.courier;
    let ham = hub.post(&mail("bob@example.org", "Hello", "hi"));
    let spam = hub.post(&mail("bob@example.org", "casino", "hi"));
    hub.stands(&ham, "DONE");
    hub.stands(&spam, "TRASHED");
    let mut letter = mail("bob@example.org", "Hello", "hi");
    letter["extra"] = json!({"tunnel": "other"});
    let held = hub.post(&letter);
    hub.until(&held, |letter| letter["worker"] == "mine");
    let health = courier.until("/health", |health| health["status"] == "degraded");
    let problem = health["pipeline"]["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("worker mine is down: "), "{problem}");
    let doctor = courier.cli(&["doctor"]);
    assert!(doctor.code == 0 && doctor.stdout.contains("mine is down"), "{doctor:?}");

    let status = courier.get("/api/v1/pipeline").ok();
    assert_eq!(status["queue"], json!({"kind": "store"}));
    assert_eq!(status["chains"]["outbound"], json!(["spam", "subject", "footer", "send"]));
    assert_eq!(status["chains"]["tunnels"]["other"]["outbound"], json!(["mine", "send"]));
    let worker = &status["workers"]["spam"];
    let counts = ["kind", "in", "pass", "skip", "trash", "errors"].map(|key| worker[key].clone());
    assert_eq!(counts, [json!("spam"), json!(2), json!(1), json!(0), json!(1), json!(0)]);
    let worker = &status["workers"]["mine"];
    assert_eq!((&worker["kind"], &worker["waiting"]), (&json!("beanstalkd"), &json!(1)));
    assert!(worker["down"].is_string(), "{worker:#}");
    assert_eq!((&status["states"]["DONE"], &status["states"]["WAITING"]), (&json!(1), &json!(1)));

    let metrics = courier.get("/metrics").text();
    for line in [
        "monoco_worker_letters_total{worker=\"spam\",result=\"in\"} 2\n",
        "monoco_worker_letters_total{worker=\"spam\",result=\"trash\"} 1\n",
        "monoco_worker_letters_total{worker=\"send\",result=\"pass\"} 1\n",
        "monoco_worker_letters_total{worker=\"send\",result=\"error\"} 0\n",
        "monoco_worker_letters_total{worker=\"send\",result=\"rejected\"} 0\n",
        "monoco_worker_seconds_total{worker=\"footer\"} ",
        "monoco_worker_up{worker=\"mine\"} 0\n",
        "monoco_letters{state=\"TRASHED\"} 1\n",
        "monoco_worker_waiting_letters{worker=\"mine\"} 1\n",
        "monoco_worker_waiting_letters{worker=\"dispatcher\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert!(!metrics.contains("worker_up{worker=\"spam\"}"), "only those outside can be down");
    for (format, part) in [("table", "down"), ("compact", "spam\tspam\t2"), ("id", "mine\n")] {
        let shown = courier.cli(&["pipeline", "status", "--format", format]).ok();
        assert!(shown.to_lowercase().contains(part), "{shown}");
    }
}

#[test]
fn operator_sees_letters_move_through_the_pipeline() {
    let mut hub = PipelineCourier::open(&json!({"outbound": ["trash"]}));
    let watching = |format: &str| {
        let mut command = Command::new(binary());
        command.args(["pipeline", "status", "--watch", "--format", format]);
        command.env_clear().env("MONOCO_HOME", hub.home()).stderr(Stdio::piped());
        let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
        (watch, lines.take(60))
    };
    let (mut words, mut table) = watching("table");
    let (mut json, mut values) = watching("json");
    assert!(table.next().unwrap().contains(" TRASHED=0 "));
    hub.post(&mail("bob@example.org", "Hello", "How are you?"));
    assert!(table.any(|line| line.contains(" TRASHED=1 ")));
    let trashed =
        |line: String| serde_json::from_str::<Value>(&line).unwrap()["states"]["TRASHED"] == 1;
    assert!(values.any(trashed));
    // It goes on when a client connects again.
    hub.restart();
    hub.post(&mail("bob@example.org", "Hello", "Are you there?"));
    assert!(table.any(|line| line.contains(" TRASHED=2 ")));
    for watch in [&mut words, &mut json] {
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}
