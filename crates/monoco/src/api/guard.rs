//! Who may come in. One layer in front of every route, also of those that do not
//! exist.
//!
//! Loopback is not identity: any web page in the user's browser can send requests
//! here. So three things must be right before a route is even looked for: the
//! Host (a page that rebinds its name to 127.0.0.1 sends its own), the Origin
//! (a page can't leave it out), and the token.
//!
//! Only `/health` needs no token. It is compared with the path as it came: a path
//! that spells it in another way is no exception.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// What a request must show.
#[derive(Debug)]
pub struct RequestGuard {
    hosts: Vec<String>,
    origins: Vec<String>,
    token: String,
}

impl RequestGuard {
    /// The door of a courier that listens on `address`.
    pub fn new(address: SocketAddr, token: String) -> Self {
        let port = address.port();
        let hosts: Vec<_> =
            ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}")).into();
        let origins = hosts.iter().map(|host| format!("http://{host}")).collect();
        Self { hosts, origins, token }
    }

    fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = only(headers, header::HOST).ok_or_else(ApiError::foreign_host)?;
        if !self.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host)) {
            return Err(ApiError::foreign_host());
        }
        // A proxy's request names the host in its first line as well.
        if uri.authority().is_some_and(|it| !it.as_str().eq_ignore_ascii_case(host)) {
            return Err(ApiError::foreign_host());
        }
        if headers.contains_key(header::ORIGIN) {
            let origin = only(headers, header::ORIGIN);
            if !origin.is_some_and(|origin| self.origins.iter().any(|ours| ours == origin)) {
                return Err(ApiError::foreign_origin());
            }
        }
        let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
        if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
            return Err(ApiError::foreign_origin());
        }
        if uri.path() == "/health" {
            return Ok(());
        }
        let shown = only(headers, header::AUTHORIZATION);
        let Some(shown) = shown.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Err(ApiError::no_token());
        };
        if bool::from(shown.as_bytes().ct_eq(self.token.as_bytes())) {
            Ok(())
        } else {
            Err(ApiError::wrong_token())
        }
    }
}

/// The value of a header that is there once, in plain text.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The layer.
pub async fn check(
    State(door): State<Arc<RequestGuard>>,
    request: Request,
    next: Next,
) -> Response {
    match door.admit(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let door = RequestGuard::new("127.0.0.1:8644".parse().unwrap(), "secret".to_owned());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        door.admit(&path.parse().unwrap(), &map).map_or_else(|p| p.status.as_u16(), |()| 200)
    }

    const HOST: (&str, &str) = ("host", "localhost:8644");
    const TOKEN: (&str, &str) = ("authorization", "Bearer secret");

    #[test]
    fn what_opens_the_door() {
        for host in ["localhost:8644", "LOCALHOST:8644", "127.0.0.1:8644", "[::1]:8644"] {
            assert_eq!(admit("/api/v1/events", &[("host", host), TOKEN]), 200, "{host}");
        }
        assert_eq!(admit("/health", &[HOST]), 200);
        let ours = ("origin", "http://localhost:8644");
        assert_eq!(admit("/x", &[HOST, TOKEN, ours, ("sec-fetch-site", "same-origin")]), 200);
    }

    #[test]
    fn what_does_not() {
        let x = "/api/v1/events";
        assert_eq!(admit(x, &[TOKEN]), 403);
        for host in ["evil.test:8644", "localhost", "localhost:1", "localhost:8644.evil.test", ""] {
            assert_eq!(admit(x, &[("host", host), TOKEN]), 403, "{host}");
            assert_eq!(admit("/health", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(admit(x, &[HOST, ("host", "evil.test"), TOKEN]), 403);
        assert_eq!(admit("http://evil.test/api/v1/events", &[HOST, TOKEN]), 403);
        for origin in ["null", "http://evil.test", "https://localhost:8644", "http://localhost", ""]
        {
            assert_eq!(admit(x, &[HOST, TOKEN, ("origin", origin)]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(admit("/health", &[HOST, ("sec-fetch-site", site)]), 403, "{site}");
        }
        assert_eq!(admit(x, &[HOST]), 401);
        for token in
            ["Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "secret"]
        {
            assert_eq!(admit(x, &[HOST, ("authorization", token)]), 401, "{token}");
        }
        assert_eq!(admit(x, &[HOST, TOKEN, TOKEN]), 401);
        for path in ["/health/", "//health", "/%68ealth", "/HEALTH", "/x/../health", "/health%00"] {
            assert_eq!(admit(path, &[HOST]), 401, "{path}");
        }
    }
}
