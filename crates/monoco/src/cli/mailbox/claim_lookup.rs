//! Who is at which Mail: asked of the courier, or seen from its files when it is down.

use std::collections::BTreeMap;

use monoco_core::claim::Workspace;
use monoco_core::mail::MailId;
use serde_json::json;

use super::MailboxContext;
use crate::cli::client::Client;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{note, shown};
use monoco_mailbox::claim_info::{ClaimInfo, LocksFile};
use monoco_mailbox::inbox::MailFileName;

/// Most Mails that the courier is asked about at once.
pub const PAGE: usize = 1_000;

/// Where the answers come from.
pub struct ClaimLookup<'a> {
    desk: &'a MailboxContext<'a>,
    workspace: &'a Workspace,
    /// Whether it was said that the courier is not there.
    noted: bool,
}

impl<'a> ClaimLookup<'a> {
    pub const fn new(desk: &'a MailboxContext<'a>, workspace: &'a Workspace) -> Self {
        Self { desk, workspace, noted: false }
    }

    /// Where the claims on these Mails stand, in their order. At most [`PAGE`].
    pub async fn of(
        &mut self,
        mails: &[(MailFileName, MailId)],
    ) -> Result<Vec<ClaimInfo>, CliError> {
        if mails.is_empty() {
            return Ok(Vec::new());
        }
        match self.ask(mails).await {
            Ok(standings) => {
                self.noted = false;
                Ok(standings)
            }
            Err(failure) if matches!(failure.exit, CliExit::NoCourier | CliExit::Courier) => {
                let files = LocksFile::read(&self.desk.tree, self.workspace, self.desk.now())?;
                if !self.noted {
                    self.noted = true;
                    let why = shown(&failure.message);
                    note(&format!("{why}; the status is what its files show"));
                    if let Some(why) = &files.unreadable {
                        note(&format!("open claims are not shown: {}", shown(why)));
                    }
                }
                Ok(mails.iter().map(|(name, id)| files.of(name, id)).collect())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn ask(&self, mails: &[(MailFileName, MailId)]) -> Result<Vec<ClaimInfo>, CliError> {
        let client = Client::find(&self.desk.context.home)?;
        let ids: Vec<_> = mails.iter().map(|(_, id)| id).collect();
        let body = json!({"workspace": self.workspace, "ids": ids});
        let mut answer = client.post("/api/v1/messages/status", &body).await?;
        let claims = answer.get_mut("claims").map(serde_json::Value::take).unwrap_or_default();
        let claims: Vec<ClaimInfo> = serde_json::from_value(claims).map_err(|error| {
            CliError::new(CliExit::Courier, format!("the courier's answer makes no sense: {error}"))
        })?;
        let mut claims: BTreeMap<_, _> =
            claims.into_iter().map(|claim| (claim.id.clone(), claim)).collect();
        let standing = |(_, id): &(MailFileName, MailId)| {
            claims.remove(id).unwrap_or_else(|| ClaimInfo::untouched(id.clone(), self.workspace))
        };
        Ok(mails.iter().map(standing).collect())
    }
}
