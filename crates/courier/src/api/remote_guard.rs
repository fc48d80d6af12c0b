//! Checks Host and token of every request of another machine before routing.
//!
//! The listener with TLS is for programs with a token of their own, which `monoco token add` makes:
//! a token can be revoked without the others, and what it did is recorded under its name. So the
//! owner's token is not accepted here, there is no web page, and requests of browsers are
//! rejected.
//!
//! Only `/health` needs no token, and then shows only the status, for load balancers.
//!
//! A rejected token is answered after a delay, on a connection that is then closed, so that
//! guessing needs a handshake per guess.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use monoco_core::token::{TokenHash, TokenSecret};
use tokio::sync::watch;

use super::caller::{AgentTokens, Caller};
use super::connection::ClientAddress;
use super::error::ApiError;
use super::guard::{end_stream_after, only};
use super::server;
use crate::config::{Config, RemoteName};
use crate::log_limit::LogLimit;

/// How long the response to a rejected token is delayed.
const REJECTION_DELAY: Duration = Duration::from_secs(1);

/// The accepted names and tokens of the listener for other machines.
pub struct RemoteGuard {
    config: watch::Receiver<Arc<Config>>,
    agents: Arc<AgentTokens>,
    rejections: LogLimit,
}

impl RemoteGuard {
    pub fn new(config: watch::Receiver<Arc<Config>>, agents: Arc<AgentTokens>) -> Self {
        Self { config, agents, rejections: LogLimit::default() }
    }

    /// Checks all but the token itself; returns its hash, or `None` when the route needs none.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<TokenHash>, ApiError> {
        let config = self.config.borrow();
        let names = config.remote.as_ref().map_or(&[][..], |remote| &remote.names);
        let host = only(headers, header::HOST);
        let name = host.and_then(RemoteName::of_host);
        if !name.is_some_and(|name| names.contains(&name)) {
            return Err(ApiError::foreign_remote_host());
        }
        // A request to a proxy also names the host in its first line.
        if uri.authority().is_some_and(|it| Some(it.as_str()) != host) {
            return Err(ApiError::foreign_remote_host());
        }
        if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(ApiError::foreign_origin());
        }
        // As on the local listener: clients that look for OAuth must find that there is none.
        if uri.path().starts_with("/.well-known/") {
            return Err(ApiError::no_route());
        }
        if !headers.contains_key(header::AUTHORIZATION) {
            let is_open = uri.path() == "/health";
            return if is_open { Ok(None) } else { Err(ApiError::no_client_token()) };
        }
        let token = only(headers, header::AUTHORIZATION);
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        let token = token.ok_or_else(ApiError::no_client_token)?;
        let secret = TokenSecret::parse(token).ok_or_else(ApiError::wrong_client_token)?;
        Ok(Some(secret.hash()))
    }

    /// Finds the caller of a request that [`Self::check`] has checked, with the hash of its token.
    async fn authenticate(
        &self,
        checked: Result<Option<TokenHash>, ApiError>,
    ) -> Result<Option<(Caller, TokenHash)>, ApiError> {
        let Some(secret) = checked? else { return Ok(None) };
        match self.agents.authenticate(secret).await {
            Ok(token) => Ok(Some((Caller::Agent(token), secret))),
            Err(error) if error.code == "wrong_token" => Err(ApiError::wrong_client_token()),
            Err(error) => Err(error),
        }
    }
}

/// Adds the guard in front of all routes of `router`.
pub fn protect(router: Router, guard: RemoteGuard) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(guard), check))
}

async fn check(
    State(guard): State<Arc<RemoteGuard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let client = request.extensions().get::<ClientAddress>().map(|client| client.0.to_string());
    let client = client.unwrap_or_default();
    let checked = guard.check(request.uri(), request.headers());
    let (caller, secret) = match guard.authenticate(checked).await {
        Ok(Some(caller)) => caller,
        Ok(None) => {
            let mut response = next.run(request).await;
            server::close(&mut response);
            return response;
        }
        Err(error) => {
            if let Some(suppressed) = guard.rejections.admit() {
                let code = error.code;
                tracing::warn!(client, code, suppressed, "request of another machine rejected");
            }
            if error.status == axum::http::StatusCode::UNAUTHORIZED {
                tokio::time::sleep(REJECTION_DELAY).await;
            }
            let mut response = error.into_response();
            server::close(&mut response);
            return response;
        }
    };
    let (agent, method) = (caller.name().to_owned(), request.method().clone());
    let path = request.uri().path().to_owned();
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    let status = response.status().as_u16();
    tracing::debug!(agent, client, %method, path, status, "request of another machine");
    end_stream_after(response, || Arc::clone(&guard.agents).revoked(secret))
}

#[cfg(test)]
mod tests {
    use monoco_store::sqlite::SqliteStore;

    use super::*;
    use crate::clock::Clock;

    const CONFIG: &str = "courier: {remote: {listen: '0.0.0.0:8646', certificate: /c, key: /k, \
                          names: [hub.example.com, 10.0.0.7]}}";
    const SECRET: &str =
        "Bearer monoco_5ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7";

    /// The code of the rejection; `token` or `open` when the request passes.
    fn outcome(path: &str, headers: &[(&'static str, &str)]) -> &'static str {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let agents = Arc::new(AgentTokens::new(store, Clock::default()));
        let config = Config::parse(CONFIG, &|_| None).unwrap();
        let (_sender, config) = watch::channel(Arc::new(config));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        match RemoteGuard::new(config, agents).check(&path.parse().unwrap(), &map) {
            Ok(Some(_)) => "token",
            Ok(None) => "open",
            Err(error) => error.code,
        }
    }

    #[test]
    fn only_configured_names_and_client_tokens_pass() {
        let (host, token) = (("host", "hub.example.com:8646"), ("authorization", SECRET));
        let owner = SECRET.replace("monoco_", "");
        for (path, headers, expected) in [
            ("/api/v1/events", &[host, token][..], "token"),
            ("/api/v1/events", &[("host", "10.0.0.7"), token], "token"),
            ("/api/v1/events", &[("host", "localhost:8646"), token], "foreign_host"),
            ("/api/v1/events", &[token], "foreign_host"),
            ("/api/v1/events", &[host, host, token], "foreign_host"),
            ("http://other/api/v1/events", &[host, token], "foreign_host"),
            (
                "/api/v1/events",
                &[host, token, ("origin", "https://hub.example.com")],
                "foreign_origin",
            ),
            ("/api/v1/events", &[host, token, ("sec-fetch-site", "none")], "foreign_origin"),
            ("/api/v1/events", &[host], "no_token"),
            ("/api/v1/events", &[host, ("cookie", "monoco=x")], "no_token"),
            ("/api/v1/events", &[host, ("authorization", &owner)], "wrong_token"),
            ("/api/v1/events", &[host, ("authorization", "Basic eA==")], "no_token"),
            ("/api/v1/events", &[host, token, token], "no_token"),
            ("/health", &[host], "open"),
            ("/health?x", &[host], "open"),
            ("/%68ealth", &[host], "no_token"),
            ("/", &[host], "no_token"),
            ("/.well-known/oauth-protected-resource", &[host], "no_route"),
        ] {
            assert_eq!(outcome(path, headers), expected, "{path} {headers:?}");
        }
    }
}
