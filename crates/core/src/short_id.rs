//! Shortened ids: the beginning of an id, or its beginning and its end.
//!
//! ```text
//! rec_5f3a9c01          the record whose id starts like this
//! dlv_5f3a9c01..8e21    the same, and ends with 8e21; deliveries of one message start alike
//! cymsg:5f3a9c01        a message
//! sha256:5f3a9c01       bytes, such as an attachment
//! webhook_0f3a9c        a Mail
//! ltr_7                 the letter with this number
//! ```

/// Fewest hex digits at the beginning of a shortened id.
pub const MIN_DIGITS: usize = 4;

/// An id that is given in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortId {
    pub kind: ShortIdKind,
    /// The first hex digits; for a letter, its number.
    pub start: String,
    /// The last hex digits; can be empty.
    pub end: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShortIdKind {
    Record,
    Delivery,
    Message,
    Receipt,
    /// Bytes, such as an attachment: `sha256:`.
    Bytes,
    Letter,
    Mail {
        provider: String,
    },
}

impl ShortId {
    /// Parses a shortened id; `None` when the text is not one. Whole ids are parsed too.
    pub fn parse(text: &str) -> Option<Self> {
        let at = text.find(['_', ':'])? + 1;
        let (prefix, rest) = text.split_at(at);
        let (start, end) = rest.split_once("..").unwrap_or((rest, ""));
        let kind = match prefix {
            "rec_" => ShortIdKind::Record,
            "dlv_" => ShortIdKind::Delivery,
            "cymsg:" => ShortIdKind::Message,
            "cymsgr:" => ShortIdKind::Receipt,
            "sha256:" => ShortIdKind::Bytes,
            "ltr_" => {
                let number = end.is_empty() && start.bytes().all(|byte| byte.is_ascii_digit());
                return (number && (1..=18).contains(&start.len())).then(|| Self {
                    kind: ShortIdKind::Letter,
                    start: start.to_owned(),
                    end: String::new(),
                });
            }
            _ => {
                let provider = prefix.strip_suffix('_')?;
                let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
                if provider.is_empty() || !provider.bytes().all(plain) {
                    return None;
                }
                ShortIdKind::Mail { provider: provider.to_owned() }
            }
        };
        let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let fits = (MIN_DIGITS..=64).contains(&start.len()) && end.len() <= 64;
        (fits && hex(start) && hex(end)).then(|| Self {
            kind,
            start: start.to_owned(),
            end: end.to_owned(),
        })
    }

    /// Whether `id` is a whole id that this shortens.
    pub fn matches(&self, id: &str) -> bool {
        let prefix = match &self.kind {
            ShortIdKind::Record => "rec_",
            ShortIdKind::Delivery => "dlv_",
            ShortIdKind::Message => "cymsg:",
            ShortIdKind::Receipt => "cymsgr:",
            ShortIdKind::Bytes => "sha256:",
            ShortIdKind::Letter => {
                let number = id.strip_prefix("ltr_").and_then(|rest| rest.split('_').next());
                return number == Some(self.start.as_str());
            }
            ShortIdKind::Mail { provider } => &format!("{provider}_"),
        };
        let digits = id.strip_prefix(prefix);
        digits.is_some_and(|digits| {
            digits.len() >= self.start.len() + self.end.len()
                && digits.starts_with(&self.start)
                && digits.ends_with(&self.end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_and_ends_match() {
        let record = format!("rec_{}{}", "5f3a9c01".repeat(4), "0123456789ab8e21");
        for (text, matches) in [
            ("rec_5f3a", true),
            ("rec_5f3a9c01..8e21", true),
            (record.as_str(), true),
            ("rec_5f3a9c01..8e22", false),
            ("rec_5f3b", false),
            ("dlv_5f3a", false),
        ] {
            assert_eq!(ShortId::parse(text).unwrap().matches(&record), matches, "{text}");
        }
        let letter = ShortId::parse("ltr_7").unwrap();
        assert!(letter.matches("ltr_7_00000abc") && !letter.matches("ltr_70_00000abc"));
        let mail = ShortId::parse("webhook_0f3a9c").unwrap();
        assert!(mail.matches("webhook_0f3a9c010203040506070809"));
        assert!(!mail.matches("lark_0f3a9c010203040506070809"));
        let bytes = ShortId::parse("sha256:0f3a").unwrap();
        assert!(bytes.matches(&format!("sha256:{}", "0f3a".repeat(16))));
        assert!(!bytes.matches(&format!("cymsg:{}", "0f3a".repeat(16))));
    }

    #[test]
    fn other_texts_are_not_ids() {
        for text in [
            "",
            "rec_",
            "rec_5f3",
            "rec_5F3A",
            "rec_5f3a..x",
            "ltr_",
            "ltr_x",
            "ltr_7..1",
            "did:web:ann",
            "_5f3a",
            "5f3a9c01",
            "Web_5f3a",
            "sha256:5f3",
            "sha512:5f3a",
        ] {
            assert_eq!(ShortId::parse(text), None, "{text}");
        }
    }
}
