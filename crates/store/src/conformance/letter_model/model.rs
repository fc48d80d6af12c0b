//! The model: a plain list of letters, and every step by [`monoco_core`].

use super::*;

/// The whole store, as far as the calls can see it.
#[derive(Default)]
pub(super) struct Model {
    pub(super) now: i64,
    /// In the order of their numbers.
    letters: Vec<Kept>,
    /// What the key and the message of each number stands for.
    keys: BTreeMap<u8, (i64, u8)>,
    booked: Option<i64>,
    next: i64,
    /// The name that the store gave last.
    named: Option<LetterId>,
}

#[derive(Clone)]
pub(super) struct Kept {
    pub(super) id: LetterId,
    text: String,
    came_as: String,
    /// The message it was made of.
    message: Option<u8>,
    journey: LetterStatus,
    desk: String,
    kept_by: String,
    had: usize,
    pub(super) revision: i64,
}

impl Model {
    /// Says what became of a message, and remembers its name.
    pub(super) fn name(&mut self, accepted: Result<AcceptResult, StoreError>) -> String {
        match accepted {
            Ok(AcceptResult::Letter { id, duplicate, .. }) => {
                self.named = Some(id);
                format!("{} {duplicate}", id.seq)
            }
            Err(StoreError::KeyReused(first)) => {
                let first: LetterId = first.parse().unwrap();
                format!("reused {}", first.seq)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The letter that a call means, if there is any.
    pub(super) fn find(&self, which: Which) -> Option<&Kept> {
        self.letters.get(self.place(which))
    }

    fn place(&self, which: Which) -> usize {
        which % self.letters.len().max(1)
    }

    pub(super) fn answer(&mut self, call: &Call) -> String {
        match call {
            Call::Door { key, text } => self.door(*key, *text),
            Call::Post { text } => {
                let first = self.letters.iter().rev().find(|one| one.message == Some(*text));
                match first.map(|one| one.id.seq) {
                    Some(seq) => format!("{seq} true"),
                    None => self.add(text.to_string(), Some(*text)),
                }
            }
            Call::Step { which, stale, step, change } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                self.step(self.place(*which), *stale, step, *change)
            }
            Call::Join { into, others } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                let others: Vec<_> = others.iter().map(|which| self.place(*which)).collect();
                self.join(self.place(*into), &others)
            }
            Call::Hand { which, how } => {
                if self.letters.is_empty() {
                    return String::new();
                }
                self.hand(self.place(*which), *how)
            }
            Call::Recall { desk, limit } => self.recall(DESKS[*desk], *limit).to_string(),
            Call::RecallKept { by, limit } => self.recall_kept(KEEPERS[*by], *limit).to_string(),
            Call::Release { desk } => self.release(DESKS[*desk]).to_string(),
            Call::Purge { trashed, done, limit } => self.purge(*trashed, *done, *limit).to_string(),
            Call::Tick { secs } => {
                self.now += secs;
                String::new()
            }
            Call::Reopen => String::new(),
        }
    }

    fn door(&mut self, key: Option<u8>, text: u8) -> String {
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
        let id = self.named.take().filter(|id| id.seq == self.next).expect("named by the store");
        self.letters.push(Kept {
            id,
            came_as: text.clone(),
            text,
            message,
            journey: LetterStatus::start(at(self.now)),
            desk: String::new(),
            kept_by: String::new(),
            had: 0,
            revision: 1,
        });
        format!("{} false", self.next)
    }

    fn step(&mut self, place: usize, stale: bool, step: &Step, change: bool) -> String {
        if stale {
            return "conflict".to_owned();
        }
        let (now, before) = (self.now, self.letters[place].clone());
        let (journey, mut one) = (before.journey.clone(), before.clone());
        (one.desk, one.kept_by, one.had) = (String::new(), String::new(), before.had + 1);
        let next = match step {
            Step::Wait { desk, secs } => {
                one.desk = DESKS[*desk].to_owned();
                journey.continue_chain(at(now + secs))
            }
            Step::Keep { by, secs } => {
                one.kept_by = KEEPERS[*by].to_owned();
                journey.continue_chain(at(now + secs))
            }
            Step::HandOver { secs } if !before.desk.is_empty() => {
                one.desk.clone_from(&before.desk);
                journey.hand_over(at(now), at(now + secs))
            }
            Step::HandOver { .. } => Err(InvalidTransition { from: "", to: "" }),
            Step::PutBack { tried, secs } => {
                one.desk.clone_from(&before.desk);
                journey.return_to_queue(at(now + secs), *tried)
            }
            Step::Send => journey.finish(),
            Step::Unsendable => {
                one.had = before.had;
                let msg = chat("me", &["nobody"], "x");
                let why = plan_delivery(&msg, &AddressBook::default()).unwrap_err();
                journey.mark_dead(why.to_string())
            }
            Step::Trash => journey.trash("bad".to_owned()),
            Step::GiveUp => {
                one.desk.clone_from(&before.desk);
                journey.mark_dead("enough".to_owned())
            }
        };
        let Ok(next) = next else { return "wrong state".to_owned() };
        if change {
            one.text = "changed".to_owned();
        }
        self.booked = Some(now + 1);
        self.put(place, one, next)
    }

    fn put(&mut self, place: usize, mut one: Kept, journey: LetterStatus) -> String {
        one.journey = journey;
        one.revision += 1;
        let answer = format!("{} {}", one.journey.standing.name().as_str(), one.revision);
        self.letters[place] = one;
        answer
    }

    fn join(&mut self, into: usize, others: &[usize]) -> String {
        let id = self.letters[into].id;
        let mut joined: Vec<_> = others.to_vec();
        joined.sort_unstable();
        joined.dedup();
        // Looked at one after the other, before anything is written.
        for other in others {
            let fits = self.letters[*other].journey.clone().join(id).is_ok() && *other != into;
            if !fits {
                return "wrong state".to_owned();
            }
        }
        let Ok(next) = self.letters[into].journey.clone().continue_chain(at(self.now)) else {
            return "wrong state".to_owned();
        };
        if joined.len() < others.len() {
            return "conflict".to_owned();
        }
        for other in joined {
            let mut one = self.letters[other].clone();
            (one.desk, one.kept_by) = (String::new(), String::new());
            let journey = one.journey.clone().join(id).expect("it was asked before");
            self.put(other, one, journey);
        }
        let mut one = self.letters[into].clone();
        (one.desk, one.kept_by, one.text) = (String::new(), String::new(), "joined".to_owned());
        self.put(into, one, next)
    }

    fn hand(&mut self, place: usize, how: u8) -> String {
        let (now, mut one) = (at(self.now), self.letters[place].clone());
        let journey = one.journey.clone();
        let dead = journey.standing.name() == LetterState::Dead;
        let next = match how {
            0 => journey.retry(now),
            1 => journey.trash("by hand".to_owned()),
            2 => journey.restore(now),
            _ if dead => journey.retry(now),
            _ => journey.restore(now),
        };
        let Ok(next) = next else { return "wrong state".to_owned() };
        if how > 0 {
            (one.desk, one.kept_by) = (String::new(), String::new());
        }
        if how == 3 {
            (one.text, one.had) = (one.came_as.clone(), 0);
        }
        self.put(place, one, next)
    }

    /// The letters of which `which` is so, in the order that `key` says.
    fn some<K: Ord>(
        &self,
        limit: usize,
        which: impl Fn(&Kept) -> bool,
        key: impl Fn(&Kept) -> K,
    ) -> Vec<usize> {
        let mut found: Vec<_> =
            (0..self.letters.len()).filter(|n| which(&self.letters[*n])).collect();
        found.sort_by_key(|n| (key(&self.letters[*n]), self.letters[*n].id.seq));
        found.truncate(limit);
        found
    }

    fn take_back(&mut self, some: &[usize]) {
        for n in some {
            let mut one = self.letters[*n].clone();
            let next = one.journey.clone().continue_chain(at(self.now)).expect("it is under way");
            (one.desk, one.kept_by) = (String::new(), String::new());
            self.put(*n, one, next);
        }
    }

    fn recall(&mut self, desk: &str, limit: usize) -> usize {
        if desk.is_empty() {
            return 0;
        }
        let mut some = self.some(limit, |one| one.desk == desk && due(one).is_some(), due);
        let left = limit - some.len();
        some.extend(self.some(left, |one| one.desk == desk && until(one).is_some(), until));
        self.take_back(&some);
        some.len()
    }

    fn recall_kept(&mut self, by: &str, limit: usize) -> usize {
        let some = self.some(limit, |one| one.kept_by == by, |_| ());
        self.take_back(&some);
        if by == "limit" {
            self.booked = None;
        }
        some.len()
    }

    fn release(&mut self, desk: &str) -> usize {
        let some = self.some(100, |one| one.desk == desk && until(one).is_some(), until);
        for n in &some {
            let one = self.letters[*n].clone();
            let next = one.journey.clone().return_to_queue(at(self.now), true).expect("it is away");
            self.put(*n, one, next);
        }
        some.len()
    }

    fn purge(&mut self, trashed: bool, done: bool, limit: usize) -> usize {
        let newest = self.letters.iter().map(|one| one.id.seq).max();
        let mut gone = Vec::new();
        for (state, wanted) in [
            (LetterState::Trashed, trashed),
            (LetterState::Done, done),
            (LetterState::Merged, done),
        ] {
            let which = |one: &Kept| {
                wanted && one.journey.standing.name() == state && Some(one.id.seq) != newest
            };
            gone.extend(self.some(limit - gone.len(), which, |_| ()));
        }
        let gone: Vec<_> = gone.into_iter().map(|n| self.letters[n].id.seq).collect();
        self.letters.retain(|one| !gone.contains(&one.id.seq));
        self.keys.retain(|_, (seq, _)| !gone.contains(seq));
        gone.len()
    }

    pub(super) fn contents(&self) -> Contents {
        let letters = self.letters.iter().map(|one| {
            let rest = (&*one.text, one.had, one.revision);
            line(one.id, &one.journey, (&one.desk, &one.kept_by), rest)
        });
        let seqs =
            |some: Vec<usize>| some.into_iter().map(|n| self.letters[n].id.seq).collect::<Vec<_>>();
        let mut lists = Vec::new();
        for desk in DESKS {
            let is_due =
                |one: &Kept| one.desk == desk && due(one).is_some_and(|due| due <= at(self.now));
            lists.push(seqs(self.some(100, is_due, due)));
            if !desk.is_empty() {
                let is_away = |one: &Kept| one.desk == desk && until(one).is_some();
                lists.push(seqs(self.some(100, is_away, until)));
            }
        }
        for by in KEEPERS {
            lists.push(seqs(self.some(100, |one| one.kept_by == by, |_| ())));
        }
        let dead = |one: &Kept| one.journey.standing.name() == LetterState::Dead;
        lists.push(seqs(self.some(100, dead, |_| ())));
        (letters.collect(), lists, self.booked)
    }
}

fn due(one: &Kept) -> Option<Timestamp> {
    match one.journey.standing {
        LetterStateData::Waiting { due } => Some(due),
        _ => None,
    }
}

fn until(one: &Kept) -> Option<Timestamp> {
    match one.journey.standing {
        LetterStateData::Away { until } => Some(until),
        _ => None,
    }
}
