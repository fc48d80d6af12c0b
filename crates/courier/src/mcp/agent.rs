//! The agent that calls tools: its name, workspace, DID and scopes.

use monoco_core::claim::Workspace;
use monoco_core::did::Did;
use monoco_core::lease::Holder;
use monoco_core::token::{AgentToken, Scope, ScopeSet};

use crate::api::Api;
use crate::api::caller::Caller;

/// Name of the owner as holder of claims.
const OWNER_NAME: &str = "owner";

/// The caller of a tool. All of it comes from the token, nothing from the arguments.
#[derive(Clone, Debug)]
pub struct McpAgent {
    pub caller: Caller,
    /// The holder of claims.
    pub holder: Holder,
    pub workspace: Workspace,
    /// The author of what it sends.
    pub did: Did,
    pub scopes: ScopeSet,
}

impl McpAgent {
    /// The agent of a token, or the owner with all scopes and the shared workspace.
    pub fn new(api: &Api, caller: Caller) -> Self {
        let (holder, workspace, did, scopes) = match caller.agent() {
            Some(AgentToken { name, workspace, did, scopes, .. }) => {
                (Holder::from(name.clone()), workspace.clone(), did.clone(), *scopes)
            }
            None => (
                Holder::new(OWNER_NAME).unwrap_or_else(|_| Holder::anonymous()),
                Workspace::shared(),
                api.config.borrow().owner.clone(),
                ScopeSet::ALL,
            ),
        };
        Self { caller, holder, workspace, did, scopes }
    }

    pub fn name(&self) -> &str {
        self.holder.as_str()
    }

    pub fn has_scope(&self, scope: Option<Scope>) -> bool {
        scope.is_none_or(|scope| self.scopes.contains(scope))
    }
}
