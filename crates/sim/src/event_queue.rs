//! Events on their way to the bot: waiting, sent and not acknowledged, or due for another attempt.
//!
//! The queue has no clock and no sockets: times are parameters, in microseconds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Something that happened in a chat and that is sent to one app.
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
    /// Time at which the event was added, in microseconds.
    pub created_us: u64,
    /// Place among the events of its app, from 1, which an event keeps when it is sent again; 0
    /// until it is ready.
    pub order: u64,
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
    /// The last place that was given, by app.
    last_order: HashMap<usize, u64>,
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
        created_us: u64,
    ) -> u64 {
        self.next_number += 1;
        let number = self.next_number;
        let (attempt, reason, order) = (0, "", 0);
        let event = SimEvent {
            number,
            app,
            topic,
            key,
            payload,
            attempt,
            reason,
            copies,
            created_us,
            order,
        };
        self.events.insert(number, event);
        number
    }

    /// Lets an event be sent. The first time, it is placed behind all others.
    pub fn make_ready(&mut self, number: u64) {
        let Some(event) = self.events.get_mut(&number) else { return };
        if event.order == 0 {
            let last = self.last_order.entry(event.app).or_default();
            *last += 1;
            event.order = *last;
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

    /// Events of an app that can be sent now, in their order.
    pub fn ready_of(&self, app: usize) -> impl Iterator<Item = &SimEvent> {
        let numbers = self.ready.get(&app).into_iter().flat_map(BTreeMap::values);
        numbers.filter_map(|number| self.events.get(number))
    }

    /// Takes the event at this place, if it can be sent now.
    pub fn take_at(&mut self, app: usize, order: u64) -> Option<SimEvent> {
        let number = self.ready.get_mut(&app)?.remove(&order)?;
        if self.ready.get(&app).is_some_and(BTreeMap::is_empty) {
            self.ready.remove(&app);
        }
        self.events.get(&number).cloned()
    }

    /// Finishes the events of an app before this place that can be sent now; returns the
    /// microseconds since each was added. An event with several copies stays for the next call.
    pub fn confirm_before(&mut self, app: usize, order: u64, now: u64) -> Vec<u64> {
        let numbers = self.ready.get(&app).into_iter().flat_map(|ready| ready.range(..order));
        let confirmed: Vec<_> = numbers.map(|(order, number)| (*order, *number)).collect();
        let mut ages = Vec::new();
        for (order, number) in confirmed {
            let Some(event) = self.events.get_mut(&number) else { continue };
            if event.copies > 1 {
                event.copies -= 1;
                continue;
            }
            ages.push(now.saturating_sub(event.created_us));
            self.take_at(app, order);
            self.finish(number);
        }
        ages
    }

    /// Drops the oldest events of an app that can be sent now, all but the newest `keep`; returns
    /// their number.
    pub fn keep_newest(&mut self, app: usize, keep: usize) -> usize {
        let numbers = self.ready.get(&app).into_iter().flat_map(BTreeMap::iter);
        let dropped: Vec<_> = numbers.rev().skip(keep).map(|(o, n)| (*o, *n)).collect();
        for (order, number) in &dropped {
            self.take_at(app, *order);
            self.finish(*number);
        }
        dropped.len()
    }

    /// Drops the events of an app that can be sent now and were added before `time`; returns their
    /// number.
    pub fn drop_older(&mut self, app: usize, time: u64) -> usize {
        let old = self.ready_of(app).take_while(|event| event.created_us < time).count();
        let ready = self.ready.get(&app).map_or(0, BTreeMap::len);
        if old == 0 { 0 } else { self.keep_newest(app, ready - old) }
    }

    /// Makes events of an app ready that wait for their next attempt.
    pub fn end_pauses(&mut self, app: usize) {
        let events = &self.events;
        let is_of_app = |item: &DueItem| match item {
            DueItem::Retry(number) => events.get(number).is_some_and(|event| event.app == app),
            DueItem::Frame(_) => false,
        };
        let waiting: Vec<_> =
            self.due.iter().filter(|(_, item)| is_of_app(item)).map(|(due, _)| *due).collect();
        for due in waiting {
            if let Some(DueItem::Retry(number)) = self.due.remove(&due) {
                self.make_ready(number);
            }
        }
    }

    /// Events of an app that are not finished.
    pub fn waiting(&self, app: usize) -> usize {
        self.events.values().filter(|event| event.app == app).count()
    }

    /// The last place that was given to an event of an app; 0 before the first.
    pub fn last_order(&self, app: usize) -> u64 {
        self.last_order.get(&app).copied().unwrap_or(0)
    }

    pub fn contains(&self, number: u64) -> bool {
        self.events.contains_key(&number)
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
        let number = queue.add(0, "message", "Ev1".to_owned(), "{}".into(), 1, 0);
        queue.make_ready(number);
        (queue, number)
    }

    /// Adds events of app 1 that were created at these times.
    fn add_ready(queue: &mut EventQueue, times: &[u64]) {
        for time in times {
            let number = queue.add(1, "message", String::new(), "{}".into(), 1, *time);
            queue.make_ready(number);
        }
    }

    fn places(queue: &EventQueue) -> Vec<u64> {
        queue.ready_of(1).map(|event| event.order).collect()
    }

    #[test]
    fn events_before_a_place_are_confirmed_and_have_an_age() {
        let (mut queue, _) = queue_with_one();
        add_ready(&mut queue, &[10, 20, 30]);
        assert_eq!(places(&queue), [1, 2, 3], "each app has places of its own");
        assert_eq!(queue.confirm_before(1, 3, 100), [90, 80]);
        assert_eq!(places(&queue), [3]);
        assert_eq!((queue.len(), queue.waiting(1), queue.last_order(1)), (2, 1, 3));
    }

    #[test]
    fn event_with_two_copies_is_confirmed_by_the_second_call() {
        let mut queue = EventQueue::default();
        let number = queue.add(1, "message", String::new(), "{}".into(), 2, 0);
        queue.make_ready(number);
        assert!(queue.confirm_before(1, 2, 5).is_empty());
        assert_eq!(places(&queue), [1]);
        assert_eq!(queue.confirm_before(1, 2, 5), [5]);
        assert!(!queue.has_ready());
    }

    #[test]
    fn oldest_events_are_dropped_by_number_and_by_time() {
        let mut queue = EventQueue::default();
        add_ready(&mut queue, &[10, 20, 30, 40]);
        assert_eq!(queue.drop_older(1, 11), 1);
        assert_eq!(queue.keep_newest(1, 2), 1);
        assert_eq!(places(&queue), [3, 4]);
        assert_eq!((queue.keep_newest(1, 0), queue.len()), (2, 0));
    }

    #[test]
    fn event_that_waits_for_its_next_attempt_can_be_made_ready() {
        let mut queue = EventQueue::default();
        add_ready(&mut queue, &[10, 20]);
        let first = queue.take_at(1, 1).unwrap();
        queue.retry_at(first.number, "http_error", 1000);
        assert_eq!(places(&queue), [2]);
        queue.end_pauses(1);
        assert_eq!((places(&queue), queue.next_due()), (vec![1, 2], None));
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
        let second = queue.add(0, "message", "Ev2".to_owned(), "{}".into(), 1, 0);
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
