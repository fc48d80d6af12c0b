//! `toy`: a kind of worker that exists only in tests. It is this file and one line in
//! `WORKER_KINDS`.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::letter::{
    Chain, ChainRun, ChainStop, Letter, WorkerName, WorkerResult, WorkerStep,
};
use monoco_core::time::Timestamp;

use super::super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};
use crate::config::Config;

pub const KIND: WorkerKind = WorkerKind { name: "toy", built_in: false, keys: &["word"], parse };

/// Appends a word to the text of each letter.
#[derive(Debug, PartialEq)]
struct ToyConfig {
    word: String,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    Ok(Arc::new(ToyConfig { word: section.keys.required("word")?.text()? }))
}

impl Worker for ToyConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        let data = format!("{} {}", letter.data, self.word);
        WorkerStep::Decided(WorkerResult::changed(Letter { data, ..letter.clone() }))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[("word", self.word != new.word)])
    }
}

fn pipeline(workers: &str) -> Result<crate::pipeline::config::PipelineConfig, String> {
    let text = format!("courier: {{pipeline: {{outbound: [t, send], workers: {{{workers}}}}}}}");
    Config::parse(&text, &|_| None).map(|config| config.pipeline).map_err(|error| error.to_string())
}

#[test]
fn new_kind_of_worker_needs_one_file_and_one_line() {
    let config = pipeline("t: {kind: toy, word: hello}").unwrap();
    let (names, now) = (config.outbound.0.clone(), Timestamp::from_ms(0));
    let mut run = ChainRun::new(Letter::default(), Vec::new());
    let stop = run.advance(&Chain(names), now, |name: &WorkerName, letter| {
        Some(config.workers.get(name)?.work(letter, now))
    });
    assert!(matches!(stop, ChainStop::Needs(name, WorkerAction::Send) if name.as_str() == "send"));
    assert_eq!(run.letter().data, " hello");
    assert_eq!(run.verdicts().len(), 1);

    let other = pipeline("t: {kind: toy, word: bye}").unwrap();
    let changes = config.changes(&other);
    assert_eq!(changes[0].what, "pipeline worker t: changed word");
    let error = pipeline("t: {kind: toy, wrd: hello}").unwrap_err();
    assert!(error.ends_with("unknown key `wrd`; did you mean `word`?"), "{error}");
    let error = pipeline("t: {kind: toy}").unwrap_err();
    assert_eq!(error, "courier.pipeline.workers.t.word: is missing");
}
