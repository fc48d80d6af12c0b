//! `block`: trashes letters from or to blocked addresses.
//!
//! The lists of the config are checked here. The dispatcher then checks the contacts.

use std::sync::Arc;

use monoco_core::config::{ConfigValue, InvalidConfig};
use monoco_core::did::Did;
use monoco_core::letter::{Letter, WorkerResult, WorkerStep, check_address};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind =
    WorkerKind { name: "block", built_in: true, keys: &["senders", "recipients"], parse };

/// Blocked addresses, and domains as `@example.com`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockConfig {
    pub senders: Vec<String>,
    pub recipients: Vec<String>,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let list = |key: &str| -> Result<Vec<String>, InvalidConfig> {
        section.keys.values(key)?.unwrap_or_default().iter().map(address).collect()
    };
    Ok(Arc::new(BlockConfig { senders: list("senders")?, recipients: list("recipients")? }))
}

/// Reads an address or a domain.
fn address(value: &ConfigValue<'_>) -> Result<String, InvalidConfig> {
    value.checked(|entry| {
        let address = match entry.strip_prefix('@') {
            Some(domain) => format!("anyone@{domain}"),
            None => entry.to_owned(),
        };
        let invalid =
            |why| format!("{}: {why}; a whole domain is written @example.com", value.quoted());
        check_address(&address).map(|()| entry.to_owned()).map_err(invalid)
    })
}

impl BlockConfig {
    /// Checks a letter against the lists.
    pub fn apply(&self, letter: &Letter) -> WorkerResult {
        if let Some(entry) = find_entry(&self.senders, &letter.from) {
            return WorkerResult::trash(format!("its sender is blocked ({entry})"));
        }
        for address in &letter.to {
            if let Some(entry) = find_entry(&self.recipients, address) {
                return WorkerResult::trash(format!("{address} is blocked ({entry})"));
            }
        }
        WorkerResult::PASS
    }
}

impl Worker for BlockConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        match self.apply(letter) {
            WorkerResult::PASS => WorkerStep::Needs(WorkerAction::CheckContacts),
            trashed => WorkerStep::Decided(trashed),
        }
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[
            ("senders", self.senders != new.senders),
            ("recipients", self.recipients != new.recipients),
        ])
    }

    /// Without lists, `block` only checks the contacts, which is done for every message.
    fn is_needed(&self) -> bool {
        !self.senders.is_empty() || !self.recipients.is_empty()
    }
}

/// Returns the first entry that matches the address. The DID of an external endpoint whose
/// account is an e-mail address also matches entries of that address.
fn find_entry<'l>(list: &'l [String], address: &str) -> Option<&'l String> {
    let did = address.parse::<Did>().ok();
    let account = did.as_ref().and_then(Did::endpoint).map(|endpoint| endpoint.account);
    // DIDs are case-sensitive. Mail addresses are compared without case: no mail server is
    // known that distinguishes it.
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
