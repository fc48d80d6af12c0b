//! Full-text search through the binary: scripts, filters, hostile queries, crashes and erasure. What
//! depends on the store runs on SQLite and on PostgreSQL.

use serde_json::{Value, json};

use crate::common::{Courier, ME, chat, wait_for};
use crate::postgres_server::PostgresServer;
use crate::webhook_peer::{body, config, configure, courier};

/// Percent-encodes a query for an URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Searches and returns the answer.
fn ask(courier: &Courier, query: &str, more: &str) -> Value {
    courier.get(&format!("/api/v1/search?q={}{more}", encoded(query))).ok()
}

/// The snippets of the messages that a query finds, once the index has all messages.
fn snippets(courier: &Courier, query: &str) -> Vec<String> {
    let answer = wait_for(|| {
        let answer = ask(courier, query, "");
        if answer["complete"] == true { Ok(answer) } else { Err(format!("{answer:#}")) }
    });
    let messages = answer["messages"].as_array().unwrap();
    messages.iter().map(|it| it["snippet"]["text"].as_str().unwrap().to_owned()).collect()
}

/// Dispatches a message of ann to the owner.
fn dispatch(courier: &Courier, text: &str) {
    courier.deliver(ME, text);
}

#[test]
fn texts_in_many_scripts_are_found() {
    check_scripts(&Courier::start());
}

/// Couriers that share a PostgreSQL have an index each.
#[test]
fn messages_in_postgresql_are_found_rebuilt_and_forgotten_at_both_couriers() {
    let (server, dir) = (PostgresServer::start(), tempfile::tempdir().unwrap());
    let start = |name: &str| {
        let home = dir.path().join(name);
        configure(&home, &format!("courier: {{ storage: {{ store: '{}' }} }}\n", server.url()));
        Courier::start_in(&home)
    };
    let (first, second) = (start("a"), start("b"));
    check_scripts(&first);
    for query in ["部署", "从", "s*", "from:ann"] {
        assert_eq!(snippets(&second, query), snippets(&first, query), "{query}");
    }
    let found = snippets(&first, "from:ann");
    assert_eq!(found.len(), 5);
    assert!(second.home().join("store/search.db").exists());
    first.cli(&["courier", "rebuild", "--search"]).ok();
    assert_eq!(snippets(&first, "from:ann"), found);
    check_forgotten(&first);
    // The other courier hides the text at once, and removes its words from its file.
    assert_eq!(snippets(&second, "xylophones"), [""; 0]);
    let wait_until_removed = |courier: &Courier, word: &str| {
        wait_for(|| match index_has(courier, word) {
            true => Err(format!("{word} is in the index of {}", courier.home().display())),
            false => Ok(()),
        });
    };
    ["xylophones", "机密"].iter().for_each(|word| wait_until_removed(&second, word));
    // A courier that does not run then removes them when it starts again.
    let msg = chat("did:web:eve", ME, "marzipan in 机密文件");
    first.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
    assert_eq!(snippets(&second, "marzipan").len(), 1);
    let mut second = second;
    second.kill();
    assert!(index_has(&second, "marzipan"));
    first.post("/api/v1/forget", &json!({"did": "did:web:eve"})).ok();
    let second = second.restart();
    wait_until_removed(&second, "marzipan");
    assert_eq!(snippets(&second, "marzipan"), [""; 0]);
    assert_eq!(snippets(&second, "from:ann"), snippets(&first, "from:ann"));
}

/// Whether the bytes of the index of a courier contain a text.
fn index_has(courier: &Courier, text: &str) -> bool {
    ["search.db", "search.db-wal"].iter().any(|name| {
        let bytes = std::fs::read(courier.home().join("store").join(name)).unwrap_or_default();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    })
}

fn check_scripts(courier: &Courier) {
    let texts = [
        "我们今天部署服务器",
        "サーバーを再起動してください",
        "서버를 배포했습니다",
        "Der Café-Server in Łódź is DOWN 🎉",
        "deploy部署v2 to production",
    ];
    texts.iter().for_each(|text| dispatch(courier, text));
    for (query, expected) in [
        ("部署", vec![4, 0]),
        ("署服", vec![0]),
        ("务", vec![0]),
        ("部署服务器", vec![0]),
        ("服部", vec![]),
        ("再起動", vec![1]),
        ("サーバー", vec![1]),
        ("ｻｰﾊﾞｰ", vec![1]),
        ("배포", vec![2]),
        ("서버", vec![2]),
        ("cafe", vec![3]),
        ("LODZ", vec![3]),
        ("🎉", vec![3]),
        ("dep*", vec![4]),
        ("deploy", vec![4]),
        ("dep", vec![]),
        ("\"is down\"", vec![3]),
        ("\"down is\"", vec![]),
        ("down server", vec![3]),
        ("deploy部署", vec![4]),
        ("from:ann", vec![4, 3, 2, 1, 0]),
        ("from:bob", vec![]),
        ("deploy from:ann in:me since:1h", vec![4]),
        ("since:2120-01-01", vec![]),
    ] {
        let expected: Vec<_> = expected.iter().map(|at: &usize| texts[*at]).collect();
        assert_eq!(snippets(courier, query), expected, "{query}");
    }
    let answer = ask(courier, "部署", "&limit=1");
    let found = &answer["messages"][0];
    assert_eq!(found["snippet"]["highlights"], json!([[6, 8]]));
    assert_eq!((&found["direction"], &found["from"]), (&json!("in"), &json!("did:web:ann")));
    // The next page continues, and its cursor is of no use to another search.
    let cursor = answer["next_cursor"].as_str().unwrap();
    let next = ask(courier, "部署", &format!("&limit=1&cursor={cursor}"));
    assert_eq!(next["messages"][0]["snippet"]["text"], texts[0]);
    assert!(next["next_cursor"].is_null() || next["messages"].as_array().unwrap().len() == 1);
    for other in ["deploy", "部署&order=oldest", "部署&workspace=beta"] {
        let (query, more) = other.split_once('&').unwrap_or((other, ""));
        let path = format!("/api/v1/search?q={}&cursor={cursor}&{more}", encoded(query));
        let answer = courier.get(path.trim_end_matches('&'));
        assert_eq!(answer.refused(400), "bad_parameter", "{other}");
        assert!(answer.text().contains("another search"), "{}", answer.text());
    }
    let ranked = ask(courier, "server OR", "&order=relevance");
    assert_eq!(ranked["messages"], json!([]), "OR is a word");
    let ranked = ask(courier, "部署", "&order=relevance&limit=1");
    let cursor = ranked["next_cursor"].as_str().unwrap();
    let rest = ask(courier, "部署", &format!("&order=relevance&limit=5&cursor={cursor}"));
    assert_ne!(ranked["messages"][0], rest["messages"][0]);
    assert_eq!(rest["messages"].as_array().unwrap().len(), 1);
}

#[test]
fn hostile_queries_are_rejected_with_the_place_or_find_nothing() {
    let courier = Courier::start();
    dispatch(&courier, "plain text; DROP TABLE messages; \u{1b}[31m\"quoted\" NEAR(a b)");
    for (query, place) in [
        ("\"open", "the quote at character 1 is not closed"),
        ("plain from:\"ann", "the quote at character 12 is not closed"),
        ("from:", "`from:` at character 1 has no value"),
        ("has:everything", "`has:` at character 1 has the unknown value"),
        ("tunnel:../..", "`tunnel:` at character 1 has the unknown value"),
        ("status:odd", "`status:` at character 1 has the unknown value"),
        ("!!!", "no word to search for"),
        ("", "no word to search for"),
    ] {
        let answer = courier.get(&format!("/api/v1/search?q={}", encoded(query)));
        assert_eq!(answer.refused(400), "bad_parameter", "{query}");
        assert!(answer.text().contains(place), "{query}: {}", answer.text());
    }
    // A query of 5,000 bytes fits into a request, one of 1 MB into no request line.
    let long = courier.get(&format!("/api/v1/search?q={}", "x".repeat(5_000)));
    assert!(long.text().contains("the query has 5000 bytes; expected at most 4096"));
    let huge =
        courier.try_request("GET", &format!("/api/v1/search?q={}", "x".repeat(1 << 20)), None);
    assert!(huge.is_ok_and(|answer| [414, 431, 400].contains(&answer.status)));
    for query in
        ["NEAR(plain text)", "plain' OR 1=1 --", "text:plain", "{text}:x", "pl^ain", "*", "a*b"]
    {
        let answer = courier.get(&format!("/api/v1/search?q={}", encoded(query)));
        assert!([200, 400].contains(&answer.status), "{query}: {}", answer.text());
    }
    assert_eq!(snippets(&courier, "drop table").len(), 1);
    // The terminal gets no escape sequence, JSON has the text as it is.
    let table = courier.cli(&["search", "quoted"]).ok();
    assert!(!table.contains('\u{1b}') && table.contains("plain text"), "{table:?}");
    let line = courier.cli(&["search", "quoted", "--format", "compact"]).ok();
    assert!(!line.contains('\u{1b}') && line.contains("\\u{1b}[31m"), "{line:?}");
    let shown = courier.cli(&["search", "quoted", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let text = shown["messages"][0]["snippet"]["text"].as_str().unwrap();
    assert!(text.contains("\u{1b}[31m"), "{text:?}");
    let failed = courier.cli(&["search", "\"open"]).failed(1);
    assert!(failed.contains("the quote at character 1"), "{failed}");
}

#[test]
fn mails_and_sent_messages_are_found_with_filters() {
    let courier = courier(&config(50));
    let mut message = body("1", "room-9", "ann", "the build is red, see https://ci.example");
    message["attachments"] =
        json!([{"name": "log.txt", "mime_type": "text/plain", "base64": "aGk="}]);
    courier.push(&message).ok();
    let mail = courier.until("/api/v1/messages", |page| page["messages"][0].is_object());
    let mail = mail["messages"][0]["id"].as_str().unwrap().to_owned();
    courier.post(&format!("/api/v1/messages/{mail}/reply"), &json!({"text": "red is fixed"})).ok();
    let found = |query: &str| {
        let answer = ask(&courier, query, "");
        let messages = answer["messages"].as_array().unwrap().iter();
        messages
            .map(|it| it["direction"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (query, expected) in [
        ("red", "out in"),
        ("red from:ann", "in"),
        ("red from:me", "out"),
        ("in:ops", "in"),
        ("in:room-9", "out in"),
        ("has:attachment", "in"),
        ("has:link", "in"),
        ("has:image", ""),
        ("log", "in"),
        ("tunnel:ci", "out in"),
        ("red tunnel:ci", "out in"),
        ("tunnel:other", ""),
        ("status:new", "in"),
        ("status:completed", ""),
    ] {
        assert_eq!(found(query), expected, "{query}");
    }
    courier.ask(&mail, "claim", json!({"agent_id": "ann"})).ok();
    assert_eq!((found("status:claimed"), found("red status:new")), ("in".into(), String::new()));
    // The list of Mails searches the whole text, and only Mails.
    let listed = courier.get("/api/v1/messages?q=see%20ci&status=claimed").ok();
    assert_eq!(listed["messages"][0]["id"], mail.as_str());
    assert_eq!(courier.get("/api/v1/messages?q=fixed").ok()["messages"], json!([]));
    let ids = courier.cli(&["search", "red", "--from", "ann", "--since", "1h", "--format", "id"]);
    assert_eq!(ids.ok().trim(), mail);
}

#[test]
fn index_catches_up_after_kill_and_a_rebuild_finds_the_same() {
    let mut courier = Courier::start();
    let texts: Vec<_> = (0..400).map(|at| format!("部署 number{at}")).collect();
    for (at, text) in texts.iter().enumerate() {
        dispatch(&courier, text);
        // Killed while the indexer works on the last messages.
        if at % 100 == 99 {
            courier = courier.restart();
        }
    }
    let all = |courier: &Courier| {
        wait_for(|| {
            let answer = ask(courier, "部署", "&limit=1000");
            if answer["complete"] == true {
                Ok(answer["messages"].clone())
            } else {
                Err("late".into())
            }
        })
    };
    let found = all(&courier);
    assert_eq!(found.as_array().unwrap().len(), texts.len());
    for at in [0, 99, 100, 399] {
        assert_eq!(snippets(&courier, &format!("number{at}")), [texts[at].clone()]);
    }
    courier.cli(&["courier", "rebuild", "--search"]).ok();
    assert_eq!(all(&courier), found);
    courier.kill();
    courier.cli(&["courier", "rebuild", "--search"]).ok();
    let courier = courier.restart();
    assert_eq!(all(&courier), found);
    // A damaged index is built again.
    let mut courier = courier;
    courier.kill();
    std::fs::write(courier.home().join("store/search.db"), "not a database at all").unwrap();
    let courier = courier.restart();
    assert_eq!(all(&courier), found);
}

#[test]
fn forgotten_words_are_neither_found_nor_in_the_files_of_the_index() {
    check_forgotten(&Courier::start());
}

fn check_forgotten(courier: &Courier) {
    let msg = chat("did:web:eve", ME, "xylophones in 机密文件");
    courier.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
    dispatch(courier, "another 文件");
    assert_eq!(snippets(courier, "文件").len(), 2);
    courier.post("/api/v1/forget", &json!({"did": "did:web:eve"})).ok();
    assert_eq!(snippets(courier, "文件"), ["another 文件"]);
    assert_eq!(snippets(courier, "xylophones"), [""; 0]);
    for gone in ["xylophones", "机密"] {
        assert!(!index_has(courier, gone), "{gone}");
    }
}
