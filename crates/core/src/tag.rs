//! Tags: names that users give to records, e.g. `starred`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 64;

/// Maximum number of tags of one record.
pub const MAX_TAGS: usize = 32;

/// A tag that a user can set and remove.
///
/// Tags that start with `group:` are set by the hub, and are not values of this type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(String);

/// Why a text is not a tag, or a record cannot have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTag {
    #[error("invalid tag {0:?}; expected 1 to 64 bytes without spaces and control characters")]
    Text(String),
    #[error("tag {0:?} is reserved: tags that start with `group:` are set by the courier")]
    Reserved(String),
    #[error("a record has at most {MAX_TAGS} tags")]
    TooMany,
}

impl Tag {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Adds and removes tags. A tag that is both added and removed is removed.
///
/// # Errors
///
/// [`InvalidTag::TooMany`] when more than [`MAX_TAGS`] are left.
pub fn change_tags(
    tags: &BTreeSet<Tag>,
    add: &[Tag],
    remove: &[Tag],
) -> Result<BTreeSet<Tag>, InvalidTag> {
    let mut changed = tags.clone();
    changed.extend(add.iter().cloned());
    changed.retain(|tag| !remove.contains(tag));
    if changed.len() > MAX_TAGS { Err(InvalidTag::TooMany) } else { Ok(changed) }
}

impl FromStr for Tag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        let valid = (1..=MAX_TAG_BYTES).contains(&text.len())
            && !text.chars().any(|c| c.is_whitespace() || c.is_control());
        if !valid {
            return Err(InvalidTag::Text(text.chars().take(MAX_TAG_BYTES).collect()));
        }
        if text.starts_with("group:") {
            return Err(InvalidTag::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Tag {
    type Error = InvalidTag;

    fn try_from(text: String) -> Result<Self, InvalidTag> {
        text.parse()
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_one_word_and_not_those_of_groups() {
        for good in ["starred", "to-do", "客户", &"x".repeat(64)] {
            assert_eq!(good.parse::<Tag>().unwrap().as_str(), good);
        }
        for bad in ["", "two words", "a\nb", "\u{1b}", &"x".repeat(65)] {
            assert!(matches!(bad.parse::<Tag>(), Err(InvalidTag::Text(_))), "{bad:?}");
        }
        assert!(matches!("group:x".parse::<Tag>(), Err(InvalidTag::Reserved(_))));
    }

    #[test]
    fn tags_are_added_and_removed_up_to_the_limit() {
        let tag = |n: usize| format!("t{n}").parse::<Tag>().unwrap();
        let all: Vec<_> = (0..MAX_TAGS).map(tag).collect();
        let full = change_tags(&BTreeSet::new(), &all, &[]).unwrap();
        assert_eq!(full.len(), MAX_TAGS);
        assert_eq!(change_tags(&full, &[tag(99)], &[]), Err(InvalidTag::TooMany));
        let other = change_tags(&full, &[tag(99)], &[tag(0), tag(100)]).unwrap();
        assert!(other.contains(&tag(99)) && !other.contains(&tag(0)) && other.len() == MAX_TAGS);
    }
}
