//! The command line: what it prints, where, and with which exit code.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::{Courier, ME, PATIENCE, binary, chat, cli, help_pages};

/// Everything a terminal might obey, in one text.
const HOSTILE: &str =
    "\u{1b}[31mred\u{7}\u{9b}2J\u{202e}txt\u{2066}\u{2028}\u{200f}\r\nnext\u{0}\u{7f}\u{feff}";

/// Line feeds and tabs are our own: those of strangers are shown as escapes.
pub fn harmless(text: &str) -> bool {
    text.chars().all(|c| {
        matches!(c, '\n' | '\t')
            || !(c.is_control()
                || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
                || ('\u{202a}'..='\u{202e}').contains(&c)
                || ('\u{2066}'..='\u{2069}').contains(&c))
    })
}

#[test]
fn hostile_text_is_harmless_in_every_command_and_format() {
    let courier = Courier::start();
    let mut msg = chat("did:web:eve", ME, HOSTILE);
    msg["content"]["title"] = json!(HOSTILE);
    msg["thread"] = json!({"topic": HOSTILE});
    let answer = courier.post(
        "/api/v1/dispatch",
        &json!({"msg": msg, "ingress":
        {"tunnel": "net", "external_id": HOSTILE}}),
    );
    let answer = answer.ok();
    let msg_id = answer["msg_id"].as_str().unwrap().to_owned();
    let record = answer["delivered"][0]["record_id"].as_str().unwrap().to_owned();
    courier
        .post(
            "/api/v1/post_send",
            &json!({"msg":
        chat(ME, "did:msgtunnel:refuse.user.stub", HOSTILE)}),
        )
        .ok();
    courier.post(&format!("/api/v1/boxes/{ME}/INBOX/next"), &json!({})).ok();
    courier.post(&format!("/api/v1/records/{record}/state"), &json!({"state": "UNREAD"})).ok();

    for args in [
        vec!["courier", "status"],
        vec!["center", "boxes"],
        vec!["center", "list"],
        vec!["center", "list", "did:msgtunnel:stub", "TUNNEL_OUTBOX"],
        vec!["center", "peek"],
        vec!["center", "next"],
        vec!["center", "show", &record],
        vec!["center", "object", &msg_id],
        vec!["center", "sessions"],
        vec!["center", "sessions", ME, "--with", "did:web:eve"],
        vec!["center", "tunnels"],
        vec!["contact", "list"],
        vec!["events"],
        vec!["trace", &record],
        vec!["trace", HOSTILE.trim_matches('\0')],
        vec!["center", "show", HOSTILE.trim_matches('\0')],
    ] {
        for format in ["table", "json", "compact", "id"] {
            // An argument can't hold a NUL; what is left is hostile enough.
            let args: Vec<String> = args.iter().map(|arg| arg.replace('\0', "")).collect();
            let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
            args.extend(["--format", format]);
            let ran = courier.cli(&args);
            assert!(harmless(&ran.stdout), "{args:?} printed {:?}", ran.stdout);
            assert!(harmless(&ran.stderr), "{args:?} said {:?}", ran.stderr);
            if args[1] == "next" {
                let state = json!({"state": "UNREAD"});
                courier.post(&format!("/api/v1/records/{record}/state"), &state).ok();
            }
        }
    }
    // It is still all there, for programs.
    let shown = courier.cli(&["center", "object", &msg_id]).ok();
    let object: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(object["content"]["content"], HOSTILE);
}

#[test]
fn exit_codes_are_a_contract() {
    let courier = Courier::start();
    let record = courier.deliver(ME, "hi");
    // 1: there is no such thing, or it can't be done.
    let gone = format!("rec_{}", "0".repeat(48));
    let said = courier.cli(&["center", "show", &gone]).failed(1);
    assert!(said.contains("there is no record"), "{said}");
    let said = courier.cli(&["center", "state", &record, "READED"]).failed(1);
    assert!(said.contains("from UNREAD to READED"), "{said}");
    let said = courier.cli(&["center", "list", "did:web:nobody"]).failed(1);
    assert!(said.contains("hint:"), "{said}");
    // 2: held by another agent.
    courier.cli(&["center", "next", "--holder", "ann"]).ok();
    let said = courier.cli(&["center", "state", &record, "READED", "--holder", "bob"]).failed(2);
    assert!(said.contains("held by ann"), "{said}");
    // 64: not understood.
    for args in [&["center"][..], &["centre", "list"], &["center", "show"], &["--colour"]] {
        courier.cli(args).failed(64);
    }
    for args in [&["--help"][..], &["--version"], &["center", "--help"], &["center", "send", "-h"]]
    {
        courier.cli(args).ok();
    }
    // 3: no courier.
    let empty = tempfile::tempdir().unwrap();
    let said = cli(empty.path(), &["center", "list"], "").failed(3);
    assert!(said.contains("monoco courier start --foreground"), "{said}");
    let said = cli(empty.path(), &["courier", "stop"], "").failed(3);
    assert!(said.contains("no courier is running"), "{said}");
    assert!(!empty.path().join("store").exists(), "asking made something");
}

#[test]
fn starting_says_what_is_in_the_way() {
    let courier = Courier::start();
    let start = |home: &std::path::Path, port: &str| {
        cli(home, &["courier", "start", "--foreground", "--port", port], "")
    };
    let said = start(courier.home(), "0").failed(2);
    assert!(said.contains("already running") && said.contains("hint:"), "{said}");
    let other = tempfile::tempdir().unwrap();
    let port = courier.address.port().to_string();
    let said = start(&other.path().join("home"), &port).failed(4);
    assert!(said.contains("in use") && said.contains("--port"), "{said}");
    // A store that a newer program wrote is left alone.
    let newer = other.path().join("newer");
    drop(Courier::start_in(&newer));
    let db = rusqlite::Connection::open(newer.join("store/monoco.db")).unwrap();
    db.pragma_update(None, "user_version", 999).unwrap();
    drop(db);
    let said = start(&newer, "0").failed(1);
    assert!(said.contains("newer program"), "{said}");
    // So is one that is none.
    std::fs::write(newer.join("store/monoco.db"), "this is no database, it is a poem").unwrap();
    let _ = std::fs::remove_file(newer.join("store/monoco.db-wal"));
    let said = start(&newer, "0").failed(1);
    assert!(said.contains("damaged"), "{said}");
    // An empty token must not authorise every caller.
    let bare = other.path().join("bare");
    drop(Courier::start_in(&bare));
    std::fs::write(bare.join("run/courier.token"), "").unwrap();
    let said = start(&bare, "0").failed(1);
    assert!(said.contains("is not a valid token"), "{said}");
}

#[test]
fn stop_waits_until_it_is_gone_and_what_was_said_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut courier = Courier::start_in(dir.path());
    courier.deliver(ME, "remember me");
    let ran = courier.cli(&["courier", "stop"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "courier stopped\n"));
    assert!(courier.wait().success());
    courier.cli(&["courier", "status"]).failed(3);
    let again = Courier::start_in(dir.path());
    assert!(again.cli(&["center", "list", "--format", "compact"]).ok().contains("UNREAD"));
}

/// `monoco events --follow`, from the beginning.
fn follow(courier: &Courier) -> std::process::Child {
    let mut command = Command::new(binary());
    command.args(["events", "--follow", "--after", "0", "--format", "json"]);
    command.env_clear().env("MONOCO_HOME", courier.home());
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn stop_does_not_wait_for_those_who_only_listen() {
    let dir = tempfile::tempdir().unwrap();
    let mut courier = Courier::start_in(dir.path());
    let mut follow = follow(&courier);
    // It has its first event, so it is listening.
    let mut first = [0; 1];
    std::io::Read::read_exact(follow.stdout.as_mut().unwrap(), &mut first).unwrap();
    let started = Instant::now();
    courier.cli(&["courier", "stop"]).ok();
    assert!(courier.wait().success());
    // What is under way has thirty seconds; a listener is not under way.
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    follow.kill().unwrap();
    follow.wait().unwrap();
}

#[test]
fn formats_are_for_people_programs_and_pipes() {
    let courier = Courier::start();
    let record = courier.deliver(ME, "hi");
    assert_eq!(courier.cli(&["center", "list", "--format", "id"]).ok(), format!("{record}\n"));
    let json: Value =
        serde_json::from_str(&courier.cli(&["center", "list", "--format", "json"]).ok()).unwrap();
    assert_eq!(json["records"][0]["record_id"], record.as_str());
    let compact = courier.cli(&["center", "list", "--format", "compact"]).ok();
    assert_eq!(compact.lines().next().unwrap().split('\t').next(), Some(record.as_str()));
    let table = courier.cli(&["center", "list"]).ok();
    assert!(table.contains("RECORD") && table.contains(&record[..12]), "{table}");
    assert!(!table.contains('\u{1b}'), "colour without a terminal");
    // Events: the newest ones, or all after one.
    let tail = courier.cli(&["events", "--limit", "1", "--format", "compact"]).ok();
    assert!(tail.contains("dispatched") && tail.lines().count() == 1, "{tail}");
    let first = courier.cli(&["events", "--after", "0", "--limit", "1", "--format", "id"]).ok();
    assert_eq!(first, "1\n");
    // Text from stdin, and a reader that has seen enough.
    let sent = cli(
        courier.home(),
        &["center", "send", "--from", ME, "--to", ME, "--text", "-", "--format", "id"],
        "from a pipe\n",
    );
    let object = courier.cli(&["center", "object", sent.ok().trim()]).ok();
    assert!(object.contains("\"from a pipe\""), "{object}");
}

#[test]
fn contacts_and_groups_from_the_command_line() {
    let courier = Courier::start();
    let ann = "did:web:ann";
    courier.cli(&["contact", "add", ann, "--name", "Ann"]).ok();
    let said = courier.cli(&["contact", "bind", ann, "nowhere", "u1"]).failed(1);
    assert!(said.contains("there is no tunnel nowhere"), "{said}");
    courier.cli(&["contact", "bind", ann, "stub", "low", "--priority", "-1"]).ok();
    courier.cli(&["contact", "bind", ann, "stub", "high", "--priority", "5"]).ok();
    let sent = courier
        .cli(&["center", "send", "--from", ME, "--to", ann, "--text", "hi", "--format", "json"]);
    let sent: Value = serde_json::from_str(&sent.ok()).unwrap();
    assert_eq!(sent["deliveries"][0]["plan"]["address"], "high");
    assert_eq!(sent["deliveries"][0]["plan"]["mode"], "binding");
    courier.cli(&["contact", "unbind", ann, "stub", "high"]).ok();
    assert!(courier.cli(&["contact", "show", ann]).ok().contains("low"));
    courier.cli(&["contact", "block", ann]).ok();
    let shown = courier.cli(&["contact", "show", ann, "--format", "json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["level"], &shown["names"][0]), (&json!("block"), &json!("Ann")));
    let said = courier
        .cli(&["center", "dispatch", "--from", ann, "--to", ME, "--text", "hello?"])
        .failed(1);
    assert!(said.contains("blocked"), "{said}");
    courier.cli(&["contact", "unblock", ann]).ok();
    courier.cli(&["center", "dispatch", "--from", ann, "--to", ME, "--text", "hello?"]).ok();
    courier.cli(&["contact", "group", "add", "did:web:team", "--name", "Team"]).ok();
    courier.cli(&["contact", "group", "subscribe", "did:web:team", ME]).ok();
    assert!(courier.cli(&["contact", "group", "list"]).ok().contains(ME));
    courier.cli(&["contact", "group", "unsubscribe", "did:web:team", ME]).ok();
    courier.cli(&["contact", "remove", ann]).ok();
    courier.cli(&["contact", "show", ann]).failed(1);
}

#[test]
fn names_stand_for_authors_owners_groups_and_readers() {
    let courier = Courier::start();
    for (did, name) in [("did:web:ann", "Ann"), ("did:web:bob", "Bob")] {
        courier.cli(&["contact", "add", did, "--name", name, "--here"]).ok();
    }
    courier.cli(&["contact", "group", "add", "did:web:team", "--name", "Team"]).ok();
    courier.cli(&["contact", "group", "subscribe", "Team", "Bob"]).ok();
    let center = |args: &[&str]| courier.cli(&[&["center"], args].concat());
    center(&["send", "--from", "Ann", "--to", "Bob", "--text", "hello"]).ok();
    assert!(center(&["next", "Bob"]).ok().contains("hello"));
    for args in [
        &["list", "Bob"][..],
        &["list", "Ann", "OUTBOX"],
        &["sessions", "Ann"],
        &["sessions", "Bob", "--with", "Ann"],
    ] {
        assert_ne!(center(args).ok(), "", "{args:?}");
    }
    let group = ["--from", "Team", "--source", "Ann", "--to", "Team", "--kind", "group_msg"];
    let sent = center(&[&["dispatch", "--json", "--text", "lunch?"], &group[..]].concat()).ok();
    let sent: Value = serde_json::from_str(&sent).unwrap();
    let msg = sent["msg_id"].as_str().unwrap();
    assert!(center(&["peek", "Team", "GROUP_INBOX"]).ok().contains("UNREAD"));
    center(&["receipts", "Team", msg, "--reader", "Bob", "--set", "READED"]).ok();
    assert!(center(&["receipts", "Team", msg, "--reader", "Bob"]).ok().contains("READED"));
    // A shortened id, and the outbox of a tunnel.
    const JOE: &str = "did:msgtunnel:joe.user.stub";
    let reply = ["send", "--from", "Ann", "--to", JOE, "--text", "soon", "--format", "id"];
    let reply = center(&[&reply[..], &["--reply-to", &msg[..16]]].concat()).ok();
    assert!(center(&["object", reply.trim()]).ok().contains(msg));
    assert!(center(&["list", "stub", "TUNNEL_OUTBOX"]).ok().contains("stub:joe"));
    for args in [
        &["list", "Joe"][..],
        &["sessions", "Joe"],
        &["send", "--from", "Joe", "--to", "Bob", "--text", "x"],
    ] {
        assert!(center(args).failed(1).contains("unknown contact \"Joe\""), "{args:?}");
    }
}

#[test]
fn ids_of_bytes_can_be_shortened() {
    let courier = Courier::start();
    let put = |bytes: &[u8]| {
        let kind = [("Content-Type", "application/octet-stream")];
        let kept = courier.send("POST", "/api/v1/objects", &kind, bytes).unwrap().ok();
        kept["id"].as_str().unwrap().to_owned()
    };
    // Bytes that are no text come out as they were stored.
    let bytes = b"\x89PNG\r\n\x1a\n\xff";
    let image = put(bytes);
    let shown = std::process::Command::new(crate::common::binary())
        .args(["--home", courier.home().to_str().unwrap(), "center", "object", &image])
        .output()
        .unwrap();
    assert_eq!((shown.status.code(), &*shown.stdout), (Some(0), &bytes[..]));
    let id = put(br#"{"log": "12 failed"}"#);
    for digits in [4, 5, 12, 63, 64] {
        let short = &id[.."sha256:".len() + digits];
        assert!(courier.cli(&["center", "object", short]).ok().contains("12 failed"), "{short}");
        assert_eq!(courier.get(&format!("/api/v1/objects/{short}")).ok()["log"], "12 failed");
    }
    let other = put(b"{}");
    assert_ne!(&other[..11], &id[..11], "two ids with the same start would be ambiguous");
    let unknown = format!("sha256:{}", "0".repeat(8));
    assert_eq!(courier.get(&format!("/api/v1/objects/{unknown}")).refused(404), "not_found");
    assert_eq!(courier.get("/api/v1/objects/sha256:x").refused(400), "bad_parameter");
}

#[test]
fn follow_goes_on_after_the_courier_comes_back() {
    let courier = Courier::start();
    let mut follow = follow(&courier);
    let lines = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().unwrap()));
    let (seen, heard) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).unwrap();
            if seen.send((event["seq"].clone(), event["kind"].clone())).is_err() {
                break;
            }
        }
    });
    let wait = |kind: &str| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (seq, found) = heard.recv_timeout(deadline - Instant::now()).unwrap();
            if found == kind {
                return seq.as_i64().unwrap();
            }
        }
    };
    courier.deliver(ME, "one");
    let first = wait("dispatched");
    let courier = courier.restart();
    courier.deliver(ME, "two");
    assert!(wait("dispatched") > first);
    follow.kill().unwrap();
    follow.wait().unwrap();
    reader.join().unwrap();
}

/// Types `$LINE` and a tab into an interactive zsh, and prints the candidates that it offers.
const ZSH_COMPLETION: &str = r#"
zmodload zsh/zpty
zpty child zsh -f -i
zpty -w child "
PS1=; autoload -Uz compinit; compinit -u -D; source $SCRIPT
compadd() {
    local -a hits; builtin compadd -O hits \"\$@\"
    print -rl -- \$hits > $SCRIPT.candidates; builtin compadd \"\$@\"
}
finish() { print -r -- \"\$BUFFER\" > $SCRIPT.done; }; zle -N finish
bindkey '^I' complete-word; bindkey '^X' finish"
zpty -wn child "$LINE"$'\t\x18'
repeat 3000; do
    zpty -rt child output
    [[ -e $SCRIPT.done ]] && break
    sleep 0.01
done
zpty -d child
cat $SCRIPT.candidates
rm $SCRIPT.candidates $SCRIPT.done
"#;

/// Asks a shell for the candidates of a command line.
fn complete(courier: &Courier, shell: &str, line: &str) -> Vec<String> {
    let script = courier.home().join(format!("completions.{shell}"));
    std::fs::write(&script, courier.cli(&["completions", shell]).ok()).unwrap();
    let mut command = Command::new(shell);
    command.env_clear().env("SCRIPT", &script).env("LINE", line);
    let script = script.display();
    let run = match shell {
        "zsh" => ZSH_COMPLETION.to_owned(),
        "bash" => format!(
            "source {script}; COMP_LINE='{line}'; COMP_POINT={}; _monoco; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            line.len()
        ),
        _ => format!("source {script}; complete --do-complete '{line}'"),
    };
    let path = format!("{}:{}", binary().parent().unwrap().display(), env!("PATH"));
    command.args(["-c", &run]).env("PATH", path).env("HOME", courier.home());
    let output = command.env("MONOCO_HOME", courier.home()).output().unwrap();
    let candidates = String::from_utf8(output.stdout).unwrap();
    candidates.lines().map(str::to_owned).collect()
}

#[test]
fn shells_complete_commands_options_states_and_ids() {
    let courier = Courier::start();
    let record = courier.deliver(ME, "hi");
    courier.cli(&["contact", "add", "did:web:ann", "--name", "Ann"]).ok();
    for shell in ["bash", "zsh", "fish"] {
        let complete = |line: &str| complete(&courier, shell, line);
        assert_eq!(complete("monoco cen"), ["center"], "{shell}");
        assert_eq!(complete("monoco center list --sta"), ["--state"], "{shell}");
        let states = complete(&format!("monoco center state {record} REA"));
        assert_eq!(states, ["READED", "READING"], "{shell}");
        assert_eq!(complete(&format!("monoco center list {ME} REQ")), ["REQUEST_BOX"], "{shell}");
        let shown = complete(&format!("monoco center show {}", &record[..7]));
        assert_eq!(shown, [record.as_str()], "{shell}");
        let tunnels = complete("monoco pipeline letters --tunnel st");
        assert_eq!(tunnels, ["stub"], "{shell}");
        assert!(complete("monoco trace rec_").contains(&record), "{shell}");
    }
    // Bash starts a new word after each colon.
    assert_eq!(complete(&courier, "bash", "monoco contact show did:web:a"), ["ann"]);
    for shell in ["zsh", "fish"] {
        let shown = complete(&courier, shell, "monoco contact show did:web:a");
        assert_eq!(shown, ["did:web:ann"], "{shell}");
        let from = complete(&courier, shell, "monoco center send --from did:web:a");
        assert_eq!(from, ["did:web:ann"], "{shell}");
    }
}

#[test]
fn completion_scripts_have_no_syntax_errors() {
    let empty = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let file = empty.path().join(shell);
        std::fs::write(&file, cli(empty.path(), &["completions", shell], "").ok()).unwrap();
        let checked = Command::new(shell).arg("-n").arg(file).status().unwrap();
        assert!(checked.success(), "{shell}");
    }
    for shell in ["elvish", "powershell"] {
        assert!(cli(empty.path(), &["completions", shell], "").ok().contains("courier"));
    }
}

#[test]
fn every_command_has_a_man_page() {
    let empty = tempfile::tempdir().unwrap();
    let dir = empty.path().join("man1");
    cli(empty.path(), &["man", dir.to_str().unwrap()], "").ok();
    for (path, _) in help_pages(empty.path()) {
        let name = [&["monoco".to_owned()], path.as_slice()].concat().join("-");
        let page = std::fs::read_to_string(dir.join(format!("{name}.1")));
        let page = page.unwrap_or_else(|error| panic!("{name} has no page: {error}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
}
