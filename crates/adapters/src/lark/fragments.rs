//! Puts the fragments of one event together.
//!
//! Lark splits a long payload into frames with the same `message_id`: `sum` fragments with the
//! numbers `seq` from 0. They can arrive in any order and more than once. What never becomes
//! complete is dropped after [`MAX_AGE`], and when there is too much of it.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_core::time::Timestamp;

use super::frame::LarkSocketFrame;
use crate::socket::MAX_FRAME_BYTES;

/// How long fragments of one event are waited for. The SDKs wait 5 s or 10 s.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Most fragments of one event.
const MAX_FRAGMENTS: usize = 256;

/// Most events with missing fragments.
const MAX_EVENTS: usize = 64;

/// Most bytes of one event, and of all events with missing fragments.
const MAX_EVENT_BYTES: usize = MAX_FRAME_BYTES;
const MAX_BYTES: usize = 4 * MAX_FRAME_BYTES;

/// Longest id of an event, in bytes.
const MAX_ID_BYTES: usize = 256;

/// Why a fragment cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidFragment {
    #[error("the headers message_id, sum and seq are missing or invalid")]
    Headers,
    #[error("seq is not less than sum")]
    Seq,
    #[error("the number of fragments has changed")]
    Sum,
    #[error("more than {MAX_FRAGMENTS} fragments or {MAX_EVENT_BYTES} bytes")]
    TooLarge,
}

/// The fragments of events that are not complete.
#[derive(Debug, Default)]
pub(super) struct FragmentBuffer {
    events: BTreeMap<String, PartialEvent>,
    bytes: usize,
}

#[derive(Debug)]
struct PartialEvent {
    fragments: Vec<Option<Vec<u8>>>,
    since: Timestamp,
    bytes: usize,
}

impl FragmentBuffer {
    /// Adds the payload of a frame. Returns the payload of the event when it is complete.
    ///
    /// # Errors
    ///
    /// [`InvalidFragment`]; the other fragments of the event are dropped with it, so that Lark's
    /// next attempt starts from the beginning.
    pub fn add(
        &mut self,
        frame: &LarkSocketFrame,
        now: Timestamp,
    ) -> Result<Option<Vec<u8>>, InvalidFragment> {
        self.drop_expired(now);
        let number = |key: &str| frame.header(key).map(str::parse::<usize>).transpose();
        let (Ok(sum), Ok(seq)) = (number("sum"), number("seq")) else {
            return Err(InvalidFragment::Headers);
        };
        let (sum, seq) = (sum.unwrap_or(1), seq.unwrap_or(0));
        if seq >= sum {
            self.remove(frame.header("message_id").unwrap_or_default());
            return Err(InvalidFragment::Seq);
        }
        if sum == 1 {
            return Ok(Some(frame.payload.clone()));
        }
        let id = frame.header("message_id").filter(|id| id.len() <= MAX_ID_BYTES);
        let id = id.ok_or(InvalidFragment::Headers)?;
        let added = self.insert(id, sum, seq, &frame.payload, now);
        if added.is_err() {
            self.remove(id);
        }
        added
    }

    fn insert(
        &mut self,
        id: &str,
        sum: usize,
        seq: usize,
        payload: &[u8],
        now: Timestamp,
    ) -> Result<Option<Vec<u8>>, InvalidFragment> {
        if sum > MAX_FRAGMENTS {
            return Err(InvalidFragment::TooLarge);
        }
        let event = self.events.entry(id.to_owned()).or_insert_with(|| PartialEvent {
            fragments: vec![None; sum],
            since: now,
            bytes: 0,
        });
        if event.fragments.len() != sum {
            return Err(InvalidFragment::Sum);
        }
        let Some(slot) = event.fragments.get_mut(seq) else { return Err(InvalidFragment::Seq) };
        let replaced = slot.replace(payload.to_vec()).map_or(0, |old| old.len());
        event.bytes = event.bytes - replaced + payload.len();
        self.bytes = self.bytes - replaced + payload.len();
        if event.bytes > MAX_EVENT_BYTES {
            return Err(InvalidFragment::TooLarge);
        }
        if event.fragments.iter().all(Option::is_some) {
            let event = self.take(id);
            return Ok(event.map(|event| event.fragments.into_iter().flatten().flatten().collect()));
        }
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let oldest = self.events.iter().min_by_key(|(_, event)| event.since);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            self.remove(&oldest);
        }
        Ok(None)
    }

    fn take(&mut self, id: &str) -> Option<PartialEvent> {
        let event = self.events.remove(id)?;
        self.bytes -= event.bytes;
        Some(event)
    }

    fn remove(&mut self, id: &str) {
        if self.take(id).is_some() {
            tracing::warn!(events = 1, "dropped events of Lark that are not complete");
        }
    }

    fn drop_expired(&mut self, now: Timestamp) {
        let is_expired = |(_, event): &(&String, &PartialEvent)| now.since(event.since) > MAX_AGE;
        let expired = self.events.iter().filter(is_expired).map(|(id, _)| id.clone());
        let expired: Vec<_> = expired.collect();
        for id in &expired {
            self.take(id);
        }
        if !expired.is_empty() {
            let events = expired.len();
            tracing::warn!(events, "dropped events of Lark that are not complete");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(id: &str, sum: &str, seq: &str, payload: &[u8]) -> LarkSocketFrame {
        let headers = [("type", "event"), ("message_id", id), ("sum", sum), ("seq", seq)];
        let headers = headers.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        LarkSocketFrame {
            method: 1,
            headers,
            payload: payload.to_vec(),
            ..LarkSocketFrame::default()
        }
    }

    const START: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(START.ms() + ms)
    }

    #[test]
    fn fragments_in_any_order_and_twice_become_one_event() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut buffer = FragmentBuffer::default();
            let parts: [&[u8]; 3] = [b"{\"a\":", b"\"\xe4\xbd", b"\xa0\"}"];
            let mut found = None;
            for (n, seq) in order.iter().enumerate() {
                let frame = fragment("m", "3", &seq.to_string(), parts[*seq]);
                if n == 0 {
                    assert_eq!(buffer.add(&frame, START), Ok(None));
                }
                found = buffer.add(&frame, START).unwrap();
            }
            assert_eq!(found.unwrap(), "{\"a\":\"你\"}".as_bytes());
            assert_eq!((buffer.events.len(), buffer.bytes), (0, 0));
        }
    }

    #[test]
    fn whole_events_pass_through() {
        let mut buffer = FragmentBuffer::default();
        assert_eq!(buffer.add(&fragment("m", "1", "0", b"x"), START), Ok(Some(b"x".to_vec())));
        let bare = LarkSocketFrame { payload: b"y".to_vec(), ..LarkSocketFrame::default() };
        assert_eq!(buffer.add(&bare, START), Ok(Some(b"y".to_vec())));
    }

    #[test]
    fn invalid_fragments_drop_what_is_there() {
        for (frame, want) in [
            (fragment("m", "2", "2", b"x"), InvalidFragment::Seq),
            (fragment("m", "3", "1", b"x"), InvalidFragment::Sum),
            (fragment("m", "257", "1", b"x"), InvalidFragment::TooLarge),
            (fragment("m", "2", "1", &[0; MAX_EVENT_BYTES]), InvalidFragment::TooLarge),
        ] {
            let mut buffer = FragmentBuffer::default();
            assert_eq!(buffer.add(&fragment("m", "2", "0", b"x"), START), Ok(None));
            assert_eq!(buffer.add(&frame, START), Err(want));
            assert_eq!((buffer.events.len(), buffer.bytes), (0, 0), "{want:?}");
        }
        let mut buffer = FragmentBuffer::default();
        for (sum, seq) in [("two", "0"), ("2", "-1"), ("2", "99999999999999999999")] {
            let found = buffer.add(&fragment("m", sum, seq, b"x"), START);
            assert_eq!(found, Err(InvalidFragment::Headers), "{sum} {seq}");
        }
        assert_eq!(buffer.add(&fragment("", "2", "0", b"x"), START), Err(InvalidFragment::Headers));
        let long = "m".repeat(4096);
        assert_eq!(
            buffer.add(&fragment(&long, "2", "0", b"x"), START),
            Err(InvalidFragment::Headers)
        );
        assert_eq!(buffer.add(&fragment("m", "0", "0", b"x"), START), Err(InvalidFragment::Seq));
    }

    #[test]
    fn events_that_never_end_are_bounded_and_expire() {
        let mut buffer = FragmentBuffer::default();
        for n in 0..1000 {
            let id = format!("m{n}");
            assert_eq!(buffer.add(&fragment(&id, "2", "0", b"xx"), at(n)), Ok(None));
        }
        assert_eq!((buffer.events.len(), buffer.bytes), (MAX_EVENTS, 2 * MAX_EVENTS));
        assert!(buffer.events.contains_key("m999") && !buffer.events.contains_key("m0"));
        for n in 0..20 {
            let id = format!("large{n}");
            let payload = vec![0; MAX_EVENT_BYTES - 1];
            assert_eq!(buffer.add(&fragment(&id, "2", "0", &payload), at(1000 + n)), Ok(None));
            assert!(buffer.bytes <= MAX_BYTES);
        }
        assert_eq!(buffer.add(&fragment("late", "2", "0", b"x"), at(60_000)), Ok(None));
        assert_eq!((buffer.events.len(), buffer.bytes), (1, 1));
        // An event that arrives again after its fragments expired is complete.
        assert_eq!(buffer.add(&fragment("late", "2", "0", b"a"), at(90_000)), Ok(None));
        let found = buffer.add(&fragment("late", "2", "1", b"b"), at(90_001));
        assert_eq!(found, Ok(Some(b"ab".to_vec())));
    }
}
