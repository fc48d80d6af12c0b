//! The model of [`super`]: a list of letters, moved by the state machine of [`monoco_core`].

use super::*;

/// The state of a store, as far as [`LetterCall`] can change it.
#[derive(Default)]
pub(super) struct LetterModel {
    pub(super) now: i64,
    /// In the order of sequence numbers.
    letters: Vec<ModelLetter>,
    /// Number of the letter and its text, by idempotency key.
    keys: BTreeMap<u8, (i64, u8)>,
    reserved: Option<i64>,
    next: i64,
    /// The id that the store assigned last.
    last_id: Option<LetterId>,
}

#[derive(Clone)]
pub(super) struct ModelLetter {
    pub(super) id: LetterId,
    text: String,
    original_text: String,
    /// The message that the letter was created from.
    message: Option<u8>,
    status: LetterStatus,
    worker: String,
    held_by: String,
    /// The holder of the last hand-over.
    holder: &'static str,
    verdicts: usize,
    pub(super) revision: i64,
}

impl LetterModel {
    /// Describes the result of `accept` and records the id of the letter.
    pub(super) fn record_id(&mut self, accepted: Result<AcceptResult, StoreError>) -> String {
        match accepted {
            Ok(AcceptResult::Letter { id, duplicate, .. }) => {
                self.last_id = Some(id);
                format!("{} {duplicate}", id.seq)
            }
            Err(StoreError::KeyReused(first)) => {
                let first: LetterId = first.parse().unwrap();
                format!("reused {}", first.seq)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The letter that a call selects; `None` when there are no letters.
    pub(super) fn find(&self, which: LetterNumber) -> Option<&ModelLetter> {
        self.letters.get(self.place(which))
    }

    fn place(&self, which: LetterNumber) -> usize {
        which % self.letters.len().max(1)
    }

    pub(super) fn answer(&mut self, call: &LetterCall) -> String {
        match call {
            LetterCall::Submit { key, text } => self.submit(*key, *text),
            LetterCall::Send { text } => {
                let first = self.letters.iter().rev().find(|one| one.message == Some(*text));
                match first.map(|one| one.id.seq) {
                    Some(seq) => format!("{seq} true"),
                    None => self.add(text.to_string(), Some(*text)),
                }
            }
            LetterCall::Step { which, stale, step, change } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                self.step(self.place(*which), *stale, step, *change)
            }
            LetterCall::Join { into, others } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                let others: Vec<_> = others.iter().map(|which| self.place(*which)).collect();
                self.join(self.place(*into), &others)
            }
            LetterCall::Operator { which, how } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                self.apply_operator_action(self.place(*which), *how)
            }
            LetterCall::Recall { worker_index, limit } => {
                self.recall(WORKERS[*worker_index], *limit).to_string()
            }
            LetterCall::RecallHeld { by, limit } => {
                self.recall_held(HOLDING_WORKERS[*by], *limit).to_string()
            }
            LetterCall::Release { holder } => self.release(HOLDERS[*holder]).to_string(),
            LetterCall::Purge { trashed, done, limit } => {
                self.purge(*trashed, *done, *limit).to_string()
            }
            LetterCall::AdvanceClock { secs } => {
                self.now += secs;
                String::new()
            }
            LetterCall::Reopen => String::new(),
        }
    }

    fn submit(&mut self, key: Option<u8>, text: u8) -> String {
        if let Some(key) = key
            && let Some((seq, first)) = self.keys.get(&key)
        {
            return if *first == text { format!("{seq} true") } else { format!("reused {seq}") };
        }
        let answer = self.add(text.to_string(), None);
        if let Some(key) = key {
            self.keys.insert(key, (self.next, text));
        }
        answer
    }

    fn add(&mut self, text: String, message: Option<u8>) -> String {
        self.next += 1;
        let id =
            self.last_id.take().filter(|id| id.seq == self.next).expect("the store assigned an id");
        self.letters.push(ModelLetter {
            id,
            original_text: text.clone(),
            text,
            message,
            status: LetterStatus::start(at(self.now)),
            worker: String::new(),
            held_by: String::new(),
            holder: "",
            verdicts: 0,
            revision: 1,
        });
        format!("{} false", self.next)
    }

    fn step(&mut self, place: usize, stale: bool, step: &Step, change: bool) -> String {
        if stale {
            return "conflict".to_owned();
        }
        let (now, before) = (self.now, self.letters[place].clone());
        let (status, mut one) = (before.status.clone(), before.clone());
        (one.worker, one.held_by, one.verdicts) =
            (String::new(), String::new(), before.verdicts + 1);
        let next = match step {
            Step::Wait { worker_index, secs } => {
                one.worker = WORKERS[*worker_index].to_owned();
                status.continue_chain(at(now + secs))
            }
            Step::Hold { by, secs } => {
                one.held_by = HOLDING_WORKERS[*by].to_owned();
                status.continue_chain(at(now + secs))
            }
            Step::HandOver { secs, holder } if !before.worker.is_empty() => {
                one.worker.clone_from(&before.worker);
                one.holder = HOLDERS[*holder];
                status.hand_over(at(now), at(now + secs))
            }
            Step::HandOver { .. } => Err(InvalidTransition { from: "", to: "" }),
            Step::Return { tried, secs } => {
                one.worker.clone_from(&before.worker);
                status.return_to_queue(at(now + secs), *tried)
            }
            Step::Send => status.finish(),
            Step::Unsendable => {
                one.verdicts = before.verdicts;
                let msg = chat("me", &["unknown"], "x");
                let why = plan_delivery(&msg, &AddressBook::default()).unwrap_err();
                status.mark_dead(why.to_string())
            }
            Step::Trash => status.trash("bad".to_owned()),
            Step::MarkDead => {
                one.worker.clone_from(&before.worker);
                status.mark_dead("enough".to_owned())
            }
        };
        let Ok(next) = next else { return "wrong state".to_owned() };
        if change {
            one.text = "changed".to_owned();
        }
        self.reserved = Some(now + 1);
        self.put(place, one, next)
    }

    fn put(&mut self, place: usize, mut one: ModelLetter, status: LetterStatus) -> String {
        one.status = status;
        one.revision += 1;
        let answer = format!("{} {}", one.status.standing.name().as_str(), one.revision);
        self.letters[place] = one;
        answer
    }

    fn join(&mut self, into: usize, others: &[usize]) -> String {
        let id = self.letters[into].id;
        let mut joined: Vec<_> = others.to_vec();
        joined.sort_unstable();
        joined.dedup();
        // The store checks all letters before it writes.
        for other in others {
            let fits = self.letters[*other].status.clone().join(id).is_ok() && *other != into;
            if !fits {
                return "wrong state".to_owned();
            }
        }
        let Ok(next) = self.letters[into].status.clone().continue_chain(at(self.now)) else {
            return "wrong state".to_owned();
        };
        if joined.len() < others.len() {
            return "conflict".to_owned();
        }
        for other in joined {
            let mut one = self.letters[other].clone();
            (one.worker, one.held_by) = (String::new(), String::new());
            let status = one.status.clone().join(id).expect("checked above");
            self.put(other, one, status);
        }
        let mut one = self.letters[into].clone();
        (one.worker, one.held_by, one.text) = (String::new(), String::new(), "joined".to_owned());
        self.put(into, one, next)
    }

    fn apply_operator_action(&mut self, place: usize, how: u8) -> String {
        let (now, mut one) = (at(self.now), self.letters[place].clone());
        let status = one.status.clone();
        let dead = status.standing.name() == LetterState::Dead;
        let next = match how {
            0 => status.retry(now),
            1 => status.trash("operator".to_owned()),
            2 => status.restore(now),
            _ if dead => status.retry(now),
            _ => status.restore(now),
        };
        let Ok(next) = next else { return "wrong state".to_owned() };
        if how > 0 {
            (one.worker, one.held_by) = (String::new(), String::new());
        }
        if how == 3 {
            (one.text, one.verdicts) = (one.original_text.clone(), 0);
        }
        self.put(place, one, next)
    }

    /// At most `limit` letters for which `which` is true, ordered by `key`.
    fn select<K: Ord>(
        &self,
        limit: usize,
        which: impl Fn(&ModelLetter) -> bool,
        key: impl Fn(&ModelLetter) -> K,
    ) -> Vec<usize> {
        let mut found: Vec<_> =
            (0..self.letters.len()).filter(|n| which(&self.letters[*n])).collect();
        found.sort_by_key(|n| (key(&self.letters[*n]), self.letters[*n].id.seq));
        found.truncate(limit);
        found
    }

    fn recall_all(&mut self, select: &[usize]) {
        for n in select {
            let mut one = self.letters[*n].clone();
            let next = one
                .status
                .clone()
                .continue_chain(at(self.now))
                .expect("the letter is in its chain");
            (one.worker, one.held_by) = (String::new(), String::new());
            self.put(*n, one, next);
        }
    }

    fn recall(&mut self, worker: &str, limit: usize) -> usize {
        if worker.is_empty() {
            return 0;
        }
        let mut select = self.select(limit, |one| one.worker == worker && due(one).is_some(), due);
        let left = limit - select.len();
        select.extend(self.select(left, |one| one.worker == worker && until(one).is_some(), until));
        self.recall_all(&select);
        select.len()
    }

    fn recall_held(&mut self, by: &str, limit: usize) -> usize {
        let select = self.select(limit, |one| one.held_by == by, |_| ());
        self.recall_all(&select);
        if by == "limit" {
            self.reserved = None;
        }
        select.len()
    }

    fn release(&mut self, holder: &str) -> usize {
        let is_away =
            |one: &ModelLetter| !holder.is_empty() && one.holder == holder && until(one).is_some();
        let select = self.select(100, is_away, until);
        for n in &select {
            let one = self.letters[*n].clone();
            let next =
                one.status.clone().return_to_queue(at(self.now), true).expect("the letter is AWAY");
            self.put(*n, one, next);
        }
        select.len()
    }

    fn purge(&mut self, trashed: bool, done: bool, limit: usize) -> usize {
        let newest = self.letters.iter().map(|one| one.id.seq).max();
        let mut gone = Vec::new();
        for (state, wanted) in [
            (LetterState::Trashed, trashed),
            (LetterState::Done, done),
            (LetterState::Merged, done),
        ] {
            let which = |one: &ModelLetter| {
                wanted && one.status.standing.name() == state && Some(one.id.seq) != newest
            };
            gone.extend(self.select(limit - gone.len(), which, |_| ()));
        }
        let gone: Vec<_> = gone.into_iter().map(|n| self.letters[n].id.seq).collect();
        self.letters.retain(|one| !gone.contains(&one.id.seq));
        self.keys.retain(|_, (seq, _)| !gone.contains(seq));
        gone.len()
    }

    pub(super) fn contents(&self) -> Contents {
        let letters = self.letters.iter().map(|one| {
            let rest = (&*one.text, one.verdicts, one.revision);
            describe_letter(one.id, &one.status, (&one.worker, &one.held_by), rest)
        });
        let seqs = |select: Vec<usize>| {
            select.into_iter().map(|n| self.letters[n].id.seq).collect::<Vec<_>>()
        };
        let mut lists = Vec::new();
        for worker in WORKERS {
            let is_due = |one: &ModelLetter| {
                one.worker == worker && due(one).is_some_and(|due| due <= at(self.now))
            };
            lists.push(seqs(self.select(100, is_due, due)));
            if !worker.is_empty() {
                let is_away = |one: &ModelLetter| one.worker == worker && until(one).is_some();
                lists.push(seqs(self.select(100, is_away, until)));
            }
        }
        for by in HOLDING_WORKERS {
            lists.push(seqs(self.select(100, |one| one.held_by == by, |_| ())));
        }
        let dead = |one: &ModelLetter| one.status.standing.name() == LetterState::Dead;
        lists.push(seqs(self.select(100, dead, |_| ())));
        (letters.collect(), lists, self.reserved)
    }
}

fn due(one: &ModelLetter) -> Option<Timestamp> {
    match one.status.standing {
        LetterStateData::Waiting { due } => Some(due),
        _ => None,
    }
}

fn until(one: &ModelLetter) -> Option<Timestamp> {
    match one.status.standing {
        LetterStateData::Away { until } => Some(until),
        _ => None,
    }
}
