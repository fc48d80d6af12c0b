//! Chinese pages (`X.zh-CN.md`) have the headings and the code blocks of their English pages
//! (`X.md`), and each page links to the other.

use std::path::{Path, PathBuf};

use crate::doc_links::relative_links;
use crate::tidy::{markdown, root};

const ENDING: &str = ".zh-CN.md";

/// English pages that must have a Chinese one as soon as they exist.
const TRANSLATED: [&str; 3] = ["README.md", "docs/tunnels/dingtalk.md", "docs/tunnels/lark.md"];

/// What two translations of a page have in common.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageOutline {
    /// The levels of the headings, in order.
    headings: Vec<usize>,
    /// The code blocks with their fences, in order.
    blocks: Vec<String>,
}

fn outline(text: &str) -> PageOutline {
    let mut found = PageOutline::default();
    let mut open = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            open = !open;
            match (open, found.blocks.last_mut()) {
                (false, Some(block)) => block.push_str(line),
                _ => found.blocks.push(line.to_owned()),
            }
        } else if open {
            found.blocks.last_mut().unwrap().push_str(line);
        } else {
            let level = line.bytes().take_while(|byte| *byte == b'#').count();
            if level > 0 && line[level..].starts_with(' ') {
                found.headings.push(level);
            }
        }
    }
    assert!(!open, "a code block has no end");
    found
}

/// Returns the first difference between two pages, for an error.
fn difference(english: &str, chinese: &str) -> Option<String> {
    let (english, chinese) = (outline(english), outline(chinese));
    if english.headings != chinese.headings {
        let (expected, found) = (english.headings, chinese.headings);
        return Some(format!("heading levels are {found:?}, expected {expected:?}"));
    }
    let pairs = english.blocks.iter().zip(&chinese.blocks);
    if let Some((expected, found)) = pairs.into_iter().find(|(english, chinese)| english != chinese)
    {
        return Some(format!("found the code block\n{found}expected\n{expected}"));
    }
    let (expected, found) = (english.blocks.len(), chinese.blocks.len());
    (expected != found).then(|| format!("{found} code blocks, expected {expected}"))
}

fn read_page(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn chinese_pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    markdown(&root(), &mut pages);
    pages.retain(|path| path.to_string_lossy().ends_with(ENDING));
    pages
}

#[test]
fn chinese_pages_have_the_headings_and_code_of_the_english_ones() {
    for path in chinese_pages() {
        let english = path.to_string_lossy().replace(ENDING, ".md");
        let (english, chinese) = (read_page(Path::new(&english)), read_page(&path));
        if let Some(difference) = difference(&english, &chinese) {
            panic!("{} differs from its English page: {difference}", path.display());
        }
    }
}

#[test]
fn every_translated_page_has_a_partner_that_it_links_to() {
    let pages = chinese_pages();
    for name in TRANSLATED.map(|name| root().join(name)).iter().filter(|path| path.exists()) {
        let chinese = name.with_extension(ENDING.trim_start_matches('.'));
        assert!(pages.contains(&chinese), "{} is missing", chinese.display());
    }
    assert!(pages.len() >= 2, "{pages:?}");
    for path in pages {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let partner = name.replace(ENDING, ".md");
        let (english, chinese) = (read_page(&path.with_file_name(&partner)), read_page(&path));
        for (text, from, to) in [(english, &partner, &name), (chinese, &name, &partner)] {
            assert!(relative_links(&text).contains(to), "{from} has no link to {to}");
        }
    }
}

#[test]
fn a_page_that_is_out_of_step_is_found() {
    let page = "# One\n\n```sh\n# not a heading\nls\n```\n\n## Two\n\n1. step\n\n   ```yaml\n   a: 1\n   ```\n";
    assert_eq!(outline(page).headings, [1, 2]);
    assert_eq!(outline(page).blocks.len(), 2);
    assert_eq!(difference(page, &page.replace("One", "一").replace("step", "步骤")), None);
    for (changed, expected) in [
        (page.replace("## Two", "### 二"), "heading levels are [1, 3], expected [1, 2]"),
        (page.replace("## Two\n", ""), "heading levels are [1], expected [1, 2]"),
        (page.replace("ls\n", "ls \n"), "found the code block\n```sh\n# not a heading\nls \n"),
        (page.replace("```sh", "```"), "found the code block"),
        (page.replace("   ```yaml\n   a: 1\n   ```\n", ""), "1 code blocks, expected 2"),
        (format!("{page}```sh\nls\n```\n"), "3 code blocks, expected 2"),
    ] {
        let found = difference(page, &changed).unwrap();
        assert!(found.starts_with(expected), "{found}");
    }
}
