//! How letters would fare, as a table: what they were, what the chain is now.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_core::letter::{Chain, ChainDirection, LetterId, LetterStateData, LetterStatus};
use monoco_core::retry::RetryPolicy;
use monoco_store::LetterSource;

use super::*;
use crate::pipeline::config::{ExternalWorkerConfig, MergeConfig, QueueKind, WhenDown};
use crate::pipeline::workers::block::BlockConfig;
use crate::pipeline::workers::footer::FooterConfig;
use crate::pipeline::workers::spam::{RulePattern, SpamConfig, SpamRule};
use crate::pipeline::workers::subject::SubjectConfig;

const NOW: Timestamp = Timestamp::from_ms(1_790_000_000_000);

fn name(text: &str) -> WorkerName {
    text.parse().unwrap()
}

fn spam(pattern: &str) -> WorkerConfig {
    let rule = SpamRule::new("words", 5.0, RulePattern::Subject, pattern).unwrap();
    WorkerConfig::Spam(SpamConfig::new(5.0, vec![rule]).unwrap())
}

fn outside() -> WorkerConfig {
    let how = WorkerTransport::Exec { command: vec!["true".to_owned()], memory: 1 << 20 };
    WorkerConfig::Outside(Box::new(ExternalWorkerConfig {
        how,
        timeout: Duration::from_secs(1),
        retry: RetryPolicy::DELIVERY,
        when_down: WhenDown::Hold,
        readdress: false,
        at_once: 1,
    }))
}

/// A post office with an outbound chain of these.
fn office(chain: &str) -> PipelineConfig {
    let mut workers = BTreeMap::new();
    for word in chain.split(' ') {
        let worker = match word {
            "spam" => spam("cheap"),
            "strict" => spam("."),
            "block" => WorkerConfig::Block(BlockConfig {
                senders: vec!["@bad.test".to_owned()],
                recipients: Vec::new(),
            }),
            "subject" => WorkerConfig::Subject(SubjectConfig::new("[T] {subject}").unwrap()),
            "footer" => WorkerConfig::Footer(FooterConfig::new("bye", None).unwrap()),
            "merge" => {
                WorkerConfig::Merge(MergeConfig { window: Duration::from_secs(60), most: 10 })
            }
            "trash" => WorkerConfig::Trash,
            "send" => WorkerConfig::Send { tunnel: None },
            _ => outside(),
        };
        workers.insert(name(word), worker);
    }
    let outbound = Chain(chain.split(' ').map(name).collect());
    let (inbound, tunnels, queue) = (Chain::default(), BTreeMap::new(), QueueKind::Store);
    PipelineConfig { queue, inbound, outbound, tunnels, workers }
}

/// A letter that fared so: `spam=trash`, and where it stands.
fn row(subject: &str, had: &str, standing: LetterStateData) -> LetterRow {
    let letter = Letter {
        from: "ann@x.test".to_owned(),
        to: vec!["bob@x.test".to_owned()],
        data: format!("Subject: {subject}\n\ntext\n"),
        ..Letter::default()
    };
    let verdict = |word: &str| {
        let (worker, result) = word.split_once('=').unwrap();
        let result = match result {
            "pass" => Verdict::Pass,
            "skip" => Verdict::Skip,
            _ => Verdict::Trash,
        };
        WorkerVerdict { worker: name(worker), result, at: NOW, note: None }
    };
    LetterRow {
        id: LetterId { seq: 1, mark: 1 },
        direction: ChainDirection::Outbound,
        tunnel: None,
        source: LetterSource::Submitted { letter: letter.clone(), tunnel: None, key: None },
        letter,
        verdicts: had.split_whitespace().map(verdict).collect(),
        status: LetterStatus { standing, attempts: 0 },
        worker: None,
        held_by: None,
        key: None,
        failure: None,
        became: None,
        revision: 1,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn trashed() -> LetterStateData {
    LetterStateData::Trashed { why: "x".to_owned() }
}

fn dead() -> LetterStateData {
    LetterStateData::Dead { why: "x".to_owned() }
}

/// How it would fare, whether that is another way, and whether it would get free.
fn look(chain: &str, row: &LetterRow) -> (String, bool, bool) {
    let letter = row.source.letter().unwrap();
    let fate = walk(&office(chain), row, letter, None, NOW);
    let mut told = vec![fate.state.as_str().to_owned()];
    let said = |passed: &WorkerVerdict| format!("{}={}", passed.worker, passed.result.as_str());
    told.extend(fate.verdicts.iter().map(said));
    told.extend(fate.at_worker.as_ref().map(|worker| format!("at {worker}")));
    (told.join(" "), fate.differs(row), fate.frees(row))
}

#[test]
fn what_fared_by_the_same_chain_does_not_differ() {
    for (subject, had, standing) in [
        ("hi", "spam=pass subject=pass send=pass", LetterStateData::Done),
        ("cheap", "spam=trash", trashed()),
        ("hi", "spam=pass", LetterStateData::Waiting { due: NOW }),
        ("hi", "", LetterStateData::Waiting { due: NOW }),
        (
            "hi",
            "spam=pass subject=pass",
            LetterStateData::Merged { into: LetterId { seq: 2, mark: 2 } },
        ),
        // It came to its end and could not be sent: no other verdict helps it.
        ("hi", "spam=pass subject=pass send=pass", dead()),
        // A person threw it away, or took it out of the bin.
        ("hi", "spam=pass", trashed()),
        ("hi", "spam=pass subject=pass send=pass", trashed()),
        ("cheap", "spam=trash subject=pass send=pass", LetterStateData::Done),
        ("cheap", "spam=trash", LetterStateData::Waiting { due: NOW }),
    ] {
        let row = row(subject, had, standing);
        let (told, differs, frees) = look("spam subject send", &row);
        assert!(!differs && !frees, "{subject} {had} {:?}: {told}", row.status);
    }
}

#[test]
fn a_changed_chain_shows_what_would_differ() {
    let done = || LetterStateData::Done;
    for (chain, subject, had, standing, wanted, frees) in [
        ("strict send", "hi", "send=pass", done(), "TRASHED strict=trash", false),
        ("spam send", "hi", "send=pass", done(), "DONE spam=pass send=pass", false),
        ("send", "hi", "spam=pass send=pass", done(), "DONE send=pass", false),
        ("send", "cheap", "spam=trash", trashed(), "DONE send=pass", true),
        ("spam send", "hi", "spam=trash", trashed(), "DONE spam=pass send=pass", true),
        ("strict send", "cheap", "spam=trash", trashed(), "TRASHED strict=trash", false),
        ("subject trash", "hi", "send=pass", done(), "TRASHED subject=pass trash=trash", false),
        (
            "strict send",
            "hi",
            "strict=pass",
            LetterStateData::Waiting { due: NOW },
            "TRASHED strict=trash",
            false,
        ),
        ("send", "hi", "spam=pass", LetterStateData::Waiting { due: NOW }, "DONE send=pass", false),
    ] {
        let row = row(subject, had, standing);
        let told = look(chain, &row);
        assert_eq!(told, (wanted.to_owned(), true, frees), "{chain}: {had} {:?}", row.status);
    }
}

#[test]
fn workers_outside_are_not_asked_again() {
    let kept = row("hi", "mine=pass send=pass", LetterStateData::Done);
    assert_eq!(look("mine send", &kept), ("DONE mine=pass send=pass".to_owned(), false, false));
    let binned = row("hi", "mine=trash", trashed());
    assert_eq!(look("mine send", &binned), ("TRASHED mine=trash".to_owned(), false, false));
    // One that was never asked ends the walk, and is new.
    let asked = row("hi", "send=pass", LetterStateData::Done);
    assert_eq!(look("mine send", &asked), ("AWAY at mine".to_owned(), true, false));
    // It failed there before: nothing is new.
    let failed = LetterRow { worker: Some(name("mine")), ..row("hi", "", dead()) };
    assert_eq!(look("mine send", &failed), ("AWAY at mine".to_owned(), false, false));
    // The worker that failed is gone.
    assert_eq!(look("send", &failed), ("DONE send=pass".to_owned(), true, true));
    let waits = LetterRow {
        worker: Some(name("mine")),
        ..row("hi", "", LetterStateData::Away { until: NOW })
    };
    assert_eq!(look("mine send", &waits), ("AWAY at mine".to_owned(), false, false));
}

#[test]
fn workers_that_keep_letters_let_them_pass() {
    let one = row("hi", "merge=pass footer=pass send=pass", LetterStateData::Done);
    let told = look("merge footer send", &one);
    assert_eq!(told, ("DONE merge=pass footer=pass send=pass".to_owned(), false, false));
}

#[test]
fn the_walk_goes_on_with_what_the_worker_before_made() {
    // The footer is there already, so the second one skips it.
    let settings = office("footer send");
    let mut twice = office("footer again send");
    let footer = settings.workers[&name("footer")].clone();
    twice.workers.insert(name("again"), footer);
    let row = row("hi", "footer=pass send=pass", LetterStateData::Done);
    let fate = walk(&twice, &row, row.source.letter().unwrap(), None, NOW);
    let said: Vec<_> = fate.verdicts.iter().map(|passed| passed.result).collect();
    assert_eq!(said, [Verdict::Pass, Verdict::Skip, Verdict::Pass]);
}

#[test]
fn whom_a_contact_blocks_goes_no_further() {
    let row = row("hi", "block=pass send=pass", LetterStateData::Done);
    let letter = || row.source.letter().unwrap();
    let settings = office("block send");
    let fate = walk(&settings, &row, letter(), Some("bob has blocked ann".to_owned()), NOW);
    assert_eq!(fate.state, LetterState::Trashed);
    assert_eq!(fate.verdicts[0].note.as_deref(), Some("bob has blocked ann"));
    assert_eq!(walk(&settings, &row, letter(), None, NOW).state, LetterState::Done);
}

#[test]
fn a_chain_without_an_end_ends_nowhere() {
    let settings = office("subject");
    let row = row("hi", "subject=pass", dead());
    let fate = walk(&settings, &row, row.source.letter().unwrap(), None, NOW);
    assert_eq!((fate.state, fate.differs(&row)), (LetterState::Dead, false));
}
