//! Tables of replays: the actual outcome of letters, and the current chain.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::letter::{Chain, ChainDirection, LetterId, LetterStateData, LetterStatus};
use monoco_core::retry::RetryPolicy;
use monoco_store::LetterSource;

use super::*;
use crate::pipeline::config::QueueKind;
use crate::pipeline::external::exec::ExecTransport;
use crate::pipeline::external::{ExternalWorkerConfig, WhenDown, WorkerTransport};
use crate::pipeline::workers::Worker;
use crate::pipeline::workers::footer::FooterConfig;
use crate::pipeline::workers::merge::MergeConfig;
use crate::pipeline::workers::send::SendConfig;
use crate::pipeline::workers::spam::{RulePart, SpamConfig, SpamRule};
use crate::pipeline::workers::subject::SubjectConfig;
use crate::pipeline::workers::trash::TrashConfig;

const NOW: Timestamp = Timestamp::from_ms(1_790_000_000_000);

fn name(text: &str) -> WorkerName {
    text.parse().unwrap()
}

fn spam(pattern: &str) -> Arc<dyn Worker> {
    let rule = SpamRule::new("words", 5.0, RulePart::Subject, pattern).unwrap();
    Arc::new(SpamConfig::new(5.0, vec![rule]).unwrap())
}

fn external() -> Arc<dyn Worker> {
    let command = vec!["true".to_owned()];
    Arc::new(ExternalWorkerConfig {
        transport: WorkerTransport::Exec(ExecTransport { command, memory: 1 << 20 }),
        timeout: Duration::from_secs(1),
        retry: RetryPolicy::DELIVERY,
        when_down: WhenDown::Hold,
        readdress: false,
        parallel: 1,
    })
}

/// A pipeline with an outbound chain of these workers.
fn pipeline(chain: &str) -> PipelineConfig {
    let mut workers = BTreeMap::new();
    for word in chain.split(' ') {
        let worker: Arc<dyn Worker> = match word {
            "spam" => spam("cheap"),
            "strict" => spam("."),
            "block" => Arc::new(BlockConfig {
                senders: vec!["@bad.test".to_owned()],
                recipients: Vec::new(),
            }),
            "subject" => Arc::new(SubjectConfig::new("[T] {subject}").unwrap()),
            "footer" => Arc::new(FooterConfig::new("bye", None).unwrap()),
            "merge" => Arc::new(MergeConfig { window: Duration::from_secs(60), max_letters: 10 }),
            "trash" => Arc::new(TrashConfig),
            "send" => Arc::new(SendConfig { tunnel: None }),
            _ => external(),
        };
        workers.insert(name(word), worker);
    }
    let outbound = Chain(chain.split(' ').map(name).collect());
    let (inbound, tunnels, queue) = (Chain::default(), BTreeMap::new(), QueueKind::Store);
    PipelineConfig { queue, inbound, outbound, tunnels, workers }
}

/// A letter with verdicts such as `spam=trash` and a state.
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
        erased_at: None,
        id: LetterId { seq: 1, mark: 1 },
        direction: ChainDirection::Outbound,
        tunnel: None,
        source: LetterSource::Submitted {
            letter: letter.clone(),
            tunnel: None,
            key: None,
            origin: Default::default(),
        },
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

/// Returns the predicted outcome, whether it differs, and whether it frees the letter.
fn replay(chain: &str, row: &LetterRow) -> (String, bool, bool) {
    let letter = row.source.letter().unwrap();
    let outcome = run_chain(&pipeline(chain), row, letter, None, NOW);
    let mut shown = vec![outcome.state.as_str().to_owned()];
    let text = |verdict: &WorkerVerdict| format!("{}={}", verdict.worker, verdict.result.as_str());
    shown.extend(outcome.verdicts.iter().map(text));
    shown.extend(outcome.at_worker.as_ref().map(|worker| format!("at {worker}")));
    (shown.join(" "), outcome.differs(row), outcome.frees(row))
}

#[test]
fn replay_in_the_same_chain_does_not_differ() {
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
        // It reached its end and could not be sent: the replay predicts the same end.
        ("hi", "spam=pass subject=pass send=pass", dead()),
        // The operator trashed or restored it.
        ("hi", "spam=pass", trashed()),
        ("hi", "spam=pass subject=pass send=pass", trashed()),
        ("cheap", "spam=trash subject=pass send=pass", LetterStateData::Done),
        ("cheap", "spam=trash", LetterStateData::Waiting { due: NOW }),
    ] {
        let row = row(subject, had, standing);
        let (shown, differs, frees) = replay("spam subject send", &row);
        assert!(!differs && !frees, "{subject} {had} {:?}: {shown}", row.status);
    }
}

#[test]
fn changed_chain_differs() {
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
        let shown = replay(chain, &row);
        assert_eq!(shown, (wanted.to_owned(), true, frees), "{chain}: {had} {:?}", row.status);
    }
}

#[test]
fn external_workers_are_not_asked_again() {
    let kept = row("hi", "mine=pass send=pass", LetterStateData::Done);
    assert_eq!(replay("mine send", &kept), ("DONE mine=pass send=pass".to_owned(), false, false));
    let binned = row("hi", "mine=trash", trashed());
    assert_eq!(replay("mine send", &binned), ("TRASHED mine=trash".to_owned(), false, false));
    // A worker without an earlier verdict ends the replay and is new.
    let asked = row("hi", "send=pass", LetterStateData::Done);
    assert_eq!(replay("mine send", &asked), ("AWAY at mine".to_owned(), true, false));
    // The letter failed at this worker before: no difference.
    let failed = LetterRow { worker: Some(name("mine")), ..row("hi", "", dead()) };
    assert_eq!(replay("mine send", &failed), ("AWAY at mine".to_owned(), false, false));
    // The failed worker was removed.
    assert_eq!(replay("send", &failed), ("DONE send=pass".to_owned(), true, true));
    let waits = LetterRow {
        worker: Some(name("mine")),
        ..row("hi", "", LetterStateData::Away { until: NOW })
    };
    assert_eq!(replay("mine send", &waits), ("AWAY at mine".to_owned(), false, false));
}

#[test]
fn holding_workers_pass_letters_in_a_replay() {
    let one = row("hi", "merge=pass footer=pass send=pass", LetterStateData::Done);
    let shown = replay("merge footer send", &one);
    assert_eq!(shown, ("DONE merge=pass footer=pass send=pass".to_owned(), false, false));
}

#[test]
fn workers_get_the_letter_changed_by_earlier_ones() {
    // The letter has the footer already, so the second worker skips it.
    let config = pipeline("footer send");
    let mut twice = pipeline("footer again send");
    let footer = config.workers[&name("footer")].clone();
    twice.workers.insert(name("again"), footer);
    let row = row("hi", "footer=pass send=pass", LetterStateData::Done);
    let outcome = run_chain(&twice, &row, row.source.letter().unwrap(), None, NOW);
    let results: Vec<_> = outcome.verdicts.iter().map(|verdict| verdict.result).collect();
    assert_eq!(results, [Verdict::Pass, Verdict::Skip, Verdict::Pass]);
}

#[test]
fn contact_block_trashes_the_letter() {
    let row = row("hi", "block=pass send=pass", LetterStateData::Done);
    let letter = || row.source.letter().unwrap();
    let config = pipeline("block send");
    let outcome = run_chain(&config, &row, letter(), Some("bob has blocked ann"), NOW);
    assert_eq!(outcome.state, LetterState::Trashed);
    assert_eq!(outcome.verdicts[0].note.as_deref(), Some("bob has blocked ann"));
    assert_eq!(run_chain(&config, &row, letter(), None, NOW).state, LetterState::Done);
}

#[test]
fn chain_without_an_end_makes_the_letter_dead() {
    let config = pipeline("subject");
    let row = row("hi", "subject=pass", dead());
    let outcome = run_chain(&config, &row, row.source.letter().unwrap(), None, NOW);
    assert_eq!((outcome.state, outcome.differs(&row)), (LetterState::Dead, false));
}
