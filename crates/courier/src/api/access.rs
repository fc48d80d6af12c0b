//! Which scope each route needs, checked before its handler runs.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use monoco_core::token::Scope;

use super::caller::Caller;
use super::error::ApiError;

/// Who may use a route. The owner may use all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteAccess {
    /// Requests without a token too.
    Open,
    /// No agent, whatever the scopes of its token.
    Owner,
    /// Agents whose token has at least one of the scopes.
    OneOf(&'static [Scope]),
}

impl RouteAccess {
    /// # Errors
    ///
    /// 401 without a caller, 403 `missing_scope` when the token of an agent is not sufficient.
    fn check(self, caller: Option<&Caller>) -> Result<(), ApiError> {
        match (self, caller) {
            (Self::Open, _) | (_, Some(Caller::Owner)) => Ok(()),
            (_, None) => Err(ApiError::no_token()),
            (Self::Owner, Some(Caller::Agent(_))) => Err(ApiError::owner_only()),
            (Self::OneOf(scopes), Some(Caller::Agent(token))) => Ok(token.check_scope(scopes)?),
        }
    }

    /// The names in the API document: none when the route is open.
    #[cfg(test)]
    pub fn names(self) -> Vec<&'static str> {
        match self {
            Self::Open => Vec::new(),
            Self::Owner => vec!["owner"],
            Self::OneOf(scopes) => scopes.iter().map(|scope| scope.as_str()).collect(),
        }
    }
}

/// Rejects requests whose caller may not use the route.
pub async fn enforce(State(access): State<RouteAccess>, request: Request, next: Next) -> Response {
    match access.check(request.extensions().get()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use monoco_core::claim::Workspace;
    use monoco_core::time::Timestamp;
    use monoco_core::token::{AgentToken, ScopeSet};

    use super::*;
    use crate::api::{READS_WITH_BODY, ROUTES};

    fn agent(scopes: ScopeSet) -> Caller {
        Caller::Agent(Arc::new(AgentToken {
            name: "codex".parse().unwrap(),
            scopes,
            workspace: Workspace::shared(),
            did: "did:monoco:codex".parse().unwrap(),
            created_at: Timestamp::from_ms(0),
            last_used_at: None,
            revoked_at: None,
        }))
    }

    #[test]
    fn every_route_but_health_needs_a_caller_with_a_scope() {
        for (method, path, access) in ROUTES {
            let is_open = *path == "/health";
            let status = |caller: Option<&Caller>| {
                access.check(caller).err().map(|error| error.status.as_u16())
            };
            assert_eq!(status(None), (!is_open).then_some(401), "{method} {path}");
            assert_eq!(status(Some(&Caller::Owner)), None, "{method} {path}");
            let without = agent(ScopeSet::default());
            assert_eq!(status(Some(&without)), (!is_open).then_some(403), "{method} {path}");
            for scope in Scope::ALL {
                let allowed = match access {
                    RouteAccess::Open => true,
                    RouteAccess::Owner => false,
                    RouteAccess::OneOf(scopes) => scopes.contains(&scope),
                };
                let token = agent([scope].into_iter().collect());
                let expected = (!allowed).then_some(403);
                assert_eq!(status(Some(&token)), expected, "{method} {path} {scope:?}");
            }
        }
    }

    #[test]
    fn scope_read_allows_no_change() {
        for (method, path, access) in ROUTES {
            if access.names().contains(&"read") {
                assert!(*method == "get" || READS_WITH_BODY.contains(path), "{method} {path}");
            }
        }
    }
}
