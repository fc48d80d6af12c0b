//! Conversations of one owner.
//!
//! A session is identified by the other party: a contact, an endpoint or a group. It has the
//! messages of both directions, and the send state of those that were sent.

use crate::delivery::SendState;

/// Returns the state of a message with several deliveries: the one that needs attention
/// most, DEAD first. `None` when it has no deliveries, only local records.
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
    fn state_that_needs_attention_most_is_shown() {
        use SendState::{Dead, Sent, Uncertain, Wait};
        assert_eq!(aggregate([]), None);
        assert_eq!(aggregate([Sent, Sent]), Some(Sent));
        assert_eq!(aggregate([Sent, Wait]), Some(Wait));
        assert_eq!(aggregate([Dead, Sent, Uncertain]), Some(Dead));
    }
}
