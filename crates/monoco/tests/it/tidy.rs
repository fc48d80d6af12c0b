//! Structure and language of the repository: crate dependencies, module docs, names,
//! banned words, and generated documents that match the program.
//!
//! `UPDATE_DOCS=1 cargo test -p monoco --test it tidy` regenerates the documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::help_pages;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn read(path: &str) -> String {
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

/// Every Rust file of the workspace with its text; paths are relative to the root.
fn rust_files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 40, "{files:?}");
    let relative = |path: &Path| path.strip_prefix(root()).unwrap().to_owned();
    files.iter().map(|path| (relative(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// Fails with all findings at once, one per line.
fn assert_none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}:\n{}", findings.join("\n"));
}

#[test]
fn every_file_starts_with_module_docs() {
    let mut findings = Vec::new();
    for (path, text) in rust_files() {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") || first.len() <= 20 {
            findings.push(format!("{}: {first}", path.display()));
        }
    }
    assert_none(&findings, "a file starts with `//!` and a sentence that says what it does");
}

#[test]
fn public_type_names_are_unique_in_the_workspace() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let kinds = ["struct", "enum", "trait", "type"];
    for (path, text) in rust_files() {
        let path = path.display().to_string();
        let is_test = ["/tests", "/benches/", "/conformance/"].iter().any(|dir| path.contains(dir));
        for line in text.lines().filter(|_| !is_test) {
            let mut words =
                line.split([' ', '<', '(', '{', ';', ':', '=']).filter(|w| !w.is_empty());
            let is_public = words.next() == Some("pub");
            let mut words = words.skip_while(|word| {
                word.starts_with(char::is_lowercase) && !kinds.contains(word) || word.ends_with(')')
            });
            if let (true, Some(kind), Some(name)) = (is_public, words.next(), words.next())
                && kinds.contains(&kind)
            {
                places.entry(name.to_owned()).or_default().push(path.clone());
            }
        }
    }
    assert!(places.len() > 200, "{} public types found", places.len());
    let repeated = places.iter().filter(|(_, paths)| paths.len() > 1);
    let findings: Vec<_> = repeated.map(|(name, paths)| format!("{name}: {paths:?}")).collect();
    assert_none(&findings, "put the noun into the name, so that each public type has its own");
}

/// The doc comments of a file: the first line's number and the text of each block.
fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let Some(words) = line.trim_start().strip_prefix("///") else {
            is_open = false;
            continue;
        };
        match blocks.last_mut().filter(|_| is_open) {
            Some((_, block)) => block.push_str(words),
            None => blocks.push((at + 1, words.to_owned())),
        }
        is_open = true;
    }
    blocks
}

#[test]
fn doc_comments_have_at_least_four_words() {
    let mut findings = Vec::new();
    for (path, text) in rust_files() {
        for (line, words) in doc_comments(&text) {
            if words.split_whitespace().count() < 4 {
                findings.push(format!("{}:{line}: {}", path.display(), words.trim()));
            }
        }
    }
    assert_none(&findings, "delete a comment that repeats the name, or say what the name does not");
}

#[test]
fn texts_name_the_component_instead_of_a_pronoun() {
    // Joined here, so that this file does not contain what it bans.
    let banned = ["some", "any", "every", "no"].map(|start| format!("{start}body"));
    let pronouns = ["who", "h", "h"].iter().zip(["ever", "e", "is"]);
    let pronouns = pronouns.map(|(start, end)| format!("{start}{end}"));
    let banned: Vec<String> = banned.into_iter().chain(pronouns).collect();
    let mut documents = Vec::new();
    markdown(&root(), &mut documents);
    let texts = documents.iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    let mut findings = Vec::new();
    for (path, text) in rust_files().into_iter().chain(texts) {
        // Tests may quote addresses and vectors that others chose: only their comments count.
        let mut is_test = path.components().any(|part| part.as_os_str() == "tests")
            || path.file_stem().is_some_and(|name| name == "tests");
        for (at, line) in text.lines().enumerate() {
            is_test |= line.trim() == "#[cfg(test)]";
            if is_test && !line.trim_start().starts_with("//") {
                continue;
            }
            let lower = line.to_lowercase();
            let mut words = lower.split(|c: char| !c.is_alphanumeric() && c != '\'');
            if words.any(|word| banned.iter().any(|banned| banned == word)) {
                findings.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert_none(&findings, "write who or what acts: the courier, the sender, the caller, the user");
}

/// All Markdown files of the project below `dir`.
pub fn markdown(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            markdown(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
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
fn crates_depend_only_on_what_their_role_allows() {
    let core = [
        "aho-corasick",
        "icu_normalizer",
        "jiff",
        "percent-encoding",
        "regex",
        "secrecy",
        "serde",
        "serde-saphyr",
        "serde_json",
        "serde_json_canonicalizer",
        "sha2",
        "strsim",
        "thiserror",
    ];
    assert_eq!(dependencies("core"), core, "core has no I/O, no runtime and no MIME");
    for (name, forbidden) in [
        ("mime", &["monoco", "tokio", "rusqlite"][..]),
        ("fs", &["monoco", "tokio"]),
        ("sim", &["monoco", "reqwest", "rusqlite"]),
        ("store", &["axum", "hyper", "monoco-adapters", "monoco-mailbox", "monoco-mime"]),
        ("adapters", &["monoco-store", "monoco-mailbox", "rusqlite", "axum"]),
        ("mailbox", &["monoco-store", "monoco-adapters", "axum", "hyper", "rusqlite"]),
        ("courier", &["clap", "monoco-sim", "rusqlite"]),
        ("monoco", &["axum", "rusqlite"]),
    ] {
        for dependency in dependencies(name) {
            let is_forbidden = |name: &&str| match *name {
                "monoco" => dependency.starts_with("monoco"),
                name => dependency == name,
            };
            let found = forbidden.iter().find(|name| is_forbidden(name));
            assert_eq!(found, None, "crate {name} must not depend on {dependency}");
        }
    }
    for (path, text) in rust_files() {
        let is_test_support = path.ends_with("state_tables.rs");
        if !path.starts_with("crates/core/src") || is_test_support {
            continue;
        }
        for word in
            ["SystemTime", "Instant::now", "Timestamp::now", "std::fs", "std::net", "std::env"]
        {
            assert!(
                !text.contains(word),
                "{} uses {word}; core gets facts passed in",
                path.display()
            );
        }
    }
}

#[test]
fn crates_banned_by_deny_toml_are_not_locked() {
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

/// cargo strips a binary only when its package has no settings of its own.
#[test]
fn release_binary_has_no_package_settings_that_keep_its_symbols() {
    let manifest = read("Cargo.toml");
    let release = manifest.split("[profile.release]\n").nth(1).unwrap();
    assert!(release.contains("strip = \"symbols\""), "{release}");
    for line in release.lines() {
        assert!(!line.starts_with("monoco.") && !line.contains("package.monoco]"), "{line}");
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
fn architecture_is_short_and_its_paths_exist() {
    let map = read("ARCHITECTURE.md");
    assert!(map.lines().count() <= 270, "{} lines", map.lines().count());
    let mut named = 0;
    for word in map.split(['`', '(', ')', ' ', '\n']) {
        if word.starts_with("crates/") && !word.contains('*') {
            assert!(root().join(word).exists(), "ARCHITECTURE.md names {word}");
            named += 1;
        }
    }
    assert!(named >= 10, "ARCHITECTURE.md names {named} paths");
}

#[test]
fn every_quirk_of_a_server_has_a_test_that_exists() {
    let page = read("docs/quirks.md");
    let sources: Vec<_> = rust_files().into_iter().map(|(_, text)| text).collect();
    let is_test = |name: &str| sources.iter().any(|text| text.contains(&format!("fn {name}(")));
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| test |"));
    let rows: Vec<_> = rows.filter(|line| !line.starts_with("| ---")).collect();
    assert!(rows.len() > 20, "{rows:?}");
    let mut findings = Vec::new();
    for row in rows {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            findings.push(format!("no test: {row}"));
        }
        findings.extend(names.iter().filter(|name| !is_test(name)).map(ToString::to_string));
    }
    assert_none(&findings, "docs/quirks.md names tests that do not exist");
}

/// Compares a generated document with the one in the tree.
pub fn check(path: &str, text: &str) {
    let found = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    if found == text {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(path), text).unwrap();
        return;
    }
    let line = found.lines().zip(text.lines()).position(|(a, b)| a != b);
    panic!(
        "{path} is stale from line {:?}; run the tests with UPDATE_DOCS=1 to regenerate it",
        line.map(|n| n + 1)
    );
}

#[test]
fn docs_cli_md_matches_the_help_texts() {
    let home = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "# Commands\n\nGenerated from `--help`. The exit codes are at the end of the first section.\n",
    );
    for (path, help) in help_pages(home.path()) {
        let name = [&["monoco".to_owned()], path.as_slice()].concat().join(" ");
        text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end()));
    }
    assert!(text.matches("\n## ").count() > 25);
    check("docs/cli.md", &text);
}
