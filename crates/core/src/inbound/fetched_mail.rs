//! E-mails as an adapter fetches them, before they are parsed.

use crate::object::ObjId;
use crate::time::Timestamp;

/// One mail of a folder, with what is needed to register it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedMail {
    pub folder: String,
    pub uid_validity: u32,
    pub uid: u32,
    /// When the server received it.
    pub internal_date: Option<Timestamp>,
    /// From the header, for lists. Empty when the header cannot be parsed.
    pub subject: String,
    /// From the header; `None` when the header cannot be parsed.
    pub date: Option<Timestamp>,
    /// Size of the whole mail, in bytes.
    pub size: u64,
    pub raw: RawMail,
}

/// The bytes of a fetched mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawMail {
    Bytes(Vec<u8>),
    /// Larger than 1 MiB: it was stored while it was fetched.
    Stored(StoredBytes),
    /// The mail exceeds the size limit; only its header was fetched.
    HeadersOnly {
        headers: Vec<u8>,
        why: String,
    },
}

/// Bytes that are stored, by their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBytes {
    pub hash: ObjId,
    pub size: u64,
}
