//! Full-text search: time of searches, size of the index, memory, and its cost for dispatches.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::common::args::Args;
use crate::common::courier::{RunningCourier, unexpected_response};
use crate::common::drive::{Bounds, drive, median};
use crate::common::figures::{head, line, machine, thousands};
use crate::common::http::Conn;
use crate::common::resources::{peak_bytes, resident_bytes};
use crate::messages;

/// Messages of one request.
const BATCH: u64 = 500;

/// Requests of each search; the median counts.
const REPEATS: usize = 20;

/// Longest time until all messages are indexed.
const MAX_INDEXING: Duration = Duration::from_secs(3_600);

/// Producers of the comparison of rates.
const PRODUCERS: usize = 8;

/// Searches for the newest 50 messages, and one by relevance.
const SEARCHES: [(&str, &str); 10] = [
    ("two characters, frequent", "q=部署"),
    ("five characters", "q=数据库更新"),
    ("one character", "q=的"),
    ("Katakana", "q=サーバー"),
    ("a frequent word", "q=server"),
    ("a rare word", "q=id77777"),
    ("a word that is nowhere", "q=nothing"),
    ("two words and a filter", "q=server%20timeout%20from:ann"),
    ("a prefix", "q=depl*"),
    ("relevance, newest 2,000 hits", "q=部署%20失败&order=relevance"),
];

/// Measures all and returns the tables.
pub fn measure(args: &Args) -> Result<String> {
    let (count, rounds) = if args.quick { (50_000, 1) } else { (1_000_000, 5) };
    let mut report = format!(
        "{}; Monoco {}; {} messages in Chinese, Japanese and English, over HTTP.\n",
        machine(),
        env!("CARGO_PKG_VERSION"),
        thousands(count as f64),
    );
    let courier = start(&args.dir, true)?;
    let text_bytes = fill(&courier, count)?;
    let indexing = wait_until_indexed(&courier)?;
    let index_bytes = index_bytes(courier.home());
    let rows = [
        ("index, of the bytes of the texts", "≤ 1.5", ratio(index_bytes, text_bytes)),
        (
            "time until all are indexed, after the last dispatch",
            "–",
            format!("{:.1} s", indexing.as_secs_f64()),
        ),
        ("resident memory of the courier", "–", mib(resident_bytes(courier.pid())?)),
        ("peak memory of the courier", "–", mib(peak_bytes(courier.pid())?)),
    ];
    report += "\n";
    report += &head("search", &["target".to_owned(), "measured".to_owned()]);
    for (what, target, measured) in rows {
        eprintln!("{what}: {measured}");
        report += &line(what, &[target.to_owned(), measured]);
    }
    for (what, query) in SEARCHES {
        let (took, hits) = time(&courier, query)?;
        let target = if query.contains("relevance") { "–" } else { "< 10 ms" };
        let measured = format!("{:.2} ms, {hits} messages", took.as_secs_f64() * 1e3);
        eprintln!("{what}: {measured}");
        report += &line(&format!("newest 50: {what}"), &[target.to_owned(), measured]);
    }
    drop(courier);
    let (mut ratios, mut delays) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // With, without, without, with: a disk that becomes slower affects both alike.
        let (first, first_delay) = dispatch_rate(args, true)?;
        let without = dispatch_rate(args, false)?.0 + dispatch_rate(args, false)?.0;
        let (second, second_delay) = dispatch_rate(args, true)?;
        let ratio = (first + second) / without;
        eprintln!(
            "round {round}: {first:.0} and {second:.0} dispatches/s with the index, {:.0} without: \
             {ratio:.2}; all indexed after {first_delay:.1?} and {second_delay:.1?}",
            without / 2.0
        );
        ratios.push(ratio);
        delays.extend([first_delay, second_delay].map(|delay| delay.as_secs_f64()));
    }
    let (least, most) = ratios
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), it| (least.min(*it), most.max(*it)));
    let measured = format!("{:.2} ({least:.2} to {most:.2})", median(ratios).unwrap_or(0.0));
    report += &line(
        &format!("dispatch rate with the index, of that without; {PRODUCERS} producers"),
        &["≥ 0.95".to_owned(), measured],
    );
    // A busy courier indexes a part of the messages, and the others afterwards.
    report += &line(
        "time until all are indexed, after the last dispatch of such a round",
        &["–".to_owned(), format!("{:.1} s", median(delays).unwrap_or(0.0))],
    );
    Ok(report)
}

/// Starts a courier in a new home.
fn start(dir: &Path, search: bool) -> Result<RunningCourier> {
    let data = tempfile::tempdir_in(dir)?;
    let config = data.path().join("courier");
    std::fs::create_dir_all(&config)?;
    let text = format!("courier: {{storage: {{search: {search}}}}}\n");
    std::fs::write(config.join("config.yaml"), text)?;
    RunningCourier::start(data)
}

/// Dispatches messages, and returns the bytes of their texts.
fn fill(courier: &RunningCourier, count: u64) -> Result<u64> {
    let mut conn = Conn::open(courier.addr, &courier.token, "application/x-ndjson")?;
    let mut bytes = 0;
    for first in (0..count).step_by(usize::try_from(BATCH)?) {
        let (lines, more) = messages::batch(first, BATCH.min(count - first));
        let (status, answer) = conn.post("/api/v1/dispatch", lines.as_bytes())?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        bytes += more;
    }
    Ok(bytes)
}

fn wait_until_indexed(courier: &RunningCourier) -> Result<Duration> {
    let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
    let started = Instant::now();
    while started.elapsed() < MAX_INDEXING {
        let (status, answer) = conn.request("GET", "/api/v1/search?q=server&limit=1", "", b"")?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        if answer.windows(15).any(|part| part == br#""complete":true"#) {
            return Ok(started.elapsed());
        }
    }
    Err("the messages are not indexed".into())
}

/// Median time of a search, and the number of messages in its answer.
fn time(courier: &RunningCourier, query: &str) -> Result<(Duration, usize)> {
    let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
    let path = format!("/api/v1/search?{}", encode(query));
    let (mut took, mut hits) = (Vec::new(), 0);
    for _ in 0..REPEATS {
        let started = Instant::now();
        let (status, answer) = conn.request("GET", &path, "", b"")?;
        took.push(started.elapsed());
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        hits = answer.windows(9).filter(|part| part == br#""msg_id":"#).count();
    }
    took.sort();
    Ok((took[REPEATS / 2], hits))
}

/// Percent-encodes what is not ASCII.
fn encode(query: &str) -> String {
    let mut encoded = String::new();
    for byte in query.bytes() {
        if byte.is_ascii() {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Messages per second of single dispatches, and the time until all are indexed after the last one.
fn dispatch_rate(args: &Args, search: bool) -> Result<(f64, Duration)> {
    let courier = start(&args.dir, search)?;
    let measure = Duration::from_secs(if args.quick { 3 } else { 10 });
    let bounds = Bounds { warm_up: Duration::from_secs(1), measure, calls: 10_000_000 };
    let measured = drive(PRODUCERS, bounds, |worker| {
        let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
        let mut number = (worker as u64) << 32;
        Ok(move || {
            let (lines, _) = messages::batch(number, 1);
            number += 1;
            let (status, answer) = conn.post("/api/v1/dispatch", lines.trim_end().as_bytes())?;
            if status == 200 { Ok(1) } else { Err(unexpected_response(status, answer)) }
        })
    });
    let rate = measured?.rate;
    let delay = if search { wait_until_indexed(&courier)? } else { Duration::ZERO };
    Ok((rate, delay))
}

fn index_bytes(home: &Path) -> u64 {
    let files = ["search.db", "search.db-wal"].map(|name| home.join("store").join(name));
    files.iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum()
}

fn ratio(part: u64, whole: u64) -> String {
    format!("{:.2} ({} of {})", part as f64 / whole as f64, mib(part), mib(whole))
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
