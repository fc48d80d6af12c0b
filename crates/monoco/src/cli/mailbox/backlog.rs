//! The Mails of a workspace that may still be claimed, the oldest first.

use std::collections::BTreeSet;

use monoco_core::filter::{Filter, FilterInput};
use monoco_core::mail::{Mail, MailId};

use super::MailboxContext;
use super::claim_lookup::{ClaimLookup, PAGE};
use crate::cli::failure::CliError;
use crate::cli::output::{note, shown};
use monoco_mailbox::inbox::{self, MailFileName};
use monoco_mailbox::workspace::WorkspaceDir;

/// What may still be claimed, as far as we know. What is done for good is dropped when
/// it is seen, so that nobody is asked about it again.
pub struct Backlog<'a> {
    desk: &'a MailboxContext<'a>,
    here: &'a WorkspaceDir,
    rule: Option<Filter>,
    standings: ClaimLookup<'a>,
    names: BTreeSet<MailFileName>,
}

/// A Mail that may be claimed.
pub struct Claimable {
    pub name: MailFileName,
    pub id: MailId,
    pub mail: Mail,
}

impl<'a> Backlog<'a> {
    /// Everything in the inbox that `rule` matches.
    pub fn new(
        desk: &'a MailboxContext<'a>,
        here: &'a WorkspaceDir,
        rule: Option<&str>,
    ) -> Result<Self, CliError> {
        let rule = rule.map(|text| {
            Filter::parse(text).map_err(|error| CliError::usage(format!("--rule: {error}")))
        });
        let standings = ClaimLookup::new(desk, &here.name);
        let names = inbox::oldest_first(here, desk.now())?.into_iter().collect();
        Ok(Self { desk, here, rule: rule.transpose()?, standings, names })
    }

    /// Another Mail came.
    pub fn add(&mut self, file: &str) {
        self.names.extend(MailFileName::new(file.to_owned()));
    }

    /// Whether there is nothing that could become claimable by itself.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The oldest Mail that may be claimed now, but for those in `tried`.
    pub async fn next(&mut self, tried: &BTreeSet<MailId>) -> Result<Option<Claimable>, CliError> {
        let mut last: Option<MailFileName> = None;
        loop {
            let rest: Vec<_> = match &last {
                Some(last) => {
                    let after = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
                    self.names.range(after).take(PAGE).cloned().collect()
                }
                None => self.names.iter().take(PAGE).cloned().collect(),
            };
            let Some(end) = rest.last().cloned() else { return Ok(None) };
            last = Some(end);
            let page: Vec<_> =
                rest.into_iter().filter_map(|name| name.id().map(|id| (name, id))).collect();
            let asked = self.standings.of(&page).await?;
            for ((name, id), standing) in page.into_iter().zip(asked) {
                if !standing.open() {
                    self.names.remove(&name);
                    continue;
                }
                if !standing.claimable(self.desk.now()) || tried.contains(&id) {
                    continue;
                }
                match self.open(&name) {
                    Some(mail) => return Ok(Some(Claimable { name, id, mail })),
                    None => drop(self.names.remove(&name)),
                }
            }
        }
    }

    /// The Mail, if it can be read and is wanted.
    fn open(&self, name: &MailFileName) -> Option<Mail> {
        match inbox::open(&self.here.inbox(), name) {
            Ok((mail, file)) => {
                let Some(rule) = &self.rule else { return Some(mail) };
                let entry = mail.entry(0, &file);
                let mut fetch = || Some(mail.text.clone());
                let wanted = rule.matches(&mut FilterInput::new(&entry, &mut fetch));
                wanted.then_some(mail)
            }
            Err(words) => {
                // The user has deleted it meanwhile, or it is not ours.
                if self.here.inbox().join(name.file()).exists() {
                    note(&format!("passed over {}", shown(&words)));
                }
                None
            }
        }
    }
}
