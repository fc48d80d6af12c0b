//! Output for people: the width of tables, colours, short ids and local times.

use std::process::Command;

use serde_json::json;

use crate::common::{Courier, ME, Ran, binary, chat};

/// A shadow DID and a text that do not fit into a line.
const FAR: &str =
    "did:msgtunnel:a-very-long-account-name-of-a-person%40mail%2Eexample%2Ecom.user.stub";
const LONG_TEXT: &str = "This text is much longer than what fits into one line of a terminal, \
                         even if nothing else is shown beside it.";

/// Runs a command on a pseudo-terminal of 80 columns.
fn on_terminal(courier: &Courier, args: &[&str], variables: &[(&str, &str)]) -> String {
    let command = format!("stty cols 80 rows 24; exec {} {}", binary().display(), args.join(" "));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.env_clear().env("MONOCO_HOME", courier.home()).env("TERM", "xterm");
    script.env("PATH", std::env::var_os("PATH").unwrap()).envs(variables.iter().copied());
    let output = script.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command with variables in its environment.
fn with_variables(courier: &Courier, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("MONOCO_HOME", courier.home());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A courier with at least one long row in every list.
fn busy_courier() -> Courier {
    let courier = Courier::start();
    let mut msg = chat(FAR, ME, LONG_TEXT);
    msg["content"]["title"] = json!(LONG_TEXT);
    let ingress = json!({"tunnel": "stub", "external_id": "a-long-external-id-of-a-message-1"});
    courier.post("/api/v1/dispatch", &json!({"msg": msg, "ingress": ingress})).ok();
    courier.post("/api/v1/post_send", &json!({"msg": chat(ME, FAR, LONG_TEXT)})).ok();
    let names = json!({"names": [LONG_TEXT], "level": "friend"});
    courier.put(&format!("/api/v1/contacts/{}", FAR.replace('%', "%25")), &names).ok();
    let letter = json!({"from": "a-long-local-part@a.long.domain.example.com",
        "to": ["another-long-local-part@a.long.domain.example.com"],
        "data": format!("Subject: {LONG_TEXT}\r\n\r\nhi\r\n"), "extra": {"tunnel": "stub"}});
    courier.post("/api/v1/letters", &letter).ok();
    courier
}

#[test]
fn tables_fit_80_columns_and_other_formats_keep_everything() {
    let courier = busy_courier();
    for args in [
        &["center", "boxes"][..],
        &["center", "list"],
        &["center", "list", "did:msgtunnel:stub", "TUNNEL_OUTBOX"],
        &["center", "sessions"],
        &["center", "sessions", ME, "--with", FAR],
        &["center", "tunnels"],
        &["contact", "list"],
        &["pipeline", "letters"],
        &["events"],
    ] {
        let table = courier.cli(args).ok();
        assert!(table.lines().count() >= 2, "{args:?} printed {table:?}");
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{args:?} printed a long line: {line}");
        }
        let compact = courier.cli(&[args, &["--format", "compact"]].concat()).ok();
        assert!(!compact.contains('…') && !compact.contains(".."), "{compact}");
    }
    let record = courier.cli(&["center", "list", "--format", "id"]).ok();
    let short = format!("{}..{}", &record[..12], &record.trim_end()[48..]);
    let table = courier.cli(&["center", "list"]).ok();
    assert!(table.contains(&short), "{table} has no {short}");
    assert!(table.contains("stub:a-very-long-account"), "{table}");
    // A single object is shown with its whole id.
    assert!(courier.cli(&["center", "show", record.trim_end()]).ok().contains(record.trim_end()));
}

#[test]
fn colours_are_for_terminals_unless_the_environment_says_otherwise() {
    let courier = busy_courier();
    let outbox = ["center", "list", "did:msgtunnel:stub", "TUNNEL_OUTBOX", "--state", "SENT"];
    courier.until("/api/v1/boxes/did:msgtunnel:stub/TUNNEL_OUTBOX?state=SENT", |page| {
        page["records"][0].is_object()
    });
    let green = "\u{1b}[32mSENT\u{1b}[0m";
    let table = on_terminal(&courier, &outbox, &[]);
    assert!(table.contains(green), "{table:?}");
    assert!(!on_terminal(&courier, &outbox, &[("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!courier.cli(&outbox).ok().contains('\u{1b}'));
    assert!(with_variables(&courier, &outbox, &[("CLICOLOR_FORCE", "1")]).ok().contains(green));
}

#[test]
fn times_are_local_for_people_and_utc_for_programs() {
    let courier = busy_courier();
    let zone = [("TZ", "TST-5:45")];
    let run = |args: &[&str]| with_variables(&courier, args, &zone).ok();
    let utc = run(&["center", "list", "--format", "compact"]);
    let utc = utc.trim_end().rsplit('\t').next().unwrap();
    let time: jiff::Timestamp = utc.parse().unwrap();
    assert!(utc.ends_with('Z'), "{utc}");
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::Offset::from_seconds(20_700).unwrap());
    let local = time.to_zoned(zone).strftime("%Y-%m-%d %H:%M").to_string();
    let table = run(&["center", "list"]);
    assert!(table.contains(&local), "{table} has no {local}");
    assert!(!table.contains('Z'), "{table}");
    let record = run(&["center", "list", "--format", "id"]);
    assert!(run(&["center", "show", record.trim_end()]).contains(&local));
}

#[test]
fn lists_tell_when_there_are_more_entries() {
    let courier = Courier::start();
    for n in 0..3 {
        courier.deliver(ME, &format!("message {n}"));
    }
    let cut = courier.cli(&["center", "list", "--limit", "2"]);
    assert!(cut.stderr.starts_with("showing 2 entries, there are more: use --limit or --cursor"));
    let cursor = cut.stderr.trim_end().rsplit(' ').next().unwrap().to_owned();
    let rest = courier.cli(&["center", "list", "--limit", "2", "--cursor", &cursor]);
    assert_eq!((rest.stdout.lines().count(), rest.stderr.as_str()), (2, ""));
    let newest = courier.cli(&["events", "--limit", "2"]);
    assert!(newest.stderr.starts_with("showing the newest 2 events"), "{}", newest.stderr);
    let first = courier.cli(&["events", "--after", "0", "--limit", "1"]);
    assert!(first.stderr.contains("--after 1"), "{}", first.stderr);
}

#[test]
fn json_flag_selects_json_for_data_and_errors() {
    let courier = Courier::start();
    let record = courier.deliver(ME, "hi");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(
        json(&courier.cli(&["--json", "center", "list"]).ok())["records"][0]["record_id"],
        record
    );
    assert_eq!(
        json(&courier.cli(&["center", "show", &record, "--json"]).ok())["record_id"],
        record
    );
    courier.cli(&["contact", "add", "did:web:ann", "--json"]).ok();
    let removed = courier.cli(&["contact", "remove", "did:web:ann", "--json"]).ok();
    assert_eq!(json(&removed)["removed"], "did:web:ann");
    // Errors of the courier, of the command line and without a courier.
    let gone = format!("rec_{}", "0".repeat(48));
    let error = json(&courier.cli(&["center", "show", &gone, "--format", "json"]).failed(1));
    assert_eq!(error["code"], "not_found");
    assert!(error["message"].as_str().unwrap().starts_with("there is no record"), "{error}");
    let error = json(&courier.cli(&["center", "show", "--json"]).failed(64));
    assert_eq!(error["code"], "usage");
    assert!(error["message"].as_str().unwrap().contains("<RECORD>"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = json(&crate::common::cli(empty.path(), &["events", "--json"], "").failed(3));
    assert_eq!(error["code"], "no_courier");
    assert!(error["hint"].as_str().unwrap().contains("monoco courier start"), "{error}");
    // A file that cannot be read is not a missing message.
    let missing = ["center", "send", "--file", "/nonexistent/message.json"];
    courier.cli(&missing).failed(74);
}

#[test]
fn shortened_ids_are_accepted_if_they_are_unique() {
    let courier = busy_courier();
    // One message in two boxes: both records start with its hash.
    for did in ["did:web:bob", "did:web:cat"] {
        let contact = json!({"level": "friend", "here": true});
        courier.put(&format!("/api/v1/contacts/{did}"), &contact).ok();
    }
    let mut msg = chat("did:web:ann", "did:web:bob", "for two");
    msg["to"] = json!(["did:web:bob", "did:web:cat"]);
    let sent = courier.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
    let msg_id = sent["msg_id"].as_str().unwrap();
    let records = [0, 1].map(|n| sent["delivered"][n]["record_id"].as_str().unwrap());
    let said = courier.cli(&["center", "show", &records[0][..12]]).failed(1);
    assert!(said.contains("is ambiguous") && records.iter().all(|id| said.contains(id)), "{said}");
    for record in records {
        let short = format!("{}..{}", &record[..12], &record[48..]);
        for id in [&short, &record[..40]] {
            let shown = courier.cli(&["center", "show", id, "--format", "id"]).ok();
            assert_eq!(shown, format!("{record}\n"));
            courier.cli(&["trace", id]).ok();
        }
    }
    let shown = courier.cli(&["trace", &msg_id[..18], "--format", "id"]).ok();
    assert_eq!(shown, format!("{msg_id}\n"));
    assert!(courier.cli(&["center", "object", &msg_id[..18]]).ok().contains("for two"));
    let letter = courier.cli(&["pipeline", "letters", "--format", "id"]).ok();
    let number = letter.rsplit_once('_').unwrap().0;
    assert_eq!(courier.cli(&["pipeline", "show", number, "--format", "id"]).ok(), letter);
    // A dead letter by its short id.
    let dead = json!({"msg": chat(ME, "did:msgtunnel:refuse.user.stub", "no")});
    courier.post("/api/v1/post_send", &dead).ok();
    let dead = courier.until("/api/v1/dead", |dead| dead["deliveries"][0].is_object());
    let dead = dead["deliveries"][0]["record_id"].as_str().unwrap();
    let short = format!("{}..{}", &dead[..12], &dead[48..]);
    courier.cli(&["dead", "drop", &short]).ok();
    // Ids from stdin; what fails does not stop the others.
    let gone = "rec_0000000000000000";
    let said = courier.cli(&["center", "show", gone]).failed(1);
    assert!(said.contains("there is no item with the id rec_0000"), "{said}");
    let input = format!("{}\n{gone}\n{}\n", records[0], records[1]);
    let args = ["center", "show", "-", "--format", "id"];
    let shown = crate::common::cli(courier.home(), &args, &input);
    assert_eq!((shown.code, shown.stdout), (1, format!("{}\n{}\n", records[0], records[1])));
    assert!(shown.stderr.contains(gone), "{}", shown.stderr);
}

#[test]
fn contacts_are_named_by_name_address_or_account() {
    let courier = Courier::start();
    let did = |args: &[&str]| courier.cli(&[args, &["--format", "id"]].concat());
    courier.cli(&["contact", "add", "did:web:ann", "--name", "Ann", "--name", "Annie"]).ok();
    courier.cli(&["contact", "bind", "ann", "stub", "ann@example.com", "--kind", "addr"]).ok();
    for text in ["did:web:ann", "Ann", "annie", "ann@example.com", "stub:ann@example.com"] {
        assert_eq!(did(&["contact", "show", text]).ok(), "did:web:ann\n", "{text}");
    }
    let send = ["center", "send", "--from", ME, "--text", "hi", "--json", "--to"];
    let sent = courier.cli(&[&send[..], &["ann"]].concat()).ok();
    let sent: serde_json::Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["deliveries"][0]["plan"]["address"], "ann@example.com");
    // Unknown and ambiguous texts are errors with the next step.
    let said = did(&["contact", "show", "bob"]).failed(1);
    assert!(said.contains("unknown contact \"bob\"") && said.contains("hint:"), "{said}");
    courier.cli(&["contact", "add", "did:web:other", "--name", "ANN"]).ok();
    let said = did(&["contact", "show", "ann"]).failed(1);
    assert!(said.contains("did:web:ann, did:web:other"), "{said}");
    let said = courier.cli(&[&send[..], &["stub:new"]].concat()).failed(1);
    assert!(said.contains("did:msgtunnel:new.user.stub"), "{said}");
    // A renamed or removed contact is not found by its old name.
    courier.cli(&["contact", "add", "did:web:other", "--name", "Bob"]).ok();
    assert_eq!(did(&["contact", "show", "bob"]).ok(), "did:web:other\n");
    courier.cli(&["contact", "remove", "bob"]).ok();
    did(&["contact", "show", "bob"]).failed(1);
}
