//! Looks up the claims on Mails: from the courier, or from its files when it is down.

use std::collections::BTreeMap;

use monoco_core::claim::Workspace;
use monoco_core::mail::MailId;
use serde::Deserialize;
use serde_json::json;

use super::MailboxContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{escape_line, note};
use monoco_mailbox::claim_info::{ClaimInfo, LocksFile};
use monoco_mailbox::inbox::MailFileName;

/// Maximum number of Mails per request.
pub const MAX_MAILS_PER_REQUEST: usize = 1_000;

/// Looks up claims of one workspace.
pub struct ClaimLookup<'a> {
    mailbox: &'a MailboxContext<'a>,
    workspace: &'a Workspace,
    /// Whether the user was told that the courier is down.
    noted: bool,
}

#[derive(Deserialize)]
struct ClaimInfoList {
    claims: Vec<ClaimInfo>,
}

impl<'a> ClaimLookup<'a> {
    pub const fn new(mailbox: &'a MailboxContext<'a>, workspace: &'a Workspace) -> Self {
        Self { mailbox, workspace, noted: false }
    }

    /// Returns the claims on these Mails in the same order. At most [`MAX_MAILS_PER_REQUEST`].
    pub async fn of(
        &mut self,
        mails: &[(MailFileName, MailId)],
    ) -> Result<Vec<ClaimInfo>, CliError> {
        if mails.is_empty() {
            return Ok(Vec::new());
        }
        match self.get_claims(mails).await {
            Ok(claims) => {
                self.noted = false;
                Ok(claims)
            }
            // A copy of another machine's mailbox does not show claims.
            Err(failure) if self.mailbox.remote.is_some() => Err(failure),
            Err(failure) if matches!(failure.exit, CliExit::NoCourier | CliExit::Courier) => {
                let files =
                    LocksFile::read(&self.mailbox.paths, self.workspace, self.mailbox.now())?;
                if !self.noted {
                    self.noted = true;
                    let why = escape_line(&failure.message);
                    note(&format!("{why}; showing the status from its files"));
                    if let Some(why) = &files.unreadable {
                        note(&format!("cannot show open claims: {}", escape_line(why)));
                    }
                }
                Ok(mails.iter().map(|(name, id)| files.of(name, id)).collect())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn get_claims(
        &self,
        mails: &[(MailFileName, MailId)],
    ) -> Result<Vec<ClaimInfo>, CliError> {
        let client = self.mailbox.context.client()?;
        let ids: Vec<_> = mails.iter().map(|(_, id)| id).collect();
        let body = json!({"workspace": self.workspace, "ids": ids});
        let answer: ClaimInfoList = client.post("/api/v1/messages/status", &body).await?;
        let mut claims: BTreeMap<_, _> =
            answer.claims.into_iter().map(|claim| (claim.id.clone(), claim)).collect();
        let claim = |(_, id): &(MailFileName, MailId)| {
            claims.remove(id).unwrap_or_else(|| ClaimInfo::untouched(id.clone(), self.workspace))
        };
        Ok(mails.iter().map(claim).collect())
    }
}
