//! The web page: its files, and the login of browsers.
//!
//! The files are those of `page/` in the repository, without a build step. They contain no data
//! and are served without a token; the page then reads data through the API like any client.
//! [`super::guard`] decides which requests of a browser count as the owner's.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use monoco_core::page_login::{CODE_LIFETIME, LOGIN_LIFETIME};
use monoco_core::token::TokenSecret;
use serde::{Deserialize, Serialize};

use super::compression::{accepts_gzip, compress};
use super::error::ApiError;
use super::input::JsonBody;
use crate::clock::Clock;
use crate::home::PageAccess;

mod assets;

/// Where the page sends the code of `monoco open`.
pub const LOGIN_PATH: &str = "/api/v1/login";

/// Name of the cookie with the secret of a browser.
const COOKIE: &str = "monoco_page";

/// Scripts, styles and requests only from this courier, and no text becomes markup or code.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; frame-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";

/// What the routes of the page work with.
#[derive(Clone)]
struct PageState {
    access: Arc<PageAccess>,
    clock: Clock,
}

/// The code of `monoco open`, as the page sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginBody {
    code: String,
}

/// A code that logs in one browser, and the host of the page.
#[derive(Debug, Serialize, Deserialize)]
pub struct LoginCode {
    pub code: String,
    pub host: String,
    pub lifetime_s: u64,
}

/// How many browsers were logged out.
#[derive(Debug, Serialize, Deserialize)]
pub struct RevokedLogins {
    pub revoked: usize,
}

/// Whether the path is one of the page's files, before decoding.
pub fn is_page_path(path: &str) -> bool {
    path == "/" || path.strip_prefix("/assets/").is_some_and(|name| !name.is_empty())
}

/// The secret in the cookie of the page. `None` when there is none, or more than one: a second
/// cookie of this name can only come from another server.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter();
    let mut found = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    let secret = found.next()?;
    found.next().is_none().then_some(secret)
}

/// Adds the files of the page and the login, for requests over TCP, and compresses what a browser
/// reads.
pub fn with_page(router: Router, access: Arc<PageAccess>, clock: Clock) -> Router {
    let routes = Router::new()
        .route("/", get(async |headers: HeaderMap| serve("index.html", &headers)))
        .route(
            "/assets/{*name}",
            get(async |Path(name): Path<String>, headers: HeaderMap| serve(&name, &headers)),
        )
        .route(LOGIN_PATH, post(log_in))
        .with_state(PageState { access, clock });
    router.layer(middleware::from_fn(compress)).merge(routes)
}

/// Adds the routes of `monoco open`, which only the socket serves: a stolen token cannot log in a
/// browser.
pub fn with_socket_routes(router: Router, access: Arc<PageAccess>, clock: Clock) -> Router {
    let routes = Router::new()
        .route("/api/v1/login/codes", post(new_code))
        .route("/api/v1/login/revoke", post(revoke))
        .with_state(PageState { access, clock });
    router.merge(routes)
}

/// One file of the page, compressed when the browser accepts it.
fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = assets::find(name) else {
        return ApiError::no_route().into_response();
    };
    let is_known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == asset.etag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else if accepts_gzip(headers) {
        let encoding = (header::CONTENT_ENCODING, "gzip");
        ([encoding], asset.compressed.as_slice()).into_response()
    } else {
        asset.bytes.into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, asset.content_type),
        // Checked by its ETag each time: a new courier serves new files.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(etag) = HeaderValue::from_str(&asset.etag) {
        headers.insert(header::ETAG, etag);
    }
    response
}

async fn log_in(
    State(PageState { access, clock }): State<PageState>,
    JsonBody(LoginBody { code }): JsonBody<LoginBody>,
) -> Result<Response, ApiError> {
    let code = TokenSecret::parse(&code).ok_or_else(ApiError::invalid_login_code)?;
    let secret = access.log_in(code.hash(), clock.now());
    let secret = secret.map_err(|error| ApiError::login_not_stored(&error))?;
    let secret = secret.ok_or_else(ApiError::invalid_login_code)?;
    tracing::info!("browser logged in");
    let cookie = format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
        secret.expose(),
        LOGIN_LIFETIME.as_secs()
    );
    let headers = [(header::SET_COOKIE, cookie), (header::CACHE_CONTROL, "no-store".to_owned())];
    Ok((StatusCode::NO_CONTENT, headers).into_response())
}

async fn new_code(
    State(PageState { access, clock }): State<PageState>,
) -> Result<axum::Json<LoginCode>, ApiError> {
    let code = access.new_code(clock.now());
    let code = code.map_err(|error| ApiError::login_not_stored(&error))?.expose();
    let host = access.host().to_owned();
    Ok(axum::Json(LoginCode { code, host, lifetime_s: CODE_LIFETIME.as_secs() }))
}

async fn revoke(
    State(PageState { access, .. }): State<PageState>,
) -> Result<axum::Json<RevokedLogins>, ApiError> {
    let revoked = access.revoke_all().map_err(|error| ApiError::login_not_stored(&error))?;
    tracing::info!(revoked, "browsers logged out");
    Ok(axum::Json(RevokedLogins { revoked }))
}
