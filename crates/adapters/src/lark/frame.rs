//! The protobuf frames of the long connection, which the SDKs define as follows (proto2):
//!
//! ```text
//! message Header { required string key = 1; required string value = 2; }
//! message Frame  { required uint64 SeqID = 1; required uint64 LogID = 2;
//!                  required int32 service = 3; required int32 method = 4;
//!                  repeated Header headers = 5; optional string payload_encoding = 6;
//!                  optional string payload_type = 7; optional bytes payload = 8;
//!                  optional string LogIDNew = 9; }
//! ```
//!
//! One message with nine fields needs no code generator. Reading is strict: a missing field, a
//! wrong wire type, a length beyond the end and text that is not UTF-8 are errors. Unknown fields
//! are skipped.

/// Most headers of a frame. Lark sends up to eight.
const MAX_HEADERS: usize = 64;

/// The method of control frames, such as pings.
pub(super) const CONTROL: i32 = 0;

/// The method of frames with events.
pub(super) const DATA: i32 = 1;

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidFrame {
    #[error("the frame ends in the middle of a field")]
    Truncated,
    #[error("a number has more than 64 bits")]
    Overflow,
    #[error("field {0} has a wrong type")]
    WireType(u64),
    #[error("field {0} is missing")]
    Missing(u64),
    #[error("field {0} is not UTF-8")]
    Utf8(u64),
    #[error("more than {MAX_HEADERS} headers")]
    TooManyHeaders,
}

/// One message of the long connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LarkSocketFrame {
    pub seq_id: u64,
    pub log_id: u64,
    pub service: i32,
    pub method: i32,
    pub headers: Vec<(String, String)>,
    pub payload_encoding: Option<String>,
    pub payload_type: Option<String>,
    pub payload: Vec<u8>,
    pub log_id_new: Option<String>,
}

impl LarkSocketFrame {
    /// The ping of a client.
    pub fn ping(service: i32) -> Self {
        let headers = vec![("type".to_owned(), "ping".to_owned())];
        Self { service, method: CONTROL, headers, ..Self::default() }
    }

    /// Returns the answer to a frame with an event: the same frame with a status as payload.
    pub fn answer(&self, code: u16) -> Self {
        let mut answer = self.clone();
        // The time that the handler needed. It runs after the acknowledgement.
        answer.headers.push(("biz_rt".to_owned(), "0".to_owned()));
        answer.payload = format!(r#"{{"code":{code}}}"#).into_bytes();
        answer
    }

    /// Returns the first header called `key`; `None` when there is none or it is empty.
    pub fn header(&self, key: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// Parses the bytes of a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidFrame> {
        let mut frame = Self::default();
        let mut found = [false; 5];
        let mut reader = FieldReader { bytes };
        while let Some((field, value)) = reader.next()? {
            match field {
                1 => frame.seq_id = value.number(field)?,
                2 => frame.log_id = value.number(field)?,
                3 => frame.service = value.int32(field)?,
                4 => frame.method = value.int32(field)?,
                5 if frame.headers.len() == MAX_HEADERS => {
                    return Err(InvalidFrame::TooManyHeaders);
                }
                5 => frame.headers.push(parse_header(value.bytes(field)?)?),
                6 => frame.payload_encoding = Some(value.text(field)?),
                7 => frame.payload_type = Some(value.text(field)?),
                8 => frame.payload = value.bytes(field)?.to_vec(),
                9 => frame.log_id_new = Some(value.text(field)?),
                _ => {}
            }
            if let Some(seen) = usize::try_from(field).ok().and_then(|n| found.get_mut(n)) {
                *seen = true;
            }
        }
        match (1..=4_u64).zip(&found[1..]).find(|(_, seen)| !**seen) {
            Some((field, _)) => Err(InvalidFrame::Missing(field)),
            None => Ok(frame),
        }
    }

    /// Returns the bytes of the frame. Required fields are written even when they are 0.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + 256);
        for (field, number) in [
            (1, self.seq_id),
            (2, self.log_id),
            (3, as_varint(self.service)),
            (4, as_varint(self.method)),
        ] {
            push_varint(&mut out, field << 3);
            push_varint(&mut out, number);
        }
        for (key, value) in &self.headers {
            let mut header = Vec::with_capacity(key.len() + value.len() + 8);
            push_bytes(&mut header, 1, key.as_bytes());
            push_bytes(&mut header, 2, value.as_bytes());
            push_bytes(&mut out, 5, &header);
        }
        for (field, text) in [(6, &self.payload_encoding), (7, &self.payload_type)] {
            if let Some(text) = text {
                push_bytes(&mut out, field, text.as_bytes());
            }
        }
        if !self.payload.is_empty() {
            push_bytes(&mut out, 8, &self.payload);
        }
        if let Some(text) = &self.log_id_new {
            push_bytes(&mut out, 9, text.as_bytes());
        }
        out
    }
}

fn parse_header(bytes: &[u8]) -> Result<(String, String), InvalidFrame> {
    let (mut key, mut value) = (None, None);
    let mut reader = FieldReader { bytes };
    while let Some((field, found)) = reader.next()? {
        match field {
            1 => key = Some(found.text(field)?),
            2 => value = Some(found.text(field)?),
            _ => {}
        }
    }
    match (key, value) {
        (Some(key), Some(value)) => Ok((key, value)),
        (None, _) => Err(InvalidFrame::Missing(1)),
        (_, None) => Err(InvalidFrame::Missing(2)),
    }
}

/// The value of a field, as it is on the wire.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A number with 32 or 64 bits, which no known field has.
    Fixed,
}

impl<'a> FieldValue<'a> {
    fn number(&self, field: u64) -> Result<u64, InvalidFrame> {
        match self {
            Self::Number(number) => Ok(*number),
            _ => Err(InvalidFrame::WireType(field)),
        }
    }

    /// Negative numbers have 64 bits on the wire.
    fn int32(&self, field: u64) -> Result<i32, InvalidFrame> {
        let number = self.number(field)?.cast_signed();
        i32::try_from(number).map_err(|_| InvalidFrame::Overflow)
    }

    fn bytes(&self, field: u64) -> Result<&'a [u8], InvalidFrame> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(InvalidFrame::WireType(field)),
        }
    }

    fn text(&self, field: u64) -> Result<String, InvalidFrame> {
        let text = std::str::from_utf8(self.bytes(field)?);
        text.map(str::to_owned).map_err(|_| InvalidFrame::Utf8(field))
    }
}

/// Reads one field after the other.
struct FieldReader<'a> {
    bytes: &'a [u8],
}

impl<'a> FieldReader<'a> {
    fn next(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, InvalidFrame> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = tag >> 3;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => {
                self.take(8)?;
                FieldValue::Fixed
            }
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| InvalidFrame::Truncated)?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                FieldValue::Fixed
            }
            _ => return Err(InvalidFrame::WireType(field)),
        };
        Ok(Some((field, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], InvalidFrame> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(InvalidFrame::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, InvalidFrame> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.bytes.split_first().ok_or(InvalidFrame::Truncated)?;
            self.bytes = rest;
            let bits = u64::from(first & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(InvalidFrame::Overflow);
            }
            number |= bits << shift;
            if first & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(InvalidFrame::Overflow)
    }
}

/// Negative numbers are written with 64 bits.
fn as_varint(number: i32) -> u64 {
    i64::from(number).cast_unsigned()
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn push_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    push_varint(out, (field << 3) | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
