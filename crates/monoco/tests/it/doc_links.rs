//! Relative links of the documents lead to files and headings that exist.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::tidy::{markdown, root};

/// A document without its code, in which brackets are no links.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let outside = line.split('`').step_by(2);
            outside.for_each(|part| out.push_str(part));
            out.push('\n');
        }
    }
    out
}

/// The fragments that the headings of a document have on a forge.
fn fragments(text: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.starts_with('#')
    });
    let fragment = |heading: &str| {
        let name = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = name.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(fragment).collect()
}

/// The targets of the relative links of a document.
pub fn relative_links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let relative = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.filter(relative).map(str::to_owned).collect()
}

/// Resolves `..` without the file system, which may not have the file.
fn join(dir: &Path, target: &str) -> PathBuf {
    let mut path = dir.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

/// The broken links of the documents, given by path.
fn broken_links(
    documents: &HashMap<PathBuf, String>,
    exists: impl Fn(&Path) -> bool,
) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in documents {
        for link in relative_links(text) {
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => join(path.parent().unwrap(), file),
            };
            let has_heading = |text: &String| fragments(text).iter().any(|name| name == fragment);
            let found = match documents.get(&target) {
                Some(text) => fragment.is_empty() || has_heading(text),
                None => exists(&target),
            };
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    let mut paths = Vec::new();
    markdown(&root().join("docs"), &mut paths);
    let pages = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(pages.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    assert!(paths.len() > 20, "{paths:?}");
    let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
    let documents = paths.into_iter().map(read).collect();
    let broken = broken_links(&documents, Path::exists);
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let page = "# Top\n\n## What `x` is (not)\n\n[a](b.md#second-part) [c](#what-x-is-not) `[d](e)`\n\
                ```sh\n# Code\n[f](g)\n```\n[h](https://example.com/i) [j](../k.txt) [l](m.md)\n\
                [n](#code) [o](b.md#third)\n";
    let documents = HashMap::from([
        (PathBuf::from("/docs/a.md"), page.to_owned()),
        (PathBuf::from("/docs/b.md"), "## Second part\n".to_owned()),
    ]);
    let broken = broken_links(&documents, |path| path == Path::new("/k.txt"));
    assert_eq!(broken, ["m.md", "#code", "b.md#third"].map(|link| format!("/docs/a.md: {link}")));
}
