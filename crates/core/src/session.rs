//! Conversations, as one owner sees them.
//!
//! A session is named by the other party: a person, an endpoint, or a group. It
//! shows both directions, and for what went out how far it got.

use crate::delivery::SendState;

/// How far a message got that may have gone several ways.
///
/// The worst news of any of its deliveries, for that is what needs a person;
/// `None` when it had nowhere to go but boxes here.
pub fn aggregate(states: impl IntoIterator<Item = SendState>) -> Option<SendState> {
    states.into_iter().max_by_key(|state| match state {
        SendState::Deleted => 0,
        SendState::Archived => 1,
        SendState::Sent => 2,
        SendState::Wait => 3,
        SendState::Sending => 4,
        SendState::Failed => 5,
        SendState::Held => 6,
        SendState::Uncertain => 7,
        SendState::Dead => 8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_news_counts() {
        use SendState::{Dead, Sent, Uncertain, Wait};
        assert_eq!(aggregate([]), None);
        assert_eq!(aggregate([Sent, Sent]), Some(Sent));
        assert_eq!(aggregate([Sent, Wait]), Some(Wait));
        assert_eq!(aggregate([Dead, Sent, Uncertain]), Some(Dead));
    }
}
