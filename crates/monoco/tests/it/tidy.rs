//! The house: walls that stand, and documents that say what is true.
//!
//! `UPDATE_DOCS=1 cargo test -p monoco --test it tidy` writes the generated
//! documents anew.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Courier, help_pages};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All Rust files below `dir`.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 40, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! ") && first.len() > 20, "{}: {first}", file.display());
    }
}

/// The names in the `[dependencies]` of a crate.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = read(&format!("crates/{name}/Cargo.toml"));
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let lines = section.lines().skip(1).take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_walls_stand() {
    let words = [
        "jiff",
        "percent-encoding",
        "regex",
        "serde",
        "serde-saphyr",
        "serde_json",
        "serde_json_canonicalizer",
        "sha2",
        "strsim",
        "thiserror",
    ];
    assert_eq!(dependencies("core"), words, "core has no I/O, no runtime and no clock");
    for (name, wall) in [
        ("store", &["axum", "hyper", "monoco-adapters", "jiff"][..]),
        ("adapters", &["monoco-store", "rusqlite", "axum"]),
        ("monoco", &["rusqlite"]),
    ] {
        let dependencies = dependencies(name);
        for behind in wall {
            assert!(!dependencies.iter().any(|d| d == behind), "{name} must not see {behind}");
        }
    }
    let mut files = Vec::new();
    sources(&root().join("crates/core/src"), &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in
            ["SystemTime", "Instant::now", "Timestamp::now", "std::fs", "std::net", "std::env"]
        {
            let tests = file.ends_with("documented.rs");
            assert!(tests || !text.contains(word), "{} uses {word}", file.display());
        }
    }
}

#[test]
fn what_deny_toml_bans_is_not_in_the_lock_file() {
    let banned: Vec<String> = read("deny.toml")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ crate = \"")?.split('"').next())
        .map(str::to_owned)
        .collect();
    assert!(banned.len() >= 5, "{banned:?}");
    let lock = read("Cargo.lock");
    for name in banned {
        assert!(!lock.contains(&format!("name = \"{name}\"\n")), "{name} is banned and locked");
    }
}

#[test]
fn ci_runs_the_readmes_test_command_and_nothing_else() {
    let script = read(".ci/run");
    let commands: Vec<_> =
        script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(commands, ["exec ./test"]);
}

#[test]
fn the_map_is_short_and_names_rooms_that_exist() {
    let map = read("ARCHITECTURE.md");
    assert!(map.lines().count() <= 200, "{} lines", map.lines().count());
    let mut named = 0;
    for word in map.split(['`', '(', ')', ' ', '\n']) {
        if word.starts_with("crates/") && !word.contains('*') {
            assert!(root().join(word).exists(), "ARCHITECTURE.md names {word}");
            named += 1;
        }
    }
    assert!(named >= 10, "the map names {named} rooms");
}

/// Compares a generated document with the one in the tree.
fn check(path: &str, text: &str) {
    let found = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    if found == text {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(path), text).unwrap();
        return;
    }
    let line = found.lines().zip(text.lines()).position(|(a, b)| a != b);
    panic!("{path} is stale from line {:?} on; UPDATE_DOCS=1 writes it anew", line.map(|n| n + 1));
}

#[test]
fn docs_cli_md_is_what_help_says() {
    let home = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "# Commands\n\nGenerated from `--help`. Exit codes: 0 done; 1 no such thing, or not \
         possible; 2 held by\nsomebody else; 3 no courier is running; 4 the courier failed; 64 \
         not understood. Those of\n`courier start` are its own, see there.\n",
    );
    for (path, help) in help_pages(home.path()) {
        let name = [&["monoco".to_owned()], path.as_slice()].concat().join(" ");
        text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end()));
    }
    assert!(text.matches("\n## ").count() > 25);
    check("docs/cli.md", &text);
}

#[test]
fn docs_api_md_is_what_the_courier_describes() {
    let doc = Courier::start().get("/api/openapi.json").ok();
    let mut text = String::from(
        "# HTTP API\n\nGenerated from `/api/openapi.json`, which a running courier serves. \
         Loopback only; every\nroute but `/health` needs `Authorization: Bearer` with the token \
         that `monoco courier token`\nprints. Refusals are JSON `{code, message, …}`: `code` is \
         for programs and never changes,\n`message` is for people.\n",
    );
    for (path, item) in doc["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            text.push_str(&format!("\n## `{} {path}`\n\n", method.to_uppercase()));
            text.push_str(&format!("{}.\n", operation["summary"].as_str().unwrap()));
            if let Some(more) = operation["description"].as_str() {
                text.push_str(&format!("{more}\n"));
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let words = parameter["description"].as_str().unwrap_or("").trim();
                let place = parameter["in"].as_str().unwrap();
                let name = parameter["name"].as_str().unwrap();
                text.push_str(&format!("\n* `{name}` ({place}): {words}"));
            }
            if operation["parameters"].is_array() {
                text.push('\n');
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            fields(&doc, "Body", body, &mut text);
            for status in ["200", "201", "202"] {
                let answer = &operation["responses"][status]["content"]["application/json"];
                fields(&doc, "Answer", &answer["schema"], &mut text);
            }
        }
    }
    text.push_str("\n## Shapes\n");
    for name in doc["components"]["schemas"].as_object().unwrap().keys() {
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        if !text.contains(&format!(", `{name}`:")) {
            fields(&doc, "Shape", &reference, &mut text);
        }
    }
    check("docs/api.md", &text);
}

/// Lists the fields of a schema that is a reference.
fn fields(doc: &Value, title: &str, schema: &Value, text: &mut String) {
    let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) else {
        return;
    };
    let schema = &doc["components"]["schemas"][name];
    if schema["properties"].is_null() {
        return;
    }
    text.push_str(&format!("\n{title}, `{name}`:\n\n"));
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (field, about) in schema["properties"].as_object().into_iter().flatten() {
        let words = about["description"].as_str().unwrap_or("").replace('\n', " ");
        let optional = if required.contains(&Value::from(field.as_str())) { "" } else { "?" };
        let end = if words.is_empty() { String::new() } else { format!(": {words}") };
        text.push_str(&format!("* `{field}{optional}`{end}\n"));
    }
}
