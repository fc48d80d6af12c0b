//! Dead letters of all kinds: which of them a filter selects.

use crate::names::variant_names;

/// What a dead letter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeadLetterKind {
    /// A claim of a workspace on a Mail.
    Claim,
    /// A delivery that is DEAD or UNCERTAIN.
    Delivery,
    /// A letter of the pipeline.
    Letter,
    /// A draft that could not be sent.
    Draft,
    /// A task of a watched e-mail account.
    Task,
}

variant_names! { DeadLetterKind:
    Claim = "claim", Delivery = "delivery", Letter = "letter", Draft = "draft", Task = "task",
}

/// What an operator does with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    Retry,
    Drop,
}

variant_names! { DeadLetterAction: Retry = "retry", Drop = "drop" }

/// State of a delivery that may have arrived.
const UNCERTAIN: &str = "UNCERTAIN";

/// Longest cause that is compared, in characters.
const MAX_CAUSE_CHARS: usize = 200;

/// Shortest run of hexadecimal digits that counts as an id.
const MIN_ID_CHARS: usize = 8;

/// Selects dead letters. All conditions that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub kind: Option<DeadLetterKind>,
    pub state: Option<String>,
    /// Id of the tunnel, or of the e-mail account.
    pub tunnel: Option<String>,
    /// Workspace of a claim.
    pub workspace: Option<String>,
    /// Causes that differ only in numbers and ids are equal.
    pub cause: Option<String>,
}

/// What a filter looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterFacts<'a> {
    pub kind: DeadLetterKind,
    pub state: &'a str,
    pub tunnel: Option<&'a str>,
    pub workspace: Option<&'a str>,
    pub cause: Option<&'a str>,
    /// Whether it is a part of a dead e-mail task, which is retried with the task.
    pub is_part: bool,
}

impl DeadLetterFilter {
    /// Whether the filter has no condition, so that it would select everything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the action applies to a dead letter. An UNCERTAIN delivery may have arrived, so
    /// that it is retried only when the filter names this state.
    pub fn selects(&self, action: DeadLetterAction, facts: &DeadLetterFacts<'_>) -> bool {
        let is_uncertain = facts.state == UNCERTAIN;
        let is_risky = is_uncertain && action == DeadLetterAction::Retry && self.state.is_none();
        let equal = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let has_cause = |cause: &str| cause_pattern(cause) == cause_pattern_of(facts.cause);
        !is_risky
            && (self.kind.is_some() || !facts.is_part)
            && self.kind.is_none_or(|kind| kind == facts.kind)
            && equal(&self.state, Some(facts.state))
            && equal(&self.tunnel, facts.tunnel)
            && equal(&self.workspace, facts.workspace)
            && self.cause.as_deref().is_none_or(has_cause)
    }
}

fn cause_pattern_of(cause: Option<&str>) -> String {
    cause_pattern(cause.unwrap_or_default())
}

/// The start of a cause with `#` in place of numbers and ids.
pub fn cause_pattern(cause: &str) -> String {
    let text: Vec<char> = cause.chars().collect();
    let (mut pattern, mut at) = (String::new(), 0);
    while at < text.len() {
        let run =
            |is_part: fn(&char) -> bool| text[at..].iter().take_while(|it| is_part(it)).count();
        let (id, number) = (run(char::is_ascii_hexdigit), run(char::is_ascii_digit));
        if id >= MIN_ID_CHARS || number > 0 {
            pattern.push('#');
            at += if id >= MIN_ID_CHARS { id } else { number };
        } else {
            pattern.push(text[at]);
            at += 1;
        }
    }
    pattern.chars().take(MAX_CAUSE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELIVERY: DeadLetterFacts<'static> = DeadLetterFacts {
        kind: DeadLetterKind::Delivery,
        state: "DEAD",
        tunnel: Some("chat"),
        workspace: None,
        cause: Some("error 403 for 5f3759df00"),
        is_part: false,
    };

    #[test]
    fn numbers_and_ids_of_causes_are_ignored() {
        for (cause, pattern) in [
            ("", ""),
            ("no access", "no access"),
            ("error 403: user 12345 at 10.0.0.1", "error #: user # at #.#.#.#"),
            ("request 5f3759df00 failed", "request # failed"),
            // Shorter runs of letters are words; the digits in them are numbers.
            ("face 7ab", "face #ab"),
            ("次数 3", "次数 #"),
        ] {
            assert_eq!(cause_pattern(cause), pattern, "{cause}");
        }
        assert_eq!(cause_pattern(&"x".repeat(500)).len(), MAX_CAUSE_CHARS);
    }

    #[test]
    fn filter_selects_what_meets_all_conditions() {
        let some = |text: &str| Some(text.to_owned());
        let filter = DeadLetterFilter::default;
        let claim = DeadLetterFacts {
            kind: DeadLetterKind::Claim,
            state: "DEADLETTER",
            tunnel: None,
            workspace: Some("alpha"),
            cause: None,
            is_part: false,
        };
        for (filter, of_delivery, of_claim) in [
            (filter(), true, true),
            (DeadLetterFilter { kind: Some(DeadLetterKind::Claim), ..filter() }, false, true),
            (DeadLetterFilter { state: some("DEAD"), ..filter() }, true, false),
            (DeadLetterFilter { tunnel: some("chat"), ..filter() }, true, false),
            (DeadLetterFilter { tunnel: some("news"), ..filter() }, false, false),
            (DeadLetterFilter { workspace: some("alpha"), ..filter() }, false, true),
            (DeadLetterFilter { cause: some("error 1 for 00000000"), ..filter() }, true, false),
            (DeadLetterFilter { cause: some("error"), ..filter() }, false, false),
            (DeadLetterFilter { cause: some(""), ..filter() }, false, true),
            (
                DeadLetterFilter { tunnel: some("chat"), workspace: some("alpha"), ..filter() },
                false,
                false,
            ),
        ] {
            for action in DeadLetterAction::ALL {
                assert_eq!(filter.selects(action, &DELIVERY), of_delivery, "{filter:?}");
                assert_eq!(filter.selects(action, &claim), of_claim, "{filter:?}");
            }
        }
    }

    #[test]
    fn uncertain_deliveries_are_retried_only_when_the_filter_names_the_state() {
        let uncertain = DeadLetterFacts { state: UNCERTAIN, ..DELIVERY };
        let all = DeadLetterFilter::default();
        let named = DeadLetterFilter { state: Some(UNCERTAIN.to_owned()), ..all.clone() };
        assert!(!all.selects(DeadLetterAction::Retry, &uncertain));
        assert!(all.selects(DeadLetterAction::Drop, &uncertain));
        assert!(named.selects(DeadLetterAction::Retry, &uncertain));
    }

    #[test]
    fn parts_of_a_task_are_selected_with_the_task_or_by_their_kind() {
        let part = DeadLetterFacts { is_part: true, ..DELIVERY };
        let all = DeadLetterFilter::default();
        let deliveries = DeadLetterFilter { kind: Some(DeadLetterKind::Delivery), ..all.clone() };
        assert!(!all.selects(DeadLetterAction::Retry, &part));
        assert!(deliveries.selects(DeadLetterAction::Retry, &part));
    }
}
