//! Measures the search index alone: no courier, no store, no HTTP.
//!
//! Run it with `./bench --only index` from the root of the repository. `--quick` indexes 50,000
//! messages instead of 1,000,000. Progress goes to stderr, a Markdown table to stdout.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

#[path = "../../../monoco/benches/common"]
mod common {
    #![allow(dead_code, reason = "each benchmark uses its own part of this")]

    pub mod args;
    pub mod figures;
    pub mod resources;

    /// A message that says why a measurement failed.
    pub type Error = Box<dyn std::error::Error + Send + Sync>;
    pub type Result<T> = std::result::Result<T, Error>;
}
#[path = "../../../monoco/benches/agents/messages.rs"]
#[allow(dead_code, reason = "no message is dispatched here")]
mod messages;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::Result;
use common::args::{Args, Benchmark};
use common::figures::{head, line, machine, thousands};
use common::resources::peak_bytes;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::search::{SearchDocument, SearchQuery};
use monoco_core::time::Timestamp;
use monoco_store::{
    FtsIndex, IndexedMessage, SearchBatch, SearchIndex, SearchProgress, SearchRange,
    SearchableMessage,
};

/// Messages of one commit, as the courier commits them.
const COMMIT: i64 = 1_000;

/// Hits of one page.
const PAGE: usize = 50;

/// Searches of each kind; the median counts.
const REPEATS: usize = 15;

const SEARCHES: [(&str, &str); 14] = [
    ("two characters, frequent", "部署"),
    ("five characters, nowhere", "数据库更新"),
    ("one character, frequent", "的"),
    ("one character, in one of 150", "丁"),
    ("Katakana", "サーバー"),
    ("a frequent word", "server"),
    ("a rare word", "id77777"),
    ("a word that is nowhere", "nothing"),
    ("two words and a filter", "server timeout from:ann"),
    ("a prefix", "depl*"),
    ("a prefix of one letter", "d*"),
    ("a rare prefix", "id7777*"),
    ("a frequent prefix and a rare word", "d* id77777"),
    ("a frequent character and a filter", "的 from:ann"),
];

fn main() -> ExitCode {
    let quick = "50,000 messages instead of 1,000,000";
    Benchmark { about: "The search index", quick, names: vec!["index"], run }.main()
}

fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    println!("{}", runtime.block_on(measure(args))?);
    Ok(())
}

async fn measure(args: &Args) -> Result<String> {
    let count: i64 = if args.quick { 50_000 } else { 1_000_000 };
    let dir = tempfile::tempdir_in(&args.dir)?;
    let index = FtsIndex::open(dir.path())?;
    let (mut text_bytes, mut took) = (0, Duration::ZERO);
    for first in (1..=count).step_by(usize::try_from(COMMIT)?) {
        let insert: Vec<_> =
            (first..first + COMMIT).map(|seq| message(seq, &mut text_bytes)).collect();
        let progress = SearchProgress { object: first + COMMIT - 1, ..SearchProgress::default() };
        let started = Instant::now();
        index.apply(SearchBatch { insert, remove: Vec::new(), progress }).await?;
        took += started.elapsed();
        if first % (COMMIT * 100) == 1 {
            eprintln!("{first} messages, {took:?}");
        }
    }
    let mut report = format!("{}; {} messages.\n\n", machine(), thousands(count as f64));
    report += &head(
        "search index",
        &["first 50".to_owned(), "next 50".to_owned(), "slowest of 20 pages".to_owned()],
    );
    for (what, text) in SEARCHES {
        let query = SearchQuery::parse(text, Timestamp::from_ms(0))?;
        let first = time(&index, &query, None).await?;
        let last = first.1.last().copied();
        let second = time(&index, &query, last).await?;
        let mut beyond = None;
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let (page, found) = time(&index, &query, beyond).await?;
            slowest = slowest.max(page);
            beyond = found.last().copied().or(beyond);
        }
        let cell = |took: Duration| format!("{:.2} ms", took.as_secs_f64() * 1e3);
        eprintln!("{what}: {} and {}, {} hits", cell(first.0), cell(second.0), first.1.len());
        report += &line(what, &[cell(first.0), cell(second.0), cell(slowest)]);
    }
    let started = Instant::now();
    let ranked =
        index.rank(&SearchQuery::parse("部署 失败", Timestamp::from_ms(0))?, count).await?;
    report += &format!("\nRelevance of {} hits: {:?}. ", ranked.len(), started.elapsed());
    let bytes = file_bytes(dir.path());
    report += &format!(
        "Index {:.2} of the texts ({} of {} bytes), indexed in {:.1} s; peak memory {} MiB.\n",
        bytes as f64 / text_bytes as f64,
        bytes,
        text_bytes,
        took.as_secs_f64(),
        peak_bytes(std::process::id())? >> 20,
    );
    Ok(report)
}

fn message(seq: i64, text_bytes: &mut u64) -> IndexedMessage {
    let text = messages::text(u64::try_from(seq).unwrap_or_default());
    *text_bytes += text.len() as u64;
    let document = SearchDocument {
        text,
        authors: vec!["did:web:ann".to_owned()],
        chat: vec!["did:monoco:me".to_owned()],
        ..SearchDocument::default()
    };
    let id = ObjId::of(ObjKind::Msg, &seq.to_be_bytes());
    let at = Some(Timestamp::from_ms(seq));
    let message = SearchableMessage { seq, id, at, tunnels: Some(Vec::new()), body: None };
    IndexedMessage::new(&message, &document)
}

/// The median time of a page, and its hits.
async fn time(
    index: &FtsIndex,
    query: &SearchQuery,
    beyond: Option<i64>,
) -> Result<(Duration, Vec<i64>)> {
    let range = SearchRange { beyond, newest_first: true, limit: PAGE };
    let (mut took, mut found) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let started = Instant::now();
        found = index.find(query, range).await?;
        took.push(started.elapsed());
    }
    took.sort();
    Ok((took[REPEATS / 2], found))
}

fn file_bytes(dir: &Path) -> u64 {
    let files = ["search.db", "search.db-wal"].map(|name| dir.join(name));
    files.iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum()
}
