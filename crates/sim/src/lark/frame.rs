//! Frames of the long connection: one protobuf message of proto2, read and written by hand.

use std::fmt;

/// Method of control frames: ping and pong.
pub const CONTROL: u64 = 0;

/// Method of data frames: events.
pub const DATA: u64 = 1;

/// Bits of the fields that every frame has: 1 to 4.
const REQUIRED_FIELDS: u64 = 0b1_1110;

/// One frame. The numbers of the fields are those of the published schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimLarkFrame {
    pub seq_id: u64,
    pub log_id: u64,
    pub service: u64,
    pub method: u64,
    pub headers: Vec<(String, String)>,
    pub payload: Option<Vec<u8>>,
    pub log_id_new: Option<String>,
}

/// Bytes that are not a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidSimLarkFrame;

impl fmt::Display for InvalidSimLarkFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are not a frame of the long connection")
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        if value <= 0x7f {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
        value >>= 7;
    }
}

fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Value of a field: a number, or bytes.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Reads the fields of a message one after the other.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn varint(&mut self) -> Result<u64, InvalidSimLarkFrame> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(InvalidSimLarkFrame)?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(InvalidSimLarkFrame)
    }

    /// The next field; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, InvalidSimLarkFrame> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| InvalidSimLarkFrame)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(InvalidSimLarkFrame)?;
                self.0 = rest;
                FieldValue::Bytes(bytes)
            }
            _ => return Err(InvalidSimLarkFrame),
        };
        Ok(Some((tag >> 3, value)))
    }
}

fn text(bytes: &[u8]) -> Result<String, InvalidSimLarkFrame> {
    String::from_utf8(bytes.to_vec()).map_err(|_| InvalidSimLarkFrame)
}

fn decode_header(bytes: &[u8]) -> Result<(String, String), InvalidSimLarkFrame> {
    let (mut reader, mut key, mut value) = (FieldReader(bytes), None, None);
    while let Some(field) = reader.next()? {
        match field {
            (1, FieldValue::Bytes(bytes)) => key = Some(text(bytes)?),
            (2, FieldValue::Bytes(bytes)) => value = Some(text(bytes)?),
            _ => {}
        }
    }
    key.zip(value).ok_or(InvalidSimLarkFrame)
}

impl SimLarkFrame {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The frame as bytes. Required fields are written also when they are 0.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [self.seq_id, self.log_id, self.service, self.method];
        for (field, value) in (1..).zip(numbers) {
            put_number(&mut out, field, value);
        }
        for (key, value) in &self.headers {
            let mut header = Vec::new();
            put_bytes(&mut header, 1, key.as_bytes());
            put_bytes(&mut header, 2, value.as_bytes());
            put_bytes(&mut out, 5, &header);
        }
        if let Some(payload) = &self.payload {
            put_bytes(&mut out, 8, payload);
        }
        if let Some(log_id) = &self.log_id_new {
            put_bytes(&mut out, 9, log_id.as_bytes());
        }
        out
    }

    /// Reads a frame. A frame without one of the required fields is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidSimLarkFrame> {
        let (mut reader, mut frame, mut found) = (FieldReader(bytes), Self::default(), 0_u64);
        while let Some((field, value)) = reader.next()? {
            match (field, value) {
                (1..=4, FieldValue::Number(number)) => {
                    found |= 1 << field;
                    match field {
                        1 => frame.seq_id = number,
                        2 => frame.log_id = number,
                        3 => frame.service = number,
                        _ => frame.method = number,
                    }
                }
                (5, FieldValue::Bytes(bytes)) => frame.headers.push(decode_header(bytes)?),
                (8, FieldValue::Bytes(bytes)) => frame.payload = Some(bytes.to_vec()),
                (9, FieldValue::Bytes(bytes)) => frame.log_id_new = Some(text(bytes)?),
                (1..=5 | 8 | 9, _) => return Err(InvalidSimLarkFrame),
                _ => {}
            }
        }
        if found == REQUIRED_FIELDS { Ok(frame) } else { Err(InvalidSimLarkFrame) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> SimLarkFrame {
        SimLarkFrame {
            seq_id: 0,
            log_id: 1_700_000_000_000_000_001,
            service: 33_554_678,
            method: DATA,
            headers: vec![("type".to_owned(), "event".to_owned())],
            payload: Some(b"{}".to_vec()),
            log_id_new: None,
        }
    }

    #[test]
    fn frame_has_the_bytes_of_the_published_schema() {
        let ping = SimLarkFrame {
            service: 300,
            headers: vec![("type".to_owned(), "ping".to_owned())],
            ..SimLarkFrame::default()
        };
        let expected = b"\x08\0\x10\0\x18\xac\x02\x20\0\x2a\x0c\x0a\x04type\x12\x04ping";
        assert_eq!(ping.encode(), expected);
    }

    #[test]
    fn frame_survives_a_round_trip() {
        let bytes = frame().encode();
        assert_eq!(SimLarkFrame::decode(&bytes), Ok(frame()));
        let with_unknown_fields = [&bytes[..], b"\x32\x04none\x3a\x00\x78\x01"].concat();
        assert_eq!(SimLarkFrame::decode(&with_unknown_fields), Ok(frame()));
    }

    #[test]
    fn truncated_frame_and_missing_fields_are_errors() {
        let bytes = frame().encode();
        for length in 1..bytes.len() {
            // A frame that ends between two optional fields is complete.
            if let Ok(found) = SimLarkFrame::decode(&bytes[..length]) {
                assert!(found.payload.is_none() && length > 15, "{length}");
            }
        }
        for bad in [&b""[..], b"\x08\x00", b"\xff\xff\xff", b"\x0d\x00\x00\x00\x00"] {
            assert_eq!(SimLarkFrame::decode(bad), Err(InvalidSimLarkFrame), "{bad:?}");
        }
    }
}
