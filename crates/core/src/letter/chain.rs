//! Interprets a chain: which worker a letter goes to next, and what a worker's result means.
//!
//! The interpreter performs no I/O. It runs workers that decide from the letter alone and
//! stops at the first worker that needs more; the caller does what that worker needs, records
//! the result and continues. The dispatcher and the replay both run chains this way, so that
//! a replay predicts what the dispatcher would do.

use super::{Chain, Letter, Verdict, WorkerName, WorkerVerdict};
use crate::time::Timestamp;

/// What a worker decided about a letter.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerResult {
    pub verdict: Verdict,
    /// Reason of the verdict, for the operator.
    pub note: Option<String>,
    /// The changed letter; `None` when the worker changed nothing.
    pub letter: Option<Letter>,
}

impl WorkerResult {
    pub const PASS: Self = Self { verdict: Verdict::Pass, note: None, letter: None };

    /// Passes the letter on in a changed form.
    pub fn changed(letter: Letter) -> Self {
        Self { letter: Some(letter), ..Self::PASS }
    }

    /// Passes the letter on because the worker does not apply to it.
    pub fn skip(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skip, note: Some(why.into()), letter: None }
    }

    /// Ends the chain: the letter becomes TRASHED.
    pub fn trash(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Trash, note: Some(why.into()), letter: None }
    }
}

/// What a worker does with a letter. `A` is an action that only the caller can perform.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerStep<A> {
    Decided(WorkerResult),
    Needs(A),
}

/// Why a run of a chain stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum ChainStop<A> {
    /// This worker needs the caller to act. The caller records the result and continues.
    Needs(WorkerName, A),
    /// A worker trashed the letter.
    Trashed { why: String },
    /// The letter cannot continue: the chain has no further worker, or an unknown one.
    Dead { why: String },
}

/// A letter in a chain: its current form and the verdicts so far.
#[derive(Clone, Debug)]
pub struct ChainRun {
    letter: Letter,
    changed: bool,
    verdicts: Vec<WorkerVerdict>,
    /// Verdicts that the letter had before this run.
    earlier: usize,
}

impl ChainRun {
    pub fn new(letter: Letter, verdicts: Vec<WorkerVerdict>) -> Self {
        let earlier = verdicts.len();
        Self { letter, changed: false, verdicts, earlier }
    }

    pub fn letter(&self) -> &Letter {
        &self.letter
    }

    pub fn verdicts(&self) -> &[WorkerVerdict] {
        &self.verdicts
    }

    /// Runs the workers of `chain` that the letter has not passed yet, in order, until one
    /// needs the caller or the chain ends. `work` returns `None` for an unknown worker.
    pub fn advance<A>(
        &mut self,
        chain: &Chain,
        now: Timestamp,
        mut work: impl FnMut(&WorkerName, &Letter) -> Option<WorkerStep<A>>,
    ) -> ChainStop<A> {
        // Each round records a verdict of another worker, so the chain bounds the loop.
        loop {
            let Some(name) = chain.next(&self.verdicts) else {
                let why = "no worker is left in the chain that sends or delivers the letter";
                return ChainStop::Dead { why: why.to_owned() };
            };
            match work(name, &self.letter) {
                None => return ChainStop::Dead { why: format!("there is no worker {name}") },
                Some(WorkerStep::Needs(action)) => return ChainStop::Needs(name.clone(), action),
                Some(WorkerStep::Decided(result)) => {
                    if let Some(why) = self.record(name, result, now) {
                        return ChainStop::Trashed { why };
                    }
                }
            }
        }
    }

    /// Records the result of a worker. Returns the reason when it trashed the letter, which
    /// ends the chain.
    pub fn record(
        &mut self,
        worker: &WorkerName,
        result: WorkerResult,
        at: Timestamp,
    ) -> Option<String> {
        let WorkerResult { verdict, note, letter } = result;
        if let Some(letter) = letter {
            self.replace_letter(letter);
        }
        let reason = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        self.verdicts.push(WorkerVerdict { worker: worker.clone(), result: verdict, at, note });
        (verdict == Verdict::Trash).then(|| format!("{worker}{reason}"))
    }

    /// Replaces the letter, for a worker that joins several letters into one.
    pub fn replace_letter(&mut self, letter: Letter) {
        self.changed |= letter != self.letter;
        self.letter = letter;
    }

    /// Returns the letter, if this run changed it, and the verdicts of this run.
    pub fn into_changes(mut self) -> (Option<Letter>, Vec<WorkerVerdict>) {
        let new = self.verdicts.split_off(self.earlier);
        (self.changed.then_some(self.letter), new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_790_000_000_000);

    fn name(text: &str) -> WorkerName {
        text.parse().unwrap()
    }

    fn verdict(worker: &str, result: Verdict) -> WorkerVerdict {
        WorkerVerdict { worker: name(worker), result, at: NOW, note: None }
    }

    /// Workers of the tests: `a` and `b` append their name, `skip` and `trash` decide so,
    /// and `io` needs the caller. Other names are unknown.
    fn work(worker: &WorkerName, letter: &Letter) -> Option<WorkerStep<&'static str>> {
        Some(match worker.as_str() {
            "a" | "b" => {
                let data = format!("{}{worker}", letter.data);
                WorkerStep::Decided(WorkerResult::changed(Letter { data, ..letter.clone() }))
            }
            "skip" => WorkerStep::Decided(WorkerResult::skip("not a mail")),
            "trash" => WorkerStep::Decided(WorkerResult::trash("spam")),
            "io" => WorkerStep::Needs("send"),
            _ => return None,
        })
    }

    #[test]
    fn chain_runs_each_worker_once_until_one_needs_the_caller_or_ends_it() {
        let dead = |why: &str| ChainStop::Dead { why: why.to_owned() };
        let no_end = "no worker is left in the chain that sends or delivers the letter";
        for (chain, earlier, stop, data, verdicts) in [
            ("a b io", "", ChainStop::Needs(name("io"), "send"), "ab", "a pass, b pass"),
            ("a b io", "a", ChainStop::Needs(name("io"), "send"), "b", "a pass, b pass"),
            ("io a", "a", ChainStop::Needs(name("io"), "send"), "", "a pass"),
            ("skip io", "", ChainStop::Needs(name("io"), "send"), "", "skip skip"),
            (
                "a trash b io",
                "",
                ChainStop::Trashed { why: "trash: spam".to_owned() },
                "a",
                "a pass, trash trash",
            ),
            ("a b", "", dead(no_end), "ab", "a pass, b pass"),
            ("a", "a", dead(no_end), "", "a pass"),
            ("", "", dead(no_end), "", ""),
            ("a gone io", "", dead("there is no worker gone"), "a", "a pass"),
        ] {
            let names = |text: &str| text.split_whitespace().map(name).collect::<Vec<_>>();
            let earlier: Vec<_> =
                names(earlier).iter().map(|one| verdict(one.as_str(), Verdict::Pass)).collect();
            let mut run = ChainRun::new(Letter::default(), earlier.clone());
            assert_eq!(run.advance(&Chain(names(chain)), NOW, work), stop, "{chain}");
            let shown: Vec<_> = run
                .verdicts()
                .iter()
                .map(|one| format!("{} {}", one.worker, one.result.as_str()))
                .collect();
            assert_eq!((run.letter().data.as_str(), shown.join(", ").as_str()), (data, verdicts));
            let (letter, new) = run.into_changes();
            assert_eq!(letter.is_some(), !data.is_empty(), "{chain}");
            assert_eq!(new.len() + earlier.len(), shown.len(), "{chain}");
        }
    }

    #[test]
    fn chain_continues_behind_a_recorded_result() {
        let chain = Chain(["io", "a", "trash"].map(name).to_vec());
        let mut run = ChainRun::new(Letter::default(), Vec::new());
        assert_eq!(run.advance(&chain, NOW, work), ChainStop::Needs(name("io"), "send"));
        assert_eq!(run.record(&name("io"), WorkerResult::PASS, NOW), None);
        let trashed = ChainStop::Trashed { why: "trash: spam".to_owned() };
        assert_eq!(run.advance(&chain, NOW, work), trashed);
        assert_eq!(run.letter().data, "a");
        let mut run = ChainRun::new(Letter::default(), Vec::new());
        let why = run.record(&name("io"), WorkerResult::trash("no"), NOW);
        assert_eq!(why.as_deref(), Some("io: no"));
    }
}
