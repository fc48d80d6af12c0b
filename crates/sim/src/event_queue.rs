//! Events on their way to the bot: waiting, sent and not acknowledged, or due for another attempt.
//!
//! The queue has no clock and no sockets: times are parameters, in microseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Something that happened in a chat and that one app is told.
#[derive(Clone, Debug)]
pub struct SimEvent {
    pub number: u64,
    /// Index of the app that receives it.
    pub app: usize,
    /// Kind of the event on the wire; its meaning depends on the network.
    pub topic: &'static str,
    /// Id that stays the same when the event is sent again.
    pub key: String,
    /// The event as JSON text.
    pub payload: Arc<str>,
    /// Attempts before the current one.
    pub attempt: u32,
    /// Why the last attempt failed; empty for the first attempt.
    pub reason: &'static str,
    /// Number of frames to send at each attempt.
    pub copies: u32,
    /// Place in the queue, which an event keeps when it is sent again; 0 until it is ready.
    order: u64,
}

/// A frame that was sent and not acknowledged.
#[derive(Debug)]
struct SentFrame {
    event: u64,
    connection: u64,
    sent_us: u64,
    due: DueKey,
}

/// Deadline in microseconds, and a number that makes it unique.
type DueKey = (u64, u64);

#[derive(Debug)]
enum DueItem {
    /// The frame with this id was not acknowledged in time.
    Frame(String),
    /// The event waits for its next attempt.
    Retry(u64),
}

/// The queue of one emulator.
#[derive(Debug, Default)]
pub struct EventQueue {
    next_number: u64,
    next_order: u64,
    next_due: u64,
    events: HashMap<u64, SimEvent>,
    /// Numbers of events to send by app and place.
    ready: BTreeMap<usize, BTreeMap<u64, u64>>,
    frames: HashMap<String, SentFrame>,
    by_connection: HashMap<u64, BTreeSet<String>>,
    due: BTreeMap<DueKey, DueItem>,
}

/// What became of events whose time was over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ExpiryCounts {
    pub redelivered: u64,
    pub given_up: u64,
}

impl EventQueue {
    /// Adds a new event; the caller lets it wait with [`Self::make_ready`].
    pub fn add(
        &mut self,
        app: usize,
        topic: &'static str,
        key: String,
        payload: Arc<str>,
        copies: u32,
    ) -> u64 {
        self.next_number += 1;
        let number = self.next_number;
        let event =
            SimEvent { number, app, topic, key, payload, attempt: 0, reason: "", copies, order: 0 };
        self.events.insert(number, event);
        number
    }

    /// Lets an event be sent. The first time, it is placed behind all others.
    pub fn make_ready(&mut self, number: u64) {
        let Some(event) = self.events.get_mut(&number) else { return };
        if event.order == 0 {
            self.next_order += 1;
            event.order = self.next_order;
        }
        self.ready.entry(event.app).or_default().insert(event.order, number);
    }

    /// Apps that have events to send.
    pub fn ready_apps(&self) -> Vec<usize> {
        self.ready.keys().copied().collect()
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next event of an app to send.
    pub fn take_ready(&mut self, app: usize) -> Option<SimEvent> {
        let numbers = self.ready.get_mut(&app)?;
        let number = numbers.pop_first().map(|(_, number)| number);
        if numbers.is_empty() {
            self.ready.remove(&app);
        }
        self.events.get(&number?).cloned()
    }

    /// Drops an event that was delivered or is lost.
    pub fn finish(&mut self, number: u64) {
        self.events.remove(&number);
    }

    /// Records a frame that was sent; without an acknowledgement it is due at `due_us`.
    pub fn frame_sent(&mut self, event: u64, connection: u64, id: String, now: u64, due_us: u64) {
        let due = self.due_key(due_us);
        self.due.insert(due, DueItem::Frame(id.clone()));
        self.by_connection.entry(connection).or_default().insert(id.clone());
        self.frames.insert(id, SentFrame { event, connection, sent_us: now, due });
    }

    fn due_key(&mut self, due_us: u64) -> DueKey {
        self.next_due += 1;
        (due_us, self.next_due)
    }

    fn take_frame(&mut self, id: &str) -> Option<SentFrame> {
        let frame = self.frames.remove(id)?;
        self.due.remove(&frame.due);
        if let Some(ids) = self.by_connection.get_mut(&frame.connection) {
            ids.remove(id);
        }
        Some(frame)
    }

    /// Handles an acknowledgement; returns the microseconds since the frame was sent, or `None`
    /// for a frame that is unknown or whose time is over.
    pub fn acknowledge(&mut self, id: &str, now: u64) -> Option<u64> {
        let frame = self.take_frame(id)?;
        self.events.remove(&frame.event);
        Some(now.saturating_sub(frame.sent_us))
    }

    /// Handles an answer that asks for another attempt after `due_us`.
    pub fn postpone(&mut self, id: &str, due_us: u64) {
        if let Some(frame) = self.take_frame(id) {
            self.retry_at(frame.event, "later", due_us);
        }
    }

    /// Counts an attempt and lets the event wait until `due_us`.
    pub fn retry_at(&mut self, number: u64, reason: &'static str, due_us: u64) {
        let Some(event) = self.events.get_mut(&number) else { return };
        event.attempt += 1;
        event.reason = reason;
        let due = self.due_key(due_us);
        self.due.insert(due, DueItem::Retry(number));
    }

    /// Forgets a connection. Its frames are due at once if `resend`, otherwise at their time.
    pub fn connection_closed(&mut self, connection: u64, resend: bool) {
        let ids = self.by_connection.remove(&connection).unwrap_or_default();
        for id in ids.iter().filter(|_| resend) {
            if let Some(frame) = self.frames.get_mut(id) {
                self.due.remove(&frame.due);
                self.next_due += 1;
                frame.due = (0, self.next_due);
                self.due.insert(frame.due, DueItem::Frame(id.clone()));
            }
        }
    }

    pub fn frames_of(&self, connection: u64) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }

    /// Makes events ready whose time is over, or gives them up after `max_attempts`.
    pub fn expire(&mut self, now: u64, max_attempts: u32) -> ExpiryCounts {
        let mut counts = ExpiryCounts::default();
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            let number = match entry.remove() {
                DueItem::Retry(number) => number,
                DueItem::Frame(id) => {
                    let Some(frame) = self.take_frame(&id) else { continue };
                    let Some(event) = self.events.get_mut(&frame.event) else { continue };
                    event.attempt += 1;
                    event.reason = "timeout";
                    frame.event
                }
            };
            let Some(event) = self.events.get(&number) else { continue };
            if event.attempt >= max_attempts {
                self.events.remove(&number);
                counts.given_up += 1;
            } else {
                counts.redelivered += 1;
                self.make_ready(number);
            }
        }
        counts
    }

    /// Time of the next call of [`Self::expire`] that will find something.
    pub fn next_due(&self) -> Option<u64> {
        self.due.first_key_value().map(|((due, _), _)| *due)
    }

    /// Events that are not finished.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Frames that are not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_with_one() -> (EventQueue, u64) {
        let mut queue = EventQueue::default();
        let number = queue.add(0, "message", "Ev1".to_owned(), "{}".into(), 1);
        queue.make_ready(number);
        (queue, number)
    }

    #[test]
    fn acknowledged_event_is_finished() {
        let (mut queue, number) = queue_with_one();
        let event = queue.take_ready(0).unwrap();
        assert_eq!((event.number, event.attempt), (number, 0));
        queue.frame_sent(number, 1, "a".to_owned(), 100, 3100);
        assert_eq!(queue.acknowledge("a", 250), Some(150));
        assert_eq!(queue.acknowledge("a", 260), None);
        assert_eq!((queue.len(), queue.in_flight(), queue.next_due()), (0, 0, None));
    }

    #[test]
    fn unacknowledged_event_is_sent_again_with_the_same_key() {
        let (mut queue, number) = queue_with_one();
        queue.take_ready(0).unwrap();
        queue.frame_sent(number, 1, "a".to_owned(), 100, 3100);
        assert_eq!(queue.expire(3099, 3), ExpiryCounts::default());
        assert_eq!(queue.expire(3100, 3).redelivered, 1);
        let again = queue.take_ready(0).unwrap();
        assert_eq!((again.key.as_str(), again.attempt, again.reason), ("Ev1", 1, "timeout"));
        assert_eq!(queue.acknowledge("a", 3200), None, "the first frame has expired");
    }

    #[test]
    fn event_that_is_sent_again_keeps_its_place() {
        let (mut queue, first) = queue_with_one();
        let second = queue.add(0, "message", "Ev2".to_owned(), "{}".into(), 1);
        queue.make_ready(second);
        queue.take_ready(0).unwrap();
        queue.frame_sent(first, 1, "a".to_owned(), 0, 10);
        queue.connection_closed(1, true);
        queue.expire(0, 3);
        assert_eq!(queue.take_ready(0).unwrap().number, first);
        assert_eq!(queue.take_ready(0).unwrap().number, second);
    }

    #[test]
    fn event_is_given_up_after_its_last_attempt() {
        let (mut queue, number) = queue_with_one();
        queue.take_ready(0).unwrap();
        queue.frame_sent(number, 1, "a".to_owned(), 0, 10);
        let counts = queue.expire(10, 1);
        assert_eq!(counts, ExpiryCounts { redelivered: 0, given_up: 1 });
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn second_copy_of_an_acknowledged_event_is_not_sent_again() {
        let (mut queue, number) = queue_with_one();
        queue.take_ready(0).unwrap();
        queue.frame_sent(number, 1, "a".to_owned(), 0, 10);
        queue.frame_sent(number, 1, "b".to_owned(), 0, 10);
        queue.acknowledge("a", 5).unwrap();
        assert_eq!(queue.expire(20, 5), ExpiryCounts::default());
        assert!(!queue.has_ready());
    }

    #[test]
    fn events_of_a_closed_connection_are_due_at_once_or_at_their_time() {
        for (resend, due) in [(true, 0), (false, 3100)] {
            let (mut queue, number) = queue_with_one();
            queue.take_ready(0).unwrap();
            queue.frame_sent(number, 1, "a".to_owned(), 100, 3100);
            queue.connection_closed(1, resend);
            assert_eq!(queue.next_due(), Some(due));
            assert_eq!(queue.expire(due, 3).redelivered, 1);
        }
    }
}
