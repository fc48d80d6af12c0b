//! Checks Host, Origin and token of every request over TCP before routing.
//!
//! A loopback connection does not prove identity: any web page in the user's browser can send
//! requests to it. So three things are checked before a route is selected: the Host (a page
//! that rebinds its own name to 127.0.0.1 sends that name), the Origin (a page cannot omit
//! it), and the token.
//!
//! The token is the owner's, or that of an agent: then the request gets the agent's
//! `super::caller::Caller`, and `super::access` checks what the agent may do.
//!
//! Only `/health` needs no token, and then shows only the status. It is compared with the path
//! before decoding, so that no other spelling of it is exempt. The files of the web page need none
//! either: they contain no data.
//!
//! A browser that is logged in sends a cookie instead of a token. The cookie counts only in requests
//! that the page itself makes: `Sec-Fetch-Site: same-origin` (`none` for GET, an address that the
//! user typed), and for writes the Origin of the page and a JSON body. No other site, and no other
//! server on this machine, can make a browser send such a request.
//!
//! Requests of other machines have a guard of their own, `super::remote_guard`. Requests over the
//! socket in the home directory do not pass this guard: the kernel names the user
//! of the other process, and `server.rs` accepts only the user of the courier.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use monoco_core::token::{TokenHash, TokenSecret};

use super::caller::{AgentTokens, Caller};
use super::error::ApiError;
use super::{input, page, server};
use crate::clock::Clock;
use crate::home::{ApiToken, PageAccess};

/// The accepted values of Host and Origin, and the tokens.
pub struct RequestGuard {
    hosts: Vec<String>,
    origins: Vec<String>,
    parts: GuardParts,
}

/// The tokens and logins that a guard accepts.
pub struct GuardParts {
    pub token: Arc<ApiToken>,
    pub agents: Arc<AgentTokens>,
    pub page: Arc<PageAccess>,
    pub clock: Clock,
}

/// What a request shows to prove who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credential {
    /// Only for `/health`, the files of the page and the login, which need none.
    Missing,
    OwnerToken,
    /// The token of an agent, which is not checked yet.
    AgentToken(TokenHash),
    /// The cookie of a browser that is logged in.
    PageLogin,
}

impl RequestGuard {
    /// The guard of a courier that listens on `address`.
    pub fn new(address: SocketAddr, parts: GuardParts) -> Self {
        let port = address.port();
        let hosts: Vec<_> = ["localhost", "127.0.0.1", "[::1]", parts.page.host()]
            .map(|host| format!("{host}:{port}"))
            .into();
        let origins = hosts.iter().map(|host| format!("http://{host}")).collect();
        Self { hosts, origins, parts }
    }

    /// Checks all but the token of an agent.
    fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Credential, ApiError> {
        let host = only(headers, header::HOST).ok_or_else(ApiError::foreign_host)?;
        if !self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host)) {
            return Err(ApiError::foreign_host());
        }
        // A request to a proxy also names the host in its first line.
        if uri.authority().is_some_and(|it| !it.as_str().eq_ignore_ascii_case(host)) {
            return Err(ApiError::foreign_host());
        }
        if headers.contains_key(header::ORIGIN) {
            let origin = only(headers, header::ORIGIN);
            if !origin.is_some_and(|origin| self.origins.iter().any(|allowed| allowed == origin)) {
                return Err(ApiError::foreign_origin());
            }
        }
        // Also from a link on another site.
        if method.is_safe() && page::is_page_path(uri.path()) {
            return Ok(Credential::Missing);
        }
        let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
        if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
            return Err(ApiError::foreign_origin());
        }
        // Clients that look for OAuth must find that there is none: after a 401 some of them ignore
        // the token that they are configured with.
        if uri.path().starts_with("/.well-known/") {
            return Err(ApiError::no_route());
        }
        if !headers.contains_key(header::AUTHORIZATION) {
            let is_from_page = is_from_page(method, host, headers);
            return match uri.path() {
                page::LOGIN_PATH if is_from_page => Ok(Credential::Missing),
                _ if is_from_page && self.is_logged_in(headers) => Ok(Credential::PageLogin),
                // A browser whose login has ended must learn it.
                "/health" if page::cookie(headers).is_none() => Ok(Credential::Missing),
                _ => Err(ApiError::no_token()),
            };
        }
        let token = only(headers, header::AUTHORIZATION);
        let Some(token) = token.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Err(ApiError::no_token());
        };
        if self.parts.token.matches(token) {
            return Ok(Credential::OwnerToken);
        }
        let secret = TokenSecret::parse(token).ok_or_else(ApiError::wrong_token)?;
        Ok(Credential::AgentToken(secret.hash()))
    }

    /// Whether the cookie of the page is that of a login.
    fn is_logged_in(&self, headers: &HeaderMap) -> bool {
        let GuardParts { page, clock, .. } = &self.parts;
        let secret = page::cookie(headers).and_then(TokenSecret::parse);
        secret.is_some_and(|secret| page.is_logged_in(secret.hash(), clock.now()))
    }

    /// Waits until the credential of the request is not accepted any more.
    fn ended(&self, credential: Credential) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let GuardParts { token, agents, page, .. } = &self.parts;
        match credential {
            Credential::AgentToken(secret) => Box::pin(Arc::clone(agents).revoked(secret)),
            Credential::PageLogin => Box::pin(page.revoked()),
            Credential::OwnerToken | Credential::Missing => Box::pin(token.rotated()),
        }
    }
}

/// Whether the page itself makes the request, and not another site or server.
fn is_from_page(method: &Method, host: &str, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    if method.is_safe() {
        return matches!(site, Some(b"same-origin" | b"none"));
    }
    let origin = only(headers, header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    site == Some(b"same-origin")
        && origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
        && input::content_type(headers) == Some("application/json")
}

/// The value of a header that occurs exactly once, as text.
pub(super) fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Adds the guard in front of all routes of `router`.
pub fn protect(router: Router, guard: RequestGuard) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(guard), check))
}

async fn check(
    State(guard): State<Arc<RequestGuard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let checked = match guard.check(request.method(), request.uri(), request.headers()) {
        Ok(Credential::AgentToken(secret)) => match guard.parts.agents.authenticate(secret).await {
            Ok(token) => Ok((Credential::AgentToken(secret), Caller::Agent(token))),
            Err(error) => Err(error),
        },
        Ok(credential) => Ok((credential, Caller::Owner)),
        Err(error) => Err(error),
    };
    let (credential, caller) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            let mut response = error.into_response();
            server::close(&mut response);
            return response;
        }
    };
    if credential == Credential::Missing {
        let mut response = next.run(request).await;
        server::close(&mut response);
        return response;
    }
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    end_stream_after(response, || guard.ended(credential))
}

/// Ends a stream of events when `ended` completes: with the token that opened it.
pub(super) fn end_stream_after<E: Future<Output = ()> + Send + 'static>(
    response: Response,
    ended: impl FnOnce() -> E,
) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value.as_bytes() != b"text/event-stream") {
        return response;
    }
    let ended = ended();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(ended)))
}

#[cfg(test)]
mod tests {
    use monoco_store::sqlite::SqliteStore;

    use super::*;
    use crate::clock::Clock;
    use crate::home::Home;

    const TOKEN_TEXT: &str = "5ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7";

    /// The status of the response; 203 stands for a request that needs no token, and 202 for the
    /// token of an agent, which is looked up next.
    fn status(path: &str, headers: &[(&'static str, &str)]) -> u16 {
        status_of(&Method::GET, path, headers)
    }

    /// As [`status`]; 201 stands for the cookie of a login. `PAGE` and `SECRET` in a header are
    /// replaced by the host of the page and the secret of a login.
    fn status_of(method: &Method, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().to_owned());
        home.create().unwrap();
        std::fs::write(home.token_path(), TOKEN_TEXT).unwrap();
        let token = Arc::new(ApiToken::open(&home).unwrap());
        let store = Arc::new(SqliteStore::open(&home.store()).unwrap());
        let agents = Arc::new(AgentTokens::new(store, Clock::default()));
        let (page, clock) = (Arc::new(PageAccess::open(&home).unwrap()), Clock::default());
        let code = page.new_code(clock.now()).unwrap();
        let secret = page.log_in(code.hash(), clock.now()).unwrap().unwrap().expose();
        let page_host = format!("{}:8644", page.host());
        let parts = GuardParts { token, agents, page, clock };
        let guard = RequestGuard::new("127.0.0.1:8644".parse().unwrap(), parts);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = value.replace("PAGE", &page_host).replace("SECRET", &secret);
            map.append(*name, value.parse().unwrap());
        }
        guard.check(method, &path.parse().unwrap(), &map).map_or_else(
            |error| error.status.as_u16(),
            |credential| match credential {
                Credential::OwnerToken => 200,
                Credential::PageLogin => 201,
                Credential::AgentToken(_) => 202,
                Credential::Missing => 203,
            },
        )
    }

    const HOST: (&str, &str) = ("host", "localhost:8644");
    const TOKEN: (&str, &str) = (
        "authorization",
        "Bearer 5ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7",
    );

    #[test]
    fn valid_host_origin_and_token_are_accepted() {
        for host in ["localhost:8644", "LOCALHOST:8644", "127.0.0.1:8644", "[::1]:8644"] {
            assert_eq!(status("/api/v1/events", &[("host", host), TOKEN]), 200, "{host}");
        }
        assert_eq!(status("/health", &[HOST]), 203);
        assert_eq!(status("/health", &[HOST, TOKEN]), 200);
        let agent = format!("Bearer monoco_{TOKEN_TEXT}");
        assert_eq!(status("/api/v1/events", &[HOST, ("authorization", &agent)]), 202);
        assert_eq!(status("/health", &[HOST, ("authorization", &agent)]), 202);
        let ours = ("origin", "http://localhost:8644");
        assert_eq!(status("/x", &[HOST, TOKEN, ours, ("sec-fetch-site", "same-origin")]), 200);
    }

    #[test]
    fn wrong_host_origin_or_token_is_rejected() {
        let x = "/api/v1/events";
        assert_eq!(status(x, &[TOKEN]), 403);
        for host in ["evil.test:8644", "localhost", "localhost:1", "localhost:8644.evil.test", ""] {
            assert_eq!(status(x, &[("host", host), TOKEN]), 403, "{host}");
            assert_eq!(status("/health", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(status(x, &[HOST, ("host", "evil.test"), TOKEN]), 403);
        assert_eq!(status("http://evil.test/api/v1/events", &[HOST, TOKEN]), 403);
        for origin in ["null", "http://evil.test", "https://localhost:8644", "http://localhost", ""]
        {
            assert_eq!(status(x, &[HOST, TOKEN, ("origin", origin)]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(status("/health", &[HOST, ("sec-fetch-site", site)]), 403, "{site}");
        }
        assert_eq!(status(x, &[HOST]), 401);
        let [short, long] = [&TOKEN.1[..70], &format!("{}7", TOKEN.1)];
        let basic = format!("Basic {TOKEN_TEXT}");
        let malformed = format!("Bearer monoco_{}", &TOKEN_TEXT[1..]);
        for token in ["Bearer", "Bearer ", short, long, &basic, &malformed, TOKEN_TEXT] {
            assert_eq!(status(x, &[HOST, ("authorization", token)]), 401, "{token}");
            assert_eq!(status("/health", &[HOST, ("authorization", token)]), 401, "{token}");
        }
        assert_eq!(status(x, &[HOST, TOKEN, TOKEN]), 401);
        for path in
            ["oauth-protected-resource", "oauth-protected-resource/mcp", "openid-configuration"]
        {
            assert_eq!(status(&format!("/.well-known/{path}"), &[HOST]), 404, "{path}");
        }
        for path in ["/health/", "//health", "/%68ealth", "/HEALTH", "/x/../health", "/health%00"] {
            assert_eq!(status(path, &[HOST]), 401, "{path}");
        }
    }

    const PAGE: (&str, &str) = ("host", "PAGE");
    const COOKIE: (&str, &str) = ("cookie", "a=b; monoco_page=SECRET");
    const SAME: (&str, &str) = ("sec-fetch-site", "same-origin");

    #[test]
    fn cookie_counts_only_in_requests_of_the_page() {
        let x = "/api/v1/events";
        let json = ("content-type", "application/json");
        let origin = ("origin", "http://PAGE");
        let post = |headers: &[_]| status_of(&Method::POST, x, headers);
        assert_eq!(status(x, &[PAGE, COOKIE, SAME]), 201);
        assert_eq!(status(x, &[PAGE, COOKIE, ("sec-fetch-site", "none")]), 201);
        assert_eq!(status("/health", &[PAGE, COOKIE, SAME]), 201);
        assert_eq!(post(&[PAGE, COOKIE, SAME, origin, json]), 201);
        // Not proven to come from the page.
        assert_eq!(status(x, &[PAGE, COOKIE]), 401);
        assert_eq!(status(x, &[PAGE, COOKIE, ("sec-fetch-site", "same-site")]), 403);
        assert_eq!(status(x, &[PAGE, COOKIE, ("sec-fetch-site", "cross-site")]), 403);
        assert_eq!(post(&[PAGE, COOKIE, SAME, json]), 401);
        assert_eq!(post(&[PAGE, COOKIE, origin, json]), 401);
        assert_eq!(post(&[PAGE, COOKIE, SAME, origin]), 401);
        assert_eq!(post(&[PAGE, COOKIE, SAME, origin, ("content-type", "text/plain")]), 401);
        assert_eq!(post(&[PAGE, COOKIE, ("sec-fetch-site", "none"), origin, json]), 401);
        assert_eq!(post(&[PAGE, COOKIE, SAME, ("origin", "http://localhost:8644"), json]), 401);
        // Not a login.
        for cookie in ["", "monoco_page=", "monoco_page=monoco_00", "other=SECRET"] {
            assert_eq!(status(x, &[PAGE, ("cookie", cookie), SAME]), 401, "{cookie}");
        }
        assert_eq!(status(x, &[PAGE, ("cookie", "monoco_page=SECRET; monoco_page=x"), SAME]), 401);
        assert_eq!(status(x, &[PAGE, SAME, ("authorization", "Bearer SECRET")]), 202);
        assert_eq!(status("/health", &[PAGE, SAME]), 203);
        assert_eq!(status("/health", &[PAGE, SAME, ("cookie", "monoco_page=x")]), 401);
    }

    #[test]
    fn files_of_the_page_and_the_login_need_no_token() {
        for path in ["/", "/assets/app.js", "/assets/views/inbox.js"] {
            assert_eq!(status(path, &[PAGE, ("sec-fetch-site", "cross-site")]), 203, "{path}");
            assert_eq!(status_of(&Method::POST, path, &[PAGE, SAME]), 401, "{path}");
            assert_eq!(status(path, &[("host", "evil.test:8644")]), 403, "{path}");
        }
        for path in ["/assets", "/assetsx", "//", "/api/v1/../../assets/"] {
            assert_eq!(status(path, &[PAGE]), 401, "{path}");
        }
        let (origin, json) = (("origin", "http://PAGE"), ("content-type", "application/json"));
        let log_in = |headers: &[_]| status_of(&Method::POST, page::LOGIN_PATH, headers);
        assert_eq!(log_in(&[PAGE, SAME, origin, json]), 203);
        assert_eq!(log_in(&[PAGE, origin, json]), 401);
        assert_eq!(log_in(&[PAGE, SAME, ("origin", "http://evil.test"), json]), 403);
        assert_eq!(log_in(&[PAGE, SAME, json]), 401);
    }
}
