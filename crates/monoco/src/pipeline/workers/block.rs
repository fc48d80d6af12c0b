//! `block`: throws away what is from or for somebody nobody wants to deal with.
//!
//! Whom a contact blocks is asked of the store by the dispatcher; here are the lists
//! of the configuration.

use monoco_core::did::Did;
use monoco_core::letter::Letter;

use super::WorkerResult;

/// Addresses, and domains as `@example.com`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockConfig {
    /// Letters from these go no further.
    pub senders: Vec<String>,
    /// Nor do letters to any of these.
    pub recipients: Vec<String>,
}

impl BlockConfig {
    /// Whether it has no lists of its own.
    pub fn is_empty(&self) -> bool {
        self.senders.is_empty() && self.recipients.is_empty()
    }

    /// Looks at one letter.
    pub fn work(&self, letter: &Letter) -> WorkerResult {
        if let Some(entry) = listed(&self.senders, &letter.from) {
            return WorkerResult::trash(format!("its sender is blocked ({entry})"));
        }
        for address in &letter.to {
            if let Some(entry) = listed(&self.recipients, address) {
                return WorkerResult::trash(format!("{address} is blocked ({entry})"));
            }
        }
        WorkerResult::PASS
    }
}

/// The first entry that means this address. An endpoint on an outside network whose
/// account is an e-mail address is meant by that address, too.
fn listed<'l>(list: &'l [String], address: &str) -> Option<&'l String> {
    let did = address.parse::<Did>().ok();
    let account = did.as_ref().and_then(Did::endpoint).map(|endpoint| endpoint.account);
    // DIDs are told apart by the case of their letters. Mail servers that do so with
    // addresses are not known.
    let mail = match did {
        None => Some(address.to_lowercase()),
        Some(_) => account.filter(|account| account.contains('@')).map(|a| a.to_lowercase()),
    };
    let domain = mail.as_deref().and_then(|mail| mail.rsplit_once('@')).map(|(_, domain)| domain);
    list.iter().find(|entry| match entry.strip_prefix('@') {
        Some(listed) => domain.is_some_and(|domain| listed.to_lowercase() == domain),
        None => {
            *entry == address || mail.as_ref().is_some_and(|mail| entry.to_lowercase() == *mail)
        }
    })
}

#[cfg(test)]
mod tests;
